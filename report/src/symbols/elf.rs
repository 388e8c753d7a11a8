//! ELF file: its mapped ranges, its functions, and its line table, which is loaded on first use.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gimli::{EndianArcSlice, RunTimeEndian, UnwindSection as _};
use jitlisten_files::open_regular;
use lzma_rust2::XzReader;
use object::elf;
use object::read::elf::{ElfFile64, ElfSymbolIterator64, ProgramHeader, SectionHeader as _};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SymbolKind};
use rustc_hash::FxHashMap;
use rustix::fs::MemfdFlags;
use sha2::{Digest as _, Sha256};

use super::callees::Callees;
use super::line_zero::{Blocks, is_line_zero};
use super::source_frame::SourceFrame;
use crate::lookup::segments::Segments;
use crate::lookup::source_hashes;
use crate::lookup::source_path;
use crate::machine::{CallTarget, Machine};

type Slice = EndianArcSlice<RunTimeEndian>;
type Parsed<'a, R = File> = ElfFile64<'a, Endianness, &'a ReadCache<R>>;

/// Maximum length of a symbol name; longer ones are ignored.
const MAX_NAME_BYTES: usize = 64 << 10;
/// Maximum size of a symbol table's names; larger tables are not read.
const MAX_STRING_TABLE_BYTES: u64 = 1 << 30;
/// Maximum size of a debug information section; longer ones are not read.
const MAX_SECTION_BYTES: u64 = 4 << 30;
/// Maximum size of mini debug information, compressed or not.
const MAX_MINI_DEBUG_INFO_BYTES: u64 = 256 << 20;
/// Maximum memory of the decompressor in KiB.
const MAX_XZ_KIB: u32 = 100 << 10;
/// Maximum depth of inlined calls; deeper levels are dropped.
const MAX_INLINE_DEPTH: usize = 256;

/// Open ELF file.
pub(super) struct Elf {
    /// Path of the file; empty for one in memory.
    pub(super) path: PathBuf,
    cache: ReadCache<File>,
    pub(super) segments: Segments,
    symbols: Symbols,
    lines: Option<Lines>,
    line_table_hash: OnceCell<Option<[u8; 32]>>,
    callees: OnceCell<Callees>,
    content_hash: OnceCell<Hash>,
    /// File with the debug information of a library, once it was looked for.
    pub(super) debug: OnceCell<Option<Box<Elf>>>,
    /// Basic blocks of functions that have code at line 0, by start address.
    blocks: FxHashMap<u64, Arc<Blocks>>,
    /// Instruction set, for the disassembler.
    pub(super) machine: Option<Machine>,
    pub(super) build_id: Vec<u8>,
    /// True if the file was not produced by a linker, i.e., its code was compiled at run time.
    pub(super) is_image: bool,
    /// True if the file has only some functions of a library ([`Library`](super::Library)).
    pub(super) is_reduced: bool,
}

impl Elf {
    pub(super) fn open(path: &Path) -> Result<Elf, String> {
        Elf::read(open_regular(path).map_err(|error| error.to_string())?, path)
    }

    fn read(file: File, path: &Path) -> Result<Elf, String> {
        let symbols = Symbols::read(&file)?;
        let cache = ReadCache::new(file);
        let parsed = Parsed::parse(&cache).map_err(|error| error.to_string())?;
        let endian = parsed.endian();
        let headers = parsed.elf_program_headers();
        let segments = Segments::from_headers(headers, endian);
        let is_dynamic = headers.iter().any(|header| header.p_type(endian) == elf::PT_DYNAMIC);
        let header = parsed.elf_header();
        let is_image = header.e_type.get(endian) == elf::ET_DYN && !is_dynamic;
        let machine = Machine::from_elf(header.e_machine.get(endian));
        let text = parsed.section_by_name(".text");
        let is_reduced = text.is_some_and(|text| text.elf_section_header().sh_type(endian) == elf::SHT_NOBITS);
        let build_id = parsed.build_id().ok().flatten().unwrap_or_default().to_vec();
        Ok(Elf {
            path: path.to_owned(),
            segments,
            symbols,
            lines: None,
            line_table_hash: OnceCell::new(),
            callees: OnceCell::new(),
            content_hash: OnceCell::new(),
            debug: OnceCell::new(),
            blocks: FxHashMap::default(),
            machine,
            build_id,
            is_image,
            is_reduced,
            cache,
        })
    }

    /// Adds the functions that another file has of the same library.
    pub(super) fn add_symbols(&mut self, other: Elf) {
        if self.build_id == other.build_id {
            self.symbols.merge(other.symbols);
        }
    }

