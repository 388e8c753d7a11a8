//! The answer to "where does the time go, and what can I do?": the first screen of all outputs.
//!
//! ```text
//!  path      lines of the user on each stack
//!  samples   samples grouped by path and activity
//!  tree      the lines by total time
//!  rows      the rows that are shown
//!  gil       code that holds the GIL
//!  help      advice
//!  build     all together
//!  line_tree the same tree for the page, which chooses the rows of a part of the recording
//! ```
//! A row is a line of the user's Python, or a compiled line of any file except Numba's and Python's own. The frames of
//! libraries are folded into the words at the end of the row.

mod build;
mod gil;
mod help;
mod line_tree;
mod path;
mod row;
mod rows;
mod samples;
mod serial;
mod tree;

pub use build::Answer;
pub(crate) use build::{Evidence, call_of};
pub use help::Help;
pub(crate) use line_tree::{LIMITS, Leaf, LineNode, LineTree};
pub use row::{AnswerRow, RowKind};
pub(crate) use samples::{Samples, collect};
