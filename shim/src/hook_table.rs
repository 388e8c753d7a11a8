//! Table of all hook addresses, so that the patching code does not depend on the hooks themselves. `start.rs` fills in
//! the table.

#![forbid(unsafe_code)]

use wire::facts::MAX_LLVMS;

use crate::forwarding::{Forwarding, ReturnRegisters};
use crate::llvm::symbol_file::SymbolFile;
use crate::process::detour::HookFunction;
use crate::process::forward::{self, Function};
use crate::process::library::Library;
use crate::process::mapped_proof::Identity;

/// Number of slots, each for an observed library with LLVM.
pub(crate) const SLOTS: usize = MAX_LLVMS;

/// Builds an array with one element per slot. `$slot` is the slot's number: `for_each_slot!(SLOT => hook::<SLOT>)`.
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

/// Number of hooked code generator functions: one per class, and one in the C API.
pub(crate) const CODE_GENERATORS: usize = 5;

/// Maximum number of vtables with an `emit` slot in one library.
pub(crate) const EMIT_VTABLES: usize = 2;

pub(crate) struct HookTable {
    /// Hook of the loader's `_dl_debug_state`.
    pub(crate) loader_event: HookFunction,
    /// Hooks of `__jit_debug_register_code`, by slot of the LLVM instance.
    pub(crate) register_code: [HookFunction; SLOTS],
    /// Hooks of `RuntimeDyldELF::loadObject`, by slot of the LLVM instance.
    pub(crate) load_object: [Forwarding; SLOTS],
    /// Hooks of `ObjectLinkingLayer::emit`, by slot of the LLVM instance and by vtable.
    pub(crate) emit: [[Forwarding<ReturnRegisters>; EMIT_VTABLES]; SLOTS],
    /// Hooks of the functions that generate code, by slot of the LLVM instance and by hook point.
    pub(crate) generate_code: [[Forwarding; CODE_GENERATORS]; SLOTS],
    /// Assembly stub that checks for new libraries and then jumps to `dlsym`.
    pub(crate) before_dlsym: HookFunction,
    /// Returns the hook of a memory function for libraries that contain LLVM.
    pub(crate) memory: fn(Function) -> usize,
    /// Returns the hook of a memory function for libraries without LLVM.
    pub(crate) memory_without_llvm: fn(Function) -> usize,
    /// Hook of `mprotect` in a library whose code no other hook reports.
    pub(crate) mprotect_unnamed: forward::Mprotect,
    /// Hooks a library that exports llvmlite's functions.
    pub(crate) attach_llvmlite: fn(&Library<'_>, Option<SymbolFile>),
    /// Forgets a closed library if it was an llvmlite library.
    pub(crate) llvmlite_closed: fn(Identity),
}

impl HookTable {
    /// Returns the memory function's hook for a library with LLVM. If that library also defines `malloc` (a program
    /// with its own allocator), that allocator also serves our allocations under our locks, and it maps memory under
    /// its own lock. Such a library gets the hooks that take no lock for calls that do not concern code.
    pub(crate) fn memory_hook_for(&self, library: &Library<'_>, function: Function) -> usize {
        match library.exports("malloc") {
            true => (self.memory_without_llvm)(function),
            false => (self.memory)(function),
        }
    }
}
