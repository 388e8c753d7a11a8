//! Fuzz input, consumed from the front. Reads past the end return zeros.

/// Unread remainder of a fuzz input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn read_array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.read_array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.read_array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.read_array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.read_array())
    }

    /// Chooses one of `values`.
    pub(crate) fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.u8()) % values.len()]
    }
}
