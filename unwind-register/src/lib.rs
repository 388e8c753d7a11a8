//! Registers the `.eh_frame` of run-time generated code with the unwinders of this process.
//!
//! Profilers that sample with signals, memory profilers, crash handlers and C++ exceptions walk the stack from inside
//! the process, with one of three libraries. Each library has its own interface for registering code that is not in a
//! file, and each interface has its pitfalls:
//!
//! ```text
//!   your JIT --- Section ---> Registry -+-> nongnu libunwind, every copy   (_U_dyn_register)       module `libunwind`
//!                                |      +-> libgcc                         (__register_frame)      `frame_registry`
//!                                |      +-> LLVM libunwind                 (__unw_add_dynamic_...)          "
//!                                v
//!                     own copy of the rules, few large sorted tables           modules `cfi`, `memory`, `table`
//! ```
//!
//! Dropping a [`Registration`] deregisters the code. The crate links no unwinder: it finds them in the loaded
//! libraries, and a process without any unwinder pays nothing.
//!
//! ```no_run
//! use unwind_register::{Registry, Section};
//!
//! # let (eh_frame, address, code) = (&[][..], 0, 0..0);
//! let registry = Registry::process();
//! // SAFETY: the code is complete, its rules are correct, and it outlives the registration.
//! let registration = unsafe { registry.register(&Section::new(eh_frame, address).text(&[code]))? };
//! // ... run the code ...
//! drop(registration); // before the code is freed
//! # Ok::<(), unwind_register::Error>(())
//! ```
//!
//! # Threads, signals, locks
//!
//! * Any thread may call any function, but not from a signal handler. Unwinders may run at any time, including in
//!   signal handlers that interrupt this crate: they need none of its locks.
//! * [`Registry::register_with_known_unwinders`] and dropping a registration take our own lock, and under it the locks
//!   of the unwinders. [`Registry::register`] and [`Registry::rescan`] take the loader's locks, and ours only after
//!   releasing those. The lock order is therefore: loader, caller, this crate.
//! * `fork` never copies our lock while it is held, even in a signal handler: signals are blocked as long. glibc does not
//!   protect its own: if another thread is in `dl_iterate_phdr` at that moment, the child waits for ever in its next one.
//!
//! # Memory
//!
//! Memory that an unwinder may read is never unmapped. Entries take 80 bytes for a section with one function, plus 48
//! bytes for each further function. Tables take about 40 bytes per function, and at least 128 KiB of address space (not
//! memory) for each 64 MiB that contains code. Removed entries are reused after 1 s; replaced tables after 5 s, or
//! after 0.1 s if more than 256 are waiting. The bound is therefore twice the peak, plus the entries removed in the
//! last second, plus at most 32 MiB of tables.
//!
//! # Limits
//!
//! * Linux on x86_64 and aarch64. aarch64 was tested with libunwind 1.8 and libgcc 14 in an emulator, not on hardware.
//! * libunwind searches its list in order; the first info whose range contains the address decides. Our infos cover up
//!   to 64 MiB each, except ranges that other code has already registered with the same copy. Infos that are registered
//!   later are found first. Two copies of this crate in one process conflict if both register code in the same 64 MiB.

// Code that runs in the host's process must not panic. Each exception states why it cannot.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod cfi;
mod clock;
mod discovery;
mod error;
mod fork;
mod frame_pointer;
mod frame_registry;
mod libunwind;
mod loader;
mod memory;
mod plan;
mod reentrancy;
mod registry;
mod section;
mod signals;
mod stale_ranges;
mod state;
mod statistics;
mod table;

#[doc(hidden)]
pub use cfi::RuleChecker;
#[doc(hidden)]
pub use clock::clock_ns;
pub use discovery::Rescan;
pub use error::Error;
#[doc(hidden)]
pub use frame_pointer::{aarch64, x86_64};
#[doc(hidden)]
pub use loader::{DynamicSection, RELATIVE, Relocation, is_relative};
#[doc(hidden)]
pub use reentrancy::{ReentrancyGuard, ReentrancyToken};
pub use registry::{Registration, Registry};
pub use section::{ByHost, Coverage, FramePointers, Section};
pub use statistics::{Statistics, Unwinder, UnwinderKind};
