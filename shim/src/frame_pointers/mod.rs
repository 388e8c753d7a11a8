//! Frame pointers and unwind tables for compiled code, so that its stacks can be walked.

pub(crate) mod attributes;
pub(crate) mod codegen;
pub(crate) mod llvmlite;
