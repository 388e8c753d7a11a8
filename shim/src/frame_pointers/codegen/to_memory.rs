//! Support for `LLVMTargetMachineEmitToMemoryBuffer` of `llvm-c/TargetMachine.h`, which compiles a module into an
//! object in memory. Its signature is unchanged since LLVM 10.
//!
//! ```text
//!   LLVMBool LLVMTargetMachineEmitToMemoryBuffer(LLVMTargetMachineRef, LLVMModuleRef, LLVMCodeGenFileType, char **,
//!                                                LLVMMemoryBufferRef *)
//! ```
//!
//! The program decides what to do with the object: it may load the object itself (tinygrad), hand it to one of LLVM's
//! linkers, or write it to a file. Functions get frame pointers, as they do in LLVM's engines. Assembly output
//! (`LLVMAssemblyFile`) and code for other architectures stay unchanged. The object is copied for
//! [`crate::trackers::self_loaded`].

use std::ffi::{CStr, c_char};

use jitlisten::plumbing::checked_read;
use jitlisten::{Address, AddressRange};

use crate::forwarding::ArgumentWords;
use crate::frame_pointers::attributes::is_this_machine;
use crate::llvm::c_functions::c_functions;
use crate::llvm::vtable::read_words;
use crate::process::library::Library;

/// Value of `LLVMObjectFile` in `LLVMCodeGenFileType`.
const OBJECT_FILE: u32 = 1;

c_functions! {
    /// Functions that inspect the output, from `llvm-c/TargetMachine.h` and `llvm-c/Core.h`.
    pub(super) ToMemory {
        get_target_triple = "LLVMGetTargetMachineTriple" (usize) -> *mut c_char;
        dispose_message = "LLVMDisposeMessage" (*mut c_char);
        get_buffer_start = "LLVMGetBufferStart" (usize) -> usize;
        get_buffer_size = "LLVMGetBufferSize" (usize) -> usize;
    }
}

impl ToMemory {
    /// Looks up the functions without calling any of them.
    pub(super) fn find(library: &Library<'_>) -> Option<ToMemory> {
        ToMemory::new(|name| library.dynamic_address(name))
    }

    /// Returns true if a call compiles an object for this machine's architecture.
    ///
    /// # Safety
    /// The array must hold the arguments of a call of `LLVMTargetMachineEmitToMemoryBuffer`.
    pub(super) unsafe fn is_object_for_this_machine(&self, [machine, _, file_type, ..]: ArgumentWords) -> bool {
        if machine == 0 || file_type as u32 != OBJECT_FILE {
            return false;
        }
        // SAFETY: the target machine comes from the caller. LLVM returns a C string, which we dispose of.
        unsafe {
            let triple = (self.get_target_triple)(machine);
            if triple.is_null() {
                return false;
            }
            let is_supported = is_this_machine(CStr::from_ptr(triple));
            (self.dispose_message)(triple);
            is_supported
        }
    }

    /// Copies the object that a call has emitted. Returns `None` if the call emitted nothing, or if `has_memory`
    /// returns false for the object's size.
    ///
    /// # Safety
    /// The array must hold the arguments of a call of `LLVMTargetMachineEmitToMemoryBuffer` that has returned
    /// `returned`, and nothing may have used the emitted buffer yet.
    pub(super) unsafe fn copy_object(
        &self,
        [_, _, file_type, _, output, ..]: ArgumentWords,
        returned: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Option<Vec<u8>> {
        if returned as u32 != 0 || file_type as u32 != OBJECT_FILE {
            return None;
        }
        let [buffer] = read_words::<1>(output)?;
        if buffer == 0 {
            return None;
        }
        // SAFETY: the call has just created this buffer, and nothing has consumed it yet.
        let (start, size) = unsafe { ((self.get_buffer_start)(buffer), (self.get_buffer_size)(buffer)) };
        let range = AddressRange::new(Address(start as u64), size as u64)?;
        if !has_memory(2 * size) {
            return None;
        }
        checked_read::copy(range).ok()
    }
}
