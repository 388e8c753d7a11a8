//! Addresses of library symbols in a process, determined from the file that the process maps.

use std::fs::File;
use std::path::Path;

use object::elf::{PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, ReadRef};

use crate::process::memory;
use crate::process::{Mapping, Process};

const PAGE: u64 = 4096;
/// Maximum size of one read. A hostile file could otherwise make us allocate whatever size it claims.
const MAX_READ_BYTES: u64 = 512 << 20;
/// Number of bytes of a function that are compared between file and memory.
const COMPARED_BYTES: usize = 16;

type Elf<'a> = ElfFile64<'a, Endianness, BoundedReader<'a>>;

/// File reader that limits the size of each read.
#[derive(Clone, Copy)]
struct BoundedReader<'a>(&'a ReadCache<File>);

impl<'a> ReadRef<'a> for BoundedReader<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > MAX_READ_BYTES { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: std::ops::Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

/// Address of a function that `library` defines. The code in the file must match the code in memory, because the
/// library may have been replaced on disk since the process mapped it.
pub(crate) fn function(process: &Process, library: &Path, name: &str) -> Option<u64> {
    let (address, file_code) = Symbols::open(process, library)?.code(name, COMPARED_BYTES)?;
    let matches_memory =
        !file_code.is_empty() && memory::read(process.pid, address, file_code.len()).ok()? == file_code;
    matches_memory.then_some(address)
}

/// Address of a symbol that `library` defines. Exported symbols take precedence.
pub(crate) fn address(process: &Process, library: &Path, name: &str) -> Option<u64> {
    Symbols::open(process, library)?.address(name)
}

/// Symbol tables and mappings of one library.
pub(crate) struct Symbols {
    cache: ReadCache<File>,
    mappings: Vec<Mapping>,
}

impl Symbols {
    /// Opens the file of a library, as the process sees it.
    pub(crate) fn open(process: &Process, library: &Path) -> Option<Symbols> {
        let cache = ReadCache::new(process.open_file(library).ok()?);
        let mappings = process.mappings.iter().filter(|mapping| mapping.path == library).cloned().collect();
        Some(Symbols { cache, mappings })
    }

    fn address(&self, name: &str) -> Option<u64> {
        let elf = Elf::parse(BoundedReader(&self.cache)).ok()?;
        Some(self.bias(&elf)?.wrapping_add(find_symbol(&elf, name)?))
    }

    pub(crate) fn defined(&self, names: &[&str]) -> Vec<bool> {
        let Ok(elf) = Elf::parse(BoundedReader(&self.cache)) else { return Vec::new() };
        names.iter().map(|name| find_symbol(&elf, name).is_some()).collect()
    }

    /// Address of a symbol in the process, and up to `size` bytes of its code in the file.
    pub(crate) fn code(&self, name: &str, size: usize) -> Option<(u64, Vec<u8>)> {
        let elf = Elf::parse(BoundedReader(&self.cache)).ok()?;
        let symbol_value = find_symbol(&elf, name)?;
        let file_code = elf.segments().find_map(|segment| {
            let remaining = segment.address().checked_add(segment.size())?.checked_sub(symbol_value)?;
            segment.data_range(symbol_value, remaining.min(size as u64)).ok()?
        })?;
        Some((self.bias(&elf)?.wrapping_add(symbol_value), file_code.to_owned()))
    }

    /// Difference between addresses in the process and in the file, from the first mapping of an executable segment.
    /// Mappings without execute permission do not count: our own library, for example, maps the whole file of each LLVM
    /// to read it.
    fn bias(&self, elf: &Elf<'_>) -> Option<u64> {
        let endian = elf.endian();
        let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
        let page_start = |value: u64| value & !(PAGE - 1);
        let has_code = |header: &&ProgramHeader64<Endianness>| {
            header.p_type(endian) == PT_LOAD && header.p_flags(endian) & PF_X == PF_X
        };
        headers.iter().filter(has_code).find_map(|header| {
            let offset = page_start(header.p_offset(endian));
            let mapping = self.mappings.iter().find(|mapping| mapping.is_executable && mapping.offset == offset)?;
            Some(mapping.start.wrapping_sub(page_start(header.p_vaddr(endian))))
        })
    }
}

fn find_symbol(elf: &Elf<'_>, name: &str) -> Option<u64> {
    let exported_symbol = elf.dynamic_symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name));
    let symbol =
        exported_symbol.or_else(|| elf.symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name)))?;
    Some(symbol.address())
}
