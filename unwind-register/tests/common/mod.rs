//! Generated code for tests, a hand-written chain `alpha -> beta -> gamma -> callback`, and stack walks through it.
#![allow(dead_code, unreachable_pub, clippy::print_stdout, reason = "each test uses its own part of this")]

pub mod code;
pub mod libgcc;
pub mod libunwind;

pub use code::Chain;
