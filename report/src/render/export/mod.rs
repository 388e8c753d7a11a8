//! Stacks in the formats of other tools.

mod callgrind;
mod collapsed;
mod firefox;
mod flamegraph;
mod speedscope;

pub use callgrind::to_callgrind;
pub use collapsed::to_collapsed;
pub use firefox::to_firefox;
pub use flamegraph::to_flamegraph;
pub use speedscope::to_speedscope;
