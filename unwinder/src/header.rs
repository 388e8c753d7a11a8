//! `.eh_frame_hdr` (Linux Standard Base Core 5.0, 10.6.2): where the section is, and a table of its entries, sorted by
//! address.
//!
//! ```text
//!   u8 version (1), u8 encodings of the three that follow; .eh_frame; number of entries; { function, entry } ...
//! ```

#![forbid(unsafe_code)]

use gimli::constants as dw;

use crate::reader::Reader;

/// The only table that linkers write.
const SORTED_TABLE: u8 = dw::DW_EH_PE_datarel.0 | dw::DW_EH_PE_sdata4.0;

/// See the module's head.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Where the section is.
    pub section: u64,
    address: u64,
    count_encoding: u8,
    table_encoding: u8,
    rest: Reader<'a>,
}

impl<'a> Header<'a> {
    /// The header that is at `address`.
    pub fn read(bytes: &'a [u8], address: u64) -> Option<Header<'a>> {
        let mut rest = Reader::new(bytes, 0);
        let [version, pointer, count_encoding, table_encoding] = [rest.u8()?, rest.u8()?, rest.u8()?, rest.u8()?];
        if version != 1 || pointer == dw::DW_EH_PE_omit.0 {
            return None;
        }
        let section = rest.encoded(pointer, address.wrapping_add(4), Some(address))?;
        Some(Header { section, address, count_encoding, table_encoding, rest })
    }

    /// Start of each function and address of its entry; `None` if there is no such table, or a truncated one.
    pub fn table(self) -> Option<impl ExactSizeIterator<Item = (u64, u64)> + use<'a>> {
        let mut reader = self.rest;
        let place = self.address.wrapping_add(reader.position() as u64);
        let count = reader.encoded(self.count_encoding, place, Some(self.address))?;
        let size = usize::try_from(count).ok()?.checked_mul(8)?;
        let rows = reader.take(size).filter(|_| self.table_encoding == SORTED_TABLE)?;
        let address = self.address;
        let field = move |row: &[u8], at: usize| {
            let distance = row.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_le_bytes);
            address.wrapping_add_signed(i64::from(distance))
        };
        Some(rows.chunks_exact(8).map(move |row| (field(row, 0), field(row, 4))))
    }
}
