//! Internal interfaces for the shim, the sampler, `libjitlisten.so` and the command. They are hidden from the
//! documentation and may change in any release.

/// Unwind rules derived from code.
pub mod cfi {
    pub use crate::cfi::*;
}

/// List of modules that tools in the process see.
pub mod modules {
    pub use crate::modules::*;
}

pub use crate::ledger::{Executable, Ledger, MemoryChange, Outcome, Ranges, code_pages};
pub use crate::live_objects::{ForkGuard, LiveObjects, Loaded};
pub use crate::liveness::{ProcessIdentity, Run, pid_namespace, process_start_time, start_time};
pub use crate::log::LogEvent;
pub use crate::observer::{CodeObserver, ObservedCode, notify_libraries_changed};
pub use crate::process::across_fork::{ForkSlot, HeldAcrossFork, follow_forks};
pub use crate::process::checked_read;
pub use crate::process::clock::{clock_ns, monotonic};
pub use crate::process::elf;
pub use crate::process::file_mapping::FileMapping;
pub use crate::process::host_state::{HostStateGuard, exempt_signals, preserving_errno};
pub use crate::process::mappings::{Mapping, MapsLine, mappings_in};
pub use crate::process::memory_writers::{OwnThread, is_alone};
pub use crate::process::privilege::is_privileged;
pub use crate::process::published::{Changing, Published, Ranged};
pub use crate::process::remote_file::is_remote;
pub use crate::process::reserve::{is_from_reserve, map_pages, take_from_reserve, unmap_pages};
pub use crate::process::write_nosignal::without_write_signals;
pub use crate::remarks::{Remark, note as record_remark};
pub use crate::run_request::{RUN_VARIABLE, RunRequest, Word};
pub use crate::session::open_session;
#[cfg(feature = "fuzzing")]
pub use crate::sink::fuzzing;
pub use crate::sink::perf_map::FirstLine;
pub use crate::sink::process_directory::{MarkedDirectory, default_directory};
pub use crate::sink::{UnwinderSearch, run_before_program};
pub use unwind_register::{DynamicSection, RELATIVE, ReentrancyGuard, ReentrancyToken, Relocation, is_relative};

/// Number of reported code, for callers that cannot hold a Rust value (C). It is live until
/// [`LiveObjects::reported_freeing`].
pub fn into_id(code: crate::producer::LoadedCode) -> crate::ObjectId {
    code.into_id()
}
