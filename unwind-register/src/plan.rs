//! Plans a registration: reads the caller's section, completes, sorts and groups its entries.

use crate::cfi::{self, Cie, Encoded, Fde};
use crate::error::Error;
use crate::frame_pointer::{EPILOGUE, Machine, PROLOGUE};
use crate::memory::word_at;
use crate::section::{Coverage, FramePointers, Section};
use std::ops::Range;

/// A function longer than this is no function: an FDE of unrelocated or broken bytes.
const LONGEST: u64 = 1 << 30;

/// Functions with at most so many bytes between them lie side by side.
const PADDING: u64 = 64;

/// The entries of one section.
pub(crate) struct Plan {
    pub(crate) encoded: Encoded,
    pub(crate) coverage: Coverage,
}

/// See [`Plan::new`].
pub(crate) type Missing<'a> = &'a dyn Fn(&[(u64, Origin)]) -> Vec<u32>;

/// Whether an FDE was read or made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Read,
    Made,
}

impl Plan {
    /// Plans `section`; `missing` says for the functions, in address order, which frame registries need them, one bit
    /// each.
    ///
    /// # Safety
    ///
    /// The functions of the section are readable.
    pub(crate) unsafe fn new(section: &Section<'_>, missing: Missing<'_>) -> Result<Plan, Error> {
        let machine = Machine::here().ok_or(Error::Machine)?;
        // Indirect pointers are words of the JIT's own data: `DW.ref.*`, a GOT slot.
        let (mut cies, read) = cfi::parse(section.eh_frame, section.address as u64, &word_at)?;
        let mut coverage = Coverage::default();
        let fdes = usable(read, section.text, &mut coverage);
        let gaps = without_fde(section.functions, &fdes);
        // SAFETY: the caller's promise.
        let made = unsafe { make_rules(machine, section, &gaps, &mut coverage) };
        cies.push(machine.cie());
        let cie = cies.len() - 1;
        let made = made.iter().map(|(range, instructions)| {
            (Fde { cie, start: range.start, end: range.end, lsda: 0, instructions }, Origin::Made)
        });
        let mut all: Vec<_> = fdes.into_iter().map(|fde| (fde, Origin::Read)).chain(made).collect();
        all.sort_by_key(|(fde, _)| fde.start);
        Plan::encode(&cies, &all, section.text, coverage, missing)
    }

    fn encode(
        cies: &[Cie<'_>],
        fdes: &[(Fde<'_>, Origin)],
        text: &[Range<usize>],
        mut coverage: Coverage,
        missing: Missing<'_>,
    ) -> Result<Plan, Error> {
        let starts: Vec<(u64, Origin)> = fdes.iter().map(|(fde, origin)| (fde.start, *origin)).collect();
        let text = Texts::new(text);
        let (mut run, mut end) = (0, 0);
        let mut labelled = Vec::with_capacity(fdes.len());
        for ((fde, _), mask) in fdes.iter().zip(missing(&starts)) {
            run += u32::from(!side_by_side(end, fde.start, &text));
            end = fde.end;
            labelled.push((fde.clone(), run << 8 | mask & 0xff));
        }
        let encoded = cfi::encode(cies, &labelled);
        coverage.refused += encoded.refused.len();
        coverage.covered -= encoded.refused.len().min(coverage.covered);
        match (encoded.bytes.is_empty(), encoded.refused.first()) {
            (false, _) => Ok(Plan { encoded, coverage }),
            (true, Some(refused)) => Err(Error::Instructions { function: refused.0 as usize }),
            (true, None) => Err(Error::NothingToRegister),
        }
    }
}

/// The FDEs that can be meant, sorted; counts them and the others.
fn usable<'a>(mut fdes: Vec<Fde<'a>>, text: &[Range<usize>], coverage: &mut Coverage) -> Vec<Fde<'a>> {
    let all = fdes.len();
    let texts = Texts::new(text);
    let inside = |fde: &Fde<'_>| text.is_empty() || texts.covers(fde.start, fde.end);
    fdes.retain(|fde| fde.end - fde.start <= LONGEST && inside(fde));
    fdes.sort_by_key(|fde| fde.start);
    let mut end = 0;
    fdes.retain(|fde| {
        let keep = fde.start >= end;
        end = if keep { fde.end } else { end };
        keep
    });
    coverage.covered = fdes.len();
    coverage.refused = all - fdes.len();
    fdes
}

/// The functions whose first address is in no FDE, cut where the next FDE begins.
fn without_fde(functions: &[Range<usize>], fdes: &[Fde<'_>]) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    for function in functions {
        let (start, end) = (function.start as u64, function.end as u64);
        let next = fdes.partition_point(|fde| fde.start <= start);
        let inside = next > 0 && start < fdes[next - 1].end;
        if !inside && start < end {
            gaps.push(start..fdes.get(next).map_or(end, |fde| end.min(fde.start)));
        }
    }
    gaps.sort_by_key(|gap| gap.start);
    gaps.dedup_by(|next, gap| next.start < gap.end);
    gaps
}

/// Rules for the functions in `gaps`, where their frame pointer shows.
///
/// # Safety
///
/// The gaps are readable.
unsafe fn make_rules(
    machine: Machine,
    section: &Section<'_>,
    gaps: &[Range<u64>],
    coverage: &mut Coverage,
) -> Vec<(Range<u64>, Vec<u8>)> {
    let mut made = Vec::new();
    for gap in gaps {
        let length = gap.end - gap.start;
        let wanted = section.frame_pointers == FramePointers::Kept && length <= LONGEST;
        let rules = wanted.then(|| {
            let code = gap.start as usize as *const u8;
            // SAFETY: the caller says that the function is readable; no byte behind its end is looked at.
            let prologue = unsafe { std::slice::from_raw_parts(code, PROLOGUE.min(length as usize)) };
            let tail = EPILOGUE.min(length as usize);
            // SAFETY: `tail` is at most the length of the function, which the caller says is readable.
            let epilogue = unsafe { std::slice::from_raw_parts(code.add(length as usize - tail), tail) };
            machine.rules(prologue, epilogue, length)
        });
        match rules.flatten() {
            Some(rules) => made.push((gap.clone(), rules)),
            None => coverage.uncovered += 1,
        }
    }
    coverage.synthesized = made.len();
    made
}

/// Whether no code of others can lie between two neighbours: they touch, or are in the same text.
fn side_by_side(end: u64, start: u64, text: &Texts) -> bool {
    start - end.min(start) <= PADDING || text.covers(end.saturating_sub(1), start.saturating_add(1))
}

/// Text ranges, sorted, and joined where they overlap.
struct Texts(Vec<Range<u64>>);

impl Texts {
    fn new(text: &[Range<usize>]) -> Texts {
        let mut sorted: Vec<Range<u64>> = text.iter().map(|range| range.start as u64..range.end as u64).collect();
        sorted.sort_by_key(|range| range.start);
        sorted.dedup_by(|next, range| {
            let overlaps = next.start < range.end;
            range.end = if overlaps { range.end.max(next.end) } else { range.end };
            overlaps
        });
        Texts(sorted)
    }

    /// Whether one of them has all of `start..end`.
    fn covers(&self, start: u64, end: u64) -> bool {
        let after = self.0.partition_point(|range| range.start <= start);
        self.0[..after].last().is_some_and(|range| end <= range.end)
    }
}
