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
use crate::llvm::vtable::mapped;
use crate::process::detour::write_pointer;
use crate::process::library::{Library, Slot};
use crate::process::next::{self, Function};
use crate::process::relocation_slot::bind_from_the_start;

const NAMES: [&str; 7] = ["mprotect", "munmap", "mmap", "mmap64", "pkey_mprotect", "mremap", "__register_frame"];
const FUNCTIONS: [Function; NAMES.len()] = [
    Function::Mprotect,
    Function::Munmap,
    Function::Mmap,
    Function::Mmap,
    Function::PkeyMprotect,
    Function::Mremap,
    Function::RegisterFrame,
];

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
    bias: usize,
    library: std::ops::Range<usize>,
    slot: Slot,
    function: Function,
    hook: usize,
}

impl OtherLibraries {
    /// From now on, added libraries are hooked. Returns whether this is new.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.listens, true)
    }

    /// A library has come that is not a source. It must be of the program's namespace.
    pub(crate) fn add(&mut self, library: &Library, hooks: &HookTable) {
        let range = library.range();
        if !self.listens || range.contains(&(OtherLibraries::begin as *const () as usize)) {
            return;
        }
        let slots = library.slots_of_imports(NAMES);
        let is_unnamed = !slots.is_empty() && mapped::may_compile(library);
        let has_memory = is_unnamed || !slots.is_empty() && library.dynamic_symbol(MEMORY_OF_LLVM).is_some();
        let hook = |function| match function {
            Function::Mprotect if is_unnamed => hooks.mprotect_unnamed as usize,
            _ if has_memory => hooks.memory_of(library, function),
            _ => hooks.memory_elsewhere(function),
        };
        // It may compile before the loader has news again.
        // SAFETY: the caller's library is mapped.
        if is_unnamed && !unsafe { library.is_relocated() } {
            let bind = |(name, function): (&str, Function)| {
                // SAFETY: the loader has not come to it yet.
                unsafe { bind_from_the_start(library, name, hook(function), false) }
            };
            if NAMES.into_iter().zip(FUNCTIONS).try_for_each(bind).is_ok() {
                return;
            }
        }
        for (slot, name) in slots {
            let function = FUNCTIONS[name];
            if !range.contains(&next::of_libc(function)) {
                let (bias, library, hook) = (library.identity.bias, range.clone(), hook(function));
                self.waiting.push(Waiting { bias, library, slot, function, hook });
            }
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
        self.waiting.retain(|waiting| {
            // SAFETY: the caller vouches for the mapping.
            if !unsafe { waiting.slot.is_relocated() } {
                return true;
            }
            // SAFETY: as above.
            let value = unsafe { waiting.slot.value() };
            // One that was never called through holds an address in its library.
            if !waiting.library.contains(&value) && !leads_to(waiting.function, value) {
                log_line!(
                    Debug,
                    "ignoring a {:?} at {:x}: its slot was changed by others",
                    waiting.function,
                    waiting.bias
                );
                return false;
            }
            // SAFETY: an aligned word of the library's data, which the loader is done with.
            let written = unsafe { write_pointer(waiting.slot.address, waiting.hook, waiting.slot.protection) };
            if let Err(error) = written {
                log_line!(Info, "could not hook {:?} of a library: {error}", waiting.function);
            }
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, bias: usize) {
        self.waiting.retain(|waiting| waiting.bias != bias);
    }
}

/// Whether our hook calls what stands at `address`. `mmap64` is `mmap` here, under another name.
fn leads_to(function: Function, address: usize) -> bool {
    next::leads_to(function, address) || function == Function::Mmap && address == libc::mmap64 as *const () as usize
}
