//! Absolute addresses and offsets in a section: two types, because confusing them is the classic bug of this field.

#![forbid(unsafe_code)]

use core::fmt;

/// An absolute address in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// An offset from the start of a section or file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub u64);

impl Address {
    /// The address `bytes` further on, or `None` where that leaves the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Address> {
        self.0.checked_add(bytes).map(Address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range of addresses, `start..end`; never wraps around. The default is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    start: Address,
    size: u64,
}

impl AddressRange {
    /// The `size` bytes from `start` on, or `None` where they do not fit in the address space.
    pub fn new(start: Address, size: u64) -> Option<Self> {
        start.checked_add(size)?;
        Some(AddressRange { start, size })
    }

    /// The first address.
    pub fn start(self) -> Address {
        self.start
    }

    /// The address after the last byte.
    pub fn end(self) -> Address {
        Address(self.start.0 + self.size)
    }

    /// The length in bytes.
    pub fn size(self) -> u64 {
        self.size
    }

    /// Whether there is no byte in it.
    pub fn is_empty(self) -> bool {
        self.size == 0
    }

    /// Whether `address` is one of its bytes.
    pub fn contains(self, address: Address) -> bool {
        self.start <= address && address < self.end()
    }

    /// Whether every byte of `inner` lies in it.
    pub fn covers(self, inner: AddressRange) -> bool {
        self.start <= inner.start && inner.end() <= self.end()
    }

    /// The smallest range that covers both.
    pub(crate) fn hull(self, other: AddressRange) -> AddressRange {
        let (start, end) = (self.start.min(other.start), self.end().max(other.end()));
        AddressRange { start, size: end.0 - start.0 }
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: AddressRange) -> bool {
        self.start < other.end() && other.start < self.end() && !self.is_empty() && !other.is_empty()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start.0, self.end().0)
    }
}
