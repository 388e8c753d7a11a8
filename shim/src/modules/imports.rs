//! The relocation slots through which libraries call the functions that we replace.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;

use super::hooks::HOOKED;
use super::real::{find_real, real};
use super::unwind_names;
use crate::process::detour::write_pointer;
use crate::process::library::{Library, Slot};
use crate::process::relocation_slot::bind_from_the_start;

/// Whether libraries are hooked. Checked without a lock, set under the shim's.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// File names, up to their first digit, dot or dash behind `lib`, of libraries that keep the loader's own functions.
const LEFT_ALONE: [&str; 9] = ["gcc_s", "unwind", "asan", "hwasan", "lsan", "msan", "tsan", "ubsan", "clang_rt"];

/// The slots of libraries that the loader was not done with.
#[derive(Default)]
pub(crate) struct Imports {
    waiting: Vec<(usize, Slot, usize)>,
}

impl Imports {
    /// Whether libraries are hooked.
    pub(crate) fn are_hooked() -> bool {
        ACTIVE.load(Ordering::Acquire)
    }

    /// From now on, libraries are to be added. Returns whether they were not before.
    pub(crate) fn activate() -> bool {
        !ACTIVE.swap(true, Ordering::AcqRel)
    }

    /// Finds the originals of our functions. Takes the loader's lock.
    pub(crate) fn prepare() {
        find_real();
    }

    /// A library of the program's own namespace has come.
    ///
    /// # Safety
    /// The library must be mapped, and stay so during the call; it must not be relocated by another thread meanwhile.
    pub(crate) unsafe fn add(&mut self, library: &Library) {
        if !Self::are_hooked() || is_left_alone(library) {
            return;
        }
        for slot in unwind_names::names().flat_map(|name| library.import_slots(name)) {
            // SAFETY: the caller vouches for the mapping. What is not relocated yet will be bound to ours.
            if let Some(ours) = unwind_names::hook_of(unsafe { slot.value() }) {
                // SAFETY: an aligned word of the library's data, which the loader is done with.
                let _ = unsafe { write_pointer(slot.address, ours, slot.protection) };
            }
        }
        let names = HOOKED.map(|hooked| hooked.0);
        for name in library.imported(&names) {
            let Some(function) = names.iter().position(|&other| other == name) else { continue };
            let slots = library.import_slots(name);
            // SAFETY: the caller vouches for the mapping.
            if slots.iter().all(|slot| unsafe { slot.is_relocated() }) {
                for slot in slots {
                    // SAFETY: as above, and the loader is done with it.
                    unsafe { hook(library, slot, function) };
                }
                continue;
            }
            // SAFETY: the loader has not come to it yet.
            let bound = unsafe { bind_from_the_start(library, name, HOOKED[function].1(), real(function) != 0) };
            if let Err(error) = bound {
                log_line!(Info, "{}: {name} is hooked later: {error}", library.path.display());
                self.waiting.extend(slots.into_iter().map(|slot| (library.identity.bias, slot, function)));
            }
        }
    }

    /// Changes the slots that the loader has relocated by now.
    ///
    /// # Safety
    /// The libraries that were added must be mapped.
    pub(crate) unsafe fn change_relocated(&mut self) {
        self.waiting.retain(|&(_, slot, function)| {
            // SAFETY: the caller vouches for the mapping.
            if !unsafe { slot.is_relocated() } {
                return true;
            }
            // SAFETY: an aligned word of the library's data, which the loader is done with.
            let _ = unsafe { write_pointer(slot.address, HOOKED[function].1(), slot.protection) };
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, bias: usize) {
        self.waiting.retain(|waiting| waiting.0 != bias);
        unwind_names::library_closed(bias);
    }
}

/// Points one slot to our function, if it points to the original or was never called.
///
/// # Safety
/// The library must be mapped, and the slot relocated.
unsafe fn hook(library: &Library, slot: Slot, function: usize) {
    // SAFETY: the caller vouches for the mapping.
    let value = unsafe { slot.value() };
    if value != real(function) && !library.range().contains(&value) {
        return;
    }
    // SAFETY: an aligned word of the library's data, which the loader is done with.
    if let Err(error) = unsafe { write_pointer(slot.address, HOOKED[function].1(), slot.protection) } {
        log_line!(Info, "{}: could not hook {}: {error}", library.path.display(), HOOKED[function].0);
    }
}

/// Unwinders that compiled code is registered with, sanitizers, and the library that this code is in.
fn is_left_alone(library: &Library) -> bool {
    let ours = HOOKED[0].1();
    if library.range().contains(&ours) && !library.is_program() {
        return true;
    }
    let name = library.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(rest) = name.strip_prefix("lib") else { return false };
    let word = rest.split(['.', '-']).next().unwrap_or_default();
    // nongnu libunwind is `libunwind.so.8`; LLVM's is `libunwind.so.1` and has no `_U_dyn_register`.
    LEFT_ALONE.contains(&word) && !unwind_names::is_libunwind(library)
}
