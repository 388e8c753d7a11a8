//! Encoded pointers: `DW_EH_PE_*`, Linux Standard Base Core 5.0, chapter 10.5.1.
//!
//! ```text
//!   bit 7      bits 6..4        bits 3..0
//!  +--------+----------------+--------------------------------------------+
//!  |indirect| 0 absolute     | 0 absptr  1 uleb128  2 udata2  3 udata4    |
//!  |        | 1 pcrel        | 4 udata8  9 sleb128  a sdata2  b sdata4    |
//!  |        | 5 aligned      | c sdata8                   (0xff: omitted) |
//!  +--------+----------------+--------------------------------------------+
//! ```
//! `textrel` (2), `datarel` (3) and `funcrel` (4) need a base that run-time generated code does not have.

use super::reader::Reader;
use gimli::constants as dw;

pub(super) const OMIT: u8 = dw::DW_EH_PE_omit.0;
const INDIRECT: u8 = dw::DW_EH_PE_indirect.0;

/// How a `DW_EH_PE_indirect` pointer is followed: returns the word at an address, or `None` where that must not be read.
pub(crate) type Memory<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// Reads one encoded pointer; `section` is the address at which byte 0 of the reader's bytes is mapped.
///
/// `None` stands for both "cut off" and "an encoding that cannot be resolved". A null pointer is null in every encoding.
pub(super) fn read(reader: &mut Reader<'_>, encoding: u8, section: u64, memory: Memory<'_>) -> Option<u64> {
    if encoding == OMIT {
        return Some(0);
    }
    let place = section.wrapping_add(reader.at as u64);
    let value = read_value(reader, encoding)?;
    if value == 0 {
        return Some(0);
    }
    let address = match encoding & 0x70 {
        application if application == dw::DW_EH_PE_absptr.0 => value,
        application if application == dw::DW_EH_PE_pcrel.0 => value.wrapping_add(place),
        _ => return None,
    };
    if encoding & INDIRECT != 0 { memory(address) } else { Some(address) }
}

/// Reads the number alone: lengths (`pc_range`) use the format of the FDE's pointers, but are relative to nothing.
pub(super) fn read_value(reader: &mut Reader<'_>, encoding: u8) -> Option<u64> {
    Some(match gimli::DwEhPe(encoding & 0x0f) {
        dw::DW_EH_PE_absptr | dw::DW_EH_PE_udata8 | dw::DW_EH_PE_sdata8 => reader.u64()?,
        dw::DW_EH_PE_udata4 => u64::from(reader.u32()?),
        dw::DW_EH_PE_sdata4 => i64::from(reader.u32()?.cast_signed()).cast_unsigned(),
        dw::DW_EH_PE_udata2 => u64::from(reader.u16()?),
        dw::DW_EH_PE_sdata2 => i64::from(reader.u16()?.cast_signed()).cast_unsigned(),
        dw::DW_EH_PE_uleb128 => reader.uleb128()?,
        dw::DW_EH_PE_sleb128 => reader.sleb128()?.cast_unsigned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcrel_sdata4_is_relative_to_its_own_place() {
        let bytes = [0, 0, 0, 0, 0xf0, 0xff, 0xff, 0xff];
        let mut reader = Reader::new(&bytes, 4);
        assert_eq!(read(&mut reader, 0x1b, 0x1000, &|_| None), Some(0x1004 - 0x10));
        assert_eq!(read(&mut Reader::new(&bytes, 0), 0x1b, 0x1000, &|_| None), Some(0), "null stays null");
    }

    #[test]
    fn an_indirect_pointer_asks_the_memory() {
        let bytes = 0x2000u64.to_le_bytes();
        assert_eq!(read(&mut Reader::new(&bytes, 0), 0x80, 0, &|at| Some(at + 1)), Some(0x2001));
        assert_eq!(read(&mut Reader::new(&bytes, 0), 0x30, 0, &|_| None), None, "datarel has no base here");
    }
}
