//! Reads a `perf.data` and the code it names: percent per source line with inlined calls, flame graphs, exports.
//!
//! ```text
//!  perf.data ─ recording ─ symbols ─ profile ─┬─ text, json, html     the line table
//!                 │           │               └─ diff
//!                 └───────────┴─ stacks ──────── flame graph, exports
//! ```
//! Give it the file of `perf record` or of `jitlisten record` of a program that ran under jitlisten; the images, libraries,
//! perf maps and sources that it names are read where they are. Nothing is run, nothing is written but what was asked for, and
//! nothing in a file is trusted: what is damaged or missing becomes a note, and the rest is read.
#![forbid(unsafe_code)]

mod assembly;
mod error;
mod html;
mod json;
mod profile;
mod recording;
mod report;
mod source;
mod symbols;
mod text;

pub use error::Error;
pub use html::to_html;
pub use json::to_json;
pub use profile::{Count, Detail, FunctionRow, Inlined, Line, Profile, Shares, SourceLines, ThreadRow};
pub use recording::{Event, Facts, Location, MappedFile, Place, Recording, Sample, Selection, Stacks, Thread};
pub use report::{Options, Report};
pub use source::SourceText;
pub use symbols::{FileSymbols, Frame, Function, Kind, Lookup, SourceFrame, Symbols};
pub use text::{Style, to_text};
