#![doc = include_str!("../README.md")]
#![doc = ""]
//! # Modules and main types
//!
//! | | |
//! | --- | --- |
//! | [`producer`] | reporting code: *loaded*, *finalized*, *freeing* |
//! | [`options`], [`Session`], [`Statistics`] | user options, the session of the process, its counters |
//! | [`LoadedObject`], [`LineRows`] | parsed object in memory, and its line table |
//! | [`name`] | readable names from linkage names |

#![deny(unsafe_code)]
// The crate must not panic in the host's process. Where a panic is impossible, a comment states the reason.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod address;
mod cfi;
mod code_snapshot;
mod error;
mod ledger;
mod live_objects;
mod liveness;
mod loaded_object;
#[doc(hidden)]
pub mod log;
mod modules;
mod object;
mod object_id;
mod observer;
pub mod options;
#[doc(hidden)]
pub mod plumbing;
mod process;
pub mod producer;
mod remarks;
mod run_request;
mod session;
mod sink;
mod statistics;
mod unwindability;

pub use address::{Address, AddressRange, Offset};
pub use error::{Error, Reason, TableProblem};
pub use jitlisten_names as name;
pub use live_objects::LiveFunction;
pub use loaded_object::{Function, LineRow, LineRows, LoadedObject, Machine, TextRange};
pub use object_id::ObjectId;
pub use session::Session;
pub use statistics::{ImageStatistics, SinkStatistics, Statistics};
