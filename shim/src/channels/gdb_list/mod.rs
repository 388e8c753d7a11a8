//! LLVM's GDB JIT list: GDB's JIT interface.

pub(crate) mod descriptor;
pub(crate) mod jit_interface;
pub(crate) mod unregistered;
