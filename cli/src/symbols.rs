//! Addresses of a library's symbols in a process, from the file that it maps.

#![forbid(unsafe_code)]

use std::fs::File;
use std::path::Path;

use object::elf::{PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, ReadRef};

use crate::memory;
use crate::process::{Mapping, Process};

const PAGE: u64 = 4096;
/// No table of symbols is larger; a file that says so would have us reserve the memory.
const LARGEST: u64 = 512 << 20;
/// So many bytes of a function tell whether the process runs the code of the file.
const BEGINNING: usize = 16;

type Elf<'a> = ElfFile64<'a, Endianness, Bounded<'a>>;

/// A file of which no large part is read.
#[derive(Clone, Copy)]
struct Bounded<'a>(&'a ReadCache<File>);

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > LARGEST { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: std::ops::Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

/// The address of a function that `library` defines, if the code there is that of the file: a library may have been
/// replaced on disk since the process has mapped it.
pub(crate) fn function(process: &Process, library: &Path, name: &str) -> Option<u64> {
    let (address, in_file) = Symbols::of(process, library)?.code(name, BEGINNING)?;
    let is_same = !in_file.is_empty() && memory::read(process.pid, address, in_file.len()).ok()? == in_file;
    is_same.then_some(address)
}

/// The address of the symbol `name` that `library` defines. Exported symbols come first.
pub(crate) fn address(process: &Process, library: &Path, name: &str) -> Option<u64> {
    Symbols::of(process, library)?.address(name)
}

/// The symbols of one library.
pub(crate) struct Symbols {
    cache: ReadCache<File>,
    mappings: Vec<Mapping>,
}

impl Symbols {
    /// Opens the file of the library, as the process sees it.
    pub(crate) fn of(process: &Process, library: &Path) -> Option<Symbols> {
        let cache = ReadCache::new(process.open_file(library).ok()?);
        let mappings = process.mappings.iter().filter(|mapping| mapping.path == library).cloned().collect();
        Some(Symbols { cache, mappings })
    }

    fn address(&self, name: &str) -> Option<u64> {
        let elf = Elf::parse(Bounded(&self.cache)).ok()?;
        Some(self.bias(&elf)?.wrapping_add(value(&elf, name)?))
    }

    /// Which of these names it defines.
    pub(crate) fn defined(&self, names: &[&str]) -> Vec<bool> {
        let Ok(elf) = Elf::parse(Bounded(&self.cache)) else { return Vec::new() };
        names.iter().map(|name| value(&elf, name).is_some()).collect()
    }

    /// Where a symbol is in the process, and at most `size` bytes that the file has for it.
    pub(crate) fn code(&self, name: &str, size: usize) -> Option<(u64, Vec<u8>)> {
        let elf = Elf::parse(Bounded(&self.cache)).ok()?;
        let value = value(&elf, name)?;
        let in_file = elf.segments().find_map(|segment| {
            let left = segment.address().checked_add(segment.size())?.checked_sub(value)?;
            segment.data_range(value, left.min(size as u64)).ok()?
        })?;
        Some((self.bias(&elf)?.wrapping_add(value), in_file.to_owned()))
    }

    /// What is added to addresses in the file: from the first mapping of a segment with code. A mapping that is not
    /// executable may be one of the whole file, for reading: our own library has one of each LLVM.
    fn bias(&self, elf: &Elf<'_>) -> Option<u64> {
        let endian = elf.endian();
        let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
        let page = |value: u64| value & !(PAGE - 1);
        let has_code = |header: &&ProgramHeader64<Endianness>| {
            header.p_type(endian) == PT_LOAD && header.p_flags(endian) & PF_X == PF_X
        };
        headers.iter().filter(has_code).find_map(|header| {
            let offset = page(header.p_offset(endian));
            let mapping = self.mappings.iter().find(|mapping| mapping.is_executable && mapping.offset == offset)?;
            Some(mapping.start.wrapping_sub(page(header.p_vaddr(endian))))
        })
    }
}

fn value(elf: &Elf<'_>, name: &str) -> Option<u64> {
    let exported = elf.dynamic_symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name));
    let symbol =
        exported.or_else(|| elf.symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name)))?;
    Some(symbol.address())
}
