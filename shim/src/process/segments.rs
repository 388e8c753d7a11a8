//! Program headers of a mapped library: its segments and special ranges.

use std::marker::PhantomData;
use std::ops::Range;

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{FileHeader, LE, ProgramHeader as Header};
use jitlisten::{Address, AddressRange};
use object::elf::{self, ProgramFlags, ProgramType};

use crate::process::detour::page_size;

/// One `PT_LOAD` segment as mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'l> {
    pub(crate) address: usize,
    /// Number of bytes mapped from the file.
    pub(crate) size: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    mapped: PhantomData<&'l ()>,
}

impl<'l> Segment<'l> {
    /// Bytes of the segment, if it is readable. Other threads may write only to `.data`, whose words are compared but
    /// never dereferenced.
    pub(crate) fn bytes(&self) -> Option<&'l [u8]> {
        // SAFETY: the loader has mapped this many bytes of the file at this address, and they stay mapped. The size is
        // not zero.
        let bytes = || unsafe { std::slice::from_raw_parts(self.address as *const u8, self.size) };
        (self.readable && self.size > 0).then(bytes)
    }

    /// Address range of the bytes from the file.
    pub(crate) fn range(&self) -> Range<usize> {
        self.address..self.address.saturating_add(self.size)
    }
}

/// Program headers of a library that stays mapped for `'l`.
pub(crate) struct Segments<'l> {
    bias: usize,
    headers: Vec<Header>,
    mapped: PhantomData<&'l ()>,
}

impl<'l> Segments<'l> {
    /// Reads the program headers that the kernel has passed to the program. In a non-PIE program, no ELF header is at
    /// the load bias.
    ///
    /// # Safety
    /// `bias` must be the program's load bias.
    pub(super) unsafe fn of_program(bias: usize) -> Option<Segments<'l>> {
        // SAFETY: `getauxval` has no preconditions.
        let (address, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
        Some(Segments { bias, headers: copy_headers(address, count)?, mapped: PhantomData })
    }

