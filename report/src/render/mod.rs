//! Renderers: a report as text, as JSON, as a page, or in the format of another tool.
//!
//! Renderers read only a [`Report`](crate::report::Report), and share no more than the labels of rows (`rows`).

mod export;
mod html;
mod json;
mod rows;
mod stacks;
mod text;

pub use export::{gzip, to_callgrind, to_collapsed, to_firefox, to_flamegraph, to_pprof, to_speedscope};
pub use html::to_html;
pub use json::{compilations_to_json, diff_to_json, to_json};
pub use stacks::stacks_to_json;
pub use text::{SourceLine, Style, compilations_to_text, diff_to_text, to_text, why_to_text};
