//! `LLVMTargetMachineEmitToMemoryBuffer` of `llvm-c/TargetMachine.h`, the same from LLVM 10 on: compiles a module into
//! an object in memory.
//!
//! ```text
//!   LLVMBool LLVMTargetMachineEmitToMemoryBuffer(LLVMTargetMachineRef, LLVMModuleRef, LLVMCodeGenFileType, char **, LLVMMemoryBufferRef *)
//! ```
//!
//! What becomes of the object is the program's affair: it loads it by itself (tinygrad), hands it to one of LLVM's
//! linkers, or writes it to a file. Functions get frame pointers as with LLVM's engines; assembly (`LLVMAssemblyFile`),
//! and what a target machine for another machine compiles, is left as it is. The object is copied: see
//! [`crate::channels::moved_code::self_loaded`].

use std::ffi::{CStr, c_char};

use jitlisten::plumbing::checked_read;
use jitlisten::{Address, AddressRange};

use crate::frame_pointers::attributes::is_this_machine;
use crate::llvm::vtable::words;
use crate::process::library::Library;

/// `LLVMObjectFile` of `LLVMCodeGenFileType`.
const OBJECT_FILE: u32 = 1;

/// The functions of `llvm-c/TargetMachine.h` and `llvm-c/Core.h` that it takes to see what was compiled.
pub(super) struct ToMemory {
    /// `LLVMGetTargetMachineTriple`: for the caller to dispose of.
    triple: unsafe extern "C" fn(usize) -> *mut c_char,
    /// `LLVMDisposeMessage`
    dispose: unsafe extern "C" fn(*mut c_char),
    /// `LLVMGetBufferStart`
    start: unsafe extern "C" fn(usize) -> usize,
    /// `LLVMGetBufferSize`
    size: unsafe extern "C" fn(usize) -> usize,
}

impl ToMemory {
    /// Finds them; nothing is called yet.
    ///
    /// # Safety
    /// The library must be mapped.
    pub(super) unsafe fn find(library: &Library) -> Option<ToMemory> {
        let address = |name: &str| library.dynamic_address(name);
        let (triple, dispose) = (address("LLVMGetTargetMachineTriple")?, address("LLVMDisposeMessage")?);
        let (start, size) = (address("LLVMGetBufferStart")?, address("LLVMGetBufferSize")?);
        // SAFETY: the addresses are those of LLVM's functions of these names; their types are its stable C API.
        unsafe {
            Some(ToMemory {
                triple: std::mem::transmute::<usize, unsafe extern "C" fn(usize) -> *mut c_char>(triple),
                dispose: std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_char)>(dispose),
                start: std::mem::transmute::<usize, unsafe extern "C" fn(usize) -> usize>(start),
                size: std::mem::transmute::<usize, unsafe extern "C" fn(usize) -> usize>(size),
            })
        }
    }

    /// Whether a call is to compile an object, with a target machine that is this one.
    ///
    /// # Safety
    /// These must be the words of a call of the function.
    pub(super) unsafe fn is_object_for_this_machine(&self, [machine, _, kind, ..]: [usize; 8]) -> bool {
        if machine == 0 || kind as u32 != OBJECT_FILE {
            return false;
        }
        // SAFETY: the caller's target machine.
        let triple = unsafe { (self.triple)(machine) };
        if triple.is_null() {
            return false;
        }
        // SAFETY: LLVM returns a C string.
        let is_ours = is_this_machine(unsafe { CStr::from_ptr(triple) });
        // SAFETY: made by the call above, for us to dispose of.
        unsafe { (self.dispose)(triple) };
        is_ours
    }

    /// The object that a call has made; `None` where there is none, or `has_memory` says no for its size.
    ///
    /// # Safety
    /// These must be the words of a call of the function that has returned `returned`, and nothing may have been done
    /// with the result yet.
    pub(super) unsafe fn object(
        &self,
        [_, _, kind, _, place, ..]: [usize; 8],
        returned: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Option<Vec<u8>> {
        if returned as u32 != 0 || kind as u32 != OBJECT_FILE {
            return None;
        }
        let [buffer] = words::<1>(place)?;
        if buffer == 0 {
            return None;
        }
        // SAFETY: the buffer that the call has made; so below.
        let start = unsafe { (self.start)(buffer) };
        // SAFETY: as above.
        let size = unsafe { (self.size)(buffer) };
        let range = AddressRange::new(Address(start as u64), size as u64)?;
        if !has_memory(2 * size) {
            return None;
        }
        checked_read::copy(range).ok()
    }
}
