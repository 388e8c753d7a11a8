//! The line rows of one function, as perf's reader wants them.
//!
//! perf (`genelf_debug.c`) makes a line table of the entries and ends its sequence *at the last entry*, which so covers no
//! byte. Therefore the last line is told a second time for the last byte of the function.

#![forbid(unsafe_code)]

use super::record::DebugEntry;
use crate::{AddressRange, LineRow, LineRows};

/// The rows of `function`: ascending, all inside it, the first at its start if that has a line at all. Neighbours of one
/// file and line are one row, because the format has no columns.
pub(super) fn of_function<'a>(rows: &'a LineRows, function: AddressRange) -> impl Iterator<Item = DebugEntry<'a>> {
    let all = rows.rows();
    let (start, end) = (function.start(), function.end());
    // The row in force at the start may begin before it.
    let first = all.partition_point(|row| row.address <= start).saturating_sub(1);
    let behind = all.partition_point(|row| row.address < end);
    let inside = all.get(first..behind).unwrap_or_default();
    let mut last: Option<DebugEntry<'a>> = None;
    let told = inside.iter().filter_map(move |row| entry(rows, row, start.0)).filter(move |entry| {
        let news = last.is_none_or(|last| (last.lineno, last.name) != (entry.lineno, entry.name));
        last = Some(*entry);
        news
    });
    let closing = inside.iter().rev().find_map(|row| entry(rows, row, start.0));
    let closing = closing.map(|entry| DebugEntry { addr: end.0.saturating_sub(1).max(entry.addr), ..entry });
    told.chain(closing)
}

fn entry<'a>(rows: &'a LineRows, row: &LineRow, start: u64) -> Option<DebugEntry<'a>> {
    if row.end_sequence {
        return None;
    }
    let name = rows.file(row.file).filter(|name| !name.is_empty())?;
    Some(DebugEntry { addr: row.address.0.max(start), lineno: row.line, name })
}
