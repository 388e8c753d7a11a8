//! One library with an LLVM in it: what is read of it, and where it is hooked.

pub(crate) mod linkers;
pub(crate) mod source;
pub(crate) mod symbol_file;
pub(crate) mod vtable;
