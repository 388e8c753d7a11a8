//! Code that runs elsewhere than where LLVM linked it, or that LLVM never linked.

#![forbid(unsafe_code)]

pub(crate) mod copies;
pub(crate) mod self_loaded;
