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

use crate::frame_pointers::attributes::{c_functions, is_this_machine};
use crate::llvm::vtable::words;
use crate::process::library::Library;

/// `LLVMObjectFile` of `LLVMCodeGenFileType`.
const OBJECT_FILE: u32 = 1;

c_functions! {
    /// What it takes to see what was compiled; from `llvm-c/TargetMachine.h` and `llvm-c/Core.h`.
    pub(super) ToMemory {
        triple = "LLVMGetTargetMachineTriple" (usize) -> *mut c_char;
        dispose = "LLVMDisposeMessage" (*mut c_char);
        start = "LLVMGetBufferStart" (usize) -> usize;
        size = "LLVMGetBufferSize" (usize) -> usize;
    }
}

impl ToMemory {
    /// Finds them; nothing is called yet.
    pub(super) fn find(library: &Library<'_>) -> Option<ToMemory> {
        ToMemory::new(|name| library.dynamic_address(name))
    }

    /// Whether a call is to compile an object, with a target machine that is this one.
    ///
    /// # Safety
    /// These must be the words of a call of the function.
    pub(super) unsafe fn is_object_for_this_machine(&self, [machine, _, kind, ..]: [usize; 8]) -> bool {
        if machine == 0 || kind as u32 != OBJECT_FILE {
            return false;
        }
        // SAFETY: the caller's target machine, of which LLVM makes a C string, for us to dispose of.
        unsafe {
            let triple = (self.triple)(machine);
            if triple.is_null() {
                return false;
            }
            let is_ours = is_this_machine(CStr::from_ptr(triple));
            (self.dispose)(triple);
            is_ours
        }
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
        // SAFETY: the buffer that the call has made, and nothing has taken yet.
        let (start, size) = unsafe { ((self.start)(buffer), (self.size)(buffer)) };
        let range = AddressRange::new(Address(start as u64), size as u64)?;
        if !has_memory(2 * size) {
            return None;
        }
        checked_read::copy(range).ok()
    }
}
