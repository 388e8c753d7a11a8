//! The relocation slots through which libraries call the functions that we replace.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;

use super::hooks::HOOKED;
use super::real::{find_real, real};
use super::unwind_names;
use crate::process::held::{Identity, Mapped};
use crate::process::library::Library;
use crate::process::relocation_slot::bind_from_the_start;
use crate::process::slot::{KeptSlot, Slot};

/// Whether libraries are hooked. Checked without a lock, set under the shim's.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// File names, up to their first digit, dot or dash behind `lib`, of libraries that keep the loader's own functions.
const LEFT_ALONE: [&str; 9] = ["gcc_s", "unwind", "asan", "hwasan", "lsan", "msan", "tsan", "ubsan", "clang_rt"];

/// The slots of libraries that the loader was not done with.
#[derive(Default)]
pub(crate) struct Imports {
    waiting: Vec<(KeptSlot, usize)>,
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

    /// A library of the program's own namespace has come. It must not be relocated by another thread meanwhile.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        if !Self::are_hooked() || is_left_alone(library) {
            return;
        }
        for slot in unwind_names::names().flat_map(|name| library.import_slots(name)) {
            // What is not relocated yet will be bound to ours.
            if let Some(ours) = unwind_names::hook_of(slot.value()) {
                // SAFETY: the hook of the function that it leads to.
                let _ = unsafe { slot.write(ours) };
            }
        }
        let names = HOOKED.map(|hooked| hooked.0);
        for name in library.imported(&names) {
            let Some(function) = names.iter().position(|&other| other == name) else { continue };
            let slots = library.import_slots(name);
            if slots.iter().all(|slot| slot.is_relocated()) {
                slots.into_iter().for_each(|slot| hook(library, slot, function));
                continue;
            }
            // SAFETY: our function of this name.
            let bound = unsafe { bind_from_the_start(library, name, HOOKED[function].1(), real(function) != 0) };
            if let Err(error) = bound {
                log_line!(Info, "{}: {name} is hooked later: {error}", library.path.display());
                self.waiting.extend(slots.into_iter().map(|slot| (slot.keep(), function)));
            }
        }
    }

    /// Changes the slots that the loader has relocated by now.
    pub(crate) fn change_relocated(&mut self, mapped: Mapped<'_>) {
        self.waiting.retain(|&(kept, function)| {
            let Some(slot) = kept.of(mapped).filter(|slot| slot.is_relocated()) else { return true };
            // SAFETY: a slot of the function that ours has the name of.
            let _ = unsafe { slot.write(HOOKED[function].1()) };
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, library: Identity) {
        self.waiting.retain(|(slot, _)| slot.library() != library);
        unwind_names::library_closed(library.bias);
    }
}

/// Points one slot of a function to ours, if it is relocated and points to the original or was never called.
fn hook(library: &Library<'_>, slot: Slot<'_>, function: usize) {
    let value = slot.value();
    if value != real(function) && !library.range().contains(&value) {
        return;
    }
    // SAFETY: a slot of the function that ours has the name of.
    if let Err(error) = unsafe { slot.write(HOOKED[function].1()) } {
        log_line!(Info, "{}: could not hook {}: {error}", library.path.display(), HOOKED[function].0);
    }
}

/// Unwinders that compiled code is registered with, sanitizers, and the library that this code is in.
fn is_left_alone(library: &Library<'_>) -> bool {
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
