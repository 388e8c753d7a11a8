//! Finds code that is known only from its unwind table.
//!
//! Some libraries contain LLVM without symbols or RTTI, and their GDB JIT list, if any, is unused, so neither linker
//! can be found. Those without a list are recognised by their import of `__register_frame`. Other libraries load code
//! that LLVM compiled earlier or elsewhere (drjit, IREE). They are recognised by the function names that they look up.
//!
//! When such a library makes memory executable (`mprotect`), that memory and its surroundings are searched for unwind
//! tables whose entries point into the memory. The entries give the range of each function. Functions are named by
//! library and address, and stacks through them can be unwound. Memory without a table counts as a single function.

#![forbid(unsafe_code)]

use jitlisten::plumbing::Ranges;
use jitlisten::producer::raw::{self, Code, Function};
use jitlisten::{Address, AddressRange, Machine};
use jitlisten_unwinder::Section;

use crate::placement::Piece;
use crate::trackers::memory::{MAX_REACH_BYTES, MAX_SEARCHED_BYTES, Memory, read_piece};

/// Start of a CIE, after its length field: id, version, and the augmentation string that every compiler writes.
const CIE_START: &[u8] = b"\0\0\0\0\x01z";

/// Functions in executable memory, with the unwind table that covers them if one was found.
pub(crate) struct Table {
    range: Option<AddressRange>,
    pub(crate) functions: Vec<AddressRange>,
}

/// Searches executable memory, and the memory around it, for tables whose functions are in the executable memory.
/// Returns an empty list if the memory is too large or cannot be read.
pub(crate) fn search(memory: Memory<'_>, range: AddressRange) -> Vec<Table> {
    if range.size() > MAX_SEARCHED_BYTES {
        return Vec::new();
    }
    let Some(code) = read_piece(range) else { return Vec::new() };
    let surroundings = memory.surroundings_of(range, MAX_REACH_BYTES);
    let pieces = std::iter::once(&code).chain(surroundings.iter());
    let mut tables: Vec<Table> = pieces.flat_map(|piece| find_tables(piece, range)).collect();
    if tables.is_empty() {
        tables.push(Table { range: None, functions: vec![range] });
    }
    tables
}

impl Table {
    /// Encodes an object with the table's functions, named by `library` and address.
    pub(crate) fn encode(&self, library: &str) -> Option<Vec<u8>> {
        let generated_name = |range: &AddressRange| format!("{library}+jit@{:x}", range.start().0);
        let names: Vec<String> = self.functions.iter().map(generated_name).collect();
        let named_ranges = self.functions.iter().zip(&names);
        let functions: Vec<Function<'_>> =
            named_ranges.map(|(range, name)| Function::new(*range, name.as_bytes())).collect();
        let mut code = Code::new(Machine::HERE, &functions);
        code.eh_frame = self.range;
        raw::encode(&code).ok()
    }
}

/// Finds the unwind tables in `piece` whose functions are in `code`.
fn find_tables(piece: &Piece, code: AddressRange) -> Vec<Table> {
    let (mut tables, mut next_start) = (Vec::new(), 0);
    for offset in memchr::memmem::find_iter(&piece.bytes, CIE_START) {
        let Some(start) = offset.checked_sub(4).filter(|start| *start >= next_start) else { continue };
        if let Some((table, end)) = read_table(piece, start, code) {
            tables.push(table);
            next_start = end;
        }
    }
    tables
}

/// Reads the table at offset `start`, and returns it with its end offset. Every function must be in `code`, and no two
/// may overlap.
fn read_table(piece: &Piece, start: usize, code: AddressRange) -> Option<(Table, usize)> {
    let section = Section { bytes: &piece.bytes, address: piece.start.0, data_base: None };
    let (mut functions, mut covered, mut end) = (Vec::new(), Ranges::default(), start);
    for record in section.records(start) {
        // Bytes after a table without a terminator do not belong to the table.
        let Ok(record) = record else { break };
        if let Some(common) = record.common.filter(|common| *common >= start) {
            let entry = section.entry_of(record, section.common(common).ok()?).ok()?;
            let range = AddressRange::new(Address(entry.start), entry.size)?;
            let is_inside = range.size() > 0 && code.start() <= range.start() && range.end() <= code.end();
            if !is_inside || covered.overlaps(range) {
                return None;
            }
            covered.insert(range);
            functions.push(range);
        } else if section.common(record.start).is_err() {
            break;
        }
        end = record.end;
    }
    // Include the zero length that terminates the table.
    let range = AddressRange::new(Address(piece.start.0 + start as u64), (end - start) as u64 + 4)?;
    (!functions.is_empty()).then_some((Table { range: Some(range), functions }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a table from a CIE with 8-byte pointers, an FDE for each function, and the terminator.
    fn table(functions: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes =
            [&20_u32.to_le_bytes()[..], b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x00\x0c\x07\x08\x90\x01\0\0"].concat();
        for (start, size) in functions {
            let distance = bytes.len() as u32 + 4;
            bytes.extend([&24_u32.to_le_bytes()[..], &distance.to_le_bytes()].concat());
            bytes.extend([&start.to_le_bytes()[..], &size.to_le_bytes(), &[0; 4]].concat());
        }
        bytes.extend([0; 4]);
        bytes
    }

    fn range(start: u64, size: u64) -> AddressRange {
        AddressRange::new(Address(start), size).unwrap()
    }

    fn parse_tables(bytes: &[u8]) -> Vec<(Option<AddressRange>, Vec<AddressRange>)> {
        let piece = Piece { start: Address(0x1000), bytes: bytes.to_vec() };
        find_tables(&piece, range(0x7000, 0x1000)).into_iter().map(|table| (table.range, table.functions)).collect()
    }

    #[test]
    fn finds_the_functions_of_all_tables() {
        let (first_table, second_table) = (table(&[(0x7000, 0x20), (0x7080, 0x10)]), table(&[(0x7100, 0x20)]));
        let bytes = [&[0xcc; 24], &first_table[..], &[0; 12], &second_table[..], &[0xff; 64]].concat();
        let first_expected =
            (Some(range(0x1018, first_table.len() as u64)), vec![range(0x7000, 0x20), range(0x7080, 0x10)]);
        let second_expected =
            (Some(range(0x1018 + first_table.len() as u64 + 12, second_table.len() as u64)), vec![range(0x7100, 0x20)]);
        assert_eq!(parse_tables(&bytes), [first_expected, second_expected]);
    }

    #[test]
    fn ignores_malformed_tables() {
        assert_eq!(parse_tables(&table(&[(0x7000, 0x20), (0x9000, 0x10)])), [], "a function elsewhere");
        assert_eq!(parse_tables(&table(&[(0x7000, 0x20), (0x7010, 0x20)])), [], "two that overlap");
        assert_eq!(parse_tables(&table(&[(0x7ff0, 0x20)])), [], "one that ends elsewhere");
        assert_eq!((parse_tables(&table(&[])), parse_tables(&[]), parse_tables(&[0; 64])), (vec![], vec![], vec![]));
    }
}
