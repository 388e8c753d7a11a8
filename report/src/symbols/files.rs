//! Files that a recording names. They are opened on first use.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};

use jitlisten_files::FileName;
use rustc_hash::{FxHashMap, FxHashSet};
use wire::recording::{IMAGES, PythonImage};

use super::callees::Callees;
use super::elf::Elf;
use super::line_zero::has_line;
use super::roots::Roots;
use super::source_frame::SourceFrame;
use crate::lookup::segments::Segments;
use crate::lookup::{Lookup, build_ids_match, candidates};
use crate::machine::Machine;
use crate::path_text::path_of_text;
use crate::recording::{FilePosition, MappedFile, Recording};

/// Maximum number of open images of Python functions. A merged recording has some of each process.
const MAX_OPEN_PYTHON_IMAGES: usize = 64;
/// Maximum number of libraries that are kept open from one recording to the next.
const MAX_KEPT_LIBRARIES: usize = 128;

/// Files of a recording, by index.
#[derive(Default)]
pub(super) struct Files {
    files: Vec<FileEntry>,
    roots: Roots,
    /// Open images of Python functions, oldest first.
    python_images: VecDeque<u32>,
    /// Paths and hashes of the sources that closed images name.
    closed_hashes: FxHashSet<(String, String)>,
}

/// Open libraries, which several recordings may have. Each has a descriptor.
#[derive(Default)]
pub(super) struct OpenLibraries(FxHashMap<MappedFile, Box<Elf>>);

impl OpenLibraries {
    /// Keeps a library open. If there are too many, closes all others.
    fn keep(&mut self, file: MappedFile, elf: Box<Elf>) {
        if self.0.len() == MAX_KEPT_LIBRARIES {
            self.0.clear();
        }
        self.0.insert(file, elf);
    }
}

struct FileEntry {
    file: MappedFile,
    name: String,
    /// True if the path is that of an image of compiled code.
    has_image_name: bool,
    state: State,
}

enum State {
    Unopened,
    /// Mapping that is not a file: memory, or part of the kernel.
    Anonymous,
    Open(Box<Elf>),
    /// Image of Python functions that is opened again when it is needed.
    Closed,
    Missing(String),
}

/// Function of an image that contains a position.
pub(super) struct ImageFunction {
    pub(super) name: String,
    pub(super) size: u64,
    /// Offset of the position in the function.
    pub(super) offset: u64,
    /// Hash of the image's line table, if it has one.
    pub(super) lines: Option<[u8; 32]>,
}

/// Symbol and frames at an offset in a file.
pub(super) struct Symbolized {
    pub(super) symbol: Option<String>,
    pub(super) frames: Vec<SourceFrame>,
    pub(super) is_image: bool,
    /// True if the line was inferred from surrounding instructions.
    pub(super) approximate: bool,
}

impl FileEntry {
    /// Returns true if the file has the name of an image of Python functions.
    fn has_python_name(&self) -> bool {
        PythonImage::parse(&self.name).is_some()
    }
}

