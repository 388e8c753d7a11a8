//! Reports from a `perf.data` and the code it names: percent per source line with inlined calls, flame graphs, exports.
//!
//! ```text
//!  model       recording    a perf.data: threads, samples, stacks; Numba's compilations
//!              symbols      functions, lines and inlined calls of the stacks' addresses
//!              machine      decoded instructions and their control flow
//!              lookup       the files that a recording names
//!  analysis    profile      samples by line, by function and by activity
//!              loops        loops of compiled code, and advice
//!              answer       the user's lines by total time, and what helps: the first screen
//!              report       combined results with their sources; comparison of two reports
//!  output      render       text, JSON, page, flame graph, exports
//! ```
//! The input is a `perf.data` from `perf record` or `jitlisten record` of a program that ran under jitlisten. The
//! images, libraries, perf maps and sources that it names are read in place. The crate runs no program and writes only
//! the requested output. It trusts no file: damaged or missing parts become notes, and the rest is read.
#![forbid(unsafe_code)]

mod answer;
mod distinct;
mod error;
mod file_names;
mod lookup;
mod loops;
mod machine;
mod path_text;
mod profile;
mod python_command;
mod recording;
mod render;
mod report;
mod sanitize;
mod symbols;
mod words;

pub use answer::{Answer, AnswerRow, Help, RowKind};
pub use error::Error;
pub use lookup::Lookup;
pub use lookup::source::{Compiled, SourceText};
pub use lookup::source_hashes::hash as source_hash;
pub use loops::{Advice, Facts as LoopFacts, Gain, Instruction, Loop, Remark, Verdict, Version};
pub use profile::activity::{Activities, Activity, StackActivity};
pub use profile::hottest::HotLine;
pub use profile::owners::Owners;
pub use profile::{
    Count, Detail, Extent, FunctionRow, Inlined, LibraryRow, Line, Profile, Shares, SourceLines, Summary, ThreadRow,
};
pub use recording::compilations::{Compilation, GrowingCompilations, Why};
pub use recording::{
    Event, Facts, FilePosition, Follower, Interpreter, Location, MappedFile, Origin, Recording, Sample, Selection,
    Stacks, Thread,
};
pub use render::{
    SourceLine, Style, compilations_to_json, compilations_to_text, diff_to_json, diff_to_text, gzip, stacks_to_json,
    to_callgrind, to_collapsed, to_firefox, to_flamegraph, to_html, to_json, to_pprof, to_speedscope, to_text,
    why_to_text,
};
pub use report::{
    Bundle, Change, CompiledFunction, Difference, Group, Imbalance, MARKER, Options, ROOT, RecordingFile, Report, diff,
};
pub use sanitize::sanitize;
pub use symbols::{FileSymbols, Frame, Function, Kind, SourceFrame, SymbolCache, Symbols};
