//! The files that a recording names, opened on first use.

use std::path::Path;

use super::elf::Elf;
use super::line_zero::is_line_zero;
use super::source_frame::SourceFrame;
use crate::lookup::{Lookup, build_ids_match, candidates};
use crate::machine::Machine;
use crate::recording::{MappedFile, Recording};
use crate::roots::Roots;

/// All files of a recording.
#[derive(Default)]
pub(super) struct Files {
    files: Vec<Opened>,
    roots: Roots,
}

struct Opened {
    file: MappedFile,
    name: String,
    state: State,
}

enum State {
    Unopened,
    /// No file: memory, or a part of the kernel.
    Anonymous,
    Open(Box<Elf>),
    Missing(String),
}

/// What a file says about an offset.
pub(super) struct Found {
    pub(super) symbol: Option<String>,
    pub(super) frames: Vec<SourceFrame>,
    pub(super) is_image: bool,
    /// The compiler names no line, and the instructions around do.
    pub(super) approximate: bool,
}

impl Files {
    /// Takes in the files of a recording. Of one that grows, those that are known already stay as they are; says
    /// whether they do.
    pub(super) fn extend(&mut self, recording: &Recording, lookup: &Lookup) -> bool {
        let same = self.files.iter().zip(&recording.files).all(|(known, file)| known.file == *file);
        let roots = Roots::of(recording, lookup);
        let same = same && self.roots == roots;
        if !same {
            self.files.clear();
        }
        self.roots = roots;
        // While it is recorded, functions of Python are added to their images.
        for opened in self.files.iter_mut().filter(|opened| opened.name.starts_with("python-")) {
            opened.state = State::Unopened;
        }
        let files = recording.files.iter().skip(self.files.len()).map(|file| {
            let anonymous = is_anonymous(&file.path);
            let state = if anonymous { State::Anonymous } else { State::Unopened };
            let name = file.path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&file.path).to_owned();
            Opened { file: file.clone(), name: if anonymous { file.path.clone() } else { name }, state }
        });
        self.files.extend(files);
        same
    }

    /// The hashes of sources that images have, by path.
    pub(super) fn source_hashes(&self) -> impl Iterator<Item = &(String, String)> {
        self.files.iter().flat_map(|opened| match &opened.state {
            State::Open(elf) => elf.source_hashes(),
            _ => &[],
        })
    }

    /// The last part of the path.
    pub(super) fn name(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |opened| &opened.name)
    }

    /// Whether the file holds code that was compiled at run time; by its name where it is missing.
    pub(super) fn is_image(&self, file: u32) -> bool {
        match self.files.get(file as usize) {
            Some(Opened { state: State::Open(elf), file, .. }) => elf.is_image || is_image_path(&file.path),
            Some(opened) => is_image_path(&opened.file.path),
            None => false,
        }
    }

    pub(super) fn find(&mut self, file: u32, offset: u64, native_lines: bool) -> Option<Found> {
        let roots = &self.roots;
        let opened = self.files.get_mut(file as usize)?;
        if matches!(opened.state, State::Unopened) {
            opened.state = open(roots, &opened.file);
        }
        let is_image = is_image_path(&opened.file.path);
        let State::Open(elf) = &mut opened.state else { return None };
        let is_image = is_image || elf.is_image;
        let address = elf.address_of_offset(offset)?;
        let mut frames = if is_image || native_lines { elf.frames(address) } else { Vec::new() };
        let around = if is_line_zero(&frames) { elf.frames_around(address) } else { None };
        let approximate = around.is_some();
        frames = around.unwrap_or(frames);
        let symbol = elf.function(address).map(|(name, _)| name.to_owned());
        Some(Found { symbol, frames, is_image, approximate })
    }

    /// The name for people of a function that is known by its linkage name.
    pub(super) fn twin(&self, file: u32, linkage_name: &str) -> Option<String> {
        match &self.files.get(file as usize)?.state {
            State::Open(elf) if elf.is_image => elf.readable_twin(linkage_name).map(str::to_owned),
            _ => None,
        }
    }

    /// What could not be opened.
    pub(super) fn notes(&self) -> Vec<String> {
        let missing = self.files.iter().filter_map(|opened| match &opened.state {
            State::Missing(why) => Some((opened, why)),
            _ => None,
        });
        let (images, others): (Vec<_>, Vec<_>) = missing.partition(|(opened, _)| is_image_path(&opened.file.path));
        let mut notes = Vec::new();
        if let Some((first, why)) = images.first() {
            notes.push(format!(
                "{} of the images of compiled code cannot be read (the first: {}: {why}); their code has no lines here",
                images.len(),
                first.file.path
            ));
        }
        notes.extend(
            others
                .iter()
                .take(8)
                .map(|(opened, why)| format!("{}: {why}; its code has no names here", opened.file.path)),
        );
        if let Some(more) = others.len().checked_sub(8).filter(|more| *more != 0) {
            notes.push(format!("and {more} files more cannot be read"));
        }
        notes
    }
}

