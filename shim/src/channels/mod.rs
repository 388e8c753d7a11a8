//! Channels: the ways to observe the objects of an LLVM, one folder or file each.
//!
//! | channel | reports |
//! | --- | --- |
//! | `gdb_list` | objects that the program registers with debuggers, and their deregistration |
//! | `runtime_dyld` | objects that MCJIT and ORC's older layer load |
//! | `jitlink` | objects that ORC's newer layer links |
//! | `moved_code` | objects that the program itself copies or loads |
//! | `unwind_tables` | code of a library that no other channel observes |

pub(crate) mod gdb_list;
pub(crate) mod jitlink;
pub(crate) mod moved_code;
pub(crate) mod runtime_dyld;
pub(crate) mod unwind_tables;
