//! Code that runs at a different address than LLVM linked it for, or that LLVM never linked.

#![forbid(unsafe_code)]

pub(crate) mod copies;
pub(crate) mod self_loaded;
