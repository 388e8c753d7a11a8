//! The mappings of this process, for the recording and for stack walks.
//!
//! `/proc/self/maps` is read only after a change, not periodically. ELF headers and unwind tables are copied with calls
//! that cannot fault, so a library may be closed in the meantime. Large tables are mapped from the library's file
//! instead: llvmlite's has 7 MB, and walks use little of it. No lock of the loader is taken.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use jitlisten::plumbing::elf::{self, Dynamic, FileHeader, LE, NoteHeader, ProgramHeader};
use jitlisten::plumbing::{FileMapping, MapsLine, checked_read, is_remote};
use jitlisten::{Address, AddressRange};
use object::elf::{
    DF_TEXTREL, DT_FLAGS, DT_TEXTREL, NT_GNU_BUILD_ID, PF_W, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, ProgramType,
};

use crate::handler::code_map::{CodeRange, Tables};
use crate::recording::process;
use crate::unwind::{FrameTable, SectionBytes};
use crate::writer::perf_data::{BuildId, Mapping};

/// Maximum size of an unwind table; a larger table is malformed.
const MAX_SECTION_BYTES: u64 = 1 << 28;
/// Minimum size of an unwind table that is mapped from its file.
const MIN_MAPPED_BYTES: u64 = 1 << 17;
/// Number of bytes of a table that must equal those in its file.
const COMPARED_BYTES: u64 = 256;
/// Machine code of CPython 3.12's `asm_trampoline.S`: `sub rsp, 8; call rcx; add rsp, 8; ret`.
const TRAMPOLINE_CODE: [u8; 11] = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];

/// Maximum number of unmapped ranges whose unwind tables are kept.
const MAX_UNMAPPED_RANGES: usize = 32;

/// An owned line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MappedRange {
    start: u64,
    end: u64,
    executable: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    path: Vec<u8>,
}

/// Executable mappings with their unwind tables.
pub(crate) type KnownMappings = BTreeMap<MappedRange, MappingInfo>;

/// The process's executable mappings, as of the last read.
#[derive(Default)]
pub(crate) struct Mappings {
    current: KnownMappings,
    /// Mappings that the parent knew before the fork, until this process reads its own.
    inherited: KnownMappings,
    /// Unmapped ranges whose addresses have not been reused: one of their functions may still be on a stack.
    unmapped: Vec<(MappedRange, Arc<Tables>)>,
    /// The main thread's stack, which grows downwards; zeros if it was not found.
    pub(crate) main_stack: (u64, u64),
}

/// Unwind tables and build id of one mapping.
#[derive(Clone)]
pub(crate) struct MappingInfo {
    tables: Arc<Tables>,
    build_id: Option<BuildId>,
}

impl Mappings {
    pub(crate) fn with_inherited(inherited: KnownMappings) -> Mappings {
        Mappings { inherited, ..Mappings::default() }
    }

    /// True if the mappings are inherited from the parent and have not been read yet.
    pub(crate) fn are_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Returns a copy for a fork child, which would otherwise spend most of its time reading unwind tables.
    pub(crate) fn known_mappings(&self) -> KnownMappings {
        self.current.clone()
    }

    /// Reads all mappings. Returns the text of the maps file, the executable mappings that are new, and all executable
    /// ranges with their tables.
    pub(crate) fn refresh(&mut self) -> Option<(Vec<u8>, Vec<Mapping>, Vec<CodeRange>)> {
        // Reserve space, because the kernel formats the mappings again for each read.
        let mut text = Vec::with_capacity(1 << 16);
        fs::File::open("/proc/self/maps").ok()?.read_to_end(&mut text).ok()?;
        let lines: Vec<MappedRange> = MapsLine::parse_all(&text).map(MappedRange::new).collect();
        let mut current = BTreeMap::new();
        let (mut new, mut ranges) = (Vec::new(), Vec::new());
        // The mapping with the ELF header of the module that the following lines belong to.
        let mut header: Option<&MappedRange> = None;
        for line in &lines {
            if line.path == b"[stack]" {
                self.main_stack = (line.start, line.end);
            }
            if line.offset == 0 && (line.inode != 0 || line.path == b"[vdso]") {
                header = Some(line);
            }
            if !line.executable || line.path == b"[vsyscall]" {
                continue;
            }
            let module = header.filter(|header| header.inode == line.inode && header.path == line.path);
            let info = self.current.remove(line).unwrap_or_else(|| {
                let info = self.inherited.remove(line).unwrap_or_else(|| inspect_mapping(line, module));
                new.push(line.as_mapping(info.build_id));
                info
            });
            ranges.push(line.as_range(&info.tables));
            current.insert(line.clone(), info);
        }
        self.inherited.clear();
        self.keep_unmapped(current, &lines);
        ranges.extend(self.unmapped.iter().map(|(line, tables)| line.as_range(tables)));
        Some((text, new, ranges))
    }

