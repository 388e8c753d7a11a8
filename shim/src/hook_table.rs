//! Table of the addresses of all hooks, so that the code that patches the host does not depend on the hooks themselves.
//! Filled in `start.rs`.

#![forbid(unsafe_code)]

use std::ffi::{c_int, c_void};

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
    pub(crate) mprotect: forward::Mprotect,
    /// Hook of `mprotect` in a library whose code no other hook reports.
    pub(crate) mprotect_unnamed: forward::Mprotect,
    pub(crate) munmap: forward::Munmap,
    pub(crate) mmap: forward::Mmap,
    pub(crate) register_frame: forward::RegisterFrame,
    pub(crate) pkey_mprotect: forward::PkeyMprotect,
    pub(crate) mremap: unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void,
    /// Hook of `mprotect` in libraries without LLVM.
    pub(crate) mprotect_without_llvm: forward::Mprotect,
    pub(crate) munmap_without_llvm: forward::Munmap,
    pub(crate) mmap_without_llvm: forward::Mmap,
    /// Instruments a library that exports llvmlite's functions.
    pub(crate) attach_llvmlite: fn(&Library<'_>, Option<SymbolFile>),
    /// Forgets a closed library if it was an llvmlite.
    pub(crate) llvmlite_closed: fn(Identity),
}

impl HookTable {
    /// Returns the hook of a memory function.
    pub(crate) fn memory_hook(&self, function: Function) -> usize {
        match function {
            Function::Mprotect => self.mprotect as usize,
            Function::Munmap => self.munmap as usize,
            Function::Mmap => self.mmap as usize,
            Function::RegisterFrame => self.register_frame as usize,
            Function::PkeyMprotect => self.pkey_mprotect as usize,
            Function::Mremap => self.mremap as usize,
        }
    }

    /// Returns the hook for a library with an LLVM. If that library also defines `malloc` (a program with its own
    /// allocator), our allocations under our locks end there, and the allocator maps memory under its own lock. Such a
    /// library gets the hooks that take no lock for calls that do not concern code.
    pub(crate) fn memory_hook_for(&self, library: &Library<'_>, function: Function) -> usize {
        match library.exports("malloc") {
            true => self.memory_hook_without_llvm(function),
            false => self.memory_hook(function),
        }
    }

    /// Returns the hook for a library without LLVM.
    pub(crate) fn memory_hook_without_llvm(&self, function: Function) -> usize {
        match function {
            Function::Mprotect => self.mprotect_without_llvm as usize,
            Function::Munmap => self.munmap_without_llvm as usize,
            Function::Mmap => self.mmap_without_llvm as usize,
            // These hooks also take no lock for calls that do not concern code.
            Function::RegisterFrame | Function::PkeyMprotect | Function::Mremap => self.memory_hook(function),
        }
    }
}
