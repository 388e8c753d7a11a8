//! The C ABI of jitlisten, declared in `include/jitlisten.h`, and the constructor that runs under `LD_PRELOAD`.
//!
//! Exported functions guard, check pointers and call safe Rust; there is no logic here.

// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

pub mod alive;
pub mod attached;
mod borrowed;
mod give_back;
pub mod guard;
mod heap;
#[cfg(feature = "interpose")]
mod left_behind;
pub mod log;
mod log_callback;
pub mod object;
mod preload;
pub mod record;
#[cfg(feature = "interpose")]
pub mod sanitizer;
pub mod session;
pub mod sinks;
pub mod statistics;
pub mod status;
pub mod unwind;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
