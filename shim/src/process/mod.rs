//! The process: its loader, its libraries, and patches of them. Nothing here knows LLVM.

pub(crate) mod detour;
pub(crate) mod dlsym_entry;
pub(crate) mod duplicate_copy;
pub(crate) mod known;
pub(crate) mod library;
pub(crate) mod link_map;
pub(crate) mod loader;
pub(crate) mod lookup;
pub(crate) mod next;
pub(crate) mod program;
pub(crate) mod relocation_slot;
pub(crate) mod search;
pub(crate) mod thread;