    /// Keeps the tables of mappings that have disappeared, unless their addresses are in use again.
    fn keep_unmapped(&mut self, current: KnownMappings, lines: &[MappedRange]) {
        let disappeared =
            std::mem::replace(&mut self.current, current).into_iter().map(|(line, info)| (line, info.tables));
        self.unmapped.extend(disappeared.filter(|(_, tables)| matches!(**tables, Tables::Frames(_))));
        self.unmapped
            .retain(|(unmapped, _)| lines.iter().all(|line| line.end <= unmapped.start || unmapped.end <= line.start));
        let surplus = self.unmapped.len().saturating_sub(MAX_UNMAPPED_RANGES);
        self.unmapped.drain(..surplus);
    }
}

impl MappedRange {
    fn new(line: MapsLine<'_>) -> MappedRange {
        MappedRange {
            start: line.range.start().0,
            end: line.range.end().0,
            executable: line.is_executable(),
            offset: line.offset,
            device: line.device,
            inode: line.inode,
            path: line.path.to_vec(),
        }
    }

    fn as_range(&self, tables: &Arc<Tables>) -> CodeRange {
        CodeRange { start: self.start, end: self.end, owner: 0, tables: Arc::clone(tables) }
    }

    fn as_mapping(&self, build_id: Option<BuildId>) -> Mapping {
        let path = if self.path.is_empty() { b"//anon".to_vec() } else { self.path.clone() };
        let path = path.strip_suffix(b" (deleted)").map_or(path.clone(), <[u8]>::to_vec);
        Mapping {
            start: self.start,
            end: self.end,
            offset: self.offset,
            device: self.device,
            inode: self.inode,
            build_id,
            path,
        }
    }
}

/// Finds the unwind table and the build id of an executable mapping.
fn inspect_mapping(line: &MappedRange, header: Option<&MappedRange>) -> MappingInfo {
    let module = header.and_then(|header| Module::parse(header, line.start..line.end));
    let Some(module) = module else {
        let code = read_memory(line.start, 64.min(line.end - line.start)).unwrap_or_default();
        let is_trampoline =
            line.inode == 0 && code.windows(TRAMPOLINE_CODE.len()).any(|bytes| bytes == TRAMPOLINE_CODE);
        let tables = if is_trampoline { Tables::Trampoline } else { Tables::Bare };
        return MappingInfo { tables: Arc::new(tables), build_id: None };
    };
    let tables = module.frame_table().map_or(Tables::Bare, |table| Tables::Frames(vec![table]));
    MappingInfo { tables: Arc::new(tables), build_id: module.build_id() }
}

/// An ELF file in memory.
struct Module<'l> {
    header: &'l MappedRange,
    base: u64,
    bias: u64,
    segments: Vec<ProgramHeader>,
    code: std::ops::Range<u64>,
}

