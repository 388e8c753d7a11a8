//! Make code that LLVM compiles at run time look, to every Linux profiler, debugger and unwinder, like code from an
//! ordinary shared library.
//!
//! ```text
//!    EVENT SOURCES                  MODEL                        SINKS
//!  +--------------------------+   +----------------------+   +-------------------------------+
//!  | shim    stock llvmlite,  |   |  LoadedObject        |   | perf_map   /tmp/perf-PID.map  |
//!  |         any LLVM host    | > |   functions          | > | jitdump    jit-PID.dump       |
//!  |                          |   |   line rows          |   |                               |
//!  +--------------------------+   |   eh_frame           |   +-------------------------------+
//!    loaded / finalized / freeing |   text ranges        |
//!                                 +----------------------+
//!                                   SESSION
//! ```
//!
//! One noun ([`LoadedObject`]), three verbs (*loaded*, *finalized*, *freeing*): see [`Session`].

mod address;
pub mod cfi;
mod code_snapshot;
mod error;
mod liveness;
mod loaded_object;
pub mod log;
#[doc(hidden)]
pub mod modules;
mod object;
mod observer;
pub mod options;
mod process;
pub mod producer;
mod session;
mod sink;
mod statistics;
mod unwindability;

pub use address::{Address, AddressRange, Offset};
pub use error::Error;
pub use jitlisten_names as name;
pub use loaded_object::{Function, LineRow, LineRows, LoadedObject, Machine, TextRange};
pub use object::ObjectId;
pub use observer::{CodeObserver, ObservedCode, notify_libraries_changed};
#[doc(hidden)]
pub use process::across_fork::{ForkSlot, HeldAcrossFork, follow_forks};
pub use process::allocator::HostAllocator;
pub use process::checked_read;
#[doc(hidden)]
pub use process::clock::monotonic;
pub use process::host_state::{HostStateGuard, exempt_signal, keeping_errno};
#[doc(hidden)]
pub use process::mappings::{Mapping, MapsLine, mappings_of};
pub use process::privilege::is_privileged;
pub use session::{ForkGuard, LiveFunction, Loaded, Session};
pub use sink::Unwinders;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use sink::fuzzing;
pub use statistics::{SinkStatistics, Statistics};
#[doc(hidden)]
pub use unwind_register::{DynamicSection, Entered, Inside, Relocation, is_relative};
