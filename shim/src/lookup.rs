//! The second way to notice new libraries: calls of `dlsym`, from every library, come by here first.
//!
//! A program that opens a library looks something up in it next, and before that call returns, we look at the new library. It is
//! needed in two cases: a debugger sits at the loader's rendezvous (gdb does, in a process it has started); or a library with
//! an unwinder in it came, which the loader's rendezvous announces before the library can be called.
//!
//! The call itself is passed on by a jump, not made again, because `dlsym` looks at its caller (`RTLD_NEXT`). Only relocation
//! slots of relocated libraries are changed; a lazy one that has not been would be adjusted by the loader again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jitlisten::{HostStateGuard, log_line};

use crate::detour::{before_dlsym, write_pointer};
use crate::hooks::{caught, enter};
use crate::library::{Library, Slot};
use crate::loader::with_libraries_held;
use crate::state::Shim;

/// Where [`before_dlsym`] jumps when we have looked.
pub(crate) static DLSYM: AtomicUsize = AtomicUsize::new(0);

/// Whether every call is to look: nothing else announces new libraries.
pub(crate) static ALWAYS: AtomicBool = AtomicBool::new(false);

/// Whether the next call is to look, once: a library was not relocated.
pub(crate) static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether a library with an unwinder has come and was not looked at; at first all of them.
pub(crate) static UNWINDERS: AtomicBool = AtomicBool::new(true);

/// Called by [`before_dlsym`], with the caller's registers saved.
pub(crate) unsafe extern "C" fn look() {
    let (always, wanted) = (ALWAYS.load(Ordering::Acquire), WANTED.swap(false, Ordering::AcqRel));
    if !always && !wanted {
        return;
    }
    let host_state = HostStateGuard::enter();
    let Some(entered) = enter() else {
        // From inside: the loader's locks may be held, and what is to be seen stays so.
        WANTED.fetch_or(wanted, Ordering::AcqRel);
        return;
    };
    if always {
        with_libraries_held(|counts| caught(|shim| shim.libraries_may_have_changed(counts)));
    }
    // Not with the libraries held: it takes the loader's other lock.
    caught(Shim::look_for_unwinders);
    drop(entered);
    drop(visit);
}

/// The slots of libraries that are still to be changed.
#[derive(Default)]
pub(crate) struct Lookups {
    active: bool,
    waiting: Vec<(usize, Slot)>,
}

impl Lookups {
    /// From now on, lookups announce new libraries. Returns whether they did not before.
    pub(crate) fn activate(&mut self) -> bool {
        DLSYM.store(libc::dlsym as *const () as usize, Ordering::Release);
        !std::mem::replace(&mut self.active, true)
    }

    /// A library has come.
    pub(crate) fn add(&mut self, library: &Library) {
        if self.active {
            let slots = library.import_slots("dlsym");
            self.waiting.extend(slots.into_iter().map(|slot| (library.identity.bias, slot)));
        }
    }

    /// Whether there are slots that the loader was not done with.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Changes the slots that the loader has relocated.
    ///
    /// # Safety
    /// The libraries that were added must be mapped.
    pub(crate) unsafe fn change_relocated(&mut self) {
        self.waiting.retain(|&(_, slot)| {
            // SAFETY: the caller vouches for the mapping.
            if !unsafe { slot.is_relocated() } {
                return true;
            }
            // SAFETY: an aligned word of the library's data, which the loader is done with.
            let written = unsafe { write_pointer(slot.address, before_dlsym as *const () as usize, slot.protection) };
            if let Err(error) = written {
                log_line!(Info, "dlsym of a library cannot be listened to: {error}");
            }
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, bias: usize) {
        self.waiting.retain(|waiting| waiting.0 != bias);
    }
}
