//! Symbols from the `.symtab` of a library's file, which also lists symbols that are not exported. In the llvmlite
//! wheels, LLVM's own functions are only there.

#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use jitlisten::log_line;
use jitlisten::plumbing::FileMapping;
use object::elf;
use object::read::elf::{FileHeader as _, Sym as _};

use crate::llvm::vtable::CLASSES;
use crate::llvm::vtable::find::Segment;
use crate::process::library::Library;

type ElfHeader = elf::FileHeader64<object::Endianness>;

/// Symbol of the JIT descriptor in the GDB JIT interface.
pub(crate) const DESCRIPTOR_SYMBOL: &str = "__jit_debug_descriptor";
pub(crate) const REGISTER_FUNCTION_SYMBOL: &str = "__jit_debug_register_code";

/// Prefix that turns a mangled class name into the symbol of the class's vtables.
pub(crate) const VTABLE_PREFIX: &str = "_ZTV";

/// Maximum length of a symbol name to search for.
const MAX_NAME_BYTES: usize = 256;
/// Number of bytes that are compared first, in one instruction. No prefix is shorter.
const COMPARED_AT_ONCE: usize = 4;

/// Number of bytes at the start of the file that must equal the mapping. They include headers, build ID, hash table and
/// the first symbols.
const COMPARED_BYTES: u64 = 1 << 16;

/// Symbols by name, each with its value (address without the load bias) and its size.
type Symbols = BTreeMap<String, (u64, u64)>;

/// A library's file, mapped for reading.
pub(crate) struct SymbolFile {
    mapping: FileMapping,
    /// Cached result of [`SymbolFile::llvm_symbols`].
    llvm: OnceCell<Symbols>,
}

impl SymbolFile {
    /// Opens the file of `library`, if it is still the file that was loaded.
    pub(crate) fn open(library: &Library<'_>) -> io::Result<SymbolFile> {
        let opened = File::open(&library.path)?;
        let mapping = FileMapping::new(&opened, 0, opened.metadata()?.len())?;
        let file = SymbolFile { mapping, llvm: OnceCell::new() };
        // A stripped file is not used, so it need not be compared.
        if file.tables().is_some() {
            let loaded = library.segments.first_bytes(COMPARED_BYTES).ok_or(io::ErrorKind::InvalidData)?;
            if !file.mapping.bytes().starts_with(&loaded) {
                return Err(io::Error::other("the file is not the one that was loaded"));
            }
        }
        Ok(file)
    }

    /// Returns the file in `symbols`, opening it first if necessary. Logs an error if that fails.
    pub(crate) fn open_once<'a>(symbols: &'a mut Option<SymbolFile>, library: &Library<'_>) -> Option<&'a SymbolFile> {
        if symbols.is_none() {
            *symbols = SymbolFile::open(library)
                .inspect_err(|error| log_line!(Info, "{}: {error}", library.path.display()))
                .ok();
        }
        symbols.as_ref()
    }

    /// Returns the values (addresses without the load bias) of defined symbols with these names. Each name must begin
    /// with one of `prefixes`.
    ///
    /// Comparing the first bytes of 174,692 names, which are in the order of the symbols, takes 3 ms. A search for five
    /// prefixes in the string table (15 MB in a wheel) takes 10.
    pub(crate) fn find<'a>(&self, prefixes: &[&str], names: &[&'a str]) -> BTreeMap<&'a str, u64> {
        let symbols = self.find_sized(prefixes, |name| names.contains(&name));
        names.iter().filter_map(|&name| Some((name, symbols.get(name)?.0))).collect()
    }

    /// Symbols of LLVM's linkers and of the GDB JIT interface, all found in a single pass.
    pub(crate) fn llvm_symbols(&self) -> &Symbols {
        let is_wanted = |name: &str| {
            name == DESCRIPTOR_SYMBOL
                || name == REGISTER_FUNCTION_SYMBOL
                || name.strip_prefix(VTABLE_PREFIX).is_some_and(|class| CLASSES.contains(&class))
        };
        self.llvm.get_or_init(|| self.find_sized(&["__jit_debug_", "_ZTVN4llvm"], is_wanted))
    }

    /// Finds the defined symbols that `is_wanted` accepts; each begins with one of `prefixes`.
    fn find_sized(&self, prefixes: &[&str], is_wanted: impl Fn(&str) -> bool) -> Symbols {
        let mut values = BTreeMap::new();
        let Some((symbols, strings)) = self.tables() else { return values };
        let endian = object::Endianness::Little;
        for symbol in symbols {
            let Some(text) = strings.get(symbol.st_name(endian) as usize..) else { continue };
            let start = text.first_chunk::<COMPARED_AT_ONCE>();
            let has_prefix =
                |prefix: &&str| prefix.as_bytes().first_chunk() == start && text.starts_with(prefix.as_bytes());
            if !prefixes.iter().any(has_prefix) || symbol.is_undefined(endian) {
                continue;
            }
            let text = &text[..text.len().min(MAX_NAME_BYTES)];
            let name = text.split(|&byte| byte == 0).next().and_then(|name| std::str::from_utf8(name).ok());
            if let Some(name) = name.filter(|name| is_wanted(name)) {
                values.entry(name.to_owned()).or_insert_with(|| (symbol.st_value(endian), symbol.st_size(endian)));
            }
        }
        values
    }

    /// Returns the same bytes as `segment`, which is a part of `library`, from the file. Reading them from the library
    /// would keep them in memory.
    pub(crate) fn segment(&self, library: &Library<'_>, segment: &Segment<'_>) -> Option<Segment<'_>> {
        let offset = library.segments.file_offset(segment.address as usize)?;
        let bytes = self.mapping.bytes().get(offset..)?.get(..segment.bytes.len())?;
        Some(Segment { address: segment.address, bytes })
    }

    /// Gives the memory back until the file is used again.
    pub(crate) fn release_pages(&self) {
        self.mapping.release_pages();
    }

    /// Symbol table and string table; `None` if the file was stripped.
    fn tables(&self) -> Option<(&[elf::Sym64<object::Endianness>], &[u8])> {
        let data = self.mapping.bytes();
        let header = ElfHeader::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        let symbols = sections.symbols(endian, data, elf::SHT_SYMTAB).ok()?;
        let strings = sections.section(symbols.string_section()).ok()?;
        let strings = object::read::elf::SectionHeader::data(strings, endian, data).ok()?;
        (!symbols.is_empty()).then(|| (symbols.symbols(), strings))
    }
}
