//! Reports from a `perf.data` and the code it names: percent per source line with inlined calls, flame graphs, exports.
//!
//! ```text
//!  perf.data ─ recording ─ symbols ─ profile ─┬─ text, json, html     the line table
//!                 │           │               └─ diff
//!                 └───────────┴─ stacks ──────── flame graph, exports
//! ```
//! The input is a `perf.data` from `perf record` or `jitlisten record` of a program that ran under jitlisten. The
//! images, libraries, perf maps and sources that it names are read in place. The crate runs no program and writes only
//! the requested output. It trusts no file: damaged or missing parts become notes, and the rest is read.
#![forbid(unsafe_code)]

mod activity;
mod assembly;
mod bundle;
mod compilations;
mod compiling;
mod diff;
mod error;
mod export;
mod flamegraph;
mod graph;
mod hottest;
mod html;
mod json;
mod lookup;
mod loops;
mod machine;
mod profile;
mod recording;
mod report;
mod roots;
mod sanitize;
mod segments;
mod source;
mod source_hashes;
mod symbols;
mod text;
mod unwind;
mod why;

pub use activity::{Activities, Activity, StackActivity};
pub use bundle::{Bundled, bundle};
pub use compilations::{Compilation, GrowingCompilations, Why};
pub use compiling::{CompiledFunction, compilations_to_json, compilations_to_text};
pub use diff::{Change, Difference, diff, diff_to_text};
pub use error::Error;
pub use flamegraph::to_flamegraph;
pub use hottest::{CallingLine, HotLine, calling_lines, hottest};
pub use html::to_html;
pub use json::to_json;
pub use lookup::Lookup;
pub use loops::{Advice, Facts as LoopFacts, Instruction, Loop, Remark, Version};
pub use profile::{
    Count, Detail, Extent, FunctionRow, Inlined, LibraryRow, Line, Profile, Shares, SourceLines, Summary, ThreadRow,
};
pub use recording::{
    Event, Facts, FilePosition, Follower, Location, MappedFile, Origin, Recording, Sample, Selection, Stacks, Thread,
};
pub use report::{Group, Options, RecordingFile, Report};
pub use sanitize::sanitize;
pub use source::{Compiled, SourceText};
pub use source_hashes::hash as source_hash;
pub use symbols::{FileSymbols, Frame, Function, Kind, SourceFrame, SymbolCache, Symbols};
pub use text::{Style, to_text};
pub use why::{SourceLine, why_to_text};

/// Returns stacks as lines of `process;outermost;…;innermost COUNT`.
pub fn to_collapsed(report: &Report) -> String {
    let mut text = export::collapsed::collapsed(report).join("\n");
    text.push('\n');
    text
}

/// Returns a profile for speedscope.
pub fn to_speedscope(report: &Report) -> serde_json::Value {
    export::speedscope::to_speedscope(report)
}

/// Returns a profile for the Firefox Profiler.
pub fn to_firefox(report: &Report) -> serde_json::Value {
    export::firefox::to_firefox(report)
}

/// Returns a profile for KCachegrind and `callgrind_annotate`.
pub fn to_callgrind(report: &Report) -> String {
    export::callgrind::to_callgrind(report)
}
