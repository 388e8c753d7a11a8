//! The second way to detect new libraries: every library's calls of `dlsym` pass through here.
//!
//! A program that opens a library next looks up a symbol in it; before that call returns, we look at the new library.
//! This is needed in two cases: a debugger occupies `_r_debug.r_brk` (gdb, in a process that it started), or a new
//! library contains an unwinder, which `_r_debug.r_brk` announces before the library can be called.
//!
//! The call is passed on with a jump, because `dlsym` inspects its caller (`RTLD_NEXT`). Only relocation slots of
//! relocated libraries are changed; the loader would relocate an unresolved lazy slot again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jitlisten::log_line;

use crate::hook_table::HookFunction;
use crate::process::held::{Identity, Mapped};
use crate::process::library::Library;
use crate::process::slot::{KeptSlot, Slot};

/// Where [`before_dlsym`](crate::process::dlsym_entry::before_dlsym) jumps when we have looked.
pub(crate) static DLSYM: AtomicUsize = AtomicUsize::new(0);

/// Whether every call is to look: nothing else announces new libraries, nor that one is closed. Other libraries' words
/// are changed only in that look, while none can come or go.
pub(crate) static ALWAYS: AtomicBool = AtomicBool::new(false);

/// Whether the next call is to look, once: a library was not relocated.
pub(crate) static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether a library with an unwinder has come and was not looked at; at first all of them.
pub(crate) static UNWINDERS: AtomicBool = AtomicBool::new(true);

/// The slots of libraries that are still to be changed.
#[derive(Default)]
pub(crate) struct Lookups {
    /// What the slots lead to, once that is wanted.
    before_dlsym: Option<HookFunction>,
    waiting: Vec<KeptSlot>,
}

impl Lookups {
    /// From now on, lookups announce new libraries. Returns whether they did not before.
    pub(crate) fn activate(&mut self, before_dlsym: HookFunction) -> bool {
        DLSYM.store(libc::dlsym as *const () as usize, Ordering::Release);
        self.before_dlsym.replace(before_dlsym).is_none()
    }

    /// A library has come.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        if self.before_dlsym.is_some() {
            let slots = library.import_slots("dlsym");
            self.waiting.extend(slots.into_iter().map(Slot::keep));
        }
    }

    /// Whether there are slots that the loader was not done with.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Changes the slots that the loader has relocated.
    pub(crate) fn change_relocated(&mut self, mapped: Mapped<'_>) {
        let Some(before_dlsym) = self.before_dlsym else { return };
        self.waiting.retain(|kept| {
            let Some(slot) = kept.of(mapped).filter(|slot| slot.is_relocated()) else { return true };
            // SAFETY: a slot of `dlsym`, to which the hook jumps.
            if let Err(error) = unsafe { slot.write(before_dlsym as usize) } {
                log_line!(Info, "could not hook dlsym of a library: {error}");
            }
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, library: Identity) {
        self.waiting.retain(|waiting| waiting.library() != library);
    }
}
