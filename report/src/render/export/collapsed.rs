//! Collapsed stacks: lines of `process;outermost;…;innermost COUNT`, as introduced by Brendan Gregg's `stackcollapse`
//! scripts. The count is in ns if the event is a clock, otherwise in events.
//!
//! Names end in `_[j]` (compiled at run time), `_[i]` (inlined) or `_[k]` (kernel), as in those scripts.

use std::collections::BTreeMap;

use crate::profile::{Count, thread_stack_counts};
use crate::report::Report;
use crate::symbols::{Frame, Kind};

/// Maximum number of bits in the sum of all counts, so that readers can add them up. The counts of a recording are
/// untrusted.
const MAX_SUM_BITS: u32 = 62;

/// Returns stacks as lines of `process;outermost;…;innermost COUNT`.
pub fn to_collapsed(report: &Report) -> String {
    let mut text = collapse(report, Report::stack_frames).join("\n");
    text.push('\n');
    text
}

/// Returns the lines for a flame graph.
pub(super) fn shown_stacks(report: &Report) -> Vec<String> {
    collapse(report, drawn_frames)
}

fn drawn_frames(report: &Report, stack: u32) -> Vec<Frame> {
    let frames = report.shown_frames(stack);
    let is_shown = |index: &usize| *index == 0 || !report.is_entry_of(&frames[*index], &frames[*index - 1]);
    (0..frames.len()).filter(is_shown).map(|index| frames[index]).collect()
}

fn collapse(report: &Report, frames: fn(&Report, u32) -> Vec<Frame>) -> Vec<String> {
    let mut stacks: BTreeMap<String, Count> = BTreeMap::new();
    for ((stack, thread), count) in thread_stack_counts(report.counted_samples()) {
        let process = report.recording.threads.get(thread as usize).map_or("", |thread| thread.name.as_str());
        let mut line = escape(process);
        for frame in frames(report, stack).iter().rev() {
            line.push(';');
            line.push_str(&frame_name(report, frame));
        }
        *stacks.entry(line).or_default() += count;
    }
    let unit = report.unit();
    let sum: u128 = stacks.values().map(|count| u128::from(unit.amount(*count))).sum();
    let excess = (u128::BITS - sum.leading_zeros()).saturating_sub(MAX_SUM_BITS);
    stacks.into_iter().map(|(stack, count)| format!("{stack} {}", unit.amount(count) >> excess)).collect()
}

pub(super) fn frame_name(report: &Report, frame: &Frame) -> String {
    let suffix = match report.symbols.function(frame).kind {
        _ if frame.inlined => "_[i]",
        Kind::Compiled => "_[j]",
        Kind::Kernel => "_[k]",
        _ => "",
    };
    escape(&report.label(frame)) + suffix
}

pub(super) fn escape(name: &str) -> String {
    crate::sanitize::sanitize(name).replace(';', ":")
}
