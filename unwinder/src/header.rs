//! The `.eh_frame_hdr` section (Linux Standard Base Core 5.0, 10.6.2): the address of `.eh_frame`, and a table of its
//! entries sorted by function address.
//!
//! ```text
//!   u8 version (1), u8 encodings of the next three fields; .eh_frame; number of entries; { function, entry } ...
//! ```

use gimli::constants as dw;

use crate::reader::Reader;

/// Encoding of the search table: the only one that linkers use.
const SORTED_TABLE: u8 = dw::DW_EH_PE_datarel.0 | dw::DW_EH_PE_sdata4.0;

/// A parsed `.eh_frame_hdr`: the address of `.eh_frame`, and its sorted search table.
///
/// ```
/// use jitlisten_unwinder::Header;
///
/// // The header is at 0x1f00, the section at 0x2000; one function at 0x1000 has its entry at 0x2018.
/// let bytes = [1, 0x1b, 3, 0x3b, 0xfc, 0, 0, 0, 1, 0, 0, 0, 0, 0xf1, 0xff, 0xff, 0x18, 1, 0, 0];
/// let header = Header::read(&bytes, 0x1f00).unwrap();
/// assert_eq!(header.section, 0x2000);
/// assert!(header.table().unwrap().eq([(0x1000, 0x2018)]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Address of the `.eh_frame` section.
    pub section: u64,
    address: u64,
    count_encoding: u8,
    table_encoding: u8,
    rest: Reader<'a>,
}

impl<'a> Header<'a> {
    /// Parses the header that is loaded at `address`. `None` if it is malformed or names no section.
    pub fn read(bytes: &'a [u8], address: u64) -> Option<Header<'a>> {
        let mut rest = Reader::new(bytes, 0);
        let [version, pointer, count_encoding, table_encoding] = [rest.u8()?, rest.u8()?, rest.u8()?, rest.u8()?];
        if version != 1 || pointer == dw::DW_EH_PE_omit.0 {
            return None;
        }
        let section = rest.encoded(pointer, address.wrapping_add(4), Some(address))?;
        Some(Header { section, address, count_encoding, table_encoding, rest })
    }

    /// Returns the address of each function and of its entry. `None` if the table is missing, truncated or differently
    /// encoded.
    pub fn table(self) -> Option<impl ExactSizeIterator<Item = (u64, u64)> + use<'a>> {
        let mut reader = self.rest;
        let field_address = self.address.wrapping_add(reader.position() as u64);
        let count = reader.encoded(self.count_encoding, field_address, Some(self.address))?;
        let table_bytes = usize::try_from(count).ok()?.checked_mul(8)?;
        let table = reader.take(table_bytes).filter(|_| self.table_encoding == SORTED_TABLE)?;
        let address = self.address;
        let read_field = move |row: &[u8], offset: usize| {
            let distance =
                row.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_le_bytes);
            address.wrapping_add_signed(i64::from(distance))
        };
        Some(table.chunks_exact(8).map(move |row| (read_field(row, 0), read_field(row, 4))))
    }
}
