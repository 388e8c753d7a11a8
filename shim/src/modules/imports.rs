//! Import slots through which libraries call the functions that list modules.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;

use super::hooks::HOOKS;
use super::originals::{find_originals, original};
use super::unwind_names;
use crate::process::library::Library;
use crate::process::mapped_proof::{Identity, Mapped};
use crate::process::slot::{KeptSlot, Slot};

/// True once libraries are hooked. Read without a lock, and set under the shim's lock.
static IMPORTS_ARE_HOOKED: AtomicBool = AtomicBool::new(false);

/// Libraries that keep calling the loader's own functions. Each name is the part of the file name after `lib`, up to
/// the first dot or dash.
const IGNORED_LIBRARIES: [&str; 9] = ["gcc_s", "unwind", "asan", "hwasan", "lsan", "msan", "tsan", "ubsan", "clang_rt"];

/// Hooks of import slots in all libraries.
#[derive(Default)]
pub(crate) struct Imports {
    /// Import slots that the loader has not relocated yet, each with the index of its function.
    pending_slots: Vec<(KeptSlot, usize)>,
}

impl Imports {
    pub(crate) fn are_hooked() -> bool {
        IMPORTS_ARE_HOOKED.load(Ordering::Acquire)
    }

    /// Starts hooking libraries. Returns true if they were not hooked before.
    pub(crate) fn activate() -> bool {
        !IMPORTS_ARE_HOOKED.swap(true, Ordering::AcqRel)
    }

    /// Looks up the original functions. Takes the loader's lock.
    pub(crate) fn prepare() {
        find_originals();
    }

    /// Hooks a new library in the program's own namespace. No other thread may be relocating the library meanwhile.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        if !Self::are_hooked() || is_ignored(library) {
            return;
        }
        for slot in unwind_names::hooked_names().flat_map(|name| library.import_slots(name)) {
            // The loader will bind slots that are not relocated yet to our hook.
            if let Some(hook) = unwind_names::find_hook(slot.value()) {
                // SAFETY: `hook` replaces exactly the function that the slot points to.
                let _ = unsafe { slot.write(hook) };
            }
        }
        let names = HOOKS.map(|entry| entry.0);
        for name in library.imported(&names) {
            let Some(function) = names.iter().position(|&candidate| candidate == name) else { continue };
            let slots = library.import_slots(name);
            if slots.iter().all(|slot| slot.is_relocated()) {
                slots.into_iter().for_each(|slot| hook_slot(library, slot, function));
                continue;
            }
            // SAFETY: our hook has the type of the function with this name.
            let bound = unsafe { library.bind_before_relocation(name, HOOKS[function].1(), original(function) != 0) };
            if let Err(error) = bound {
                log_line!(Info, "{}: {name} is hooked later: {error}", library.path.display());
                self.pending_slots.extend(slots.into_iter().map(|slot| (slot.keep(), function)));
            }
        }
    }

    /// Patches the slots that the loader has relocated by now.
    pub(crate) fn hook_relocated(&mut self, mapped: Mapped<'_>) {
        self.pending_slots.retain(|&(kept_slot, function)| {
            let Some(slot) = kept_slot.resolve(mapped).filter(|slot| slot.is_relocated()) else { return true };
            // SAFETY: the slot is for the function that the hook replaces.
            let _ = unsafe { slot.write(HOOKS[function].1()) };
            false
        });
    }

    pub(crate) fn forget(&mut self, library: Identity) {
        self.pending_slots.retain(|(slot, _)| slot.library() != library);
        unwind_names::release_copy(library.bias);
    }
}

/// Points a slot to our hook, provided that the slot is relocated and either points to the original function or has
/// never been called through.
fn hook_slot(library: &Library<'_>, slot: Slot<'_>, function: usize) {
    let value = slot.value();
    if value != original(function) && !library.range().contains(&value) {
        return;
    }
    // SAFETY: the slot is for the function that the hook replaces.
    if let Err(error) = unsafe { slot.write(HOOKS[function].1()) } {
        library.log_unhooked(HOOKS[function].0, &error);
    }
}

/// Returns true for sanitizers, for our own library, and for unwinders that know compiled code by registration.
fn is_ignored(library: &Library<'_>) -> bool {
    let our_function = HOOKS[0].1();
    if library.range().contains(&our_function) && !library.is_program() {
        return true;
    }
    let name = library.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(stem) = name.strip_prefix("lib") else { return false };
    let library_name = stem.split(['.', '-']).next().unwrap_or_default();
    // nongnu libunwind is `libunwind.so.8`. LLVM's libunwind is `libunwind.so.1` and lacks `_U_dyn_register`.
    IGNORED_LIBRARIES.contains(&library_name) && !unwind_names::is_libunwind(library)
}
