//! A cursor over bytes that never reads outside of them.

/// Reads from `bytes`, `at` onwards; every read returns `None` where the bytes end.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at }
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    /// The bytes up to the next NUL, which is skipped.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.iter().position(|&byte| byte == 0)?;
        self.at += length + 1;
        Some(&rest[..length])
    }

    pub(super) fn uleb128(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    pub(super) fn sleb128(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0i64, 0);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= i64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1 << shift;
                }
                return Some(value);
            }
        }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at.min(self.bytes.len())..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_as_in_the_dwarf_examples() {
        assert_eq!(Reader::new(&[0x82, 0x01], 0).uleb128(), Some(130));
        assert_eq!(Reader::new(&[0x80, 0x7f], 0).sleb128(), Some(-128));
        assert_eq!(Reader::new(&[0x78], 0).sleb128(), Some(-8));
        assert_eq!(Reader::new(&[0x80], 0).uleb128(), None);
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        assert_eq!(Reader::new(&[1, 2, 3], 0).u32(), None);
        assert_eq!(Reader::new(&[1], usize::MAX).u16(), None);
        assert_eq!(Reader::new(b"abc", 0).string(), None);
    }
}
