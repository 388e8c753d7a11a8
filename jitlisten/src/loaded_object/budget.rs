//! Memory limit for one object, which keeps names and copies proportional to the object's size.

use crate::Error;

/// Remaining bytes that may be copied out of an object.
///
/// A few kilobytes of ELF can request gigabytes: a thousand symbols may share one name of a megabyte, or a thousand
/// sections may share the same bytes. Well-formed objects stay far below these limits.
#[derive(Debug)]
pub(super) struct Budget {
    remaining: u64,
    limit: u64,
}

impl Budget {
    /// Creates a budget of `factor` times `length` bytes, plus 64 KiB for small objects.
    pub(super) fn new(length: usize, factor: u64) -> Self {
        let limit = (length as u64).saturating_mul(factor).saturating_add(0x1_0000);
        Budget { remaining: limit, limit }
    }

    /// Subtracts `bytes`; fails if the budget is exceeded.
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), Error> {
        self.remaining = self.remaining.checked_sub(bytes).ok_or(Error::TooMuchData { limit: self.limit })?;
        Ok(())
    }

    /// Copies `name`, replacing bytes that are not UTF-8.
    pub(super) fn name(&mut self, name: &[u8]) -> Result<Box<str>, Error> {
        // The replacement for one invalid byte may take three bytes; this budget counts the original bytes.
        self.spend(name.len() as u64)?;
        // Validate first, because the lossy conversion decodes chunk by chunk and is slower.
        Ok(std::str::from_utf8(name).map_or_else(|_| String::from_utf8_lossy(name).into(), Box::from))
    }
}
