//! Channel for objects that LLVM registers through the GDB JIT interface.

pub(crate) mod descriptor;
pub(crate) mod jit_interface;
pub(crate) mod list;
