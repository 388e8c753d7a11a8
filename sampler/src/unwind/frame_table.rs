//! An `.eh_frame` section and the way to an entry of it.
//!
//! ```text
//!   CIE   length, 0, version, "zRS..", alignments, instructions
//!   FDE   length, distance to its CIE, start, size, instructions
//!   0000
//! ```
//! Elsewhere gimli reads such tables. This one is read in a signal handler, which may not allocate and has little stack: gimli's
//! context for unwind rows has no place there. The tests compare the two.
//!
//! Format: Linux Standard Base Core 5.0, 10.6 and 10.6.2 (`.eh_frame_hdr`).

#![forbid(unsafe_code)]

use super::reader::Reader;

const DW_EH_PE_OMIT: u8 = 0xff;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`, the only table that linkers write.
const SORTED_TABLE: u8 = 0x3b;

/// A private copy of an `.eh_frame` with an index. Nothing in it points to memory that can go away.
#[derive(Debug)]
pub struct FrameTable {
    bytes: Box<[u8]>,
    /// Where the section is in the process: pointers in it are relative to that.
    address: u64,
    /// What the index is relative to.
    base: u64,
    /// Start of the function and offset of its entry, sorted.
    index: Box<[(u32, u32)]>,
}

/// What an entry says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) common: Common,
    /// The whole section, for expressions.
    pub(crate) section: &'a [u8],
    /// From where to where its instructions are.
    pub(crate) instructions: (usize, usize),
}

/// What entries have in common (CIE).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) code_alignment: u64,
    pub(crate) data_alignment: i64,
    pub(crate) return_address: u64,
    /// `S`: the frame of a signal handler. The address in it is where the program was, not where it returns to.
    pub(crate) is_signal_frame: bool,
    pub(crate) instructions: (usize, usize),
    encoding: u8,
    has_length: bool,
}

impl FrameTable {
    /// A section without an index: every entry is read once.
    pub fn by_reading(bytes: Box<[u8]>, address: u64, base: u64) -> FrameTable {
        let mut table = FrameTable { bytes, address, base, index: Box::default() };
        let mut index: Vec<(u32, u32)> = Vec::new();
        let mut at = 0;
        while let Some(next) = table.next_record(at) {
            if let Some(entry) = table.entry(at)
                && let Some(start) = entry.start.checked_sub(base).and_then(|start| u32::try_from(start).ok())
                && let Ok(offset) = u32::try_from(at)
            {
                index.push((start, offset));
            }
            at = next;
        }
        index.sort_unstable();
        table.index = index.into_boxed_slice();
        table
    }

    /// A section with the table of its `.eh_frame_hdr`, which was loaded at `header_address`. `None` if it has no table.
    pub fn with_header(
        bytes: Box<[u8]>,
        address: u64,
        base: u64,
        header: &[u8],
        header_address: u64,
    ) -> Option<FrameTable> {
        let mut reader = Reader::new(header, 0);
        let [_version, pointer, count, table] = [reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?];
        reader.pointer(pointer, header_address.wrapping_add(4), header_address)?;
        let at = header_address.wrapping_add(reader.position() as u64);
        let count = reader.pointer(count, at, header_address)?;
        if table != SORTED_TABLE || count > header.len() as u64 {
            return None;
        }
        let mut index = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let start = header_address.wrapping_add(reader.u32()? as i32 as u64);
            let entry = header_address.wrapping_add(reader.u32()? as i32 as u64);
            let start = u32::try_from(start.checked_sub(base)?).ok()?;
            index.push((start, u32::try_from(entry.checked_sub(address)?).ok()?));
        }
        if !index.is_sorted() {
            index.sort_unstable();
        }
        Some(FrameTable { bytes, address, base, index: index.into_boxed_slice() })
    }

    /// Where `.eh_frame_hdr` says that the section is.
    pub fn section_address(header: &[u8], header_address: u64) -> Option<u64> {
        let mut reader = Reader::new(header, 0);
        let [version, pointer, _, _] = [reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?];
        if version != 1 || pointer == DW_EH_PE_OMIT {
            return None;
        }
        reader.pointer(pointer, header_address.wrapping_add(4), header_address)
    }

    /// How many functions it describes.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it describes none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The addresses at which functions begin.
    pub fn starts(&self) -> impl Iterator<Item = u64> {
        self.index.iter().map(|&(start, _)| self.base.wrapping_add(u64::from(start)))
    }

    /// The entry for the function that `address` is in.
    pub(crate) fn find(&self, address: u64) -> Option<Entry<'_>> {
        let wanted = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.index.partition_point(|&(start, _)| start <= wanted);
        let &(_, offset) = self.index.get(after.checked_sub(1)?)?;
        let entry = self.entry(offset as usize)?;
        (address.wrapping_sub(entry.start) < entry.size).then_some(entry)
    }

    /// Length and end of the record at `at`.
    fn record(&self, at: usize) -> Option<(Reader<'_>, usize)> {
        let mut reader = Reader::new(&self.bytes, at);
        let length = reader.u32()?;
        // Zero ends the section; 64-bit records exist on paper only.
        if length == 0 || length == u32::MAX {
            return None;
        }
        let end = reader.position().checked_add(length as usize)?;
        Some((reader.until(end)?, end))
    }

    fn next_record(&self, at: usize) -> Option<usize> {
        self.record(at).map(|(_, end)| end)
    }

    fn entry(&self, at: usize) -> Option<Entry<'_>> {
        let (mut reader, end) = self.record(at)?;
        let field = reader.position();
        let distance = reader.u32()? as usize;
        if distance == 0 {
            return None;
        }
        let common = self.common(field.checked_sub(distance)?)?;
        let start = reader.pointer(common.encoding, self.address.wrapping_add(reader.position() as u64), self.base)?;
        let size = reader.pointer(common.encoding & 0x0f, 0, 0)?;
        if common.has_length {
            let length = usize::try_from(reader.uleb()?).ok()?;
            reader.take(length)?;
        }
        let instructions = (reader.position(), end);
        Some(Entry { start, size, common, section: &self.bytes, instructions })
    }

    fn common(&self, at: usize) -> Option<Common> {
        let (mut reader, end) = self.record(at)?;
        if reader.u32()? != 0 {
            return None;
        }
        let version = reader.u8()?;
        if !matches!(version, 1 | 3) {
            return None;
        }
        let augmentation = reader.position();
        let mut length = 0;
        while reader.u8()? != 0 {
            length += 1;
        }
        let augmentation = self.bytes.get(augmentation..augmentation.checked_add(length)?)?;
        let mut common = Common {
            code_alignment: reader.uleb()?,
            data_alignment: reader.sleb()?,
            return_address: if version == 1 { u64::from(reader.u8()?) } else { reader.uleb()? },
            is_signal_frame: false,
            instructions: (0, end),
            encoding: 0,
            has_length: false,
        };
        if let Some((b'z', letters)) = augmentation.split_first() {
            common.has_length = true;
            let size = usize::try_from(reader.uleb()?).ok()?;
            let after = reader.position().checked_add(size)?;
            for letter in letters {
                match letter {
                    b'R' => common.encoding = reader.u8()?,
                    b'L' => drop(reader.u8()?),
                    b'P' => {
                        let encoding = reader.u8()?;
                        reader.pointer(encoding & 0x0f, 0, 0)?;
                    }
                    b'S' => common.is_signal_frame = true,
                    // AArch64: signed with the other key; tagged memory.
                    b'B' | b'G' => {}
                    _ => return None,
                }
            }
            reader.move_by(after as i64 - reader.position() as i64)?;
        } else if !augmentation.is_empty() {
            return None;
        }
        common.instructions.0 = reader.position();
        Some(common)
    }
}
