//! Code known only from its unwind table. Some libraries have an LLVM without symbols and RTTI, and without a used GDB
//! JIT list, so none of its linkers can be found. Those without a list are recognised by an import, `__register_frame`.
//! Others load by themselves what an LLVM has compiled earlier or elsewhere (drjit, IREE): recognised by the names that
//! they look up.
//! Memory that they make executable (`mprotect`), and memory around it, is searched for tables whose entries point into
//! it: the entries give the range of each function. A function is named by library and address, and has a whole stack.
//! Memory without a table counts as one function.

#![forbid(unsafe_code)]

use jitlisten::log_line;
use jitlisten::plumbing::Ranges;
use jitlisten::producer::raw::{self, Code, Function};
use jitlisten::{Address, AddressRange, Machine};
use jitlisten_unwinder::Section;

use crate::channels::moved_code::copies;
use crate::llvm::unnamed::file_name;
use crate::placement::Piece;
use crate::process::this_thread;
use crate::state::{Shim, State};

/// A CIE behind its length: its id, a version, and the augmentation that every compiler writes.
const COMMON: &[u8] = b"\0\0\0\0\x01z";
/// Where several libraries may have compiled it.
const ANY: &str = "jit";

/// A table, if there is one, and the functions that it describes.
struct Table {
    range: Option<AddressRange>,
    functions: Vec<AddressRange>,
}

/// The library that has compiled something, if it can only be one. `is_source`: one of those with a list.
fn name(state: &State, is_source: bool) -> Option<String> {
    let unused_lists = state.sources().filter(|source| source.is_unnamed());
    let unused_lists = unused_lists.map(|source| file_name(&source.path)).filter(|_| is_source);
    let others = state.unnamed.libraries.iter().map(|(_, name)| name.clone()).filter(|_| !is_source);
    let mut names = unused_lists.chain(others);
    let first = names.next()?;
    Some(if names.next().is_none() { first } else { ANY.to_owned() })
}

impl Shim {
    /// One of the libraries has let `range` run: of those with a list, or of the others.
    pub(crate) fn unnamed_code(&self, state: &mut State, range: AddressRange, is_source: bool) {
        // Inside `emit`, what a thread makes executable is JITLink's.
        if !self.is_free(range) || state.emitted.is_in_emit(this_thread()) {
            return;
        }
        let Some(library) = name(state, is_source).filter(|_| range.size() <= copies::LARGEST) else { return };
        let Some(code) = copies::piece(range) else { return };
        let around = state.around(range, copies::AROUND);
        let pieces = std::iter::once(&code).chain(around.iter());
        let mut found: Vec<Table> = pieces.flat_map(|piece| tables(piece, range)).collect();
        if found.is_empty() {
            found.push(Table { range: None, functions: vec![range] });
        }
        drop(around);
        found.iter().for_each(|table| self.add_table(state, table, &library));
    }

    fn add_table(&self, state: &mut State, table: &Table, library: &str) {
        if table.functions.iter().any(|&range| !self.is_free(range)) {
            return;
        }
        let address = |range: &AddressRange| format!("{library}+jit@{:x}", range.start().0);
        let names: Vec<String> = table.functions.iter().map(address).collect();
        let named = table.functions.iter().zip(&names);
        let functions: Vec<Function<'_>> = named.map(|(range, name)| Function::new(*range, name.as_bytes())).collect();
        let mut code = Code::new(Machine::HERE, &functions);
        code.eh_frame = table.range;
        let Ok(loaded) = raw::encode(&code).and_then(|object| self.session.loaded(object, None, Some(library.into())))
        else {
            return;
        };
        if !std::mem::replace(&mut state.unnamed.said, true) {
            log_line!(Info, "{library}: its functions have no names and are called {library}+jit@ADDRESS");
        }
        self.loaded(state, loaded);
    }
}

/// The tables in `piece` that have functions in `code`.
fn tables(piece: &Piece, code: AddressRange) -> Vec<Table> {
    let (mut tables, mut behind) = (Vec::new(), 0);
    for at in memchr::memmem::find_iter(&piece.bytes, COMMON) {
        let Some(start) = at.checked_sub(4).filter(|start| *start >= behind) else { continue };
        if let Some((table, end)) = read(piece, start, code) {
            tables.push(table);
            behind = end;
        }
    }
    tables
}

/// The table that begins at `start`, and its end. Every function that it describes is in `code`, and none is in two
/// entries.
fn read(piece: &Piece, start: usize, code: AddressRange) -> Option<(Table, usize)> {
    let section = Section { bytes: &piece.bytes, address: piece.start.0, data_base: None };
    let (mut functions, mut known, mut end) = (Vec::new(), Ranges::default(), start);
    for record in section.records(start) {
        // What lies behind a table without an end is none of it.
        let Ok(record) = record else { break };
        if let Some(common) = record.common.filter(|common| *common >= start) {
            let entry = section.entry_of(record, section.common(common).ok()?).ok()?;
            let range = AddressRange::new(Address(entry.start), entry.size)?;
            let is_inside = range.size() > 0 && code.start() <= range.start() && range.end() <= code.end();
            if !is_inside || known.overlaps(range) {
                return None;
            }
            known.insert(range);
            functions.push(range);
        } else if section.common(record.start).is_err() {
            break;
        }
        end = record.end;
    }
    // With the length of 0 behind it.
    let range = AddressRange::new(Address(piece.start.0 + start as u64), (end - start) as u64 + 4)?;
    (!functions.is_empty()).then_some((Table { range: Some(range), functions }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CIE with pointers of eight bytes, an entry for each function, and the end.
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

    fn found(bytes: &[u8]) -> Vec<(Option<AddressRange>, Vec<AddressRange>)> {
        let piece = Piece { start: Address(0x1000), bytes: bytes.to_vec() };
        tables(&piece, range(0x7000, 0x1000)).into_iter().map(|table| (table.range, table.functions)).collect()
    }

    #[test]
    fn functions_are_those_of_the_tables() {
        let (one, other) = (table(&[(0x7000, 0x20), (0x7080, 0x10)]), table(&[(0x7100, 0x20)]));
        let bytes = [&[0xcc; 24], &one[..], &[0; 12], &other[..], &[0xff; 64]].concat();
        let first = (Some(range(0x1018, one.len() as u64)), vec![range(0x7000, 0x20), range(0x7080, 0x10)]);
        let second = (Some(range(0x1018 + one.len() as u64 + 12, other.len() as u64)), vec![range(0x7100, 0x20)]);
        assert_eq!(found(&bytes), [first, second]);
    }

    #[test]
    fn what_does_not_fit_is_no_table() {
        assert_eq!(found(&table(&[(0x7000, 0x20), (0x9000, 0x10)])), [], "a function elsewhere");
        assert_eq!(found(&table(&[(0x7000, 0x20), (0x7010, 0x20)])), [], "two that overlap");
        assert_eq!(found(&table(&[(0x7ff0, 0x20)])), [], "one that ends elsewhere");
        assert_eq!((found(&table(&[])), found(&[]), found(&[0; 64])), (vec![], vec![], vec![]));
    }
}