impl Module<'_> {
    fn parse(header_range: &MappedRange, code: std::ops::Range<u64>) -> Option<Module<'_>> {
        let base = header_range.start;
        const SIZE: u64 = size_of::<ProgramHeader>() as u64;
        let header = elf::file_header(&read_memory(base, size_of::<FileHeader>() as u64)?)?;
        let (offset, count) = (header.e_phoff.get(LE), u64::from(header.e_phnum.get(LE)));
        if u64::from(header.e_phentsize.get(LE)) != SIZE || count > 64 || offset > 1 << 20 {
            return None;
        }
        let segments: Vec<ProgramHeader> =
            elf::structures(&read_memory(base.checked_add(offset)?, count * SIZE)?).collect();
        let first =
            segments.iter().rfind(|segment| segment.p_type.get(LE) == PT_LOAD && segment.p_offset.get(LE) == 0)?;
        let bias = base.wrapping_sub(first.p_vaddr.get(LE) & !0xfff);
        Some(Module { header: header_range, base, bias, segments, code })
    }

    fn frame_table(&self) -> Option<FrameTable> {
        let segment = self.segments_of_kind(PT_GNU_EH_FRAME).next()?;
        let header_start = segment.p_vaddr.get(LE);
        let header_address = self.bias.wrapping_add(header_start);
        let header = self.copy(header_address, segment.p_memsz.get(LE))?;
        let section_address = FrameTable::section_address(&header, header_address)?;
        // The header does not store the section's size: it extends to the end of its segment, or to the header.
        let section_offset = section_address.wrapping_sub(self.bias);
        let load_ranges =
            self.segments_of_kind(PT_LOAD).map(|segment| (segment.p_vaddr.get(LE), segment.p_memsz.get(LE)));
        let (start, load_size) =
            load_ranges.into_iter().find(|(start, size)| section_offset.wrapping_sub(*start) < *size)?;
        let mut size = start.wrapping_add(load_size).wrapping_sub(section_offset);
        if header_start > section_offset && header_start - section_offset < size {
            size = header_start - section_offset;
        }
        let section = || self.bytes(section_address, size);
        FrameTable::with_header(section()?, section_address, self.base, &header, header_address)
            .or_else(|| Some(FrameTable::from_section(section()?, section_address, self.base)))
    }

    fn segments_of_kind(&self, kind: ProgramType) -> impl Iterator<Item = &ProgramHeader> {
        self.segments.iter().filter(move |segment| segment.p_type.get(LE) == kind)
    }

    fn bytes(&self, address: u64, size: u64) -> Option<SectionBytes> {
        let mapped = if size < MIN_MAPPED_BYTES { None } else { self.map_from_file(address, size) };
        mapped.map_or_else(|| self.copy(address, size), |mapping| Some(SectionBytes::Mapped(mapping)))
    }

    fn copy(&self, address: u64, size: u64) -> Option<SectionBytes> {
        let in_place = process::section_in_place(&self.code, address, size).map(SectionBytes::InPlace);
        in_place.or_else(|| read_memory(address, size).map(SectionBytes::Copied))
    }

    /// Maps a section from the file. `None` if that is no longer the file that was loaded, or if the section may have
    /// been relocated.
    fn map_from_file(&self, address: u64, size: u64) -> Option<FileMapping> {
        let section_offset = address.wrapping_sub(self.bias);
        let segment = self.segments_of_kind(PT_LOAD).find(|segment| {
            let end = section_offset.wrapping_sub(segment.p_vaddr.get(LE)).checked_add(size);
            end.is_some_and(|end| end <= segment.p_filesz.get(LE))
        })?;
        if segment.p_flags.get(LE).0 & PF_W.0 != 0 || self.has_text_relocations() {
            return None;
        }
        let offset = segment.p_offset.get(LE).checked_add(section_offset - segment.p_vaddr.get(LE))?;
        // A mapping of the first page would look like a loaded library.
        if offset < MIN_MAPPED_BYTES {
            return None;
        }
        let path = OsStr::from_bytes(&self.header.path);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        // The handler must not wait for a server, nor fail with it.
        if is_remote(&file)
            || !metadata.is_file()
            || device != self.header.device
            || metadata.ino() != self.header.inode
        {
            return None;
        }
        let mapping = FileMapping::new(&file, offset, size).ok()?;
        let start = read_memory(address, COMPARED_BYTES)?;
        if !mapping.bytes().starts_with(&start) {
            return None;
        }
        mapping.read_ahead();
        Some(mapping)
    }

    /// True if the loader may have changed segments that are not writable.
    fn has_text_relocations(&self) -> bool {
        let is_text_relocation = |entry: Dynamic| match entry.d_tag.get(LE) {
            DT_TEXTREL => true,
            DT_FLAGS => entry.d_val.get(LE) & DF_TEXTREL.0 != 0,
            _ => false,
        };
        self.segments_of_kind(PT_DYNAMIC).any(|segment| {
            let address = self.bias.wrapping_add(segment.p_vaddr.get(LE));
            let entries = read_memory(address, segment.p_filesz.get(LE).min(1 << 16));
            entries.is_none_or(|entries| elf::structures(&entries).any(is_text_relocation))
        })
    }

    fn build_id(&self) -> Option<BuildId> {
        let notes = self.segments_of_kind(PT_NOTE);
        let ranges = notes.map(|notes| (self.bias.wrapping_add(notes.p_vaddr.get(LE)), notes.p_memsz.get(LE)));
        ranges.filter(|(_, size)| *size < 1 << 16).find_map(|(start, size)| build_id(&read_memory(start, size)?))
    }
}