impl Files {
    /// Adds the files of a recording. Files of a growing recording stay open; returns true in that case.
    pub(super) fn extend(&mut self, recording: &Recording, lookup: &Lookup) -> bool {
        let is_unchanged = self.files.iter().zip(&recording.files).all(|(entry, file)| entry.file == *file);
        let roots = Roots::new(recording, lookup);
        let is_unchanged = is_unchanged && self.roots == roots;
        if !is_unchanged {
            *self = Files::default();
        }
        self.roots = roots;
        // Reopen images of Python functions, which the recorder extends while it runs.
        for entry in self.files.iter_mut().filter(|entry| entry.has_python_name()) {
            entry.state = State::Unopened;
        }
        self.python_images.clear();
        let files = recording.files.iter().skip(self.files.len()).map(|file| {
            let is_anonymous_name = is_anonymous(&file.path);
            let state = if is_anonymous_name { State::Anonymous } else { State::Unopened };
            let name = file.path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&file.path).to_owned();
            let name = if is_anonymous_name { file.path.clone() } else { name };
            FileEntry { file: file.clone(), name, has_image_name: is_image_path(&file.path), state }
        });
        self.files.extend(files);
        is_unchanged
    }

    /// Takes open libraries from `libraries`.
    pub(super) fn take_libraries(&mut self, libraries: &mut OpenLibraries) {
        for entry in self.files.iter_mut().filter(|entry| matches!(entry.state, State::Unopened)) {
            if let Some(elf) = libraries.0.remove(&entry.file) {
                entry.state = State::Open(elf);
            }
        }
    }

    /// Moves open libraries to `libraries`. Reduced ones are not kept, because other bundles may have other functions
    /// of them.
    pub(super) fn into_libraries(self, libraries: &mut OpenLibraries) {
        for FileEntry { file, state, .. } in self.files {
            if let State::Open(elf) = state
                && !(elf.is_image || elf.is_reduced)
            {
                libraries.keep(file, elf);
            }
        }
    }

    /// Returns the paths and hashes of the sources that images name.
    pub(super) fn source_hashes(&self) -> impl Iterator<Item = &(String, String)> {
        let open_hashes = self.files.iter().flat_map(|entry| match &entry.state {
            State::Open(elf) => elf.source_hashes(),
            _ => &[],
        });
        open_hashes.chain(&self.closed_hashes)
    }

    /// Returns the last component of the path.
    pub(super) fn name(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |entry| &entry.name)
    }

    /// Returns true if the file contains code compiled at run time. A missing file is judged by its name.
    pub(super) fn is_image(&self, file: u32) -> bool {
        match self.files.get(file as usize) {
            Some(FileEntry { state: State::Open(elf), .. }) => elf.is_image,
            Some(FileEntry { state: State::Closed, .. }) => true,
            Some(entry) => entry.has_image_name,
            None => false,
        }
    }

    /// Opens a file, unless it is open. An image is marked as such if its contents or its name say so.
    pub(super) fn open(&mut self, file: u32) -> Option<&mut Elf> {
        let roots = &self.roots;
        let entry = self.files.get_mut(file as usize)?;
        if matches!(entry.state, State::Unopened | State::Closed) {
            entry.state = open(roots, &entry.file);
            let is_python_image = entry.has_python_name();
            if let State::Open(elf) = &mut entry.state {
                let is_python_image = is_python_image && elf.is_image;
                elf.is_image |= entry.has_image_name;
                if is_python_image {
                    self.python_images.push_back(file);
                    self.close_oldest();
                }
            }
        }
        match self.files.get_mut(file as usize)? {
            FileEntry { state: State::Open(elf), .. } => Some(elf),
            _ => None,
        }
    }

    /// Opens a file if it is an image.
    fn open_image(&mut self, file: u32) -> Option<&mut Elf> {
        self.open(file).filter(|elf| elf.is_image)
    }

    /// Closes an image of Python functions if too many are open.
    fn close_oldest(&mut self) {
        if self.python_images.len() > MAX_OPEN_PYTHON_IMAGES
            && let Some(entry) = self.python_images.pop_front().and_then(|file| self.files.get_mut(file as usize))
            && let State::Open(elf) = std::mem::replace(&mut entry.state, State::Closed)
        {
            self.closed_hashes.extend(elf.source_hashes().iter().cloned());
        }
    }

    /// Returns true for a file with code that was compiled ahead of time.
    pub(super) fn is_library(&mut self, file: u32) -> bool {
        self.open(file).is_some_and(|elf| !elf.is_image)
    }

    pub(super) fn has_image_name(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|entry| entry.has_image_name)
    }

    /// Returns the functions outside of an image that its code refers to; `None` for other files.
    pub(super) fn callees(&mut self, file: u32) -> Option<&Callees> {
        if !self.has_image_name(file) {
            return None;
        }
        self.open(file).map(|elf| elf.callees())
    }

    /// Returns the start of the compiled function that a call calls, if it is in the same image. `call` is the position
    /// of the last byte of the call, and `address` its address in the process.
    pub(super) fn compiled_callee(&mut self, call: FilePosition, address: u64) -> Option<FilePosition> {
        let (call_address, target) = self.call_target(call, address)?;
        let elf = self.open(call.file)?;
        let (_, function) = elf.function(target).filter(|(_, function)| function.start == target)?;
        let offset = call.offset.wrapping_add(function.start.wrapping_sub(call_address));
        Some(FilePosition { file: call.file, offset })
    }

    /// Returns the addresses in an image of a call and of the function that it calls, for the arguments of
    /// [`compiled_callee`](Files::compiled_callee).
    pub(super) fn call_target(&mut self, call: FilePosition, address: u64) -> Option<(u64, u64)> {
        let elf = self.open_image(call.file)?;
        let call_address = elf.address_of_offset(call.offset)?;
        Some((call_address, elf.call_target(call_address, address)?))
    }

    /// Returns the name of the function at a position.
    pub(super) fn symbol(&mut self, position: FilePosition) -> Option<String> {
        let elf = self.open(position.file)?;
        let address = elf.address_of_offset(position.offset)?;
        elf.function(address).map(|(name, _)| name.to_owned())
    }

    pub(super) fn find(&mut self, file: u32, offset: u64, native_lines: bool) -> Option<Symbolized> {
        let elf = self.open(file)?;
        let is_image = elf.is_image;
        let address = elf.address_of_offset(offset)?;
        let (mut frames, mut approximate) =
            if is_image || native_lines { elf.locate(address) } else { Default::default() };
        let symbol = elf.function(address).map(|(name, _)| name.to_owned());
        if frames.is_empty() && native_lines {
            (frames, approximate) = self.debug_file(file).map(|debug| debug.locate(address)).unwrap_or_default();
        }
        Some(Symbolized { symbol, frames, is_image, approximate })
    }

    /// Returns the name of a library's function in the library's debug information, if that is installed.
    pub(super) fn debug_symbol(&mut self, position: FilePosition) -> Option<String> {
        let elf = self.open(position.file)?;
        let address = elf.address_of_offset(position.offset)?;
        self.debug_file(position.file)?.named_function(address).map(|(name, _)| name.to_owned())
    }

    /// Returns name and address range of a library's function, also of one that only the debug information names.
    pub(super) fn library_function(&mut self, file: u32, address: u64) -> Option<(&str, Range<u64>)> {
        if self.open(file)?.function(address).is_none() {
            return self.debug_file(file)?.named_function(address);
        }
        self.open(file)?.function(address)
    }

    /// Returns why a file could not be opened.
    pub(super) fn error(&self, file: u32) -> Option<&str> {
        match &self.files.get(file as usize)?.state {
            State::Missing(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the file with the debug information of a library.
    pub(super) fn debug_file(&mut self, file: u32) -> Option<&mut Elf> {
        if !self.is_library(file) {
            return None;
        }
        let FileEntry { file, state: State::Open(elf), .. } = self.files.get_mut(file as usize)? else { return None };
        elf.debug.get_or_init(|| open_debug_file(&self.roots, file, elf).map(Box::new));
        elf.debug.get_mut()?.as_deref_mut()
    }

    pub(super) fn image_function(&mut self, position: FilePosition) -> Option<ImageFunction> {
        let elf = self.open_image(position.file)?;
        let address = elf.address_of_offset(position.offset)?;
        let lines = elf.line_table_hash();
        let (name, range) = elf.function(address)?;
        let (offset, size) = (address - range.start, range.end - range.start);
        Some(ImageFunction { name: name.to_owned(), size, offset, lines })
    }

    /// Returns the hashes of the sources of these frames at the time of compilation.
    pub(super) fn hashes_of(&self, file: u32, frames: &[SourceFrame]) -> Vec<String> {
        let Some(State::Open(elf)) = self.files.get(file as usize).map(|entry| &entry.state) else { return Vec::new() };
        let is_source = |path: &str| frames.iter().any(|frame| frame.file.as_deref() == Some(path));
        let sources = elf.source_hashes().iter().filter(|(path, _)| is_source(path));
        sources.map(|(_, hash)| hash.clone()).collect()
    }

    /// Returns the mapped ranges of a file that can be read.
    pub(super) fn segments(&mut self, file: u32) -> Option<&Segments> {
        self.open(file).map(|elf| &elf.segments)
    }

    /// Returns the readable name of the function with this linkage name.
    pub(super) fn alias(&self, file: u32, linkage_name: &str) -> Option<String> {
        match &self.files.get(file as usize)?.state {
            State::Open(elf) if elf.is_image => elf.readable_alias(linkage_name).map(str::to_owned),
            _ => None,
        }
    }

    /// Returns notes about the files that could not be opened.
    pub(super) fn notes(&self) -> Vec<String> {
        let missing = self.files.iter().filter_map(|entry| match &entry.state {
            State::Missing(error) => Some((entry, error)),
            _ => None,
        });
        let (images, libraries): (Vec<_>, Vec<_>) = missing.partition(|(entry, _)| entry.has_image_name);
        let mut notes = Vec::new();
        if let Some((first, error)) = images.first() {
            notes.push(format!(
                "{} of the images of compiled code cannot be read (the first: {}: {error}); their code has no lines \
                 here",
                images.len(),
                first.file.path
            ));
        }
        notes.extend(
            libraries
                .iter()
                .take(8)
                .map(|(entry, error)| format!("{}: {error}; its code has no names here", entry.file.path)),
        );
        if let Some(more) = libraries.len().checked_sub(8).filter(|more| *more != 0) {
            notes.push(format!("and {more} files more cannot be read"));
        }
        notes
    }
}

fn open(roots: &Roots, file: &MappedFile) -> State {
    match find_file(roots, file) {
        Ok(elf) => State::Open(Box::new(elf)),
        Err(error) => State::Missing(error),
    }
}

/// Opens the file that was recorded. Bundles may have different functions of a library.
fn find_file(roots: &Roots, file: &MappedFile) -> Result<Elf, String> {
    let path = path_of_text(&file.path);
    let (mut last_error, mut reduced) = (String::new(), None::<Elf>);
    for candidate in candidates(&roots.for_file(file), &path) {
        match Elf::open(&candidate) {
            Ok(elf) if !is_recorded_file(&elf, file) => {
                last_error = "is another file than the one that was recorded (its build id differs)".to_owned();
            }
            Ok(elf) if !elf.is_reduced => return Ok(elf),
            Ok(elf) => match &mut reduced {
                Some(first) => first.add_symbols(elf),
                None => reduced = Some(elf),
            },
            // An error about an existing file is more informative than one about a missing file.
            Err(error) if last_error.is_empty() || candidate.exists() => last_error = error,
            Err(_) => {}
        }
    }
    reduced.ok_or(last_error)
}

/// Opens the file with a library's debug information, where gdb looks for it: by build id, by the name in
/// `.gnu_debuglink`, or in the library (`.gnu_debugdata`).
fn open_debug_file(roots: &Roots, file: &MappedFile, elf: &Elf) -> Option<Elf> {
    open_separate_debug_file(roots, file, elf).or_else(|| elf.open_mini_debug_info())
}

fn open_separate_debug_file(roots: &Roots, file: &MappedFile, elf: &Elf) -> Option<Elf> {
    const ROOT: &str = "/usr/lib/debug";
    let hex: String = elf.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2)?;
    let mut paths = vec![PathBuf::from(format!("{ROOT}/.build-id/{first}/{rest}.debug"))];
    if let Some((directory, name)) = path_of_text(&file.path).parent().zip(elf.debug_link()) {
        let below_root = Path::new(ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
        paths.extend([directory.to_owned(), directory.join(".debug"), below_root].map(|parent| parent.join(&name)));
    }
    let roots = roots.for_file(file);
    let files = paths.iter().flat_map(|path| candidates(&roots, path));
    files.filter_map(|path| Elf::open(&path).ok()).find(|debug| debug.build_id == elf.build_id)
}

fn is_recorded_file(elf: &Elf, file: &MappedFile) -> bool {
    file.build_id.is_empty() || elf.build_id.is_empty() || build_ids_match(&elf.build_id, &file.build_id)
}

/// Returns true if the name of a mapping is not a file name.
pub(super) fn is_anonymous(path: &str) -> bool {
    path.is_empty()
        || path.starts_with("//anon")
        || path.starts_with('[')
        || path.starts_with("/memfd:")
        || path.starts_with("/dev/")
        || path.starts_with("/SYSV")
        || path.starts_with("anon_inode:")
}

/// Returns true for images of jitlisten, and for those that `perf inject --jit` writes.
fn is_image_path(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().and_then(FileName::parse);
    let directory = parts.next().unwrap_or_default();
    match name {
        Some(FileName::Injected { .. }) => true,
        Some(FileName::Image { .. }) => matches!(FileName::parse(directory), Some(FileName::Images { .. })),
        Some(FileName::KeptImage { .. }) => directory.ends_with(IMAGES),
        _ => false,
    }
}

/// Symbols of one file, for comparison with other tools. No recording is necessary.
pub struct FileSymbols(Elf);

impl FileSymbols {
    /// Opens an ELF file.
    ///
    /// # Errors
    /// Returns a message if the file is not a valid ELF file.
    pub fn open(path: &Path) -> Result<FileSymbols, String> {
        Elf::open(path).map(FileSymbols)
    }

    /// Returns the frames at an address, innermost inlined call first.
    pub fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        self.0.frames(address)
    }

    /// Returns the symbols at an address.
    pub fn symbols(&self, address: u64) -> Vec<String> {
        self.0.symbol_names(address)
    }
}

impl std::fmt::Debug for FileSymbols {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("FileSymbols").finish_non_exhaustive()
    }
}

