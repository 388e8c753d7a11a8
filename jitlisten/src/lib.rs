//! Make code that LLVM compiles at run time look, to every Linux profiler, debugger and unwinder, like code from an
//! ordinary shared library.
//!
//! ```text
//!    LISTEN  how we hear            OBJECT  what we heard        SINK  whom we tell
//!  +--------------------------+   +----------------------+   +-------------------------------+
//!  | shim    stock llvmlite,  |   |  LoadedObject        |   | perf_map   /tmp/perf-PID.map  |
//!  |         any LLVM host    | > |   functions          | > | ...                           |
//!  |                          |   |   line rows          |   |                               |
//!  +--------------------------+   |   eh_frame           |   +-------------------------------+
//!    loaded / finalized / freeing |   text ranges        |
//!                                 +----------------------+
//!                                   SESSION (the trunk)
//! ```
//!
//! Three rooms, one trunk, one noun ([`LoadedObject`]), three verbs (*loaded*, *finalized*, *freeing*).

mod address;
mod error;
mod loaded_object;
pub mod name;

pub use address::{Address, AddressRange, Offset};
pub use error::Error;
pub use loaded_object::{Function, LineRow, LineRows, LoadedObject, Machine, TextRange};
