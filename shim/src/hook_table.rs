//! The addresses of all hooks. Code that patches the host needs only these addresses. Filled in [`crate::start`].

#![forbid(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::llvm::symbol_file::SymbolFile;
use crate::process::held::Identity;
use crate::process::library::Library;
use crate::process::next::Function;

/// How many libraries with LLVM are observed in a process.
pub(crate) const SLOTS: usize = 16;

/// An array with an element for each slot, in which `$slot` is the number: `for_each_slot!(SLOT => hook::<SLOT>)`.
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

/// An empty function of the host's, or ours in its place.
pub(crate) type HookFunction = unsafe extern "C" fn();

/// `RuntimeDyldELF::loadObject`. More words than it has: those it does not take are whatever its caller left there, and
/// go on unread. On aarch64 its result comes in memory, and the address is not among them: see `vtable/load_object.rs`.
pub(crate) type LoadObject =
    unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> usize;

/// Both registers that a result may be in.
#[repr(C)]
pub(crate) struct Returned([usize; 2]);

/// `ObjectLinkingLayer::emit`, as [`LoadObject`].
pub(crate) type Emit = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> Returned;

/// A function that generates code for a module, as [`LoadObject`].
pub(crate) type GenerateCode = LoadObject;

/// Such functions: one of each class, and a function of the C API.
pub(crate) const CODE_GENERATORS: usize = 5;

/// The vtables with `emit` of one library.
pub(crate) const EMIT_VTABLES: usize = 2;

/// See the module's head.
pub(crate) struct HookTable {
    /// For the loader's `_dl_debug_state`.
    pub(crate) loader_event: HookFunction,
    /// For `__jit_debug_register_code` of the LLVM in each slot.
    pub(crate) register_code: [HookFunction; SLOTS],
    /// For `RuntimeDyldELF::loadObject` of the LLVM in each slot.
    pub(crate) load_object: [LoadObject; SLOTS],
    /// For `ObjectLinkingLayer::emit` of the LLVM in each slot, in each of its vtables.
    pub(crate) emit: [[Emit; EMIT_VTABLES]; SLOTS],
    /// For the functions that generate code of the LLVM in each slot.
    pub(crate) generate_code: [[GenerateCode; CODE_GENERATORS]; SLOTS],
    /// For `dlsym`: jumps to it.
    pub(crate) before_dlsym: HookFunction,
    pub(crate) mprotect: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    /// The same for a library that no other channel observes.
    pub(crate) mprotect_unnamed: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    pub(crate) munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    pub(crate) mmap: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void,
    pub(crate) register_frame: unsafe extern "C" fn(*const c_void),
    pub(crate) pkey_mprotect: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int) -> c_int,
    pub(crate) mremap: unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void,
    /// The same for libraries without an LLVM.
    pub(crate) mprotect_elsewhere: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    pub(crate) munmap_elsewhere: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    pub(crate) mmap_elsewhere: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void,
    /// For a library that has llvmlite's functions.
    pub(crate) attach_llvmlite: fn(&Library<'_>, Option<SymbolFile>),
    /// Such a library was closed, if it was one.
    pub(crate) llvmlite_closed: fn(Identity),
}

impl HookTable {
    /// The hook of a function that concerns memory.
    pub(crate) fn memory(&self, function: Function) -> usize {
        match function {
            Function::Mprotect => self.mprotect as usize,
            Function::Munmap => self.munmap as usize,
            Function::Mmap => self.mmap as usize,
            Function::RegisterFrame => self.register_frame as usize,
            Function::PkeyMprotect => self.pkey_mprotect as usize,
            Function::Mremap => self.mremap as usize,
        }
    }

    /// The hook for a library with an LLVM. Where it is also the one that has `malloc`, as a program with an allocator
    /// of its own has, we allocate there, under our locks; and it calls for memory under a lock of its own. So it gets
    /// the hooks that take none where no code is concerned.
    pub(crate) fn memory_of(&self, library: &Library<'_>, function: Function) -> usize {
        match library.dynamic_symbol("malloc") {
            Some(_) => self.memory_elsewhere(function),
            None => self.memory(function),
        }
    }

    /// The hook for a library that has no LLVM.
    pub(crate) fn memory_elsewhere(&self, function: Function) -> usize {
        match function {
            Function::Mprotect => self.mprotect_elsewhere as usize,
            Function::Munmap => self.munmap_elsewhere as usize,
            Function::Mmap => self.mmap_elsewhere as usize,
            // They take no lock either where no code is concerned.
            Function::RegisterFrame | Function::PkeyMprotect | Function::Mremap => self.memory(function),
        }
    }
}