/// Maximum number of code bytes to decode per function; the rest is skipped.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

pub(crate) struct ImageCode(Elf);

impl ImageCode {
    pub(crate) fn open(roots: &Roots, file: &MappedFile) -> Option<ImageCode> {
        find_file(roots, file).ok().map(ImageCode)
    }

    /// Returns the instruction set, if there is a decoder for it.
    pub(crate) fn machine(&self) -> Option<Machine> {
        self.0.machine
    }

    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.0.address_of_offset(offset)
    }

    /// Returns readable name and address range of each function that contains one of the ascending addresses.
    pub(crate) fn functions_at<'a>(&self, addresses: impl Iterator<Item = &'a u64>) -> Vec<(String, Range<u64>)> {
        let mut functions: Vec<(String, Range<u64>)> = Vec::new();
        for address in addresses {
            if functions.last().is_none_or(|(_, previous)| *address >= previous.end) {
                let function = self.0.function(*address);
                functions.extend(function.map(|(name, range)| (super::names::readable(name), range)));
            }
        }
        functions
    }

    pub(crate) fn section(&self, name: &str, max_bytes: u64) -> Vec<u8> {
        self.0.section(name, max_bytes)
    }

    /// Returns the code of a function, up to a limit.
    pub(crate) fn bytes(&self, function: &Range<u64>) -> Vec<u8> {
        self.0.code(function.start, (function.end - function.start).min(MAX_FUNCTION_BYTES) as usize)
    }

    /// Returns path and line of each inlined call at an instruction, innermost first; none if the innermost line is
    /// unknown. Numba's own files are omitted unless there are no others.
    pub(crate) fn user_lines(&mut self, address: u64) -> Vec<(String, u32)> {
        let (frames, _) = self.0.locate(address);
        if !has_line(&frames) {
            return Vec::new();
        }
        let lines = frames.into_iter().filter_map(|frame| Some((frame.file?, frame.line.filter(|line| *line != 0)?)));
        let (library, users): (Vec<_>, Vec<_>) = lines.partition(|(file, _)| is_numba_file(file));
        if users.is_empty() { library } else { users }
    }

    /// Returns path and line of an instruction.
    pub(crate) fn line(&mut self, address: u64) -> Option<(String, u32)> {
        let frame = self.0.locate(address).0.into_iter().next()?;
        Some((frame.file?, frame.line.unwrap_or_default()))
    }
}

