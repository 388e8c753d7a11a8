//! Line rows of one function, in the form that perf expects.
//!
//! perf (`genelf_debug.c`) builds a line table from the rows and ends its sequence *at the last row*, which therefore
//! covers no bytes. To compensate, we repeat the last line at the function's last byte.

use super::record::DebugEntry;
use crate::{AddressRange, LineRow, LineRows};

/// Maximum line number that is written. Larger ones are malformed, and become 0.
const MAX_LINE: u32 = 1 << 24;

/// Returns the rows of `function` in ascending order, clamped to its range. Adjacent rows with the same file and line
/// are merged, because the format lacks columns.
pub(in crate::sink) fn function_rows(rows: &LineRows, function: AddressRange) -> Vec<DebugEntry<'_>> {
    let all_rows = rows.rows();
    let (start, end) = (function.start(), function.end());
    // The row that applies to the start may begin earlier.
    let first = all_rows.partition_point(|row| row.address <= start).saturating_sub(1);
    let rows_inside = all_rows.get(first..).unwrap_or_default().iter().take_while(|row| row.address < end);
    let mut entries: Vec<DebugEntry<'_>> = Vec::new();
    for entry in rows_inside.filter_map(|row| debug_entry(rows, row, start.0)) {
        if entries.last().is_none_or(|last| (last.lineno, last.name) != (entry.lineno, entry.name)) {
            entries.push(entry);
        }
    }
    let last = entries.last().copied().filter(|last| last.addr + 1 < end.0);
    entries.extend(last.map(|last| DebugEntry { addr: end.0 - 1, ..last }));
    entries
}

fn debug_entry<'a>(rows: &'a LineRows, row: &LineRow, start: u64) -> Option<DebugEntry<'a>> {
    if row.end_sequence {
        return None;
    }
    let name = rows.file(row.file).filter(|name| !name.is_empty())?;
    // perf stores line numbers in an `int`.
    let lineno = if row.line < MAX_LINE { row.line } else { 0 };
    Some(DebugEntry { addr: row.address.0.max(start), lineno, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBA_OBJECT: &[u8] = include_bytes!("../../../testdata/numba-0.68-llvm22-dwarf4.o");

    #[test]
    fn rows_stay_inside_their_function_and_reach_its_last_byte() {
        let rows = LineRows::parse(NUMBA_OBJECT).unwrap();
        let object = crate::LoadedObject::parse(NUMBA_OBJECT).unwrap();
        let mut functions_with_lines = 0;
        for function in object.functions() {
            let entries = function_rows(&rows, function.range);
            let (Some(first), Some(last)) = (entries.first(), entries.last()) else { continue };
            functions_with_lines += 1;
            assert!(first.addr >= function.range.start().0);
            assert_eq!(last.addr, function.range.end().0 - 1);
            assert!(entries.windows(2).all(|pair| pair[0].addr < pair[1].addr), "{entries:?}");
            for pair in entries.windows(2).rev().skip(1) {
                assert_ne!((pair[0].lineno, pair[0].name), (pair[1].lineno, pair[1].name));
            }
        }
        assert!(functions_with_lines > 0);
    }

    #[test]
    fn an_impossible_line_number_becomes_zero() {
        use crate::producer::raw::{Code, Function, Line, encode};
        let range = AddressRange::new(crate::Address(0x1000), 16).unwrap();
        let line = |address, line| Line { address: crate::Address(address), file: b"/f", line, column: 1 };
        let lines = [line(0x1000, MAX_LINE - 1), line(0x1008, u32::MAX)];
        let functions = [Function { range, name: b"long" }];
        let code = Code { machine: crate::Machine::X86_64, functions: &functions, lines: &lines, eh_frame: None };
        let rows = LineRows::parse(&encode(&code).unwrap()).unwrap();
        let entries: Vec<_> = function_rows(&rows, range).iter().map(|entry| (entry.addr, entry.lineno)).collect();
        assert_eq!(entries, [(0x1000, MAX_LINE - 1), (0x1008, 0), (0x100f, 0)]);
    }

    #[test]
    fn code_without_rows_gets_no_rows() {
        let unmapped = AddressRange::new(crate::Address(16), 16).unwrap();
        assert!(function_rows(&LineRows::parse(NUMBA_OBJECT).unwrap(), unmapped).is_empty());
        assert!(function_rows(&LineRows::default(), unmapped).is_empty());
    }
}
