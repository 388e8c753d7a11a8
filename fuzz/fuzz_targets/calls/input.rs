//! Bytes read from the front, zeros when there are no more.

/// The rest of an input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut number = [0; N];
        let taken = self.bytes(N);
        number[..taken.len()].copy_from_slice(taken);
        number
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.number())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.number())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.number())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.number())
    }

    /// One of them.
    pub(crate) fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }
}
