//! The line rows of one function, as perf's reader wants them.
//!
//! perf (`genelf_debug.c`) makes a line table of the entries and ends its sequence *at the last entry*, which so covers
//! no byte. Therefore the last line is written a second time for the last byte of the function.

#![forbid(unsafe_code)]

use super::record::DebugEntry;
use crate::{AddressRange, LineRow, LineRows};

/// No file has so many.
const LINES: u32 = 1 << 24;

/// The rows of `function`: ascending, all inside it, the first at its start if that has a line at all. Neighbours of
/// one file and line are one row, because the format has no columns.
pub(in crate::sink) fn of_function(rows: &LineRows, function: AddressRange) -> Vec<DebugEntry<'_>> {
    let all = rows.rows();
    let (start, end) = (function.start(), function.end());
    // The row in force at the start may begin before it.
    let first = all.partition_point(|row| row.address <= start).saturating_sub(1);
    let inside = all.get(first..).unwrap_or_default().iter().take_while(|row| row.address < end);
    let mut reported: Vec<DebugEntry<'_>> = Vec::new();
    for entry in inside.filter_map(|row| entry(rows, row, start.0)) {
        if reported.last().is_none_or(|last| (last.lineno, last.name) != (entry.lineno, entry.name)) {
            reported.push(entry);
        }
    }
    let last = reported.last().copied().filter(|last| last.addr + 1 < end.0);
    reported.extend(last.map(|last| DebugEntry { addr: end.0 - 1, ..last }));
    reported
}

fn entry<'a>(rows: &'a LineRows, row: &LineRow, start: u64) -> Option<DebugEntry<'a>> {
    if row.end_sequence {
        return None;
    }
    let name = rows.file(row.file).filter(|name| !name.is_empty())?;
    // perf counts lines in an `int`.
    let lineno = if row.line < LINES { row.line } else { 0 };
    Some(DebugEntry { addr: row.address.0.max(start), lineno, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBA: &[u8] = include_bytes!("../../../testdata/numba-0.68-llvm22-dwarf4.o");

    #[test]
    fn rows_stay_inside_their_function_and_reach_its_last_byte() {
        let rows = LineRows::parse(NUMBA).unwrap();
        let object = crate::LoadedObject::parse(NUMBA).unwrap();
        let mut with_lines = 0;
        for function in object.functions() {
            let reported = of_function(&rows, function.range);
            let (Some(first), Some(last)) = (reported.first(), reported.last()) else { continue };
            with_lines += 1;
            assert!(first.addr >= function.range.start().0);
            assert_eq!(last.addr, function.range.end().0 - 1);
            assert!(reported.windows(2).all(|pair| pair[0].addr < pair[1].addr), "{reported:?}");
            for pair in reported.windows(2).rev().skip(1) {
                assert_ne!((pair[0].lineno, pair[0].name), (pair[1].lineno, pair[1].name));
            }
        }
        assert!(with_lines > 0);
    }

    #[test]
    fn a_line_that_no_file_has_is_none() {
        use crate::producer::raw::{Code, Function, Line, encode};
        let range = AddressRange::new(crate::Address(0x1000), 16).unwrap();
        let line = |address, line| Line { address: crate::Address(address), file: b"/f", line, column: 1 };
        let lines = [line(0x1000, LINES - 1), line(0x1008, u32::MAX)];
        let functions = [Function { range, name: b"long" }];
        let code = Code { machine: crate::Machine::X86_64, functions: &functions, lines: &lines, eh_frame: None };
        let rows = LineRows::parse(&encode(&code).unwrap()).unwrap();
        let reported: Vec<_> = of_function(&rows, range).iter().map(|entry| (entry.addr, entry.lineno)).collect();
        assert_eq!(reported, [(0x1000, LINES - 1), (0x1008, 0), (0x100f, 0)]);
    }

    #[test]
    fn code_without_rows_has_none() {
        let nowhere = AddressRange::new(crate::Address(16), 16).unwrap();
        assert!(of_function(&LineRows::parse(NUMBA).unwrap(), nowhere).is_empty());
        assert!(of_function(&LineRows::default(), nowhere).is_empty());
    }
}