/// Finds the note "GNU", `NT_GNU_BUILD_ID`. `None` if the id is longer than the 20 bytes that the file format provides.
fn build_id(notes: &[u8]) -> Option<BuildId> {
    const SIZE: usize = size_of::<NoteHeader>();
    let mut rest = notes;
    loop {
        let note: NoteHeader = elf::structure(rest, 0)?;
        let (name, size) = (note.n_namesz.get(LE) as usize, note.n_descsz.get(LE) as usize);
        let start = SIZE + name.checked_next_multiple_of(4)?;
        if note.n_type.get(LE) == NT_GNU_BUILD_ID && rest.get(SIZE..SIZE + 4) == Some(b"GNU\0") {
            return BuildId::new(rest.get(start..start.checked_add(size)?)?);
        }
        rest = rest.get(start.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
}

/// Copies a range of this process's memory. `None` if a part of it is unreadable.
pub(crate) fn read_memory(address: u64, size: u64) -> Option<Vec<u8>> {
    if size > MAX_SECTION_BYTES {
        return None;
    }
    let range = AddressRange::new(Address(address), size)?;
    checked_read::copy(range).ok().or_else(|| {
        // Fall back if process_vm_readv(2) is not permitted.
        let mut bytes = vec![0; size as usize];
        fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::CodeMap as _;

    #[test]
    fn a_removed_file_keeps_its_name() {
        let line = MapsLine::parse(b"7f00-7fff r-xp 00001000 08:1f 42      /a b/c (deleted)").unwrap();
        assert_eq!(MappedRange::new(line).as_mapping(None).path, b"/a b/c");
    }

    #[test]
    fn unmapped_ranges_are_kept_until_their_addresses_are_reused() {
        let line = |text: &str| MappedRange::new(MapsLine::parse(text.as_bytes()).unwrap());
        let library = line("5000-7000 r-xp 00001000 08:1f 42 /a");
        let tables = Arc::new(Tables::Frames(Vec::new()));
        let mut mappings = Mappings::default();
        mappings.current.insert(library.clone(), MappingInfo { tables, build_id: None });
        mappings.keep_unmapped(BTreeMap::new(), &[line("3000-5000 r--p 00000000 08:1f 42 /a")]);
        assert_eq!(mappings.unmapped.len(), 1);
        mappings.keep_unmapped(BTreeMap::new(), &[line("6000-8000 rw-p 00000000 00:00 0 ")]);
        assert!(mappings.unmapped.is_empty());
    }

    #[test]
    fn the_c_library_has_a_table_and_a_build_id() {
        let _lock = crate::thread::slots::lock_for_test();
        let mut mappings = Mappings::default();
        let (_, new, ranges) = mappings.refresh().unwrap();
        let libc = new.iter().find(|mapping| mapping.path.windows(8).any(|part| part == b"/libc.so")).unwrap();
        assert!(libc.build_id.is_some());
        // A short id (lld's --build-id=fast), and one that is too long.
        let note = |size: u32| [&[4, size, 3].map(u32::to_le_bytes).concat()[..], b"GNU\0", &[7; 40]].concat();
        assert_eq!(build_id(&note(8)), BuildId::new(&[7; 8]));
        assert!(build_id(&note(8)).is_some() && build_id(&note(32)).is_none());
        crate::handler::code_map::publish_libraries(ranges);
        let local = 0_u8;
        let stack = mappings.main_stack;
        // Tests run in their own threads, not on the main stack.
        assert!(stack.0 < stack.1 && !(stack.0..stack.1).contains(&(&raw const local as u64)));
        let address = libc::malloc as *const () as u64;
        let code = crate::handler::code_map::ProcessCode.find(address);
        assert!(matches!(code, Some(crate::unwind::Code::Table(table)) if table.len() > 1000));
    }
}
