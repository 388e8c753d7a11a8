//! The GDB JIT interface of LLVM.

pub(crate) mod descriptor;
pub(crate) mod jit_interface;
pub(crate) mod list;
