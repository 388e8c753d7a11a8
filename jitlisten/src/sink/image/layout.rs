//! The layout of an image. Offsets in the file are addresses: byte `n` of the file is address `n` of the segment.
//!
//! ```text
//!   with header padding                              without
//!   0      ELF header, program headers, build-id     0      the same            in the file only
//!          .eh_frame_hdr, .eh_frame                  page   -- mapped from here --
//!   padding the pages of the code                           the pages of the code; in the zeros behind the last text,
//!                                                           if they suffice: .eh_frame_hdr, .eh_frame
//!          -- mapped up to here --                          -- mapped up to here --
//!          .symtab, .strtab, .debug_*, ...                  (.eh_frame, if it found no place), .symtab, ...
//! ```
//!
//! Unwinders of other processes (libunwind in perf and py-spy) find the search table through the file, and read its
//! entries in the memory of the process. A header for unmapped entries would make them read other memory. Therefore an
//! unmapped `.eh_frame` has no header, and serves tools that only read files.
//!
//! py-spy and elfutils work without padding, too. perf 6.1 does not: it subtracts an offset of the mapping twice
//! (`read_unwind_spec_eh_frame`), reads a page too low, and falls back to frame pointers.

#![forbid(unsafe_code)]

use crate::{Address, AddressRange};

const FILE_HEADER_SIZE: u64 = 64;
const PROGRAM_HEADER_SIZE: u64 = 56;
pub(crate) const PROGRAM_HEADERS: u32 = 4;
/// `.note.gnu.build-id`: three words, `GNU\0`, 20 bytes.
pub(crate) const NOTE_SIZE: u64 = 12 + 4 + 20;
pub(crate) const NOTE: u64 = FILE_HEADER_SIZE + PROGRAM_HEADERS as u64 * PROGRAM_HEADER_SIZE;
/// Behind the note.
pub(crate) const HEADERS_END: u64 = NOTE + NOTE_SIZE;

/// Offset of a program header.
pub(crate) const fn program_header_at(index: u64) -> u64 {
    FILE_HEADER_SIZE + index * PROGRAM_HEADER_SIZE
}

/// Where the unwind sections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnwindPlace {
    /// Mapped: `.eh_frame_hdr`, a multiple of 4, and `.eh_frame`, a multiple of 8.
    Mapped { hdr: u64, eh_frame: u64 },
    /// In the file, behind the pages: `.eh_frame`.
    FileOnly { eh_frame: u64 },
}

/// The plan of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Offset of the first byte that is mapped.
    pub(crate) mapped: u64,
    /// Offset of the first page of code.
    pub(crate) code: u64,
    /// Offset behind the last page of code, and behind the mapping.
    pub(crate) code_end: u64,
    /// Address of byte 0 of the file, if all of it were mapped.
    pub(crate) bias: u64,
    /// The unwind sections.
    pub(crate) unwind: UnwindPlace,
    /// Size of a page.
    pub(crate) page: u64,
}

/// What has to find a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The pages of the code.
    pub(crate) pages: AddressRange,
    /// Mapped bytes in front of them: whole pages, or 0.
    pub(crate) padding: u64,
    /// How many bytes at the end of the pages are zero and behind all text.
    pub(crate) slack: u64,
    /// Of `.eh_frame_hdr`.
    pub(crate) hdr_size: u64,
    /// Of `.eh_frame`.
    pub(crate) eh_frame_size: u64,
    /// Of a page.
    pub(crate) page: u64,
}

impl Layout {
    pub(crate) fn new(needs: &Needs) -> Layout {
        let (mapped, code) = if needs.padding > 0 { (0, needs.padding) } else { (needs.page, needs.page) };
        let code_end = code + needs.pages.size();
        let slack = (code_end - needs.slack).next_multiple_of(8);
        let front = place(HEADERS_END.next_multiple_of(4), needs.padding, needs);
        let unwind = front.or_else(|| place(slack, code_end, needs));
        Layout {
            mapped,
            code,
            code_end,
            bias: needs.pages.start().0.wrapping_sub(code),
            unwind: unwind.unwrap_or(UnwindPlace::FileOnly { eh_frame: code_end }),
            page: needs.page,
        }
    }

    /// The mapping, in the process.
    pub(crate) fn mapped_range(&self) -> AddressRange {
        let start = Address(self.bias.wrapping_add(self.mapped));
        AddressRange::new(start, self.code_end - self.mapped).unwrap_or_default()
    }

    /// The offset in the file of an address in the process.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// Both sections between two offsets, if they fit.
fn place(from: u64, to: u64, needs: &Needs) -> Option<UnwindPlace> {
    let eh_frame = (from + needs.hdr_size).next_multiple_of(8);
    (eh_frame + needs.eh_frame_size <= to).then_some(UnwindPlace::Mapped { hdr: from, eh_frame })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(padding: u64, slack: u64, eh_frame_size: u64) -> Needs {
        let pages = AddressRange::new(Address(0x7000_0000), 0x2000).unwrap();
        Needs { pages, padding, slack, hdr_size: 0x20, eh_frame_size, page: 0x1000 }
    }

    #[test]
    fn padding_in_front_is_used_first() {
        let layout = Layout::new(&needs(0x1000, 0x800, 0x100));
        assert_eq!((layout.mapped, layout.code, layout.code_end), (0, 0x1000, 0x3000));
        assert_eq!(layout.bias, 0x6fff_f000);
        assert_eq!(layout.unwind, UnwindPlace::Mapped { hdr: HEADERS_END, eh_frame: 0x168 });
    }

    #[test]
    fn zeros_behind_the_text_are_the_second_choice() {
        let expected = UnwindPlace::Mapped { hdr: 0x2800, eh_frame: 0x2820 };
        assert_eq!(Layout::new(&needs(0, 0x800, 0x100)).unwind, expected);
        let layout = Layout::new(&needs(0x1000, 0x1800, 0x1000));
        assert_eq!(layout.unwind, UnwindPlace::Mapped { hdr: 0x1800, eh_frame: 0x1820 });
        assert_eq!(layout.mapped, 0, "the header is mapped all the same");
    }

    #[test]
    fn without_a_place_the_file_has_it_alone() {
        let layout = Layout::new(&needs(0, 0, 0x100));
        assert_eq!(layout.unwind, UnwindPlace::FileOnly { eh_frame: 0x3000 });
        assert_eq!((layout.mapped, layout.code), (0x1000, 0x1000));
    }
}
