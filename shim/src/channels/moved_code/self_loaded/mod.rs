//! Objects that a program has had compiled to memory (`frame_pointers/codegen/to_memory.rs`) and may load by itself: no linker of LLVM's ever sees them.
//!
//! They are looked for by their bytes ([`placement`](crate::placement)) in what becomes executable, a few times each. In memory that may
//! be written and executed all the time, code comes after the right to run, and nothing announces it: such memory is looked at once more when
//! the next module is compiled, when other memory becomes executable, and at the exit.
//!
//! An object that goes to one of LLVM's linkers after all is heard there, and no longer looked for here. One that is written to a file, or
//! never loaded, is forgotten without a word, as is one of another machine or format. Unwind tables are left out: the program may have
//! relocated them or not, and where their memory goes is its own affair.

#![forbid(unsafe_code)]

mod search;
pub(crate) mod waiting;
