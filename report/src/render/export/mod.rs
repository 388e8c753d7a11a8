//! Stacks in the formats of other tools.

mod callgrind;
mod collapsed;
mod firefox;
mod flamegraph;
mod gzip;
mod pprof;
mod speedscope;

pub use callgrind::to_callgrind;
pub use collapsed::to_collapsed;
pub use firefox::to_firefox;
pub use flamegraph::to_flamegraph;
pub use gzip::gzip;
pub use pprof::to_pprof;
pub use speedscope::to_speedscope;
