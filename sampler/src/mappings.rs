//! The mappings of this process, for the recording and for stack walks.
//!
//! `/proc/self/maps` is read when something has changed, not periodically. ELF headers and unwind tables are copied
//! with calls that cannot fault, so a library may be closed meanwhile; no lock of the loader is taken.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use jitlisten::plumbing::elf::{self, FileHeader, LE, NoteHeader, ProgramHeader};
use jitlisten::plumbing::{MapsLine, checked_read};
use jitlisten::{Address, AddressRange};
use object::elf::{NT_GNU_BUILD_ID, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE};

use crate::code_map::{Range, Tables};
use crate::perf_data::{BuildId, Mapping};
use crate::process;
use crate::unwind::FrameTable;

/// No unwind table is larger; what claims to be is damaged.
const LARGEST_SECTION: u64 = 1 << 28;
/// `sub rsp, 8; call rcx; add rsp, 8; ret`: CPython 3.12's `asm_trampoline.S`.
const TRAMPOLINE: [u8; 11] = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];

/// Libraries that are remembered when they are gone.
const MOST_UNMAPPED: usize = 32;

/// A line of `/proc/self/maps`, to be kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    start: u64,
    end: u64,
    executable: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    path: Vec<u8>,
}

/// Executable mappings with their unwind tables.
pub(crate) type Found = BTreeMap<Line, Known>;

/// What was found at an earlier look.
#[derive(Default)]
pub(crate) struct Mappings {
    known: Found,
    /// What the parent had found before the fork, and this process has not looked at yet.
    inherited: Found,
    /// What was unmapped, with nothing in its place: a function of it may still be on a stack.
    unmapped: Vec<(Line, Arc<Tables>)>,
    /// The main thread's stack, which grows downwards from there; zeros: it was not found.
    pub(crate) main_stack: (u64, u64),
}

/// Of one mapping.
#[derive(Clone)]
pub(crate) struct Known {
    tables: Arc<Tables>,
    build_id: Option<BuildId>,
}

impl Mappings {
    pub(crate) fn inheriting(inherited: Found) -> Mappings {
        Mappings { inherited, ..Mappings::default() }
    }

    /// Whether they are those of the parent, and not looked at yet.
    pub(crate) fn are_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// For a child of a fork: reading all unwind tables takes most of its time.
    pub(crate) fn found(&self) -> Found {
        self.known.clone()
    }

    /// Looks at all mappings. Returns their list, the executable ones that were not there before, and all of them as a
    /// map of code.
    pub(crate) fn look(&mut self) -> Option<(Vec<u8>, Vec<Mapping>, Vec<Range>)> {
        // The kernel makes the text anew for each read.
        let mut text = Vec::with_capacity(1 << 16);
        fs::File::open("/proc/self/maps").ok()?.read_to_end(&mut text).ok()?;
        let lines: Vec<Line> = MapsLine::all(&text).map(Line::of).collect();
        let mut known = BTreeMap::new();
        let (mut new, mut ranges) = (Vec::new(), Vec::new());
        // The mapping that holds the ELF header of what comes next.
        let mut header: Option<&Line> = None;
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
            let found = self.known.remove(line).unwrap_or_else(|| {
                let found = self.inherited.remove(line).unwrap_or_else(|| describe(line, module));
                new.push(line.as_mapping(found.build_id));
                found
            });
            ranges.push(line.as_range(&found.tables));
            known.insert(line.clone(), found);
        }
        self.inherited.clear();
        self.remember(known, &lines);
        ranges.extend(self.unmapped.iter().map(|(line, tables)| line.as_range(tables)));
        Some((text, new, ranges))
    }

    /// What is not there any more is kept, unless something else is in its place.
    fn remember(&mut self, known: Found, lines: &[Line]) {
        let gone = std::mem::replace(&mut self.known, known).into_iter().map(|(line, found)| (line, found.tables));
        self.unmapped.extend(gone.filter(|(_, tables)| matches!(**tables, Tables::Frames(_))));
        self.unmapped.retain(|(old, _)| lines.iter().all(|line| line.end <= old.start || old.end <= line.start));
        let surplus = self.unmapped.len().saturating_sub(MOST_UNMAPPED);
        self.unmapped.drain(..surplus);
    }
}

impl Line {
    fn of(line: MapsLine<'_>) -> Line {
        Line {
            start: line.range.start().0,
            end: line.range.end().0,
            executable: line.is_executable(),
            offset: line.offset,
            device: line.device,
            inode: line.inode,
            path: line.path.to_vec(),
        }
    }