    /// Converts a file offset to an address in the file's address space.
    pub(super) fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.segments.address_of_offset(offset)
    }

    pub(super) fn function(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        self.symbols.find(address)
    }

    /// The same for a file with debug information. Its symbol `_init` has no size, and the stubs of calls to other
    /// functions follow it.
    pub(super) fn named_function(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        self.function(address).filter(|(name, _)| *name != "_init")
    }

    /// Returns the target of a call, whose last byte is at `call_end` and in the process at `process_address`.
    pub(super) fn call_target(&self, call_end: u64, process_address: u64) -> Option<u64> {
        let (_, function) = self.function(call_end)?;
        let code = self.code(function.start, (call_end + 1).checked_sub(function.start)? as usize);
        match self.machine?.call_target(&code, function.start)? {
            CallTarget::Relative(target) => Some(target),
            CallTarget::Absolute(target) => Some(target.wrapping_sub(process_address.wrapping_sub(call_end))),
        }
    }

    pub(super) fn symbol_names(&self, address: u64) -> Vec<String> {
        let covers =
            |symbol: &&Symbol| address.checked_sub(symbol.address).is_some_and(|offset| offset < symbol.size.max(1));
        self.symbols.entries.iter().filter(covers).map(|symbol| self.symbols.name(symbol).to_owned()).collect()
    }

    /// Returns the readable name of a function, from the symbol at the same address as the linkage name.
    pub(super) fn readable_alias(&self, linkage_name: &str) -> Option<&str> {
        self.symbols.alias(linkage_name)
    }

    /// Returns the frames that the line table has for an address, innermost inlined call first. Empty without a line
    /// table.
    pub(super) fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        let cache = &self.cache;
        let lines =
            self.lines.get_or_insert_with(|| Parsed::parse(cache).map(|file| Lines::load(&file)).unwrap_or_default());
        lines.frames(address)
    }

    /// Returns the frames of an instruction, and true if their line was inferred because the compiler named none. All
    /// outputs get the lines of instructions from this method.
    pub(super) fn locate(&mut self, address: u64) -> (Vec<SourceFrame>, bool) {
        let frames = self.frames(address);
        let inferred = if is_line_zero(&frames) { self.infer_frames(address) } else { None };
        let is_inferred = inferred.is_some();
        (inferred.unwrap_or(frames), is_inferred)
    }

    /// Infers the line of code at line 0 from the surrounding instructions.
    fn infer_frames(&mut self, address: u64) -> Option<Vec<SourceFrame>> {
        let machine = self.machine?;
        let (_, range) = self.function(address)?;
        let start = range.start;
        let blocks = match self.blocks.get(&start) {
            Some(blocks) => Arc::clone(blocks),
            None => Arc::new(Blocks::new(&machine.steps(&self.code(start, Blocks::decoded_length(&range)), start))),
        };
        self.blocks.insert(start, Arc::clone(&blocks));
        blocks.infer_frames(address, |neighbour| self.frames(neighbour))
    }

    /// Returns a hash of everything that tells the lines of code.
    pub(super) fn line_table_hash(&self) -> Option<[u8; 32]> {
        let cache = &self.cache;
        *self.line_table_hash.get_or_init(|| {
            let mut has_lines = false;
            let mut hash = Sha256::new();
            for section in Parsed::parse(cache).iter().flat_map(|file| file.sections()) {
                if let Some((name, data)) = section.name().ok().zip(section.data().ok())
                    && name.starts_with(".debug_")
                {
                    has_lines |= name == ".debug_line";
                    hash.update(name);
                    hash.update((data.len() as u64).to_le_bytes());
                    hash.update(data);
                }
            }
            has_lines.then(|| hash.finalize().into())
        })
    }

    /// Returns path and hash of sources, from the part of the line table that has been read.
    pub(super) fn source_hashes(&self) -> &[(String, String)] {
        self.lines.as_ref().map_or(&[], |lines| &lines.hashes)
    }

    /// Returns the functions outside of an image that its code refers to.
    pub(super) fn callees(&self) -> &Callees {
        self.callees.get_or_init(|| Callees::read(|name, max_bytes| self.section(name, max_bytes)))
    }

    /// Returns the address range of the function at an address, from the unwind table.
    pub(super) fn unwind_range(&self, address: u64) -> Option<std::ops::Range<u64>> {
        let file = Parsed::parse(&self.cache).ok()?;
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let (index, table) = (file.section_by_name(".eh_frame_hdr")?, file.section_by_name(".eh_frame")?);
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(index.address()).set_eh_frame(table.address());
        let index = gimli::EhFrameHdr::new(index.data().ok()?, endian).parse(&bases, 8).ok()?;
        let table = gimli::EhFrame::new(table.data().ok()?, endian);
        let cie = gimli::EhFrame::cie_from_offset;
        let entry = index.table()?.fde_for_address(&table, &bases, address, cie).ok()?;
        Some(entry.initial_address()..entry.end_address())
    }

    /// Returns the hash of the whole file.
    pub(super) fn content_hash(&self) -> io::Result<Hash> {
        match self.content_hash.get() {
            Some(hash) => Ok(*hash),
            None => {
                let hash = hash_contents(open_regular(&self.path)?)?;
                Ok(*self.content_hash.get_or_init(|| hash))
            }
        }
    }

    /// Returns the name of the separate file with debug information (`.gnu_debuglink`).
    pub(super) fn debug_link(&self) -> Option<String> {
        let (name, _) = Parsed::parse(&self.cache).ok()?.gnu_debuglink().ok()??;
        String::from_utf8(name.to_vec()).ok().filter(|name| !name.contains('/'))
    }

    /// Opens the file with the names of local functions that a library may contain (`.gnu_debugdata`, on Fedora and its
    /// relatives).
    pub(super) fn open_mini_debug_info(&self) -> Option<Elf> {
        let compressed = self.section(".gnu_debugdata", MAX_MINI_DEBUG_INFO_BYTES);
        if compressed.is_empty() {
            return None;
        }
        let mut file = File::from(rustix::fs::memfd_create("gnu_debugdata", MemfdFlags::CLOEXEC).ok()?);
        let reader = XzReader::new_mem_limit(&*compressed, false, MAX_XZ_KIB);
        io::copy(&mut reader.take(MAX_MINI_DEBUG_INFO_BYTES), &mut file).ok()?;
        Elf::read(file, Path::new("")).ok()
    }

    /// Returns the bytes of a section; empty if it does not exist or is longer than `max_bytes`.
    pub(super) fn section(&self, name: &str, max_bytes: u64) -> Vec<u8> {
        let Ok(file) = Parsed::parse(&self.cache) else { return Vec::new() };
        let section = file.section_by_name(name).filter(|section| section.size() <= max_bytes);
        section.and_then(|section| Some(section.data().ok()?.to_vec())).unwrap_or_default()
    }

    /// Returns at most `length` bytes of code.
    pub(super) fn code(&self, address: u64, length: usize) -> Vec<u8> {
        let Ok(file) = Parsed::parse(&self.cache) else { return Vec::new() };
        let section = file.sections().find(|section| {
            section.address() <= address && address - section.address() < section.size() && section.size() != 0
        });
        let Some(section) = section else { return Vec::new() };
        let available = section.size() - (address - section.address());
        let data = section.data_range(address, available.min(length as u64));
        data.ok().flatten().unwrap_or_default().to_vec()
    }
}

