//! Objects that a program compiles to memory (`frame_pointers/codegen/to_memory.rs`) and may load itself, without
//! LLVM's linkers.
//!
//! They are searched by their bytes ([`placement`](crate::placement)) in memory that becomes executable, a few times
//! each. In memory that is always writable and executable nothing announces the code: it is searched again when the
//! next module is compiled, when other memory becomes executable, and at exit.
//!
//! An object that one of LLVM's linkers links is detected there, and dropped here. An object that is written to a file
//! or never loaded is dropped silently, as are those of another machine or format. Unwind tables are not registered:
//! the program may not have relocated them, and may free them at any time.
//!
//! Why not by unwind tables alone (`channels/unwind_tables.rs`): tinygrad copies code without tables into memory that may
//! be executed before, so no call announces it, and it would have no names at all. Programs that do not call
//! `LLVMTargetMachineEmitToMemoryBuffer` pay for a look at an empty list when memory becomes executable.

#![forbid(unsafe_code)]

mod search;
pub(crate) mod waiting;
