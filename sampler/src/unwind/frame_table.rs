//! An `.eh_frame` section with an index of its entries.
//!
//! The section is mapped from its file, or copied, unless its memory is never unmapped. That and the index are created
//! outside the signal handler, which only reads them.

#![forbid(unsafe_code)]

use std::ops::Deref;

use jitlisten::plumbing::FileMapping;
use jitlisten_unwinder::{Entry, Header, Section};

/// The bytes of a section, which stays mapped.
#[derive(Debug)]
pub enum SectionBytes {
    /// Memory that is never unmapped.
    InPlace(&'static [u8]),
    /// A copy.
    Copied(Vec<u8>),
    /// The section in the library's file.
    Mapped(FileMapping),
}

impl Deref for SectionBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            SectionBytes::InPlace(bytes) => bytes,
            SectionBytes::Copied(bytes) => bytes,
            SectionBytes::Mapped(mapping) => mapping.bytes(),
        }
    }
}

impl From<Vec<u8>> for SectionBytes {
    fn from(bytes: Vec<u8>) -> SectionBytes {
        SectionBytes::Copied(bytes)
    }
}

/// An `.eh_frame` section with an index. Nothing in it points to memory that may be unmapped.
#[derive(Debug)]
pub struct FrameTable {
    bytes: SectionBytes,
    /// Address of the section in the process, for resolving its PC-relative pointers.
    address: u64,
    /// Base address of the offsets in the index.
    base: u64,
    /// Pairs of function start and entry offset, sorted.
    index: Box<[(u32, u32)]>,
}

impl FrameTable {
    /// Indexes a section by reading every entry once.
    pub fn from_section(bytes: SectionBytes, address: u64, base: u64) -> FrameTable {
        let mut table = FrameTable { bytes, address, base, index: Box::default() };
        let section = table.section();
        let starts = section.records(0).map_while(Result::ok).filter_map(|record| {
            let entry = section.entry_of(record, section.common(record.common?).ok()?).ok()?;
            let start = u32::try_from(entry.start.checked_sub(base)?).ok()?;
            Some((start, u32::try_from(record.start).ok()?))
        });
        let mut index: Vec<(u32, u32)> = starts.collect();
        index.sort_unstable();
        table.index = index.into_boxed_slice();
        table
    }

    /// Takes the index from the section's `.eh_frame_hdr`, which is loaded at `header_address`. `None` if the header
    /// lacks a search table.
    pub fn with_header(
        bytes: SectionBytes,
        address: u64,
        base: u64,
        header: &[u8],
        header_address: u64,
    ) -> Option<FrameTable> {
        let rows = Header::read(header, header_address)?.table()?;
        let mut index = Vec::with_capacity(rows.len());
        for (start, entry) in rows {
            let start = u32::try_from(start.checked_sub(base)?).ok()?;
            index.push((start, u32::try_from(entry.checked_sub(address)?).ok()?));
        }
        if !index.is_sorted() {
            index.sort_unstable();
        }
        Some(FrameTable { bytes, address, base, index: index.into_boxed_slice() })
    }

    /// Returns the address of the `.eh_frame` according to its `.eh_frame_hdr`.
    pub fn section_address(header: &[u8], header_address: u64) -> Option<u64> {
        Header::read(header, header_address).map(|header| header.section)
    }

    /// Number of functions in the index.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if the index has no functions.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Iterates over the start addresses of the functions.
    pub fn starts(&self) -> impl Iterator<Item = u64> {
        self.index.iter().map(|&(start, _)| self.base.wrapping_add(u64::from(start)))
    }

    /// Returns the entry of the function that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Entry<'_>> {
        let distance = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let next_index = self.index.partition_point(|&(start, _)| start <= distance);
        let &(_, offset) = self.index.get(next_index.checked_sub(1)?)?;
        let entry = self.section().entry(offset as usize).ok()?;
        (address.wrapping_sub(entry.start) < entry.size).then_some(entry)
    }

    fn section(&self) -> Section<'_> {
        Section { bytes: &self.bytes, address: self.address, data_base: Some(self.base) }
    }
}