    /// Reads the program headers of a shared library through its ELF header. `first_table` is the address of the
    /// library's first symbol table.
    ///
    /// # Safety
    /// The library must stay mapped for `'l`.
    pub(super) unsafe fn of_library(bias: usize, first_table: usize) -> Option<Segments<'l>> {
        let page = |address: usize| address / page_size();
        let table_and_headers = [first_table, bias.wrapping_add(size_of::<FirstHeaders>())];
        let first = if table_and_headers.into_iter().all(|address| page(address) == page(bias)) {
            // SAFETY: the page is mapped, because a symbol table begins in it. Every bit pattern is a valid header.
            unsafe { (bias as *const FirstHeaders).read_unaligned() }
        } else {
            // SAFETY: headers consist of integers, so every bit pattern is valid.
            unsafe { checked_read::copy_struct::<FirstHeaders>(Address(bias as u64)) }.ok()?
        };
        let header = &first.header;
        if header.e_ident.magic != elf::ELFMAG {
            return None;
        }
        let (offset, count) = (header.e_phoff.get(LE), header.e_phnum.get(LE));
        let headers = match first.program.get(..count.into()) {
            Some(headers) if offset as usize == size_of_val(header) => headers.to_vec(),
            _ => copy_headers(bias as u64 + offset, count.into())?,
        };
        Some(Segments { bias, headers, mapped: PhantomData })
    }

    /// All `PT_LOAD` segments.
    pub(crate) fn all(&self) -> impl Iterator<Item = Segment<'l>> {
        self.loaded().map(|header| Segment {
            address: self.memory_range(header).start,
            size: header.p_filesz.get(LE) as usize,
            readable: has_flag(header, elf::PF_R),
            writable: has_flag(header, elf::PF_W),
            executable: has_flag(header, elf::PF_X),
            mapped: PhantomData,
        })
    }

    /// Address range of all segments.
    pub(crate) fn range(&self) -> Range<usize> {
        let ranges = || self.loaded().map(|header| self.memory_range(header));
        let start = ranges().map(|range| range.start).min();
        start.unwrap_or_default()..ranges().map(|range| range.end).max().unwrap_or_default()
    }

    /// Total size of the executable segments in bytes. LLVM with a code generator has several megabytes of code.
    pub(crate) fn code_size(&self) -> u64 {
        let executable = self.loaded().filter(|header| has_flag(header, elf::PF_X));
        executable.map(|header| header.p_memsz.get(LE)).sum()
    }

    /// First bytes of the file as mapped (headers, notes, symbol hashes), up to `max_size` bytes.
    pub(crate) fn first_bytes(&self, max_size: u64) -> Option<Vec<u8>> {
        let first = self.loaded().find(|header| header.p_offset.get(LE) == 0)?;
        if has_flag(first, elf::PF_W) {
            return None;
        }
        let (start, size) = (self.memory_range(first).start as u64, first.p_filesz.get(LE).min(max_size));
        checked_read::copy(AddressRange::new(Address(start), size)?).ok()
    }

    pub(crate) fn file_offset(&self, address: usize) -> Option<usize> {
        let header = self.loaded().find(|header| self.memory_range(header).contains(&address))?;
        let offset = address - self.memory_range(header).start;
        ((offset as u64) < header.p_filesz.get(LE)).then(|| header.p_offset.get(LE) as usize + offset)
    }

    /// Address range of the data that becomes read-only after relocation (`PT_GNU_RELRO`).
    pub(crate) fn relro_range(&self) -> Option<Range<usize>> {
        self.range_of(elf::PT_GNU_RELRO)
    }

    /// Address range of `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
    pub(crate) fn unwind_header(&self) -> Option<Range<usize>> {
        self.range_of(elf::PT_GNU_EH_FRAME)
    }

    /// Protection of the page at `address` after relocation.
    pub(super) fn protection(&self, address: usize) -> Option<i32> {
        let header = self.loaded().find(|header| self.memory_range(header).contains(&address))?;
        let is_sealed = self.relro_range().is_some_and(|relro| {
            // The loader seals only whole pages, and rounds both ends down to a page boundary.
            let page_start = |address: usize| address & !(page_size() - 1);
            (page_start(relro.start)..page_start(relro.end)).contains(&address)
        });
        let bit = |flag, protection| if has_flag(header, flag) { protection } else { 0 };
        let writable = if is_sealed { 0 } else { bit(elf::PF_W, libc::PROT_WRITE) };
        Some(bit(elf::PF_R, libc::PROT_READ) | writable | bit(elf::PF_X, libc::PROT_EXEC))
    }

    fn loaded(&self) -> impl Iterator<Item = &Header> {
        self.headers.iter().filter(|header| header.p_type.get(LE) == elf::PT_LOAD)
    }

    fn range_of(&self, kind: ProgramType) -> Option<Range<usize>> {
        self.headers.iter().find(|header| header.p_type.get(LE) == kind).map(|header| self.memory_range(header))
    }

    fn memory_range(&self, header: &Header) -> Range<usize> {
        let start = self.bias.wrapping_add(header.p_vaddr.get(LE) as usize);
        start..start.saturating_add(header.p_memsz.get(LE) as usize)
    }
}

fn has_flag(header: &Header, flag: ProgramFlags) -> bool {
    header.p_flags.get(LE).0 & flag.0 != 0
}

/// ELF header and program headers, contiguous as at the start of nearly every library, so that one system call reads
/// both.
#[derive(Clone, Copy)]
#[repr(C)]
struct FirstHeaders {
    header: FileHeader,
    program: [Header; 16],
}

fn copy_headers(address: u64, count: u64) -> Option<Vec<Header>> {
    // SAFETY: program headers consist of integers, so every bit pattern is valid.
    unsafe { checked_read::copy_structs(Address(address), count as usize) }.ok()
}
