//! Distinct types for addresses and section offsets, because confusing the two is the classic bug of this field.

use core::fmt;

/// An absolute address in this process.
///
/// ```
/// use jitlisten::Address;
///
/// assert_eq!(Address(0x1000).checked_add(0x20), Some(Address(0x1020)));
/// assert_eq!(Address(u64::MAX).checked_add(1), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// An offset from the start of a section or file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub u64);

impl Address {
    /// Adds `bytes`; returns `None` on overflow of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Address> {
        self.0.checked_add(bytes).map(Address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range of addresses, `start..end`, which never wraps around. Empty by default.
///
/// ```
/// use jitlisten::{Address, AddressRange};
///
/// let range = AddressRange::new(Address(0x1000), 0x20).ok_or("beyond the address space")?;
/// assert!(range.contains(Address(0x101f)) && !range.contains(range.end()));
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    start: Address,
    size: u64,
}

impl AddressRange {
    /// Creates the range of `size` bytes from `start`, or returns `None` if it leaves the address space.
    pub fn new(start: Address, size: u64) -> Option<Self> {
        start.checked_add(size)?;
        Some(AddressRange { start, size })
    }

    /// First address of the range.
    pub fn start(self) -> Address {
        self.start
    }

    /// Address after the last byte.
    pub fn end(self) -> Address {
        Address(self.start.0 + self.size)
    }

    /// Length in bytes.
    pub fn size(self) -> u64 {
        self.size
    }

    /// Returns true if the range is empty.
    pub fn is_empty(self) -> bool {
        self.size == 0
    }

    /// Returns true if `address` lies in the range.
    pub fn contains(self, address: Address) -> bool {
        self.start <= address && address < self.end()
    }

    /// Returns true if `inner` lies entirely in the range.
    pub fn covers(self, inner: AddressRange) -> bool {
        self.start <= inner.start && inner.end() <= self.end()
    }

    /// Smallest range that covers both ranges.
    pub(crate) fn hull(self, other: AddressRange) -> AddressRange {
        let (start, end) = (self.start.min(other.start), self.end().max(other.end()));
        AddressRange { start, size: end.0 - start.0 }
    }

    /// Returns true if the ranges share a byte.
    pub fn overlaps(self, other: AddressRange) -> bool {
        self.start < other.end() && other.start < self.end() && !self.is_empty() && !other.is_empty()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start.0, self.end().0)
    }
}
