//! Detection of new libraries at calls of `dlsym`, used where the loader's `_r_debug` does not suffice.
//!
//! A program that opens a library next looks up a symbol in that library. The new library is examined before the
//! lookup. This is needed in two cases. Either a debugger occupies `_r_debug.r_brk` (gdb, in a process that it
//! started), or the new library contains an unwinder, and its functions cannot be called yet when `_r_debug.r_brk`
//! announces it.
//!
//! The hook jumps to `dlsym` instead of calling it, because `dlsym` inspects its caller (`RTLD_NEXT`). Only slots of
//! relocated libraries are changed, because the loader would otherwise add the load bias to the hook's address in a
//! lazy slot.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jitlisten::log_line;

use crate::process::detour::HookFunction;
use crate::process::library::Library;
use crate::process::mapped_proof::{Identity, Mapped};
use crate::process::slot::{KeptSlot, Slot};

/// Address of libc's `dlsym`, the jump target of [`before_dlsym`](crate::hooks::dlsym_entry::before_dlsym).
pub(crate) static DLSYM: AtomicUsize = AtomicUsize::new(0);

/// True if every call of `dlsym` must check for new libraries, because nothing else announces that a library was opened
/// or closed. In this mode, libraries are patched only during such a check, while no library can be loaded or unloaded.
pub(crate) static CHECK_ALWAYS: AtomicBool = AtomicBool::new(false);

/// True if the next call of `dlsym` must check once for new libraries, because a library was not relocated at the last
/// check.
pub(crate) static CHECK_ONCE: AtomicBool = AtomicBool::new(false);

/// True if there may be a library with an unwinder that has not been examined yet. Initially true.
pub(crate) static UNWINDERS_PENDING: AtomicBool = AtomicBool::new(true);

/// Requests a search for unwinders if the library exports a function that registers code with an unwinder. The
/// `unwind-register` crate performs the search.
pub(crate) fn request_unwinder_search(library: &Library<'_>) {
    if ["__register_frame", "_U_dyn_register"].into_iter().any(|name| library.exports(name)) {
        UNWINDERS_PENDING.store(true, Ordering::Release);
    }
}

/// Import slots of `dlsym` that have not been hooked yet.
#[derive(Default)]
pub(crate) struct DlsymSlots {
    /// Hook to store in the slots; `None` as long as `dlsym` need not be hooked.
    before_dlsym: Option<HookFunction>,
    /// Slots of libraries that the loader has not relocated yet.
    unrelocated: Vec<KeptSlot>,
}

impl DlsymSlots {
    /// Starts to hook `dlsym`. Returns true on the first call.
    pub(crate) fn activate(&mut self, before_dlsym: HookFunction) -> bool {
        DLSYM.store(libc::dlsym as *const () as usize, Ordering::Release);
        self.before_dlsym.replace(before_dlsym).is_none()
    }

    /// Collects the `dlsym` slots of a new library.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        if self.before_dlsym.is_some() {
            let slots = library.import_slots("dlsym");
            self.unrelocated.extend(slots.into_iter().map(Slot::keep));
        }
    }

    /// Returns true if there are slots that the loader has not relocated yet.
    pub(crate) fn has_unrelocated(&self) -> bool {
        !self.unrelocated.is_empty()
    }

    /// Hooks the slots that the loader has relocated.
    pub(crate) fn hook_relocated(&mut self, mapped: Mapped<'_>) {
        let Some(before_dlsym) = self.before_dlsym else { return };
        self.unrelocated.retain(|kept| {
            let Some(slot) = kept.resolve(mapped).filter(|slot| slot.is_relocated()) else { return true };
            // SAFETY: the slot is for `dlsym`, and the hook jumps to `dlsym`.
            if let Err(error) = unsafe { slot.write(before_dlsym as usize) } {
                log_line!(Info, "could not hook dlsym of a library: {error}");
            }
            false
        });
    }

    /// Removes the slots of a closed library.
    pub(crate) fn forget(&mut self, library: Identity) {
        self.unrelocated.retain(|slot| slot.library() != library);
    }
}
