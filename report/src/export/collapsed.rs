//! Collapsed stacks: `process;outermost;…;innermost COUNT` in each line. Brendan Gregg's `stackcollapse` scripts began
//! it. The count is nanoseconds where the event is a clock, and else what was counted.
//!
//! Names end in `_[j]` (compiled at run time), `_[i]` (inlined there) or `_[k]` (the kernel), as in those scripts.

use std::collections::BTreeMap;

use crate::profile::{Count, stack_counts};
use crate::report::Report;
use crate::symbols::{Frame, Kind};

use super::shown::{is_entry_of, shown_frames};
use super::{Unit, frames_of, label};

/// Readers add all numbers up, which has to be possible; a recording may claim anything.
const MOST_BITS: u32 = 62;

/// The lines, sorted.
pub(crate) fn collapsed(report: &Report) -> Vec<String> {
    lines(report, frames_of)
}

/// The lines of a picture.
pub(crate) fn shown(report: &Report) -> Vec<String> {
    lines(report, pictured)
}

fn pictured(report: &Report, stack: u32) -> Vec<Frame> {
    let frames = shown_frames(report, stack);
    let is_shown = |at: &usize| *at == 0 || !is_entry_of(report, &frames[*at], &frames[*at - 1]);
    (0..frames.len()).filter(is_shown).map(|at| frames[at]).collect()
}

fn lines(report: &Report, frames: fn(&Report, u32) -> Vec<Frame>) -> Vec<String> {
    let mut stacks: BTreeMap<String, Count> = BTreeMap::new();
    for ((stack, thread), count) in stack_counts(&report.recording) {
        let process = report.recording.threads.get(thread as usize).map_or("", |thread| thread.name.as_str());
        let mut line = plain(process);
        for frame in frames(report, stack).iter().rev() {
            line.push(';');
            line.push_str(&name(report, frame));
        }
        *stacks.entry(line).or_default() += count;
    }
    let unit = Unit::of(report);
    let all: u128 = stacks.values().map(|count| u128::from(unit.amount(*count))).sum();
    let excess = (u128::BITS - all.leading_zeros()).saturating_sub(MOST_BITS);
    stacks.into_iter().map(|(stack, count)| format!("{stack} {}", unit.amount(count) >> excess)).collect()
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
    crate::printable::printable(name).replace(';', ":")
}
