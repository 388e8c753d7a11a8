//! Plan of a registration: parses the caller's section, then filters, completes, sorts and groups its entries.

use crate::cfi::{self, Encoded, Fde, RuleChecker};
use crate::error::Error;
use crate::frame_pointer::{MAX_EPILOGUE_BYTES, MAX_PROLOGUE_BYTES, Machine};
use crate::memory::word_at;
use crate::section::{Coverage, FramePointers, Section};
use jitlisten_unwinder::NewCommon;
use std::ops::Range;

/// Size of the largest plausible function. A longer FDE results from unrelated or malformed bytes.
const MAX_FUNCTION_BYTES: u64 = 1 << 30;

/// Largest distance between functions that count as adjacent.
const MAX_PADDING_BYTES: u64 = 64;

/// Encoded entries of one section, ready to be registered.
pub(crate) struct Plan {
    pub(crate) encoded: Encoded,
    pub(crate) coverage: Coverage,
}

/// Callback that receives functions in address order. For each, it returns a bit mask of the frame registries that lack
/// it.
pub(crate) type FindMissing<'a> = &'a dyn Fn(&[(u64, Origin)]) -> Vec<u32>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Parsed,
    /// Synthesized from a frame-pointer prologue.
    Synthesized,
}

impl Plan {
    /// Plans the registration of `section`.
    ///
    /// # Safety
    ///
    /// The functions of the section are readable.
    pub(crate) unsafe fn new(section: &Section<'_>, find_missing: FindMissing<'_>) -> Result<Plan, Error> {
        let machine = Machine::current().ok_or(Error::Machine)?;
        // Indirect pointers refer to words in the JIT's own data: `DW.ref.*` or a GOT slot.
        let (mut cies, parsed) = cfi::parse(section.eh_frame, section.address as u64, &word_at)?;
        let mut coverage = Coverage::default();
        let fdes = filter_fdes(parsed, section.text, &mut coverage);
        let gaps = find_uncovered(section.functions, &fdes);
        // SAFETY: the caller guarantees that the functions are readable.
        let synthesized_rules = unsafe { synthesize_rules(machine, section, &gaps, &mut coverage) };
        cies.push(machine.cie());
        let cie = cies.len() - 1;
        let synthesized_rules = synthesized_rules.iter().map(|(range, instructions)| {
            (Fde { cie, start: range.start, end: range.end, lsda: 0, instructions }, Origin::Synthesized)
        });
        let mut entries: Vec<_> = fdes.into_iter().map(|fde| (fde, Origin::Parsed)).chain(synthesized_rules).collect();
        entries.sort_by_key(|(fde, _)| fde.start);
        Plan::encode(&cies, &entries, section.text, coverage, find_missing)
    }

