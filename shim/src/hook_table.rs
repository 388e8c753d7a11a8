//! Table of the addresses of all hooks, so that the code that patches the host does not depend on the hooks themselves.
//! Filled in `start.rs`.

#![forbid(unsafe_code)]

use crate::forwarding::{Forwarding, Returned};
use crate::llvm::symbol_file::SymbolFile;
use crate::process::detour::HookFunction;
use crate::process::forward::{self, Function};
use crate::process::library::Library;
use crate::process::mapped_proof::Identity;

/// Maximum number of observed libraries with LLVM in a process.
pub(crate) const SLOTS: usize = 16;

/// Builds an array with an element for each slot; `$slot` is its number: `for_each_slot!(SLOT => hook::<SLOT>)`.
macro_rules! for_each_slot {
    ($slot:ident => $element:expr) => {
        $crate::hook_table::for_each_slot!($slot => $element; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($slot:ident => $element:expr; $($number:literal)*) => {
        [$({
            const $slot: usize = $number;
            $element
        },)*]
    };
}
pub(crate) use for_each_slot;

/// Number of hooked code generators: a function of each class, and one of the C API.
pub(crate) const CODE_GENERATORS: usize = 5;

/// Maximum number of vtables with an `emit` slot in one library.
pub(crate) const EMIT_VTABLES: usize = 2;

/// Addresses of all hooks.
pub(crate) struct HookTable {
    /// Hook of the loader's `_dl_debug_state`.
    pub(crate) loader_event: HookFunction,
    /// Hooks of `__jit_debug_register_code`, by slot of the LLVM.
    pub(crate) register_code: [HookFunction; SLOTS],
    /// Hooks of `RuntimeDyldELF::loadObject`, by slot of the LLVM.
    pub(crate) load_object: [Forwarding; SLOTS],
    /// Hooks of `ObjectLinkingLayer::emit`, by slot of the LLVM and by vtable.
    pub(crate) emit: [[Forwarding<Returned>; EMIT_VTABLES]; SLOTS],
    /// Hooks of the functions that generate code, by slot of the LLVM.
    pub(crate) generate_code: [[Forwarding; CODE_GENERATORS]; SLOTS],
    /// Entry code that runs before `dlsym` and jumps to it.
    pub(crate) before_dlsym: HookFunction,
    /// Returns the hook of a memory function for libraries with an LLVM.
    pub(crate) memory: fn(Function) -> usize,
    /// Returns the hook of a memory function for libraries without LLVM.
    pub(crate) memory_without_llvm: fn(Function) -> usize,
    /// Hook of `mprotect` in a library whose code no other hook reports.
    pub(crate) mprotect_unnamed: forward::Mprotect,
    /// Instruments a library that exports llvmlite's functions.
    pub(crate) attach_llvmlite: fn(&Library<'_>, Option<SymbolFile>),
    /// Forgets a closed library if it was an llvmlite.
    pub(crate) llvmlite_closed: fn(Identity),
}

impl HookTable {
    /// Returns the hook for a library with an LLVM. If that library also defines `malloc` (a program with its own
    /// allocator), our allocations under our locks end there, and the allocator maps memory under its own lock. Such a
    /// library gets the hooks that take no lock for calls that do not concern code.
    pub(crate) fn memory_hook_for(&self, library: &Library<'_>, function: Function) -> usize {
        match library.exports("malloc") {
            true => (self.memory_without_llvm)(function),
            false => (self.memory)(function),
        }
    }
}
