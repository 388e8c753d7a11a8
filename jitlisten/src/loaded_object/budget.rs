//! Limits the memory for an object: names and copies stay proportional to its size.

use crate::Error;

/// The bytes that may still be copied out of an object.
///
/// A few kilobytes of ELF can ask for gigabytes: a thousand symbols may share one name of a megabyte, a thousand
/// sections the same bytes. Honest objects stay far below the limits set here.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// `factor` times the `length` of the object, and a little for small ones.
    pub(super) fn new(length: usize, factor: u64) -> Self {
        let limit = (length as u64).saturating_mul(factor).saturating_add(0x1_0000);
        Budget { left: limit, limit }
    }

    /// Takes `bytes` off, or refuses the object.
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), Error> {
        self.left = self.left.checked_sub(bytes).ok_or(Error::TooMuchData { limit: self.limit })?;
        Ok(())
    }

    /// A copy of `name`; bytes that are not UTF-8 are replaced.
    pub(super) fn name(&mut self, name: &[u8]) -> Result<Box<str>, Error> {
        // A replacement character is up to three bytes for one.
        self.spend(name.len() as u64)?;
        // The lossy conversion alone looks at every byte by itself.
        Ok(std::str::from_utf8(name).map_or_else(|_| String::from_utf8_lossy(name).into(), Box::from))
    }
}
