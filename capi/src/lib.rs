//! The C ABI of jitlisten, declared in `include/jitlisten.h`, and the constructor that runs under `LD_PRELOAD`.
//!
//! Exported functions enter the guard, check pointers and call safe Rust; they contain no logic.

// Code in the host's process must not panic. An exception to these lints carries a comment that explains why it cannot.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

pub mod attached;
mod borrowed;
#[cfg(feature = "interpose")]
mod exec_environment;
pub mod guard;
mod heap;
#[cfg(feature = "interpose")]
pub mod interpose;
pub mod live;
pub mod log;
mod log_callback;
#[cfg(feature = "interpose")]
mod missing_preload;
pub mod object;
mod preload;
pub mod record;
mod run_environment;
#[cfg(feature = "interpose")]
pub mod sanitizer;
pub mod session;
pub mod sinks;
pub mod statistics;
pub mod status;
pub mod unwind;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
