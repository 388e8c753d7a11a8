//! Memory calls made by the program and by libraries without LLVM. A product may split LLVM across several libraries,
//! and a host may have its own memory manager (LLVM-C `LLVMCreateSimpleMCJITMemoryManager`) that calls libc's
//! `mprotect` itself.
//!
//! Once LLVM is detected in the process, the relocation slots of all libraries are patched. This also works with
//! `RTLD_DEEPBIND`. Two kinds of slots are not patched:
//!
//! * slots that point to a function other than the one our hook forwards to: another tool's, or another namespace's
//!   (`dlmopen(3)`);
//! * slots of the library that defines that function, because our hook would call itself: libc, its replacement, or a
//!   non-PIE program that takes the address of `mprotect` and thereby makes all libraries use the program's symbol.
//!
//! `hooks/unlocked.rs` forwards calls that do not concern code without taking a lock.

use jitlisten::log_line;

use crate::hook_table::HookTable;
use crate::memory::import_slots::MEMORY_IMPORTS;
use crate::process::forward::{self, Function};
use crate::process::library::Library;
use crate::process::mapped_proof::{Identity, Mapped};
use crate::process::slot::KeptSlot;

/// Symbol of LLVM's memory allocator; any library that contains the allocator may export it.
const LLVM_ALLOCATOR: &str = "_ZN4llvm3sys6Memory20allocateMappedMemoryEmPKNS0_11MemoryBlockEjRSt10error_code";

/// Import slots of libraries without LLVM.
#[derive(Default)]
pub(crate) struct OtherLibraries {
    is_active: bool,
    /// Slots that the loader has not relocated yet.
    unrelocated: Vec<UnrelocatedSlot>,
}

/// An import slot that will be hooked once the loader has relocated it.
struct UnrelocatedSlot {
    slot: KeptSlot,
    /// Address range of the library that contains the slot.
    library: std::ops::Range<usize>,
    function: Function,
    hook: usize,
}

impl OtherLibraries {
    /// Starts to hook the libraries that are added from now on. Returns true on the first call.
    pub(crate) fn activate(&mut self) -> bool {
        !std::mem::replace(&mut self.is_active, true)
    }

    /// Collects the slots of a new library that is in the program's namespace and is not a source. `is_unnamed` is true
    /// if no other channel observes the library's code.
    pub(crate) fn add(&mut self, library: &Library<'_>, hooks: &HookTable, is_unnamed: bool) {
        if !self.is_active || library.is_jitlisten() {
            return;
        }
        let range = library.range();
        let slots = library.slots_of_imports(MEMORY_IMPORTS.map(|(name, _)| name));
        let is_unnamed = !slots.is_empty() && is_unnamed;
        let allocates_for_llvm = is_unnamed || !slots.is_empty() && library.exports(LLVM_ALLOCATOR);
        let hook = |function| match function {
            Function::Mprotect if is_unnamed => hooks.mprotect_unnamed as usize,
            _ if allocates_for_llvm => hooks.memory_hook_for(library, function),
            _ => (hooks.memory_without_llvm)(function),
        };
        // The library may compile code before the loader's next event, so make the loader bind its imports to our
        // hooks.
        if is_unnamed && !library.section.is_relocated() {
            let bind = |(name, function): (&str, Function)| {
                // SAFETY: our hook is designed to be called in place of the function with this name.
                unsafe { library.bind_before_relocation(name, hook(function), false) }
            };
            if MEMORY_IMPORTS.into_iter().try_for_each(bind).is_ok() {
                return;
            }
        }
        for (slot, import) in slots {
            let function = MEMORY_IMPORTS[import].1;
            if !range.contains(&forward::libc_address(function)) {
                let (slot, library, hook) = (slot.keep(), range.clone(), hook(function));
                self.unrelocated.push(UnrelocatedSlot { slot, library, function, hook });
            }
        }
    }

    /// Returns true if there are slots that the loader has not relocated yet.
    pub(crate) fn has_unrelocated(&self) -> bool {
        !self.unrelocated.is_empty()
    }

    /// Hooks the slots that the loader has relocated.
    pub(crate) fn hook_relocated(&mut self, mapped: Mapped<'_>) {
        self.unrelocated.retain(|pending| {
            let Some(slot) = pending.slot.resolve(mapped).filter(|slot| slot.is_relocated()) else { return true };
            let value = slot.value();
            // A lazy slot that has never been called through holds an address in its own library.
            if !pending.library.contains(&value) && !forwards_to(pending.function, value) {
                log_line!(
                    Debug,
                    "ignoring a {:?} at {:x}: its slot was changed by others",
                    pending.function,
                    pending.slot.library().bias
                );
                return false;
            }
            // SAFETY: the slot is for this function, and it points to the function that our hook forwards to.
            if let Err(error) = unsafe { slot.write(pending.hook) } {
                log_line!(Info, "could not hook {:?} of a library: {error}", pending.function);
            }
            false
        });
    }

    /// Removes the slots of a closed library.
    pub(crate) fn forget(&mut self, library: Identity) {
        self.unrelocated.retain(|pending| pending.slot.library() != library);
    }
}

/// Returns true if our hook forwards to `address`. On these architectures, `mmap64` is the same function as `mmap`.
fn forwards_to(function: Function, address: usize) -> bool {
    forward::forwards_to(function, address)
        || function == Function::Mmap && address == libc::mmap64 as *const () as usize
}
