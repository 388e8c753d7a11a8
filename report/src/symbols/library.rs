//! The part of a library that reports need: the symbols of functions with samples, and the unwind table. Its ELF file
//! has the library's program headers, so that positions in the library stay the same, and no code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use jitlisten_files::open_regular;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, elf};
use rustc_hash::FxHashMap;
use wire::elf::{ElfFile, Section, Symbol};

use super::files::{Files, OpenLibraries};
use super::{SymbolCache, Symbols};
use crate::lookup::Lookup;
use crate::path_text::path_of_text;
use crate::recording::Recording;

/// Length of the build ids that linkers write.
const BUILD_ID_BYTES: usize = 20;
const BUILD_ID: &str = ".note.gnu.build-id";
const TEXT: &str = ".text";
const DEBUG_LINK: &str = ".gnu_debuglink";
/// Alignment of sections, whatever the library says: a bundle's library may come from anybody.
const ALIGNMENT: u64 = 8;
const UNWIND_SECTIONS: [&str; 2] = [".eh_frame_hdr", ".eh_frame"];

/// Library with samples.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    /// File that was read.
    source: PathBuf,
    /// Build id, or a hash of the whole file. The reduced file has either as its build id.
    identity: Vec<u8>,
    /// Sizes and names of functions, by address.
    functions: BTreeMap<u64, (u64, String)>,
    has_unwind_table: bool,
}

/// File that has samples.
pub(crate) enum SampledFile {
    /// Code that was compiled at run time, and the file that was read.
    Image(PathBuf),
    /// Library, and the file with its debug information if both are copied whole.
    Library(Library, Option<PathBuf>),
}

/// Files that recordings name. Libraries stay open from one recording to the next.
#[derive(Default)]
pub(crate) struct NamedFiles(OpenLibraries);

/// Files that one recording names, by their recorded paths.
#[derive(Default)]
pub(crate) struct RecordingFiles {
    /// Images and libraries with samples, or the reason why one cannot be read.
    pub(crate) sampled: BTreeMap<PathBuf, Result<SampledFile, String>>,
    pub(crate) sources: BTreeSet<PathBuf>,
}

impl NamedFiles {
    /// Finds the files of one recording. `whole` also finds the debug information of libraries.
    pub(crate) fn find(&mut self, recording: &Recording, lookup: &Lookup, whole: bool) -> RecordingFiles {
        let mut cache = SymbolCache::default();
        cache.files.extend(recording, lookup);
        cache.files.take_libraries(&mut self.0);
        let sources = Symbols::resolve_with(&mut cache, recording, lookup).sources;
        let sources = sources.into_iter().map(PathBuf::from).filter(|path| path.is_absolute()).collect();
        let mut offsets: FxHashMap<u32, BTreeSet<u64>> = FxHashMap::default();
        for position in recording.locations.iter().filter_map(|location| location.position) {
            offsets.entry(position.file).or_default().insert(position.offset);
        }
        let has_stack_copies = recording.events.get(recording.event).is_some_and(|(event, _)| event.has_stack_copies());
        let mut sampled = BTreeMap::new();
        for (file, offsets) in offsets {
            let path = recording.files.get(file as usize).map(|file| path_of_text(&file.path));
            let mut result = SampledFile::open(&mut cache.files, file, &offsets, has_stack_copies);
            if let Some(Ok(SampledFile::Library(_, debug))) = &mut result
                && whole
            {
                *debug = cache.files.debug_file(file).map(|debug| debug.path.clone());
            }
            sampled.extend(path.filter(|path| path.is_absolute()).zip(result));
        }
        cache.files.into_libraries(&mut self.0);
        RecordingFiles { sampled, sources }
    }
}

impl std::fmt::Debug for NamedFiles {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("NamedFiles").finish_non_exhaustive()
    }
}

impl SampledFile {
    /// Opens the file that was recorded; `None` for memory. A library has the functions at these offsets, also those
    /// that only its debug information names. Its unwind table is kept for stack copies, and if a function has no name.
    fn open(
        files: &mut Files,
        file: u32,
        offsets: &BTreeSet<u64>,
        has_stack_copies: bool,
    ) -> Option<Result<SampledFile, String>> {
        let is_library = files.is_library(file);
        let Some(elf) = files.open(file) else { return files.error(file).map(|error| Err(error.to_owned())) };
        if !is_library {
            return Some(Ok(SampledFile::Image(elf.path.clone())));
        }
        let identity = match elf.build_id.as_slice() {
            [] => match elf.content_hash() {
                Ok(hash) => hash[..BUILD_ID_BYTES].to_vec(),
                Err(error) => return Some(Err(error.to_string())),
            },
            build_id => build_id.to_vec(),
        };
        let source = elf.path.clone();
        let mut library = Library { source, identity, functions: BTreeMap::new(), has_unwind_table: has_stack_copies };
        for offset in offsets {
            let Some(address) = files.open(file).and_then(|elf| elf.address_of_offset(*offset)) else { continue };
            match files.library_function(file, address) {
                Some((name, range)) => {
                    let function = (range.end.saturating_sub(range.start), name.to_owned());
                    library.functions.insert(range.start, function);
                }
                None => library.has_unwind_table = true,
            }
        }
        Some(Ok(SampledFile::Library(library, None)))
    }
}

