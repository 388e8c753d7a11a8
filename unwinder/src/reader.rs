//! A bounds-checked cursor over the bytes of a section. Reads return `None` past the end.

use gimli::{DwEhPe, constants as dw};

/// Bits of a `DW_EH_PE_*` encoding that give the size and signedness of the number.
const FORMAT: u8 = 0x0f;
/// Mask of the `DW_EH_PE_*` application bits: what the value is relative to.
const RELATIVE_TO: u8 = 0x70;

/// A read position in a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], position: usize) -> Self {
        Reader { bytes, position }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.position >= self.bytes.len()
    }

    pub(crate) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.position..self.position.checked_add(size)?)?;
        self.position += size;
        Some(bytes)
    }

    /// Returns a reader that stops at `end`.
    pub(crate) fn until(self, end: usize) -> Option<Self> {
        Some(Reader { bytes: self.bytes.get(..end)?, position: self.position })
    }

    pub(crate) fn move_by(&mut self, distance: i64) -> Option<()> {
        let position = (self.position as i64).checked_add(distance)?;
        self.position = usize::try_from(position).ok().filter(|&position| position <= self.bytes.len())?;
        Some(())
    }

    /// Moves to an absolute position.
    pub(crate) fn move_to(&mut self, position: usize) -> Option<()> {
        self.position = Some(position).filter(|&position| position <= self.bytes.len())?;
        Some(())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a `ULEB128` number. Values that do not fit in 64 bits are refused.
    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads an `SLEB128` number.
    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let mut value = 0_i64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let sign = shift + 7;
                if sign < 64 && byte & 0x40 != 0 {
                    value |= -1 << sign;
                }
                return Some(value);
            }
        }
        None
    }

    /// Reads the bytes up to the next NUL, and skips the NUL.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.position..)?;
        let text = rest.get(..rest.iter().position(|&byte| byte == 0)?)?;
        self.position += text.len() + 1;
        Some(text)
    }

    /// Reads the number of an encoded pointer (`DW_EH_PE_*`), without adding its base. `None` for an unknown encoding.
    pub(crate) fn encoded_number(&mut self, encoding: u8) -> Option<u64> {
        match DwEhPe(encoding & FORMAT) {
            dw::DW_EH_PE_absptr | dw::DW_EH_PE_udata8 | dw::DW_EH_PE_sdata8 => self.u64(),
            dw::DW_EH_PE_uleb128 => self.uleb(),
            dw::DW_EH_PE_udata2 => self.u16().map(u64::from),
            dw::DW_EH_PE_udata4 => self.u32().map(u64::from),
            dw::DW_EH_PE_sleb128 => self.sleb().map(i64::cast_unsigned),
            dw::DW_EH_PE_sdata2 => self.u16().map(|value| i64::from(value.cast_signed()).cast_unsigned()),
            dw::DW_EH_PE_sdata4 => self.u32().map(|value| i64::from(value.cast_signed()).cast_unsigned()),
            _ => None,
        }
    }

    /// Reads an encoded pointer that is loaded at `address`. `data_base` is the base of `DW_EH_PE_datarel`, if there is
    /// one. A null pointer is null in every encoding.
    pub(crate) fn encoded(&mut self, encoding: u8, address: u64, data_base: Option<u64>) -> Option<u64> {
        let base = match DwEhPe(encoding & RELATIVE_TO) {
            dw::DW_EH_PE_absptr => 0,
            dw::DW_EH_PE_pcrel => address,
            dw::DW_EH_PE_datarel => data_base?,
            _ => return None,
        };
        self.encoded_number(encoding).map(|value| if value == 0 { 0 } else { base.wrapping_add(value) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_matches_the_dwarf_examples() {
        assert_eq!(Reader::new(&[0x82, 0x01], 0).uleb(), Some(130));
        assert_eq!(Reader::new(&[0x80, 0x7f], 0).sleb(), Some(-128));
        assert_eq!(Reader::new(&[0x78], 0).sleb(), Some(-8));
        assert_eq!(Reader::new(&[0x80], 0).uleb(), None);
        assert_eq!(Reader::new(&[0xff; 11], 0).uleb(), None, "more than 64 bits");
    }

    #[test]
    fn nothing_is_read_past_the_end() {
        assert_eq!(Reader::new(&[1, 2, 3], 0).u32(), None);
        assert_eq!(Reader::new(&[1], usize::MAX).u16(), None);
        assert_eq!(Reader::new(b"abc", 0).string(), None);
    }

    #[test]
    fn pcrel_sdata4_is_relative_to_its_own_address() {
        let bytes = [0, 0, 0, 0, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(Reader::new(&bytes, 4).encoded(0x1b, 0x1004, None), Some(0x1004 - 0x10));
        assert_eq!(Reader::new(&bytes, 0).encoded(0x1b, 0x1000, None), Some(0), "null stays null");
        assert_eq!(Reader::new(&bytes, 4).encoded(0x3b, 0x1004, Some(0x2000)), Some(0x1ff0));
        assert_eq!(Reader::new(&bytes, 4).encoded(0x2b, 0x1004, None), None, "textrel has no base here");
    }
}
