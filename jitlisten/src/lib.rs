//! Make code that LLVM compiles at run time look, to every Linux profiler, debugger and unwinder, like code from an
//! ordinary shared library.
//!
//! ```text
//!    LISTEN  how we hear            OBJECT  what we heard        SINK  whom we tell
//!  +--------------------------+   +----------------------+   +-------------------------------+
//!  | shim    stock llvmlite,  |   |  LoadedObject        |   | perf_map   /tmp/perf-PID.map  |
//!  |         any LLVM host    | > |   functions          | > | jitdump    jit-PID.dump       |
//!  |                          |   |   line rows          |   |                               |
//!  +--------------------------+   |   eh_frame           |   +-------------------------------+
//!    loaded / finalized / freeing |   text ranges        |
//!                                 +----------------------+
//!                                   SESSION (the trunk)
//! ```
//!
//! Three rooms, one trunk, one noun ([`LoadedObject`]), three verbs (*loaded*, *finalized*, *freeing*): see [`Session`].

mod address;
pub mod cfi;
mod clock;
mod error;
pub mod foreign;
mod fork;
pub mod listen;
mod live;
mod loaded_object;
pub mod log;
mod looking;
mod memory;
pub mod name;
pub mod options;
mod own_file;
mod privilege;
mod quiet_write;
mod session;
mod shape;
mod sink;
mod statistics;
mod visit;

pub use address::{Address, AddressRange, Offset};
pub use error::Error;
pub use loaded_object::{Function, LineRow, LineRows, LoadedObject, Machine, TextRange};
pub use memory::HostMemory;
pub use privilege::is_privileged;
pub use session::{ForkGuard, Loaded, ObjectId, Session, Unwinders};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use sink::fuzzing;
pub use statistics::{SinkStatistics, Statistics};
#[doc(hidden)]
pub use unwind_register::{Entered, Inside};
pub use visit::{Visit, keeping_errno};