/// Functions by address. A global symbol precedes others at the same address, because in images it has the readable
/// name.
#[derive(Default)]
struct Symbols {
    entries: Vec<Symbol>,
    names: String,
}

struct Symbol {
    address: u64,
    size: u64,
    name: (u32, u32),
    global: bool,
}

impl Symbols {
    /// Reads the symbol tables. The file's length limits the bytes of all names, because many symbols may share one
    /// long name, which is copied for each.
    fn read(file: &File) -> Result<Symbols, String> {
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        // The bytes that were read are not kept.
        let cache = ReadCache::new(file);
        let parsed = Parsed::parse(&cache).map_err(|error| error.to_string())?;
        let mut symbols = Symbols::default();
        let mut max_name_bytes = usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(4);
        for (table, entries) in [
            (parsed.elf_symbol_table(), parsed.symbols()),
            (parsed.elf_dynamic_symbol_table(), parsed.dynamic_symbols()),
        ] {
            // All names are read together: one by one, they take two system calls each.
            let strings = parsed.section_by_index(table.string_section()).ok();
            let strings = strings.filter(|strings| strings.size() <= MAX_STRING_TABLE_BYTES);
            let strings = strings.and_then(|strings| strings.data().ok()).unwrap_or_default();
            symbols.add(entries, strings, &mut max_name_bytes);
        }
        symbols.sort();
        Ok(symbols)
    }

