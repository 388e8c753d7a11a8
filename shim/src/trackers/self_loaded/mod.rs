//! Tracker of objects that a program compiles to memory (`frame_pointers/codegen/to_memory.rs`) and may load itself,
//! without LLVM's linkers.
//!
//! Self-loaded objects are located by their bytes ([`placement`](crate::placement)) in memory that becomes executable.
//! The number of searches for each object is limited. In memory that is always writable and executable, no event
//! announces the code. The code is therefore searched for when the next module is compiled, when other memory becomes
//! executable, and at exit.
//!
//! If one of LLVM's linkers also receives the object, that linker's hook reports it, and this tracker drops it. An
//! object that is written to a file or never loaded is dropped silently, as are objects for another architecture or in
//! another format. Unwind tables are not registered, because the program may not have relocated them and may free them
//! at any time.
//!
//! Unwind tables alone (`trackers/unwind_tables.rs`) do not suffice, because tinygrad copies code without tables into
//! memory that is already executable. No call announces that code, so it would stay unnamed. In programs that do not
//! call `LLVMTargetMachineEmitToMemoryBuffer`, memory that becomes executable costs only the check of an empty list.

#![forbid(unsafe_code)]

mod search;
mod waiting;

pub(crate) use search::MAX_WRITABLE_BYTES;
pub(crate) use waiting::SelfLoadedObjects;
