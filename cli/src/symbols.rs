//! Where symbols of a library are in a process: from the file that it maps.

#![forbid(unsafe_code)]

use std::fs::File;
use std::path::Path;

use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, ReadCache};

use crate::process::Process;

const PAGE: u64 = 4096;

type Elf<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

/// The address of the symbol `name` that `library` defines. Exported symbols come first.
pub(crate) fn address(process: &Process, library: &Path, name: &str) -> Option<u64> {
    let cache = ReadCache::new(File::open(process.visible(library)).ok()?);
    let elf = Elf::parse(&cache).ok()?;
    let exported = elf.dynamic_symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name));
    let symbol =
        exported.or_else(|| elf.symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name)))?;
    Some(bias(process, library, &elf)?.wrapping_add(symbol.address()))
}

/// What is added to addresses in the file: from the first mapping of a segment.
fn bias(process: &Process, library: &Path, elf: &Elf<'_>) -> Option<u64> {
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
    let page = |value: u64| value & !(PAGE - 1);
    headers.iter().filter(|header| header.p_type(endian) == PT_LOAD).find_map(|header| {
        let offset = page(header.p_offset(endian));
        let mapping = process.mappings.iter().find(|mapping| mapping.path == library && mapping.offset == offset)?;
        Some(mapping.start.wrapping_sub(page(header.p_vaddr(endian))))
    })
}
