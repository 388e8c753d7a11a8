//! Living in a process that is not ours: reads that cannot fault, files that stay ours, signals and cancellation held back,
//! clocks that are not interposed, memory when the host has none.

pub(crate) mod allocator;
pub(crate) mod checked_file;
pub mod checked_read;
pub(crate) mod clock;
pub(crate) mod fork_gate;
pub(crate) mod host_state;
pub(crate) mod privilege;
pub(crate) mod write_nosignal;
