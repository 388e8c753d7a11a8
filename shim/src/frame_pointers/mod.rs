//! Adds frame pointers and unwind tables to compiled code, so that its stacks can be unwound.

pub(crate) mod attributes;
pub(crate) mod codegen;
pub(crate) mod llvmlite;
