//! Little-endian numbers out of a slice, which may end anywhere.

/// The rest of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// `count` numbers of eight bytes.
    pub(super) fn u64s(&mut self, count: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(count).ok()?.checked_mul(8)?)
    }

    /// Up to the first zero byte, or all of it.
    pub(super) fn text(&self) -> &'a [u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}
