//! Register the `.eh_frame` of run-time generated code with the unwinders of this process.
//!
//! Profilers that sample with signals, memory profilers, crash handlers and C++ exceptions walk the stack from inside
//! the process, with one of three libraries. Each has a way to register code that is in no file, and each way has
//! traps:
//!
//! ```text
//!   your JIT --- Section ---> Registry -+-> nongnu libunwind, every copy   (_U_dyn_register)       module `libunwind`
//!                                |      +-> libgcc                         (__register_frame)      `frame_registry`
//!                                |      +-> LLVM libunwind                 (__unw_add_dynamic_...)          "
//!                                v
//!                     own copy of the rules, few large sorted tables           modules `cfi`, `memory`, `table`
//! ```
//!
//! A [`Registration`] is a value; dropping it deregisters. Nothing is linked: unwinders are looked up in the libraries
//! that are there, and a process without any of them pays nothing.
//!
//! ```no_run
//! use unwind_register::{Registry, Section};
//!
//! # let (eh_frame, address, code) = (&[][..], 0, 0..0);
//! let registry = Registry::process();
//! // SAFETY: the code is finished and stays where it is until the registration is dropped.
//! let registration = unsafe { registry.register(&Section::new(eh_frame, address).text(&[code]))? };
//! // ... run it ...
//! drop(registration); // before the code is freed
//! # Ok::<(), unwind_register::Error>(())
//! ```
//!
//! # Threads, signals, locks
//!
//! * Every function may be called from every thread, except in signal handlers. Unwinders may run at any time, also in
//!   signal handlers that interrupt us: they need none of our locks.
//! * [`Registry::register_with_known`] and dropping take our own lock, and the unwinders' own locks under it.
//!   [`Registry::register`] and [`Registry::rescan`] take the loader's locks, and ours only while they hold none of
//!   them. So the order is: loader, yours, ours.
//! * `fork` is safe at any time, also in a signal handler: signals wait while our lock is held.
//!
//! # Memory
//!
//! What an unwinder may look at is never unmapped. Entries take 80 bytes for a section with one function and 48 for
//! each further one, tables about 40 bytes per function and at least 128 KiB of addresses (not memory) for each 64 MiB
//! with code in it. Removed entries are used again after 1 s, replaced tables after 5 s, or 0.1 s when more than 256
//! wait: so the bound is twice the peak of what was alive, plus the entries removed in the last second, plus 32 MiB of
//! tables at the worst.
//!
//! # Limits
//!
//! * Linux, x86_64 and aarch64 (the latter has run under libunwind 1.8 and libgcc 14 in an emulated machine, not on
//!   hardware).
//! * libunwind's list is searched in order, and the first info whose range fits decides. Ours cover up to 64 MiB each,
//!   without what others have registered there with the same copy; what they register later is found first. Two copies
//!   of this crate in one process, with code in the same 64 MiB, do get into each other's way.

// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod cfi;
mod clock;
mod discovery;
mod error;
mod fork;
mod frame_pointer;
mod frame_registry;
mod inside;
mod libunwind;
mod loader;
mod memory;
mod plan;
mod registry;
mod section;
mod signals;
mod stale;
mod state;
mod statistics;
mod table;

pub use discovery::Rescan;
pub use error::Error;
#[doc(hidden)]
pub use frame_pointer::{aarch64, x86_64};
#[doc(hidden)]
pub use inside::{Entered, Inside};
#[doc(hidden)]
pub use loader::{DynamicSection, RELATIVE, Relocation, is_relative};
pub use registry::{Registration, Registry};
pub use section::{ByHost, Coverage, FramePointers, Section};
pub use statistics::{Statistics, Unwinder, UnwinderKind};
