//! The unwinders inside this process: nongnu libunwind, libgcc's, LLVM's libunwind.
//!
//! Memory profilers, signal-based profilers, crash handlers and C++ exceptions walk the stack with one of them. MCJIT and ORC
//! tell libgcc (or LLVM's libunwind) of every `.eh_frame` themselves, so those are told only of what the section lacks.
//! libunwind is told of everything. How is the business of the crate `unwind-register`.
//!
//! See it with any program that calls `unw_step` or `backtrace(3)` in a signal handler, or with `memray run --native`.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_register::{ByHost, FramePointers, Registration, Registry, Section};

use super::{FinalizedObject, Forked, Sink, SinkError};
use crate::log_line;
use crate::{AddressRange, ObjectId, Unwinders, foreign};

#[derive(Default)]
pub(crate) struct Unwind {
    registrations: BTreeMap<ObjectId, Registration>,
}

impl Sink for Unwind {
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let text = ranges(object.object.text().iter().map(|text| text.range));
        if text.is_empty() {
            return Ok(0);
        }
        let functions = ranges(object.object.functions().iter().map(|function| function.range));
        // A section that cannot be read is one that is not there: its functions are those without an entry.
        let table = object.object.eh_frame().and_then(|range| Some((range, foreign::copy(range).ok()?)));
        let section = match &table {
            Some((range, bytes)) => Section::new(bytes, range.start().0 as usize),
            None => Section::without_eh_frame(),
        };
        let section = section.text(&text).functions(&functions);
        let section = section.frame_pointers(FramePointers::Kept).by_host(ByHost::Everything);
        // SAFETY: the session tells of an object from the moment its code and tables are final until *freeing*, when the
        // registration is dropped; the rules are the compiler's own.
        match unsafe { Registry::process().register(&section) } {
            Ok(registration) => {
                let coverage = registration.coverage();
                if coverage.uncovered > 0 {
                    log_line!(Debug, "{} functions of {:?} have no rules for unwinding", coverage.uncovered, object.id);
                }
                self.registrations.insert(object.id, registration);
            }
            Err(error) => log_line!(Debug, "nothing of {:?} can be told to unwinders: {error}", object.id),
        }
        Ok(0)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        self.registrations.remove(&object.id);
        Ok(())
    }

    /// Unwinders and what they were told are memory, which the child has a copy of.
    fn forked(&mut self) -> Forked {
        Forked::KnowsEverything
    }
}

fn ranges(ranges: impl Iterator<Item = AddressRange>) -> Vec<Range<usize>> {
    ranges.map(|range| range.start().0 as usize..range.end().0 as usize).collect()
}

/// Looks for unwinders in libraries that have come since the last time. Takes the loader's locks.
pub(crate) fn look_for_unwinders() -> Unwinders {
    let found = Registry::process().rescan();
    if found.added > 0 {
        log_line!(Info, "{} unwinders found", found.added);
    }
    for error in found.refused {
        log_line!(Warn, "an unwinder is left alone: {error}");
    }
    if found.pending > 0 { Unwinders::Unrelocated } else { Unwinders::Known }
}