    fn as_range(&self, tables: &Arc<Tables>) -> Range {
        Range { start: self.start, end: self.end, owner: 0, tables: Arc::clone(tables) }
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

fn describe(line: &Line, header: Option<&Line>) -> Known {
    let module = header.and_then(|header| Module::read(header.start, line.start..line.end));
    let Some(module) = module else {
        let code = read(line.start, 64.min(line.end - line.start)).unwrap_or_default();
        let is_trampoline = line.inode == 0 && code.windows(TRAMPOLINE.len()).any(|bytes| bytes == TRAMPOLINE);
        let tables = if is_trampoline { Tables::Trampoline } else { Tables::Bare };
        return Known { tables: Arc::new(tables), build_id: None };
    };
    let tables = module.frame_table().map_or(Tables::Bare, |table| Tables::Frames(vec![table]));
    Known { tables: Arc::new(tables), build_id: module.build_id() }
}

/// An ELF file in memory.
struct Module {
    base: u64,
    bias: u64,
    segments: Vec<ProgramHeader>,
    code: std::ops::Range<u64>,
}

impl Module {
    fn read(base: u64, code: std::ops::Range<u64>) -> Option<Module> {
        const SIZE: u64 = size_of::<ProgramHeader>() as u64;
        let header = elf::file_header(&read(base, size_of::<FileHeader>() as u64)?)?;
        let (at, count) = (header.e_phoff.get(LE), u64::from(header.e_phnum.get(LE)));
        if u64::from(header.e_phentsize.get(LE)) != SIZE || count > 64 || at > 1 << 20 {
            return None;
        }
        let segments: Vec<ProgramHeader> = elf::structures(&read(base.checked_add(at)?, count * SIZE)?).collect();
        let first =
            segments.iter().rfind(|segment| segment.p_type.get(LE) == PT_LOAD && segment.p_offset.get(LE) == 0)?;
        Some(Module { base, bias: base.wrapping_sub(first.p_vaddr.get(LE) & !0xfff), segments, code })
    }

    fn frame_table(&self) -> Option<FrameTable> {
        let of = |kind| self.segments.iter().filter(move |segment| segment.p_type.get(LE) == kind);
        let segment = of(PT_GNU_EH_FRAME).next()?;
        let header_start = segment.p_vaddr.get(LE);
        let header_address = self.bias.wrapping_add(header_start);
        let header = self.bytes(header_address, segment.p_memsz.get(LE))?;
        let section_address = FrameTable::section_address(&header, header_address)?;
        // Its size stands nowhere; it ends where its segment does, if not before.
        let relative = section_address.wrapping_sub(self.bias);
        let extents = of(PT_LOAD).map(|segment| (segment.p_vaddr.get(LE), segment.p_memsz.get(LE)));
        let (start, load_size) = extents.into_iter().find(|(start, size)| relative.wrapping_sub(*start) < *size)?;
        let mut size = start.wrapping_add(load_size).wrapping_sub(relative);
        if header_start > relative && header_start - relative < size {
            size = header_start - relative;
        }
        let section = || self.bytes(section_address, size);
        FrameTable::with_header(section()?, section_address, self.base, &header, header_address)
            .or_else(|| Some(FrameTable::by_reading(section()?, section_address, self.base)))
    }

    fn bytes(&self, address: u64, size: u64) -> Option<Cow<'static, [u8]>> {
        let in_place = process::in_place(&self.code, address, size).map(Cow::Borrowed);
        in_place.or_else(|| read(address, size).map(Cow::Owned))
    }

    fn build_id(&self) -> Option<BuildId> {
        let notes = self.segments.iter().filter(|segment| segment.p_type.get(LE) == PT_NOTE);
        let ranges = notes.map(|notes| (self.bias.wrapping_add(notes.p_vaddr.get(LE)), notes.p_memsz.get(LE)));
        ranges.filter(|(_, size)| *size < 1 << 16).find_map(|(start, size)| build_id(&read(start, size)?))
    }
}

/// The note "GNU", `NT_GNU_BUILD_ID`, if it is not longer than the twenty bytes that a recording has for it.
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

/// A copy of this process's memory, if all of it can be read.
pub(crate) fn read(address: u64, size: u64) -> Option<Vec<u8>> {
    if size > LARGEST_SECTION {
        return None;
    }
    let range = AddressRange::new(Address(address), size)?;
    checked_read::copy(range).ok().or_else(|| {
        // Where process_vm_readv(2) is not allowed.
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
        assert_eq!(Line::of(line).as_mapping(None).path, b"/a b/c");
    }

    #[test]
    fn what_was_unmapped_is_remembered_until_something_is_in_its_place() {
        let line = |text: &str| Line::of(MapsLine::parse(text.as_bytes()).unwrap());
        let library = line("5000-7000 r-xp 00001000 08:1f 42 /a");
        let tables = Arc::new(Tables::Frames(Vec::new()));
        let mut mappings = Mappings::default();
        mappings.known.insert(library.clone(), Known { tables, build_id: None });
        mappings.remember(BTreeMap::new(), &[line("3000-5000 r--p 00000000 08:1f 42 /a")]);
        assert_eq!(mappings.unmapped.len(), 1);
        mappings.remember(BTreeMap::new(), &[line("6000-8000 rw-p 00000000 00:00 0 ")]);
        assert!(mappings.unmapped.is_empty());
    }

    #[test]
    fn the_c_library_has_a_table_and_a_build_id() {
        let _alone = crate::slot::alone();
        let mut mappings = Mappings::default();
        let (_, new, ranges) = mappings.look().unwrap();
        let libc = new.iter().find(|mapping| mapping.path.windows(8).any(|part| part == b"/libc.so")).unwrap();
        assert!(libc.build_id.is_some());
        // lld's --build-id=fast, and one that is too long.
        let note = |size: u32| [&[4, size, 3].map(u32::to_le_bytes).concat()[..], b"GNU\0", &[7; 40]].concat();
        assert_eq!(build_id(&note(8)), BuildId::new(&[7; 8]));
        assert!(build_id(&note(8)).is_some() && build_id(&note(32)).is_none());
        crate::code_map::publish_libraries(ranges);
        let local = 0_u8;
        let stack = mappings.main_stack;
        // Tests run in threads of their own.
        assert!(stack.0 < stack.1 && !(stack.0..stack.1).contains(&(&raw const local as u64)));
        let address = libc::malloc as *const () as u64;
        let found = crate::code_map::ProcessCode.find(address);
        assert!(matches!(found, Some(crate::unwind::Code::Table(table)) if table.len() > 1000));
    }
}
