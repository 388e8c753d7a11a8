#![doc = include_str!("../README.md")]
#![doc = ""]
//! # What is in it
//!
//! | | |
//! | --- | --- |
//! | [`producer`] | the verbs: *loaded*, *finalized*, *freeing* |
//! | [`options`], [`Session`], [`Statistics`] | the options, the session of the process, its counters |
//! | [`LoadedObject`], [`LineRows`] | an object in memory, parsed |
//! | [`name`] | readable names |

// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod address;
#[doc(hidden)]
pub mod cfi;
mod code_snapshot;
mod error;
mod ledger;
mod liveness;
mod loaded_object;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod modules;
mod object;
mod object_id;
mod observer;
pub mod options;
#[doc(hidden)]
pub mod plumbing;
mod process;
pub mod producer;
mod remarks;
mod session;
mod sink;
mod statistics;
mod unwindability;

pub use address::{Address, AddressRange, Offset};
pub use error::{Error, Reason};
pub use jitlisten_names as name;
pub use loaded_object::{Function, LineRow, LineRows, LoadedObject, Machine, TextRange};
pub use object_id::ObjectId;
pub use session::{LiveFunction, Session};
pub use statistics::{ImageStatistics, SinkStatistics, Statistics};
