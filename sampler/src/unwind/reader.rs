//! Reads numbers out of unchecked bytes. Everything returns `None` past the end.

#![forbid(unsafe_code)]

/// A position in a section.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(size)?)?;
        self.at += size;
        Some(taken)
    }

    /// Only what is before `end` is left to read.
    pub(crate) fn until(self, end: usize) -> Option<Self> {
        Some(Reader { bytes: self.bytes.get(..end)?, at: self.at })
    }

    pub(crate) fn move_by(&mut self, distance: i64) -> Option<()> {
        let at = (self.at as i64).checked_add(distance)?;
        self.at = usize::try_from(at).ok().filter(|&at| at <= self.bytes.len())?;
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

    /// `ULEB128`; bits beyond 64 are refused.
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

    /// `SLEB128`
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

    /// A `DW_EH_PE_*` pointer that is read at `address`; `base` is that of `DW_EH_PE_datarel`.
    pub(crate) fn pointer(&mut self, encoding: u8, address: u64, base: u64) -> Option<u64> {
        let application = match encoding & 0x70 {
            0x00 => 0,
            0x10 => address,
            0x30 => base,
            _ => return None,
        };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.uleb()?,
            0x02 => u64::from(self.u16()?),
            0x03 => u64::from(self.u32()?),
            0x09 => self.sleb()? as u64,
            0x0a => self.u16()? as i16 as u64,
            0x0b => self.u32()? as i32 as u64,
            _ => return None,
        };
        // DW_EH_PE_indirect is for personality routines only, whose value is not needed here.
        Some(application.wrapping_add(value))
    }
}
