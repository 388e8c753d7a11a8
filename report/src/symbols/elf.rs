//! One ELF file: its mapped ranges, its functions, and lazily its line table.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use gimli::{EndianArcSlice, RunTimeEndian};
use jitlisten_files::open_regular;
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SymbolKind};
use rustc_hash::FxHashMap;

use super::line_zero::Blocks;
use super::source_frame::SourceFrame;
use crate::machine::Machine;
use crate::segments::Segments;
use crate::source_hashes;

type Slice = EndianArcSlice<RunTimeEndian>;
type Parsed<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

/// The longest name of a symbol that is kept.
const LONGEST_NAME: usize = 64 << 10;
/// A section of debug information that is longer is not read.
const LONGEST_SECTION: u64 = 4 << 30;
/// Inlined calls deeper than this are cut.
const DEEPEST_INLINING: usize = 256;

/// An ELF file that has been opened.
pub(super) struct Elf {
    cache: ReadCache<File>,
    segments: Segments,
    symbols: Symbols,
    lines: Option<Lines>,
    /// Of each function that has code of line 0, by its start.
    blocks: FxHashMap<u64, Arc<Blocks>>,
    /// The bytes of the sections with code, for the disassembler.
    pub(super) machine: Option<Machine>,
    pub(super) build_id: Vec<u8>,
    /// Made by no linker: compiled at run time.
    pub(super) is_image: bool,
}

impl Elf {
    pub(super) fn open(path: &Path) -> Result<Elf, String> {
        let file = open_regular(path).map_err(|error| error.to_string())?;
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        let cache = ReadCache::new(file);
        let parsed = Parsed::parse(&cache).map_err(|error| error.to_string())?;
        let endian = parsed.endian();
        let headers = parsed.elf_program_headers();
        let segments = Segments::of(headers, endian);
        let is_dynamic = headers.iter().any(|header| header.p_type(endian) == elf::PT_DYNAMIC);
        let header = parsed.elf_header();
        let is_image = header.e_type.get(endian) == elf::ET_DYN && !is_dynamic;
        let machine = Machine::from_elf(header.e_machine.get(endian));
        let symbols = Symbols::read(&parsed, usize::try_from(length).unwrap_or(usize::MAX));
        let build_id = parsed.build_id().ok().flatten().unwrap_or_default().to_vec();
        Ok(Elf { segments, symbols, lines: None, blocks: FxHashMap::default(), machine, build_id, is_image, cache })
    }

    /// The address in the file's own terms of what is at an offset.
    pub(super) fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.segments.address_of_offset(offset)
    }

    /// The function at an address: its name and where it begins and ends.
    pub(super) fn function(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        self.symbols.find(address)
    }

    /// Every symbol that an address is in.
    pub(super) fn all_names(&self, address: u64) -> Vec<String> {
        let covers = |symbol: &&Symbol| address.checked_sub(symbol.address).is_some_and(|at| at < symbol.size.max(1));
        self.symbols.entries.iter().filter(covers).map(|symbol| self.symbols.name(symbol).to_owned()).collect()
    }

    /// The name a function has at the address where the symbol of another name begins.
    pub(super) fn readable_twin(&self, linkage_name: &str) -> Option<&str> {
        self.symbols.twin(linkage_name)
    }

    /// The lines at an address, the innermost inlined call first. Empty without line table.
    pub(super) fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        let cache = &self.cache;
        let lines =
            self.lines.get_or_insert_with(|| Parsed::parse(cache).map(|file| Lines::load(&file)).unwrap_or_default());
        lines.frames(address)
    }

    /// The line of code that has none, by the instructions around it.
    pub(super) fn frames_around(&mut self, address: u64) -> Option<Vec<SourceFrame>> {
        let machine = self.machine?;
        let (_, range) = self.function(address)?;
        let start = range.start;
        let blocks = match self.blocks.get(&start) {
            Some(blocks) => Arc::clone(blocks),
            None => Arc::new(Blocks::new(&machine.steps(&self.code(start, Blocks::length(&range)), start))),
        };
        self.blocks.insert(start, Arc::clone(&blocks));
        blocks.line(address, |at| self.frames(at))
    }

    /// Path and hash of sources, as far as the line table has been read.
    pub(super) fn source_hashes(&self) -> &[(String, String)] {
        self.lines.as_ref().map_or(&[], |lines| &lines.hashes)
    }

    /// The bytes of a section; none if there is no such section, or it is longer than `most`.
    pub(super) fn section(&self, name: &str, most: u64) -> Vec<u8> {
        let Ok(file) = Parsed::parse(&self.cache) else { return Vec::new() };
        let section = file.section_by_name(name).filter(|section| section.size() <= most);
        section.and_then(|section| Some(section.data().ok()?.to_vec())).unwrap_or_default()
    }

    /// Bytes of code, at most `length`.
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

