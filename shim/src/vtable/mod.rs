//! The vtables of LLVM's linkers: what is called for every object, whoever listens and whether or not the library has symbols.
//!
//! | file | |
//! | --- | --- |
//! | `find.rs` | finds the vtables of a class, in slices of memory (pure) |
//! | `mapped.rs` | those slices, of a library that is mapped |
//! | `patch.rs` | exchanges a slot, before or after the library is relocated |

pub(crate) mod find;
pub(crate) mod mapped;
pub(crate) mod patch;
