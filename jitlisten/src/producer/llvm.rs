//! For programs that use LLVM through llvm-sys, as `include/jitlisten_llvm.hpp` for C++.
//!
//! ```text
//!   a module                      make_unwindable     frame pointers, unwind tables
//!   MCJIT, new engine             memory_manager      detects itself when memory is final
//!   MCJIT, existing engine        attach              you call finalized()
//!   ORC, RuntimeDyld or JITLink   attach_layer        detects itself when memory is final
//! ```
//!
//! The first of these calls opens the session of the process, if none is open, with the options of the environment.
//! Nothing here keeps an engine alive, and the order of drops does not matter: LLVM's side of a listener lives as long
//! as LLVM may call it.
//!
//! MCJIT registers its objects with gdb itself. ORC does so if enabled: `LLVMOrcLLJITEnableDebugSupport`, or
//! `LLVMOrcRTDyldObjectLinkingLayerRegisterJITEventListener` with `LLVMCreateGDBRegistrationListener`.
//!
//! A thin layer over `include/jitlisten_llvm.hpp`: `llvm.cpp` instantiates it against the LLVM that llvm-sys has found
//! (`DEP_LLVM_22_CONFIG_PATH`), compiled by `build.rs` with one of the `llvmNN-N` features and never without. The C
//! verbs that the header calls are renamed by the preprocessor to `jitlisten_crate_*`, which the crate defines
//! (`verbs.rs`): no `libjitlisten` need be linked. If the process has one, the verbs call it, so that there is one
//! session. LLVM's side of a listener lives until LLVM has released it; Rust holds an address that is looked up, not
//! dereferenced. Either may be dropped first.
//!
//! In MCJIT the memory manager reports *finalized*. llvm-sys takes one of ours (`memory_manager`). inkwell wants to own
//! it in Rust, so `create_engine` gives it LLVM's `SectionMemoryManager` with a call of ours after `finalizeMemory`.
//! The memory manager of an existing engine cannot be replaced, hence `attach` and `finalized`.

use super::llvm_sys::execution_engine::{LLVMExecutionEngineRef, LLVMMCJITMemoryManagerRef};
use super::llvm_sys::orc2::LLVMOrcObjectLayerRef;
use super::llvm_sys::prelude::LLVMModuleRef;
use super::verbs;
use crate::options::FramePointerPolicy;

unsafe extern "C" {
    fn jitlisten_crate_make_unwindable(module: LLVMModuleRef, frame_pointers: bool);
    fn jitlisten_crate_memory_manager() -> LLVMMCJITMemoryManagerRef;
    fn jitlisten_crate_listen_to_engine(engine: LLVMExecutionEngineRef);
    fn jitlisten_crate_engine_finalized(engine: LLVMExecutionEngineRef);
    fn jitlisten_crate_listen_to_layer(layer: LLVMOrcObjectLayerRef) -> bool;
}

/// Gives every function of the module that has a body an unwind table, and a frame pointer, unless
/// `JITLISTEN_FRAME_POINTERS` says otherwise. LLVM leaves both out where it can, and then no tool can walk past the
/// function.
///
/// `LLVMCreateMCJITCompilerForModule` takes the frame pointers away again, unless its option `NoFramePointerElim` is
/// set.
///
/// # Safety
/// `module` must be a live module that no other thread uses.
pub unsafe fn make_unwindable(module: LLVMModuleRef) {
    let frame_pointers = match verbs::frame_pointer_policy() {
        FramePointerPolicy::FramePointers => true,
        FramePointerPolicy::UnwindTables => false,
        FramePointerPolicy::Untouched => return,
    };
    // SAFETY: the caller vouches for the module.
    unsafe { jitlisten_crate_make_unwindable(module, frame_pointers) }
}

/// A memory manager for `LLVMMCJITCompilerOptions::MCJMM`: LLVM's `SectionMemoryManager`, which reports what its engine
/// compiles. It belongs to the engine; without one, `LLVMDisposeMCJITMemoryManager` ends it.
#[must_use]
pub fn memory_manager() -> LLVMMCJITMemoryManagerRef {
    verbs::open();
    // SAFETY: no precondition.
    unsafe { jitlisten_crate_memory_manager() }
}

/// An MCJIT engine whose objects are reported. Neither keeps the engine alive nor minds its end; dropping it changes
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    engine: LLVMExecutionEngineRef,
}

/// Reports what an MCJIT engine loads from now on. A second call for one engine changes nothing.
///
/// Which of it is final only the caller knows: see [`Attached::finalized`].
///
/// # Safety
/// `engine` must be a live MCJIT engine that no other thread uses.
#[must_use = "code is shown to gate before `finalized` has been called"]
pub unsafe fn attach(engine: LLVMExecutionEngineRef) -> Attached {
    verbs::open();
    // SAFETY: the caller vouches for the engine.
    unsafe { jitlisten_crate_listen_to_engine(engine) };
    Attached { engine }
}

impl Attached {
    /// Everything that the engine has loaded is relocated and may run. To be called after whatever finalizes:
    /// `LLVMGetFunctionAddress`, `LLVMGetGlobalValueAddress`, `LLVMRunFunction`, ...; until then the tools know nothing
    /// of the code. After the engine's end it does nothing.
    pub fn finalized(&self) {
        // SAFETY: the address is looked up, not followed.
        unsafe { jitlisten_crate_engine_finalized(self.engine) }
    }
}

/// Reports what an object layer of ORC links: a `RTDyldObjectLinkingLayer`, or an `ObjectLinkingLayer` (JITLink). Once
/// for each layer; `LLVMOrcLLJITGetObjLinkingLayer` gives that of an LLJIT. Returns whether it was one of the two.
///
/// # Safety
/// `layer` must be a live object layer that links nothing yet.
pub unsafe fn attach_layer(layer: LLVMOrcObjectLayerRef) -> bool {
    verbs::open();
    // SAFETY: the caller vouches for the layer.
    unsafe { jitlisten_crate_listen_to_layer(layer) }
}