/// Returns true for a file of Numba itself.
pub(crate) fn is_numba_file(path: &str) -> bool {
    path.contains("/numba/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_python_functions_are_closed_and_opened_again() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/sides/root/tmp/fixture/images");
        let image = images.read_dir().unwrap().next().unwrap().unwrap().path().join("object-22.so");
        let directory = std::env::temp_dir().join(format!("jitlisten-python-images-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mapped_file = |number: u32| {
            let path = directory.join(PythonImage { pid: number, time: 0, number: 0 }.to_string());
            std::fs::copy(&image, &path).unwrap();
            MappedFile { path: path.to_str().unwrap().to_owned(), build_id: Vec::new(), root: None }
        };
        let count = MAX_OPEN_PYTHON_IMAGES as u32 + 10;
        let mut recording = Recording::default();
        recording.files.extend((0..count).map(mapped_file));
        let mut files = Files::default();
        files.extend(&recording, &Lookup::default());
        let position = |file| FilePosition { file, offset: 0x1010 };
        let symbols: Vec<_> = (0..count).map(|file| files.symbol(position(file)).unwrap()).collect();
        let hashes = |files: &Files| files.source_hashes().cloned().collect::<FxHashSet<_>>();
        let all_hashes = hashes(&files);
        let is_open = |entry: &&FileEntry| matches!(entry.state, State::Open(_));
        assert_eq!(files.files.iter().filter(is_open).count(), MAX_OPEN_PYTHON_IMAGES);
        assert!(files.is_image(0), "a closed image");
        assert_eq!(files.symbol(position(0)).as_ref(), Some(&symbols[0]));
        assert_eq!((files.files.iter().filter(is_open).count(), hashes(&files)), (MAX_OPEN_PYTHON_IMAGES, all_hashes));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn libraries_are_kept_open_up_to_a_limit() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = Path::new(maps.split_whitespace().find(|word| word.contains("libgcc_s.so")).unwrap());
        let mut libraries = OpenLibraries::default();
        for number in 0..=MAX_KEPT_LIBRARIES {
            let file = MappedFile { path: number.to_string(), build_id: Vec::new(), root: None };
            libraries.keep(file, Box::new(Elf::open(library).unwrap()));
            assert_eq!(libraries.0.len(), number % MAX_KEPT_LIBRARIES + 1);
        }
    }
}
