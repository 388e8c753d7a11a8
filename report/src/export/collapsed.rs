//! Collapsed stacks: `process;outermost;…;innermost COUNT` in each line. Brendan Gregg's `stackcollapse` scripts began it.
//!
//! Names end in `_[j]` (compiled at run time), `_[i]` (inlined there) or `_[k]` (the kernel), as in those scripts.

use std::collections::BTreeMap;

use crate::profile::stack_counts;
use crate::report::Report;
use crate::symbols::{Frame, Kind};

use super::{frames_of, label};

/// The lines, sorted.
pub(crate) fn collapsed(report: &Report) -> Vec<String> {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for ((stack, thread), count) in stack_counts(&report.recording) {
        let process = report.recording.threads.get(thread as usize).map_or("", |thread| thread.name.as_str());
        let mut line = plain(process);
        for frame in frames_of(report, stack).iter().rev() {
            line.push(';');
            line.push_str(&name(report, frame));
        }
        *stacks.entry(line).or_default() += count.samples;
    }
    stacks.into_iter().map(|(stack, count)| format!("{stack} {count}")).collect()
}

/// A frame's name with its ending.
pub(crate) fn name(report: &Report, frame: &Frame) -> String {
    let ending = match report.symbols.function(frame).kind {
        _ if frame.inlined => "_[i]",
        Kind::Compiled => "_[j]",
        Kind::Kernel => "_[k]",
        _ => "",
    };
    plain(&label(report, frame)) + ending
}

pub(crate) fn plain(name: &str) -> String {
    crate::source::printable(name).replace(';', ":")
}