impl Library {
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// Returns true if two files are the same library.
    pub(crate) fn is_same(&self, other: &Library) -> bool {
        self.identity == other.identity
    }

    /// Adds the functions of the same library in another recording.
    pub(crate) fn merge(&mut self, other: Library) {
        self.functions.extend(other.functions);
        if other.has_unwind_table && !self.has_unwind_table {
            // The source of the other library may be the only one with an unwind table.
            (self.source, self.has_unwind_table) = (other.source, true);
        }
    }

    /// Returns the reduced ELF file.
    pub(crate) fn to_elf(&self) -> io::Result<Vec<u8>> {
        let cache = ReadCache::new(open_regular(&self.source)?);
        let file = ElfFile64::<Endianness, &ReadCache<File>>::parse(&cache).map_err(io::Error::other)?;
        // Readers ignore symbols that are in no section.
        let text = file.section_by_name(TEXT);
        let text_header = SectionHeader {
            sh_type: elf::SHT_NOBITS,
            sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
            sh_addr: text.as_ref().map_or(0, |text| text.address()),
            sh_size: text.as_ref().map_or(0, |text| text.size()),
            sh_addralign: 1,
            ..SectionHeader::default()
        };
        let note_header = SectionHeader { sh_type: elf::SHT_NOTE, sh_addralign: 4, ..SectionHeader::default() };
        let note = build_id_note(file.endian(), &self.identity);
        let mut sections = vec![
            Section { name: TEXT, header: text_header, data: &[] },
            Section { name: BUILD_ID, header: note_header, data: &note },
        ];
        let unwind_sections = UNWIND_SECTIONS.iter().filter(|_| self.has_unwind_table);
        for name in std::iter::once(&DEBUG_LINK).chain(unwind_sections) {
            if let Some(section) = file.section_by_name(name) {
                let header = section.elf_section_header();
                let header = SectionHeader {
                    sh_type: header.sh_type(file.endian()),
                    sh_flags: header.sh_flags(file.endian()),
                    sh_addr: section.address(),
                    sh_addralign: ALIGNMENT,
                    ..SectionHeader::default()
                };
                sections.push(Section { name, header, data: section.data().map_err(io::Error::other)? });
            }
        }
        let symbols = self.functions.iter().map(|(&address, (size, name))| {
            let name = name.as_bytes();
            Symbol { name, address, size: *size }
        });
        let symbols = symbols.collect();
        let (header, program_headers) = copy_headers(&file);
        let file = ElfFile { endian: file.endian(), header, program_headers, sections, symbols };
        file.encode().map_err(io::Error::other)
    }
}

fn bytes_of_word(endian: Endianness, word: u32) -> [u8; 4] {
    match endian {
        Endianness::Little => word.to_le_bytes(),
        Endianness::Big => word.to_be_bytes(),
    }
}

/// Encodes a note with a build id (`NT_GNU_BUILD_ID`).
fn build_id_note(endian: Endianness, build_id: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"GNU\0";
    let header = [NAME.len() as u32, build_id.len() as u32, elf::NT_GNU_BUILD_ID.0];
    let mut note: Vec<u8> = header.iter().flat_map(|word| bytes_of_word(endian, *word)).collect();
    note.extend_from_slice(NAME);
    note.extend_from_slice(build_id);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// Returns the headers of an ELF file.
fn copy_headers<'a>(file: &ElfFile64<'a, Endianness, &'a ReadCache<File>>) -> (FileHeader, Vec<ProgramHeader>) {
    let (endian, header) = (file.endian(), file.elf_header());
    let program_header = |header: &elf::ProgramHeader64<Endianness>| ProgramHeader {
        p_type: header.p_type(endian),
        p_flags: header.p_flags(endian),
        p_offset: header.p_offset(endian),
        p_vaddr: header.p_vaddr(endian),
        p_paddr: header.p_paddr(endian),
        p_filesz: header.p_filesz(endian),
        p_memsz: header.p_memsz(endian),
        p_align: header.p_align(endian),
    };
    let (e_type, e_machine) = (header.e_type(endian), header.e_machine(endian));
    let program_headers = file.elf_program_headers().iter().map(program_header).collect();
    (FileHeader { e_type, e_machine, ..FileHeader::default() }, program_headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{FilePosition, Location, MappedFile};

    #[test]
    fn a_library_is_opened_once_for_several_recordings() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let original = maps.split_whitespace().find(|word| word.contains("libgcc_s.so")).unwrap();
        let path = std::env::temp_dir().join(format!("jitlisten-opened-once-{}.so", std::process::id()));
        std::fs::copy(original, &path).unwrap();
        let mut recording = Recording::default();
        let mapped_path = path.to_str().unwrap().to_owned();
        recording.files.push(MappedFile { path: mapped_path, build_id: Vec::new(), root: None });
        let length = path.metadata().unwrap().len();
        recording.locations.extend((0..length).step_by(64).map(|offset| {
            let position = Some(FilePosition { file: 0, offset });
            Location { origin: 0, pid: Some(1), address: offset, position, is_function: false, callee: None }
        }));
        let mut files = NamedFiles::default();
        let mut function_count = || match files.find(&recording, &Lookup::default(), false).sampled.remove(&path) {
            Some(Ok(SampledFile::Library(library, _))) => library.functions.len(),
            _ => 0,
        };
        let count = function_count();
        assert!(count > 10, "{count} functions");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(function_count(), count);
    }
}
