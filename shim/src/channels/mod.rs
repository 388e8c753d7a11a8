//! Channels: the hooks that report an LLVM instance's objects, one directory per channel.
//!
//! | channel | reports |
//! | --- | --- |
//! | `gdb_list` | objects that the program registers with debuggers or unregisters |
//! | `runtime_dyld` | objects that MCJIT and ORC's older layer load |
//! | `jitlink` | objects that ORC's newer layer links |

pub(crate) mod gdb_list;
pub(crate) mod jitlink;
pub(crate) mod runtime_dyld;
