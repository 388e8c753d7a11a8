//! Memory, copied to be searched.

use jitlisten::{Address, AddressRange, checked_read, mappings_of};

/// So much is searched for unwind tables on each side of code.
const AROUND: u64 = 4 << 20;

/// Memory, as it was copied.
pub(crate) struct Piece {
    pub(crate) start: Address,
    pub(crate) bytes: Vec<u8>,
}

impl Piece {
    pub(super) fn get(&self, range: AddressRange) -> Option<&[u8]> {
        let from = range.start().0.checked_sub(self.start.0)? as usize;
        self.bytes.get(from..from.checked_add(range.size() as usize)?)
    }
}

/// Copies memory.
pub(crate) fn piece(range: AddressRange) -> Option<Piece> {
    Some(Piece { start: range.start(), bytes: checked_read::copy(range).ok()? })
}

/// The code and the memory in front of it and behind it, as far as it may be read.
pub(crate) fn around(range: AddressRange) -> Vec<Piece> {
    let neighbour =
        |address: Address| mappings_of(AddressRange::new(address, 1)?).ok()??.first().map(|found| found.range);
    let mut pieces = Vec::new();
    if let Some(before) = range.start().0.checked_sub(1).and_then(|last| neighbour(Address(last))) {
        let start = before.start().0.max(range.start().0.saturating_sub(AROUND));
        pieces.extend(AddressRange::new(Address(start), range.start().0 - start).and_then(piece));
    }
    pieces.extend(piece(range));
    if let Some(behind) = neighbour(range.end()) {
        let end = behind.end().0.min(range.end().0.saturating_add(AROUND));
        pieces.extend(AddressRange::new(range.end(), end - range.end().0).and_then(piece));
    }
    pieces
}
