//! The writer's side of Python frames: turns definitions into functions in images, and frame words into addresses in
//! those images.
//!
//! Images lie at addresses where no process has memory: above the user space of x86_64 with four-level paging and of
//! AArch64, and below the largest integer that JavaScript represents exactly. An image is rewritten as functions are
//! added, until it is full. Code objects with the same contents are one function, whatever their addresses.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jitlisten_files::OwnDirectory;
use wire::recording::PythonImage;

use super::code_numbers::{self, UNNAMED_CODE};
use super::definitions::{self, Definition};
use super::frames::FrameWord;
use super::image::{self, Function, LINE_BYTES, TEXT_OFFSET};
use super::{lines, text};
use crate::system::clock;
use crate::writer::perf_data::Mapping;

/// Address of the first image.
const IMAGE_BASE: u64 = 1 << 52;
/// Distance between two images.
const IMAGE_STRIDE: u64 = 1 << 28;
/// Time between two times at which an image is written, because it is written as a whole. Names of functions that are
/// new since then are lost if the process is killed.
const WRITE_PERIOD_NS: u64 = 250_000_000;
/// Maximum number of functions per image, because each added function rewrites the whole image.
const MAX_FUNCTIONS_PER_IMAGE: usize = 256;
/// Number of code object numbers above which unused ones are forgotten.
const MAX_NUMBERS: usize = 1 << 16;
/// Maximum number of functions that are compared by their contents.
const MAX_KNOWN_FUNCTIONS: usize = 1 << 17;

/// True if the address lies in an image, i.e., stands for a Python frame.
pub(super) fn is_in_image(address: u64) -> bool {
    address >= IMAGE_BASE
}

/// The location of a code object's function in an image.
#[derive(Debug)]
struct PlacedFunction {
    start: u64,
    /// Pairs of first instruction and line index in the function, sorted.
    runs: Vec<(u64, u32)>,
}

impl PlacedFunction {
    fn address(&self, instruction: u64) -> u64 {
        let index = self.runs.partition_point(|(from, _)| *from <= instruction);
        let line =
            index.checked_sub(1).and_then(|run_index| self.runs.get(run_index)).map_or(0, |(_, line)| u64::from(*line));
        // Use the middle of the line's bytes, because a reader may subtract one from a return address.
        self.start + line * LINE_BYTES + LINE_BYTES / 2
    }
}

/// The Python functions of a recording, and their images.
#[derive(Debug)]
pub(crate) struct Functions {
    minor: u8,
    directory: PathBuf,
    /// Directory that relative script paths are based on.
    working_directory: PathBuf,
    /// Functions by code object number.
    numbers: BTreeMap<u64, Arc<PlacedFunction>>,
    by_contents: BTreeMap<u64, Arc<PlacedFunction>>,
    /// Functions of the current image.
    functions: Vec<Function>,
    image: PythonImage,
    is_written: bool,
    /// Earliest time to write the image again, by [`clock::monotonic`].
    next_write: u64,
    /// Definition time of the first function that is not covered by a mapping; 0 if none.
    unmapped_since: u64,
    /// Size of the part of the image that mappings cover.
    mapped: u64,
}

impl Functions {
    pub(crate) fn new(minor: u8, directory: &Path) -> Functions {
        let mut functions = Functions {
            minor,
            directory: directory.to_owned(),
            working_directory: std::env::current_dir().unwrap_or_default(),
            numbers: BTreeMap::new(),
            by_contents: BTreeMap::new(),
            functions: Vec::new(),
            image: PythonImage { pid: std::process::id(), time: clock::monotonic(), number: 0 },
            is_written: true,
            next_write: 0,
            unmapped_since: 0,
            mapped: 0,
        };
        functions.add_definition(&Definition {
            number: UNNAMED_CODE,
            name: (1, b"[unnamed]".to_vec()),
            ..Definition::default()
        });
        functions
    }

    /// Reads the definitions that handlers have written. Passes each new mapping and its start time to `mapping`.
    pub(crate) fn take_definitions(&mut self, mut mapping: impl FnMut(u64, Mapping)) {
        definitions::drain(|definition| {
            if self.functions.len() >= MAX_FUNCTIONS_PER_IMAGE {
                self.emit_mapping(&mut mapping);
                self.start_next_image();
            }
            self.add_definition(&definition);
        });
        self.emit_mapping(&mut mapping);
        if self.numbers.len() > MAX_NUMBERS {
            self.forget_unused_numbers();
        }
    }

