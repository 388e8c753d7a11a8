//! Facts about each LLVM instance in this process, for `jitlisten doctor PID`: see [`wire::facts`].
//!
//! The symbol is exported so that it survives `strip`; it is not part of the C API (programs have `jitlisten_llvms()`).

use std::sync::atomic::Ordering;

use jitlisten::Statistics;
use wire::facts::{Count, Facts, Total};

// SAFETY: no other symbol has the name `jitlisten_facts`.
#[unsafe(export_name = "jitlisten_facts")]
pub(crate) static FACTS: Facts = Facts::zeroed();

/// Increments a counter of the LLVM instance in `slot`.
pub(crate) fn count(slot: usize, counter: Count) {
    if let Some(count) = FACTS.count(slot, counter) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sets a counter of the LLVM instance in `slot`.
pub(crate) fn set_count(slot: usize, counter: Count, number: u64) {
    if let Some(count) = FACTS.count(slot, counter) {
        count.store(number, Ordering::Relaxed);
    }
}

/// Returns a counter of the LLVM instance in `slot`.
pub(crate) fn read_count(slot: usize, counter: Count) -> u64 {
    FACTS.count(slot, counter).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Increments a counter of the session.
pub(crate) fn add(total: Total) {
    FACTS.total(total).fetch_add(1, Ordering::Relaxed);
}

/// Copies the session's statistics to the published totals.
pub(crate) fn set_totals(statistics: &Statistics) {
    let totals = [
        (Total::Final, statistics.objects_finalized),
        (Total::Functions, statistics.functions),
        (Total::FunctionsWithoutFramePointer, statistics.functions_without_frame_pointer),
        (Total::Images, statistics.images.written),
        (Total::ImagesWithoutPadding, statistics.images.without_padding),
    ];
    for (total, number) in totals {
        FACTS.total(total).store(number, Ordering::Relaxed);
    }
}
