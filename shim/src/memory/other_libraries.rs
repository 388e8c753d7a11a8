//! Calls for memory from libraries without an LLVM, and from the program: a product may split LLVM over several
//! libraries, and a host may have a memory manager of its own (LLVM-C `LLVMCreateSimpleMCJITMemoryManager`) that calls
//! libc's `mprotect` itself.
//!
//! The relocation slots of all libraries are patched once there is an LLVM in the process. `RTLD_DEEPBIND` does not
//! matter. Not patched:
//!
//! * slots that point to another function than our hook calls: another tool's, another namespace's (`dlmopen(3)`);
//! * slots of the library that defines that function: libc, its replacement, or a program whose `mprotect` all
//!   libraries use (not position independent, and takes its address). Our hook would call itself.
//!
//! Calls that do not concern code are passed on without a lock: see `elsewhere.rs`.

use jitlisten::log_line;

use crate::hook_table::HookTable;
use crate::process::held::{Identity, Mapped};
use crate::process::library::Library;
use crate::process::next::{self, Function};
use crate::process::relocation_slot::{IMPORTS, bind_from_the_start};
use crate::process::slot::KeptSlot;

/// Exported where LLVM's memory is asked for, by whatever library.
const MEMORY_OF_LLVM: &str = "_ZN4llvm3sys6Memory20allocateMappedMemoryEmPKNS0_11MemoryBlockEjRSt10error_code";

/// The slots of libraries without an LLVM.
#[derive(Default)]
pub(crate) struct OtherLibraries {
    listens: bool,
    /// Those that the loader was not done with.
    waiting: Vec<Waiting>,
}

struct Waiting {
    slot: KeptSlot,
    library: std::ops::Range<usize>,
    function: Function,
    hook: usize,
}

impl OtherLibraries {
    /// From now on, added libraries are hooked. Returns whether this is new.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.listens, true)
    }

    /// A library has come that is not a source. It must be of the program's namespace.
    /// `is_unnamed`: nothing else is known of its code.
    pub(crate) fn add(&mut self, library: &Library<'_>, hooks: &HookTable, is_unnamed: bool) {
        if !self.listens || library.is_this() {
            return;
        }
        let range = library.range();
        let slots = library.slots_of_imports(IMPORTS.map(|(name, _)| name));
        let is_unnamed = !slots.is_empty() && is_unnamed;
        let has_memory = is_unnamed || !slots.is_empty() && library.dynamic_symbol(MEMORY_OF_LLVM).is_some();
        let hook = |function| match function {
            Function::Mprotect if is_unnamed => hooks.mprotect_unnamed as usize,
            _ if has_memory => hooks.memory_of(library, function),
            _ => hooks.memory_elsewhere(function),
        };
        // It may compile before the loader has news again.
        if is_unnamed && !library.is_relocated() {
            let bind = |(name, function): (&str, Function)| {
                // SAFETY: our hook of the function of this name.
                unsafe { bind_from_the_start(library, name, hook(function), false) }
            };
            if IMPORTS.into_iter().try_for_each(bind).is_ok() {
                return;
            }
        }
        for (slot, import) in slots {
            let function = IMPORTS[import].1;
            if !range.contains(&next::of_libc(function)) {
                let (slot, library, hook) = (slot.keep(), range.clone(), hook(function));
                self.waiting.push(Waiting { slot, library, function, hook });
            }
        }
    }

    /// Whether there are slots that the loader was not done with.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Changes the slots that the loader has relocated.
    pub(crate) fn change_relocated(&mut self, mapped: Mapped<'_>) {
        self.waiting.retain(|waiting| {
            let Some(slot) = waiting.slot.of(mapped).filter(|slot| slot.is_relocated()) else { return true };
            let value = slot.value();
            // One that was never called through holds an address in its library.
            if !waiting.library.contains(&value) && !leads_to(waiting.function, value) {
                log_line!(
                    Debug,
                    "ignoring a {:?} at {:x}: its slot was changed by others",
                    waiting.function,
                    waiting.slot.library().bias
                );
                return false;
            }
            // SAFETY: a slot of this function, which leads to what our hook of the same calls.
            if let Err(error) = unsafe { slot.write(waiting.hook) } {
                log_line!(Info, "could not hook {:?} of a library: {error}", waiting.function);
            }
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, library: Identity) {
        self.waiting.retain(|waiting| waiting.slot.library() != library);
    }
}

/// Whether our hook calls what stands at `address`. `mmap64` is `mmap` here, under another name.
fn leads_to(function: Function, address: usize) -> bool {
    next::leads_to(function, address) || function == Function::Mmap && address == libc::mmap64 as *const () as usize
}