    /// Emits a mapping for the part of the image that is not mapped yet.
    fn emit_mapping(&mut self, mapping: &mut impl FnMut(u64, Mapping)) {
        let end = self.size();
        if end <= self.mapped {
            return;
        }
        let base = self.image_base();
        let path = self.directory.join(self.image.to_string()).into_os_string().into_encoded_bytes();
        let (start, end, offset) = (base + self.mapped, base + end, TEXT_OFFSET + self.mapped);
        mapping(self.unmapped_since, Mapping { start, end, offset, device: (0, 0), inode: 0, build_id: None, path });
        self.mapped = self.size();
        self.unmapped_since = 0;
    }

    fn size(&self) -> u64 {
        self.functions.last().map_or(0, |last| last.start + last.size())
    }

    /// Address of the current image.
    fn image_base(&self) -> u64 {
        IMAGE_BASE + self.image.number * IMAGE_STRIDE
    }

    fn start_next_image(&mut self) {
        // Ignore the error, because on a full disk writing the recording fails as well and reports it.
        let _ = self.write(true);
        self.functions.clear();
        self.image.number += 1;
        self.mapped = 0;
    }

    /// Writes the image if it has new, mapped functions, and if that is due or `now`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&mut self, now: bool) -> io::Result<()> {
        let time = clock::monotonic();
        if self.is_written || self.mapped == 0 || !(now || time >= self.next_write) {
            return Ok(());
        }
        self.is_written = true;
        self.next_write = time + WRITE_PERIOD_NS;
        let Some(bytes) = self.encode_image() else { return Err(io::Error::other("an image is refused")) };
        OwnDirectory::create(&self.directory)?.write(self.image.to_string(), &bytes)
    }

    pub(super) fn encode_image(&self) -> Option<Vec<u8>> {
        image::encode(&self.functions)
    }

    fn add_definition(&mut self, definition: &Definition) {
        let key = definition_key(definition);
        let placed = match self.by_contents.get(&key) {
            Some(placed) => Arc::clone(placed),
            None => {
                let placed = Arc::new(self.place_function(definition));
                if self.by_contents.len() >= MAX_KNOWN_FUNCTIONS {
                    self.by_contents.clear();
                }
                self.by_contents.insert(key, Arc::clone(&placed));
                placed
            }
        };
        self.numbers.insert(definition.number, placed);
    }

    fn place_function(&mut self, definition: &Definition) -> PlacedFunction {
        let runs = lines::runs(self.minor, definition.first_line, &definition.lines);
        let mut lines: Vec<u32> = runs.iter().map(|(_, line)| *line).collect();
        lines.sort_unstable();
        lines.dedup();
        let runs = runs.iter().map(|(from, line)| (*from, lines.binary_search(line).unwrap_or(0) as u32)).collect();
        let start = self.size();
        let name = text::decode(definition.name.0, &definition.name.1);
        let file = self.absolute(text::decode(definition.file.0, &definition.file.1));
        self.functions.push(Function { name, file, start, lines });
        self.is_written = false;
        if self.unmapped_since == 0 {
            self.unmapped_since = definition.time;
        }
        PlacedFunction { start: self.image_base() + start, runs }
    }

    /// Makes a script's path absolute. Before CPython 3.9, the path may be as given on the command line.
    fn absolute(&self, file: String) -> String {
        let path = self.working_directory.join(&file);
        if file.starts_with(['/', '<']) || !path.is_file() { file } else { path.to_string_lossy().into_owned() }
    }

    /// Forgets numbers that handlers no longer use. Keeps the newest numbers, which may still be in a ring.
    fn forget_unused_numbers(&mut self) {
        let used_numbers = code_numbers::used_numbers();
        let oldest_kept = self.numbers.keys().rev().nth(MAX_NUMBERS / 4).copied().unwrap_or(0);
        self.numbers
            .retain(|number, _| *number == UNNAMED_CODE || *number >= oldest_kept || used_numbers.contains(number));
    }

    /// Returns the address of a frame; `None` until its code object is defined.
    pub(crate) fn address(&self, word: u64) -> Option<u64> {
        let word = FrameWord::decode(word)?;
        self.numbers.get(&word.number).map(|placed| placed.address(word.instruction))
    }

    /// Returns the address that stands for all code objects without a definition.
    pub(crate) fn unnamed_address(&self) -> u64 {
        self.numbers.get(&UNNAMED_CODE).map_or(IMAGE_BASE, |placed| placed.address(0))
    }
}

fn definition_key(definition: &Definition) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&definition.name, &definition.file, definition.first_line, &definition.lines).hash(&mut hasher);
    hasher.finish()
}