fn open(roots: &Roots, file: &MappedFile) -> State {
    let path = Path::new(&file.path);
    let mut why = String::new();
    for candidate in candidates(&roots.of_file(file), path) {
        match Elf::open(&candidate) {
            Ok(elf) if is_recorded_one(&elf, file) => return State::Open(Box::new(elf)),
            Ok(_) => why = "is another file than the one that was recorded (its build id differs)".to_owned(),
            // Of a file that is there more can be said than of one that is not.
            Err(error) if why.is_empty() || candidate.exists() => why = error,
            Err(_) => {}
        }
    }
    State::Missing(why)
}

fn is_recorded_one(elf: &Elf, file: &MappedFile) -> bool {
    file.build_id.is_empty() || elf.build_id.is_empty() || build_ids_match(&elf.build_id, &file.build_id)
}

/// Whether a name of a mapping is not that of a file.
pub(super) fn is_anonymous(path: &str) -> bool {
    path.is_empty()
        || path.starts_with("//anon")
        || path.starts_with('[')
        || path.starts_with("/memfd:")
        || path.starts_with("/dev/")
        || path.starts_with("/SYSV")
        || path.starts_with("anon_inode:")
}

/// Images of jitlisten, and those that `perf inject --jit` writes.
fn is_image_path(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let directory = parts.next().unwrap_or_default();
    name.starts_with("jitted-") && name.ends_with(".so")
        || name.starts_with("object-") && name.ends_with(".so") && directory.starts_with("image-")
        // As `jitlisten record` keeps them.
        || name.starts_with("image-") && name.ends_with(".so") && directory.ends_with(".images")
}

/// The symbols of one file, without a recording: for comparison with other tools.
pub struct FileSymbols(Elf);

impl FileSymbols {
    /// Opens an ELF file.
    ///
    /// # Errors
    /// A sentence, where it is none.
    pub fn open(path: &Path) -> Result<FileSymbols, String> {
        Elf::open(path).map(FileSymbols)
    }

    /// The lines at an address, the innermost inlined call first.
    pub fn frames(&mut self, address: u64) -> Vec<SourceFrame> {
        self.0.frames(address)
    }

    /// The symbols at an address.
    pub fn symbols(&self, address: u64) -> Vec<String> {
        self.0.all_names(address)
    }
}

impl std::fmt::Debug for FileSymbols {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("FileSymbols").finish_non_exhaustive()
    }
}

/// The code of one image, for a disassembler.
pub(crate) struct ImageCode(Elf);

impl ImageCode {
    pub(crate) fn open(roots: &Roots, file: &MappedFile) -> Option<ImageCode> {
        let roots = roots.of_file(file);
        let mut found = candidates(&roots, Path::new(&file.path)).filter_map(|path| Elf::open(&path).ok());
        found.find(|elf| is_recorded_one(elf, file)).map(ImageCode)
    }

    /// Whose instructions can be decoded.
    pub(crate) fn machine(&self) -> Option<Machine> {
        self.0.machine
    }

    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.0.address_of_offset(offset)
    }

    /// The name of the function at an address, for people, and where it is.
    pub(crate) fn function(&self, address: u64) -> Option<(String, std::ops::Range<u64>)> {
        self.0.function(address).map(|(name, range)| (super::names::readable(name), range))
    }

    pub(crate) fn section(&self, name: &str, most: u64) -> Vec<u8> {
        self.0.section(name, most)
    }

    pub(crate) fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        self.0.code(address, length)
    }

    /// Paths and lines of an instruction, the innermost inlined call first, without Numba's own files unless there are
    /// no others.
    pub(crate) fn places_of_user(&mut self, address: u64) -> Vec<(String, u32)> {
        let frames = self.0.frames(address).into_iter();
        let places = frames.filter_map(|frame| Some((frame.file?, frame.line.filter(|line| *line != 0)?)));
        let (library, users): (Vec<_>, Vec<_>) = places.partition(|(file, _)| file.contains("/numba/"));
        if users.is_empty() { library } else { users }
    }

    /// Path and line of an instruction.
    pub(crate) fn line(&mut self, address: u64) -> Option<(String, u32)> {
        let frame = self.0.frames(address).into_iter().next()?;
        Some((frame.file?, frame.line.unwrap_or_default()))
    }
}
