//! A library that contains LLVM: its release, symbols and vtables.

pub(crate) mod c_functions;
pub(crate) mod elf_copy;
pub(crate) mod recognise;
pub(crate) mod releases;
pub(crate) mod symbol_file;
pub(crate) mod unreported_libraries;
pub(crate) mod vtable;