/// Functions by address; of several at one address a global one, which in images is the readable one.
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
    /// `length` of the file: many symbols may have one long name, which is stored for each.
    fn read(file: &Parsed<'_>, length: usize) -> Symbols {
        let mut symbols = Symbols::default();
        let most = length.saturating_mul(4).saturating_add(LONGEST_NAME);
        symbols.add(file.symbols(), most);
        symbols.add(file.dynamic_symbols(), most);
        symbols.entries.sort_by_key(|symbol| (symbol.address, !symbol.global));
        symbols
    }

    fn add<'data>(&mut self, symbols: impl Iterator<Item = impl ObjectSymbol<'data>>, most: usize) {
        for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition()) {
            let Ok(name) = symbol.name_bytes() else { continue };
            if name.is_empty() || name.len() > LONGEST_NAME {
                continue;
            }
            let start = self.names.len();
            if start > most {
                return;
            }
            self.names.push_str(&String::from_utf8_lossy(name));
            let (Ok(from), Ok(to)) = (u32::try_from(start), u32::try_from(self.names.len())) else { return };
            let (address, size) = (symbol.address(), symbol.size());
            self.entries.push(Symbol { address, size, name: (from, to), global: !symbol.is_local() });
        }
    }

    fn name(&self, symbol: &Symbol) -> &str {
        self.names.get(symbol.name.0 as usize..symbol.name.1 as usize).unwrap_or_default()
    }

    fn find(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        let after = self.entries.partition_point(|symbol| symbol.address <= address);
        let last = self.entries.get(after.checked_sub(1)?)?;
        // A smaller function may lie inside of a larger one; a few steps back find it.
        for at in (0..after).rev().take(64) {
            let symbol = &self.entries[at];
            let first = self.entries.partition_point(|other| other.address < symbol.address);
            let mut same = self.entries[first..=at].iter().take(64);
            let best = same.find(|other| other.size > address - other.address);
            if let Some(best) = best {
                return Some((self.name(best), best.address..best.address.saturating_add(best.size)));
            }
        }
        let next = self.entries.get(after).map_or(u64::MAX, |symbol| symbol.address);
        (last.size == 0).then(|| (self.name(last), last.address..next))
    }

    fn twin(&self, linkage_name: &str) -> Option<&str> {
        let known = self.entries.iter().find(|symbol| self.name(symbol) == linkage_name)?;
        let first = self.entries.partition_point(|other| other.address < known.address);
        self.entries.get(first).map(|symbol| self.name(symbol))
    }
}

/// What is no file (`<string>`) has the directory of its compile unit, and is in none.
fn without_directory(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.starts_with('<') && name.ends_with('>') { name } else { path }
}

/// The line table, where there is one.
#[derive(Default)]
struct Lines {
    context: Option<addr2line::Context<Slice>>,
    hashes: Vec<(String, String)>,
}

impl Lines {
    fn load(file: &Parsed<'_>) -> Lines {
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let load = |id: gimli::SectionId| -> Result<Slice, gimli::Error> {
            let section = file.section_by_name(id.name()).filter(|section| section.size() < LONGEST_SECTION);
            let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or(Cow::Borrowed(&[]));
            Ok(Slice::new(Arc::from(&*data), endian))
        };
        let Ok(dwarf) = gimli::Dwarf::load(load) else { return Lines::default() };
        let hashes = source_hashes::of(&dwarf);
        Lines { context: addr2line::Context::from_dwarf(dwarf).ok(), hashes }
    }

    fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let Some(context) = &self.context else { return Vec::new() };
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            if found.len() == DEEPEST_INLINING {
                break;
            }
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            found.push(SourceFrame {
                linkage_name: name.map(Cow::into_owned),
                file: location.and_then(|location| location.file).map(|path| without_directory(path).to_owned()),
                line: location.and_then(|location| location.line),
            });
        }
        found
    }
}