    /// Groups and encodes sorted FDEs. Adjacent functions that are missing from the same registries form one group.
    fn encode(
        cies: &[NewCommon<'_>],
        fdes: &[(Fde<'_>, Origin)],
        text: &[Range<usize>],
        mut coverage: Coverage,
        find_missing: FindMissing<'_>,
    ) -> Result<Plan, Error> {
        let starts: Vec<(u64, Origin)> = fdes.iter().map(|(fde, origin)| (fde.start, *origin)).collect();
        let text = TextRanges::new(text);
        let (mut run_number, mut previous_end) = (0, 0);
        let mut labelled = Vec::with_capacity(fdes.len());
        for ((fde, _), mask) in fdes.iter().zip(find_missing(&starts)) {
            run_number += u32::from(!are_adjacent(previous_end, fde.start, &text));
            previous_end = fde.end;
            labelled.push((fde.clone(), run_number << 8 | mask & 0xff));
        }
        let encoded = cfi::encode(cies, &labelled, RuleChecker::default());
        coverage.ignored += encoded.refused.len();
        coverage.covered -= encoded.refused.len().min(coverage.covered);
        match (encoded.bytes.is_empty(), encoded.refused.first()) {
            (false, _) => Ok(Plan { encoded, coverage }),
            (true, Some(refused)) => Err(Error::Instructions { function: refused.0 as usize }),
            (true, None) => Err(Error::NothingToRegister),
        }
    }
}

/// Sorts FDEs. Drops implausible and overlapping FDEs, and FDEs outside the text. Counts kept and dropped ones.
fn filter_fdes<'a>(mut fdes: Vec<Fde<'a>>, text: &[Range<usize>], coverage: &mut Coverage) -> Vec<Fde<'a>> {
    let total = fdes.len();
    let texts = TextRanges::new(text);
    let is_inside = |fde: &Fde<'_>| text.is_empty() || texts.covers(fde.start, fde.end);
    fdes.retain(|fde| fde.end - fde.start <= MAX_FUNCTION_BYTES && is_inside(fde));
    fdes.sort_by_key(|fde| fde.start);
    let mut previous_end = 0;
    fdes.retain(|fde| {
        let is_disjoint = fde.start >= previous_end;
        previous_end = if is_disjoint { fde.end } else { previous_end };
        is_disjoint
    });
    coverage.covered = fdes.len();
    coverage.ignored = total - fdes.len();
    fdes
}

/// Returns the functions whose start address no FDE covers, each truncated at the start of the next FDE.
fn find_uncovered(functions: &[Range<usize>], fdes: &[Fde<'_>]) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    for function in functions {
        let (start, end) = (function.start as u64, function.end as u64);
        let next_index = fdes.partition_point(|fde| fde.start <= start);
        let is_covered = next_index > 0 && start < fdes[next_index - 1].end;
        if !is_covered && start < end {
            gaps.push(start..fdes.get(next_index).map_or(end, |fde| end.min(fde.start)));
        }
    }
    gaps.sort_by_key(|gap| gap.start);
    gaps.dedup_by(|next, gap| next.start < gap.end);
    gaps
}

/// Synthesizes rules for the functions in `gaps` that have a frame-pointer prologue, and counts the others.
///
/// # Safety
///
/// The functions in `gaps` are readable.
unsafe fn synthesize_rules(
    machine: Machine,
    section: &Section<'_>,
    gaps: &[Range<u64>],
    coverage: &mut Coverage,
) -> Vec<(Range<u64>, Vec<u8>)> {
    let mut rules_by_function = Vec::new();
    for gap in gaps {
        let length = gap.end - gap.start;
        let may_synthesize = section.frame_pointers == FramePointers::Kept && length <= MAX_FUNCTION_BYTES;
        let rules = may_synthesize.then(|| {
            let code = gap.start as usize as *const u8;
            // SAFETY: the caller guarantees that the function is readable; the slice does not extend past its end.
            let prologue = unsafe { std::slice::from_raw_parts(code, MAX_PROLOGUE_BYTES.min(length as usize)) };
            let tail = MAX_EPILOGUE_BYTES.min(length as usize);
            // SAFETY: `tail` does not exceed the length of the function, which the caller guarantees to be readable.
            let epilogue = unsafe { std::slice::from_raw_parts(code.add(length as usize - tail), tail) };
            machine.rules(prologue, epilogue, length)
        });
        match rules.flatten() {
            Some(rules) => rules_by_function.push((gap.clone(), rules)),
            None => coverage.uncovered += 1,
        }
    }
    coverage.synthesized = rules_by_function.len();
    rules_by_function
}

/// Returns true if no foreign code can lie between two functions: they are close together, or in the same text range.
fn are_adjacent(end: u64, start: u64, text: &TextRanges) -> bool {
    start - end.min(start) <= MAX_PADDING_BYTES || text.covers(end.saturating_sub(1), start.saturating_add(1))
}

/// Sorted text ranges; overlapping ranges are merged.
struct TextRanges(Vec<Range<u64>>);

impl TextRanges {
    fn new(text: &[Range<usize>]) -> TextRanges {
        let mut sorted: Vec<Range<u64>> = text.iter().map(|range| range.start as u64..range.end as u64).collect();
        sorted.sort_by_key(|range| range.start);
        sorted.dedup_by(|next, range| {
            let overlaps = next.start < range.end;
            range.end = if overlaps { range.end.max(next.end) } else { range.end };
            overlaps
        });
        TextRanges(sorted)
    }

    /// Returns true if one range contains all of `start..end`.
    fn covers(&self, start: u64, end: u64) -> bool {
        let count = self.0.partition_point(|range| range.start <= start);
        self.0[..count].last().is_some_and(|range| end <= range.end)
    }
}
