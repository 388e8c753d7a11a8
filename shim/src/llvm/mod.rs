//! A library that contains LLVM: its release, its vtables and its hooks.

pub(crate) mod elf_copy;
pub(crate) mod linkers;
pub(crate) mod recognise;
pub(crate) mod releases;
pub(crate) mod source;
pub(crate) mod symbol_file;
pub(crate) mod unreported_libraries;
pub(crate) mod vtable;
