//! Contracts between the parts of jitlisten: formats and layouts that one part writes and another reads. Both use the
//! types of this crate.

#![forbid(unsafe_code)]

pub mod counters;
pub mod elf;
pub mod facts;
pub mod mailbox;
pub mod perf_data;
pub mod recording;
