//! Layout of an image. File offsets equal segment addresses: byte `n` of the file has address `n`.
//!
//! ```text
//!   with header padding                              without
//!   0      ELF header, program headers, build-id     0      the same            in the file only
//!          .eh_frame_hdr, .eh_frame                  page   -- mapped from here --
//!   padding the pages of the code                           the pages of the code; in the zeros after the text,
//!                                                           if they suffice: .eh_frame_hdr, .eh_frame
//!          -- mapped up to here --                          -- mapped up to here --
//!          .symtab, .strtab, .debug_*, ...                  (.eh_frame, if it did not fit), .symtab, ...
//! ```
//!
//! Unwinders of other processes (libunwind in perf and py-spy) find the search table through the file, but read its
//! entries from the memory of the process. A program header for unmapped entries would make them read unrelated memory.
//! Therefore an unmapped `.eh_frame` gets no program header, and only serves tools that read files.
//!
//! py-spy and elfutils also work without header padding. perf 6.1 does not: it subtracts the mapping's offset twice
//! (`read_unwind_spec_eh_frame`), reads from too low an address, and falls back to frame pointers.

use crate::{Address, AddressRange};

const FILE_HEADER_SIZE: u64 = 64;
const PROGRAM_HEADER_SIZE: u64 = 56;
pub(crate) const PROGRAM_HEADERS: u32 = 4;
/// Size of `.note.gnu.build-id`: three words, `GNU\0`, and a 20-byte ID.
pub(crate) const NOTE_SIZE: u64 = 12 + 4 + 20;
pub(crate) const NOTE_OFFSET: u64 = FILE_HEADER_SIZE + PROGRAM_HEADERS as u64 * PROGRAM_HEADER_SIZE;
pub(crate) const HEADERS_END: u64 = NOTE_OFFSET + NOTE_SIZE;

pub(crate) const fn program_header_offset(index: u64) -> u64 {
    FILE_HEADER_SIZE + index * PROGRAM_HEADER_SIZE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnwindSections {
    /// Both sections are mapped, `.eh_frame_hdr` at a multiple of 4 and `.eh_frame` at a multiple of 8.
    Mapped { hdr: u64, eh_frame: u64 },
    /// Only `.eh_frame` exists. It is stored after the pages and is not mapped.
    FileOnly { eh_frame: u64 },
}

/// Offsets and addresses of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Offset of the first mapped byte.
    pub(crate) mapped_start: u64,
    /// Offset of the first page of code.
    pub(crate) code_start: u64,
    /// End of the last page of code, and of the mapping.
    pub(crate) code_end: u64,
    /// Address at which byte 0 of the file would be mapped.
    pub(crate) bias: u64,
    pub(crate) unwind: UnwindSections,
    pub(crate) page: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutSizes {
    pub(crate) pages: AddressRange,
    /// Size of the mapped header padding before the code: whole pages, or 0.
    pub(crate) padding: u64,
    /// Number of zero bytes at the end of the pages, after all text.
    pub(crate) slack: u64,
    /// Size of `.eh_frame_hdr`.
    pub(crate) hdr_size: u64,
    pub(crate) eh_frame_size: u64,
    pub(crate) page: u64,
}

impl Layout {
    pub(crate) fn new(sizes: &LayoutSizes) -> Layout {
        let (mapped_start, code_start) = if sizes.padding > 0 { (0, sizes.padding) } else { (sizes.page, sizes.page) };
        let code_end = code_start + sizes.pages.size();
        let slack = (code_end - sizes.slack).next_multiple_of(8);
        let in_padding = fit_unwind_sections(HEADERS_END.next_multiple_of(4), sizes.padding, sizes);
        let unwind = in_padding.or_else(|| fit_unwind_sections(slack, code_end, sizes));
        Layout {
            mapped_start,
            code_start,
            code_end,
            bias: sizes.pages.start().0.wrapping_sub(code_start),
            unwind: unwind.unwrap_or(UnwindSections::FileOnly { eh_frame: code_end }),
            page: sizes.page,
        }
    }

    pub(crate) fn mapped_range(&self) -> AddressRange {
        let start = Address(self.bias.wrapping_add(self.mapped_start));
        AddressRange::new(start, self.code_end - self.mapped_start).unwrap_or_default()
    }

    /// Returns the file offset of an address in the process.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// Places both unwind sections between two offsets, if they fit.
fn fit_unwind_sections(start: u64, end: u64, sizes: &LayoutSizes) -> Option<UnwindSections> {
    let eh_frame = (start + sizes.hdr_size).next_multiple_of(8);
    (eh_frame + sizes.eh_frame_size <= end).then_some(UnwindSections::Mapped { hdr: start, eh_frame })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(padding: u64, slack: u64, eh_frame_size: u64) -> LayoutSizes {
        let pages = AddressRange::new(Address(0x7000_0000), 0x2000).unwrap();
        LayoutSizes { pages, padding, slack, hdr_size: 0x20, eh_frame_size, page: 0x1000 }
    }

    #[test]
    fn header_padding_is_used_first() {
        let layout = Layout::new(&sizes(0x1000, 0x800, 0x100));
        assert_eq!((layout.mapped_start, layout.code_start, layout.code_end), (0, 0x1000, 0x3000));
        assert_eq!(layout.bias, 0x6fff_f000);
        assert_eq!(layout.unwind, UnwindSections::Mapped { hdr: HEADERS_END, eh_frame: 0x168 });
    }

    #[test]
    fn zeros_after_the_text_are_the_second_choice() {
        let expected = UnwindSections::Mapped { hdr: 0x2800, eh_frame: 0x2820 };
        assert_eq!(Layout::new(&sizes(0, 0x800, 0x100)).unwind, expected);
        let layout = Layout::new(&sizes(0x1000, 0x1800, 0x1000));
        assert_eq!(layout.unwind, UnwindSections::Mapped { hdr: 0x1800, eh_frame: 0x1820 });
        assert_eq!(layout.mapped_start, 0, "the header is mapped all the same");
    }

    #[test]
    fn without_space_eh_frame_is_only_in_the_file() {
        let layout = Layout::new(&sizes(0, 0, 0x100));
        assert_eq!(layout.unwind, UnwindSections::FileOnly { eh_frame: 0x3000 });
        assert_eq!((layout.mapped_start, layout.code_start), (0x1000, 0x1000));
    }
}
