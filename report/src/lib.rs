//! Reads a `perf.data` and the code it names.
#![forbid(unsafe_code)]

mod error;
mod recording;

pub use error::Error;
pub use recording::{Event, Facts, Location, MappedFile, Place, Recording, Sample, Selection, Stacks, Thread};
