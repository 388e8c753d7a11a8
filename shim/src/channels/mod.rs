//! Channels: the hooks that report the objects of an LLVM, one folder each.
//!
//! | channel | reports |
//! | --- | --- |
//! | `gdb_list` | objects that the program registers with debuggers, and their deregistration |
//! | `runtime_dyld` | objects that MCJIT and ORC's older layer load |
//! | `jitlink` | objects that ORC's newer layer links |

pub(crate) mod gdb_list;
pub(crate) mod jitlink;
pub(crate) mod runtime_dyld;
