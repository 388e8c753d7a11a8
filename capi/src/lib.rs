//! The C ABI of jitlisten, declared in `include/jitlisten.h`, and the constructor that runs under `LD_PRELOAD`.
//!
//! Exported functions guard, check pointers and call safe Rust; there is no logic here.

pub mod alive;
mod borrowed;
mod give_back;
pub mod guard;
pub mod log;
mod log_callback;
pub mod object;
mod preload;
pub mod record;
pub mod session;
pub mod sinks;
pub mod statistics;
pub mod status;
pub mod unwind;

#[global_allocator]
static MEMORY: jitlisten::HostAllocator = jitlisten::HostAllocator;
