//! Integration for programs that use LLVM through llvm-sys, or through inkwell (the `inkwell` module); the
//! counterpart of `include/jitlisten_llvm.hpp` for C++.
//!
//! ```text
//!   a module                      make_unwindable     frame pointers, unwind tables
//!   MCJIT, new engine             memory_manager      detects when memory is final
//!   MCJIT, existing engine        attach              you call finalized()
//!   ORC, RuntimeDyld or JITLink   attach_layer        detects when memory is final
//! ```
//!
//! The first of these calls opens the session of the process with the options of the environment, unless it is open
//! already. Listeners keep no engine alive. The order of drops does not matter, because LLVM's side of a listener
//! exists as long as LLVM may call it.
//!
//! MCJIT registers its objects with gdb. ORC does so if enabled: `LLVMOrcLLJITEnableDebugSupport`, or
//! `LLVMOrcRTDyldObjectLinkingLayerRegisterJITEventListener` with `LLVMCreateGDBRegistrationListener`.
//!
//! # Implementation
//!
//! A thin layer over `include/jitlisten_llvm.hpp`. `adapters.cpp` instantiates it for the LLVM that llvm-sys has found
//! (`DEP_LLVM_22_CONFIG_PATH`); `build.rs` compiles it if one of the `llvmNN-N` features is enabled. The preprocessor
//! renames the C functions that the header calls to `jitlisten_crate_*`, which the crate defines (`verbs.rs`), so no
//! `libjitlisten` needs to be linked. If the process contains one, these functions forward to it, so that there is one
//! session. LLVM's side of a listener lives until LLVM releases it. Rust holds an address that is only looked up, never
//! dereferenced. Either side may be dropped first.
//!
//! In MCJIT the memory manager reports *finalized*. llvm-sys accepts our own memory manager (`memory_manager`). inkwell
//! requires a memory manager owned by Rust, so `create_engine` wraps LLVM's `SectionMemoryManager` and reports after
//! `finalizeMemory`. The memory manager of an existing engine cannot be replaced, hence `attach` and `finalized`.

// Without LLVM there is nothing to compile, so a workspace can be checked without features.
#![cfg(feature = "_llvm")]

pub mod inkwell;
mod llvm_version;
mod verbs;

pub use llvm_version::llvm_sys;

use jitlisten::options::FramePointerPolicy;
use llvm_sys::execution_engine::{LLVMExecutionEngineRef, LLVMMCJITMemoryManagerRef};
use llvm_sys::orc2::LLVMOrcObjectLayerRef;
use llvm_sys::prelude::LLVMModuleRef;

unsafe extern "C" {
    fn jitlisten_crate_make_unwindable(module: LLVMModuleRef, frame_pointers: bool);
    fn jitlisten_crate_memory_manager() -> LLVMMCJITMemoryManagerRef;
    fn jitlisten_crate_listen_to_engine(engine: LLVMExecutionEngineRef);
    fn jitlisten_crate_engine_finalized(engine: LLVMExecutionEngineRef);
    fn jitlisten_crate_listen_to_layer(layer: LLVMOrcObjectLayerRef) -> bool;
}

/// Gives every defined function of the module an unwind table, and a frame pointer unless `JITLISTEN_FRAME_POINTERS`
/// says otherwise. LLVM omits both where it can; then no tool can unwind past the function.
///
/// `LLVMCreateMCJITCompilerForModule` removes the frame pointers again unless its option `NoFramePointerElim` is set.
///
/// # Safety
/// `module` must be a live module that no other thread uses.
pub unsafe fn make_unwindable(module: LLVMModuleRef) {
    let frame_pointers = match verbs::frame_pointer_policy() {
        FramePointerPolicy::FramePointers => true,
        FramePointerPolicy::UnwindTables => false,
        _ => return,
    };
    // SAFETY: the caller guarantees that the module is live and not shared.
    unsafe { jitlisten_crate_make_unwindable(module, frame_pointers) }
}

/// Creates a memory manager for `LLVMMCJITCompilerOptions::MCJMM`: LLVM's `SectionMemoryManager`, which also reports
/// the objects of its engine. The engine takes ownership; without an engine, free it with
/// `LLVMDisposeMCJITMemoryManager`.
#[must_use]
pub fn memory_manager() -> LLVMMCJITMemoryManagerRef {
    verbs::open();
    // SAFETY: no precondition.
    unsafe { jitlisten_crate_memory_manager() }
}

/// An MCJIT engine whose objects are reported. Does not keep the engine alive and may outlive it; dropping this handle
/// has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    engine: LLVMExecutionEngineRef,
}

/// Reports the objects that an MCJIT engine loads from now on. A second call for the same engine has no effect.
///
/// The caller must report when their code is final; see [`Attached::finalized`].
///
/// # Safety
/// `engine` must be a live MCJIT engine that no other thread uses.
#[must_use = "no tool shows the code before `finalized` has been called"]
pub unsafe fn attach(engine: LLVMExecutionEngineRef) -> Attached {
    verbs::open();
    // SAFETY: the caller guarantees that the engine is live and not shared.
    unsafe { jitlisten_crate_listen_to_engine(engine) };
    Attached { engine }
}

impl Attached {
    /// Reports that everything the engine has loaded is relocated and may run. Call it after every call that finalizes:
    /// `LLVMGetFunctionAddress`, `LLVMGetGlobalValueAddress`, `LLVMRunFunction`, ...; until then, tools do not see the
    /// code. Has no effect after the engine has been destroyed.
    pub fn finalized(&self) {
        // SAFETY: the address is looked up, not dereferenced.
        unsafe { jitlisten_crate_engine_finalized(self.engine) }
    }
}

/// Reports the objects that an ORC object layer links. The layer must be an `RTDyldObjectLinkingLayer` or an
/// `ObjectLinkingLayer` (JITLink); returns false otherwise. Call it once for each layer;
/// `LLVMOrcLLJITGetObjLinkingLayer` returns the layer of an LLJIT.
///
/// # Safety
/// `layer` must be a live object layer that has not linked anything yet.
pub unsafe fn attach_layer(layer: LLVMOrcObjectLayerRef) -> bool {
    verbs::open();
    // SAFETY: the caller guarantees that the layer is live and unused.
    unsafe { jitlisten_crate_listen_to_layer(layer) }
}
