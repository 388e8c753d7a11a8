//! Reads a `perf.data` and the code it names.
#![forbid(unsafe_code)]

mod error;
mod recording;
mod symbols;

pub use error::Error;
pub use recording::{Event, Facts, Location, MappedFile, Place, Recording, Sample, Selection, Stacks, Thread};
pub use symbols::{FileSymbols, Frame, Function, Kind, Lookup, SourceFrame, Symbols};