    fn merge(&mut self, other: Symbols) {
        let Ok(offset) = u32::try_from(self.names.len()) else { return };
        if u32::try_from(self.names.len() + other.names.len()).is_ok() {
            self.names.push_str(&other.names);
            let moved = |(start, end): (u32, u32)| (start + offset, end + offset);
            let entries = other.entries.into_iter().map(|symbol| Symbol { name: moved(symbol.name), ..symbol });
            self.entries.extend(entries);
            self.sort();
        }
    }

    fn sort(&mut self) {
        // Of a library's names for one function, such as `sinh` and `sinhf64`, the shortest is the usual one.
        let length = |symbol: &Symbol| symbol.name.1 - symbol.name.0;
        self.entries.sort_by_key(|symbol| (symbol.address, !symbol.global, length(symbol)));
    }

    fn add<'data>(
        &mut self,
        symbols: ElfSymbolIterator64<'data, '_, Endianness, &'data ReadCache<&File>>,
        strings: &[u8],
        max_name_bytes: &mut usize,
    ) {
        for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition()) {
            let start = symbol.elf_symbol().st_name.get(symbol.endian()) as usize;
            let bytes = strings.get(start..).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES + 1)];
            let name = CStr::from_bytes_until_nul(bytes).ok();
            match max_name_bytes.checked_sub(name.map_or(bytes.len(), CStr::count_bytes)) {
                Some(remaining) => *max_name_bytes = remaining,
                None => return,
            }
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            let start = self.names.len();
            self.names.push_str(&name.to_string_lossy());
            let (Ok(name_start), Ok(name_end)) = (u32::try_from(start), u32::try_from(self.names.len())) else {
                return;
            };
            let (address, size) = (symbol.address(), symbol.size());
            self.entries.push(Symbol { address, size, name: (name_start, name_end), global: !symbol.is_local() });
        }
    }

    fn name(&self, symbol: &Symbol) -> &str {
        self.names.get(symbol.name.0 as usize..symbol.name.1 as usize).unwrap_or_default()
    }

    fn find(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        let next_index = self.entries.partition_point(|symbol| symbol.address <= address);
        let previous = self.entries.get(next_index.checked_sub(1)?)?;
        // A smaller function may be nested in a larger one, so check a few preceding symbols.
        for index in (0..next_index).rev().take(64) {
            let symbol = &self.entries[index];
            let first = self.entries.partition_point(|other| other.address < symbol.address);
            let mut candidates = self.entries[first..=index].iter().take(64);
            let best = candidates.find(|other| other.size > address - other.address);
            if let Some(best) = best {
                return Some((self.name(best), best.address..best.address.saturating_add(best.size)));
            }
        }
        let next = self.entries.get(next_index).map_or(u64::MAX, |symbol| symbol.address);
        (previous.size == 0).then(|| (self.name(previous), previous.address..next))
    }

    fn alias(&self, linkage_name: &str) -> Option<&str> {
        let named = self.entries.iter().find(|symbol| self.name(symbol) == linkage_name)?;
        let first = self.entries.partition_point(|other| other.address < named.address);
        self.entries.get(first).map(|symbol| self.name(symbol))
    }
}

pub(crate) type Hash = [u8; 32];

/// Returns the hash of what a reader has.
pub(crate) fn hash_contents(mut contents: impl Read) -> io::Result<Hash> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match contents.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// Returns the path of a source, or the name of code without a file, such as `<string>`, without the directory of the
/// compile unit.
fn source_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.starts_with('<') && name.ends_with('>') { name.to_owned() } else { source_path(path) }
}

/// Line table, if there is one.
#[derive(Default)]
struct Lines {
    context: Option<addr2line::Context<Slice>>,
    hashes: Vec<(String, String)>,
}

impl Lines {
    fn load(file: &Parsed<'_>) -> Lines {
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let load = |id: gimli::SectionId| -> Result<Slice, gimli::Error> {
            let section = file.section_by_name(id.name()).filter(|section| section.size() < MAX_SECTION_BYTES);
            let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or(Cow::Borrowed(&[]));
            Ok(Slice::new(Arc::from(&*data), endian))
        };
        let Ok(dwarf) = gimli::Dwarf::load(load) else { return Lines::default() };
        let hashes = source_hashes::read_hashes(&dwarf);
        Lines { context: addr2line::Context::from_dwarf(dwarf).ok(), hashes }
    }

    fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let Some(context) = &self.context else { return Vec::new() };
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut source_frames = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            if source_frames.len() == MAX_INLINE_DEPTH {
                break;
            }
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            source_frames.push(SourceFrame {
                linkage_name: name.map(Cow::into_owned),
                file: location.and_then(|location| location.file).map(source_name),
                line: location.and_then(|location| location.line),
            });
        }
        source_frames
    }
}
