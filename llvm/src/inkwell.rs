//! Integration for programs that use LLVM through inkwell.
//!
//! ```text
//! make_unwindable(&module);                                  // before an engine gets the module
//! let (engine, _) = create_engine(&module, level)?;          // or, for an engine made elsewhere:
//! let listener = attach(&engine);
//! let alpha = engine.get_function::<Alpha>("alpha")?;
//! listener.finalized();                                      // only for `attach`
//! ```
//!
//! Dropping an engine removes its code from every tool; the listener may be dropped at any time. `examples/inkwell.rs`
//! is a complete program.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::rc::Rc;

use inkwell::OptimizationLevel;
use inkwell::execution_engine::ExecutionEngine;
use inkwell::memory_manager::McjitMemoryManager;
use inkwell::module::Module;
use inkwell::support::LLVMString;
use inkwell::targets::CodeModel;

use jitlisten::options::FramePointerPolicy;

pub use crate::Attached;
use crate::verbs;

/// Enables unwind tables and frame pointers for every function of the module; see
/// [`make_unwindable`](crate::make_unwindable).
pub fn make_unwindable(module: &Module<'_>) {
    // SAFETY: inkwell keeps the module alive, and it is neither Send nor Sync.
    unsafe { crate::make_unwindable(module.as_mut_ptr()) }
}

/// Reports the objects of an existing engine; see [`attach`](crate::attach). The tools see its code once
/// [`Attached::finalized`] has been called.
///
/// An interpreting engine has no code to report and is ignored.
#[must_use = "no tool shows the code before `finalized` has been called"]
pub fn attach(engine: &ExecutionEngine<'_>) -> Attached {
    // SAFETY: inkwell keeps the engine alive, and it is neither Send nor Sync.
    unsafe { crate::attach(engine.as_mut_ptr()) }
}

/// Creates an MCJIT engine like [`Module::create_jit_execution_engine`]. The engine reports its objects, and reports
/// again when their code is final.
///
/// # Errors
/// Returns inkwell's errors.
pub fn create_engine<'ctx>(
    module: &Module<'ctx>,
    level: OptimizationLevel,
) -> Result<(ExecutionEngine<'ctx>, Attached), LLVMString> {
    let attached = Rc::new(Cell::new(None));
    let memory = Memory::new(Rc::clone(&attached));
    // This flag becomes the frame-pointer attribute of every function.
    let frame_pointers = verbs::frame_pointer_policy() == FramePointerPolicy::FramePointers;
    let engine = module.create_mcjit_execution_engine_with_memory_manager(
        memory,
        level,
        CodeModel::JITDefault,
        frame_pointers,
        false,
    )?;
    let listener = attach(&engine);
    attached.set(Some(listener));
    Ok((engine, listener))
}

unsafe extern "C" {
    fn jitlisten_crate_memory_new() -> *mut c_void;
    fn jitlisten_crate_memory_code(memory: *mut c_void, size: usize, alignment: u32, section: u32) -> *mut u8;
    fn jitlisten_crate_memory_data(
        memory: *mut c_void,
        size: usize,
        alignment: u32,
        section: u32,
        is_read_only: bool,
    ) -> *mut u8;
    fn jitlisten_crate_memory_finalize(memory: *mut c_void) -> bool;
    fn jitlisten_crate_memory_delete(memory: *mut c_void);
}

/// LLVM's `SectionMemoryManager`, which also reports *finalized* for its engine.
#[derive(Debug)]
struct Memory {
    memory: *mut c_void,
    engine: Rc<Cell<Option<Attached>>>,
}

impl Memory {
    fn new(engine: Rc<Cell<Option<Attached>>>) -> Memory {
        // SAFETY: no precondition.
        Memory { memory: unsafe { jitlisten_crate_memory_new() }, engine }
    }
}

impl McjitMemoryManager for Memory {
    fn allocate_code_section(&mut self, size: usize, alignment: u32, section: u32, _name: &str) -> *mut u8 {
        // SAFETY: `memory` was made by `new`, and LLVM calls no method after `destroy`.
        unsafe { jitlisten_crate_memory_code(self.memory, size, alignment, section) }
    }

    fn allocate_data_section(
        &mut self,
        size: usize,
        alignment: u32,
        section: u32,
        _name: &str,
        is_read_only: bool,
    ) -> *mut u8 {
        // SAFETY: `memory` was made by `new`, and LLVM calls no method after `destroy`.
        unsafe { jitlisten_crate_memory_data(self.memory, size, alignment, section, is_read_only) }
    }

    fn finalize_memory(&mut self) -> Result<(), String> {
        // SAFETY: `memory` was made by `new`, and LLVM calls no method after `destroy`.
        if unsafe { jitlisten_crate_memory_finalize(self.memory) } {
            return Err("memory could not be made executable".to_owned());
        }
        if let Some(attached) = self.engine.get() {
            attached.finalized();
        }
        Ok(())
    }

    fn destroy(&mut self) {
        // SAFETY: `memory` was made by `new` and is not used again: LLVM calls no method after `destroy`.
        unsafe { jitlisten_crate_memory_delete(std::mem::replace(&mut self.memory, null_mut())) };
    }
}
