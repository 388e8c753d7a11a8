//! The writer's side: definitions of handlers become functions of images, and words of frames become addresses in them.
//!
//! Images lie at addresses that no process has: behind the end of user space of x86_64 with four levels of tables and
//! of AArch64, and below what a program that reads them with JavaScript can count to. An image is written anew when
//! functions come to it, until it is full; a code object that says the same as one before it is the same function,
//! wherever it lies.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jitlisten_files::OwnDirectory;

use super::definitions::{self, Definition};
use super::frames::{UNNAMED, Word};
use super::image::{self, Function, LINE, TEXT};
use super::{known, lines, text};
use crate::perf_data::Mapping;

/// Where the first image lies.
const BASE: u64 = 1 << 52;
/// Between two images.
const STRIDE: u64 = 1 << 28;
/// Functions of one image; all of it is written again for each that comes.
const MOST_FUNCTIONS: usize = 256;
/// Numbers that are remembered before those are forgotten that no handler can use.
const MOST_NUMBERS: usize = 1 << 16;
/// Functions that are known again by what they say.
const MOST_KNOWN: usize = 1 << 17;

/// Whether an address is a frame of the interpreter's.
pub(super) fn is_in_image(address: u64) -> bool {
    address >= BASE
}

/// Where a code object's function is.
#[derive(Debug)]
struct Placed {
    start: u64,
    /// From which instruction on, which of its lines.
    runs: Vec<(u64, u32)>,
}

impl Placed {
    fn address(&self, instruction: u64) -> u64 {
        let after = self.runs.partition_point(|(from, _)| *from <= instruction);
        let line = after.checked_sub(1).and_then(|at| self.runs.get(at)).map_or(0, |(_, line)| u64::from(*line));
        // In the middle: a reader may go back from it by one.
        self.start + line * LINE + LINE / 2
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Functions {
    minor: u8,
    directory: PathBuf,
    /// The name of this process's files, without their numbers.
    stem: String,
    working_directory: PathBuf,
    numbers: BTreeMap<u64, Arc<Placed>>,
    known: BTreeMap<u64, Arc<Placed>>,
    functions: Vec<Function>,
    image: u64,
    is_written: bool,
    /// When the first function came that no mapping is of yet.
    since: u64,
    mapped: u64,
}

impl Functions {
    pub(crate) fn new(minor: u8, directory: &Path) -> Functions {
        let mut functions = Functions {
            minor,
            directory: directory.to_owned(),
            stem: format!("python-{}-{:x}", std::process::id(), crate::clock::monotonic()),
            working_directory: std::env::current_dir().unwrap_or_default(),
            numbers: BTreeMap::new(),
            known: BTreeMap::new(),
            functions: Vec::new(),
            image: 0,
            is_written: true,
            since: 0,
            mapped: 0,
        };
        functions.put(&Definition { number: UNNAMED, name: (1, b"[unnamed]".to_vec()), ..Definition::default() });
        functions
    }

    /// Takes what handlers have defined. What is to be mapped is handed to `mapping`, with since when.
    pub(crate) fn take(&mut self, mut mapping: impl FnMut(u64, Mapping)) {
        definitions::take(|definition| {
            if self.functions.len() >= MOST_FUNCTIONS {
                self.map(&mut mapping);
                self.write_and_begin();
            }
            self.put(&definition);
        });
        self.map(&mut mapping);
        if self.numbers.len() > MOST_NUMBERS {
            self.forget();
        }
    }

    fn map(&mut self, mapping: &mut impl FnMut(u64, Mapping)) {
        let end = self.size();
        if end <= self.mapped {
            return;
        }
        let start = BASE + self.image * STRIDE;
        let path = self.directory.join(self.file_name()).into_os_string().into_encoded_bytes();
        let (start, offset) = (start + self.mapped, TEXT + self.mapped);
        let end = BASE + self.image * STRIDE + end;
        mapping(self.since, Mapping { start, end, offset, device: (0, 0), inode: 0, build_id: None, path });
        self.mapped = self.size();
        self.since = 0;
    }

    fn size(&self) -> u64 {
        self.functions.last().map_or(0, |last| last.start + last.size())
    }

    fn file_name(&self) -> String {
        format!("{}-{}.so", self.stem, self.image)
    }

    fn write_and_begin(&mut self) {
        // Of a full disk the recording itself says so.
        let _ = self.write();
        self.functions.clear();
        self.image += 1;
        self.mapped = 0;
    }

    /// Writes what is not in the file yet, if a mapping of it is known. To be done before a sample is that needs it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        if self.is_written || self.mapped == 0 {
            return Ok(());
        }
        self.is_written = true;
        let Some(bytes) = self.encoded() else { return Err(io::Error::other("an image is refused")) };
        OwnDirectory::create(&self.directory)?.write(self.file_name(), &bytes)
    }

    /// The newest image's bytes.
    pub(super) fn encoded(&self) -> Option<Vec<u8>> {
        image::encode(&self.functions)
    }

    fn put(&mut self, definition: &Definition) {
        let key = key(definition);
        let placed = match self.known.get(&key) {
            Some(placed) => Arc::clone(placed),
            None => {
                let placed = Arc::new(self.place(definition));
                if self.known.len() >= MOST_KNOWN {
                    self.known.clear();
                }
                self.known.insert(key, Arc::clone(&placed));
                placed
            }
        };
        self.numbers.insert(definition.number, placed);
    }

    fn place(&mut self, definition: &Definition) -> Placed {
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
        if self.since == 0 {
            self.since = definition.time;
        }
        Placed { start: BASE + self.image * STRIDE + start, runs }
    }

    /// A script's name may be as it was given, before 3.9.
    fn absolute(&self, file: String) -> String {
        let path = self.working_directory.join(&file);
        if file.starts_with(['/', '<']) || !path.is_file() { file } else { path.to_string_lossy().into_owned() }
    }

    /// Numbers that no handler uses any more. The newest may be in a ring still.
    fn forget(&mut self) {
        let used = known::numbers();
        let newest = self.numbers.keys().rev().nth(MOST_NUMBERS / 4).copied().unwrap_or(0);
        self.numbers.retain(|number, _| *number == UNNAMED || *number >= newest || used.contains(number));
    }

    /// The address of a frame; `None` while its code object is not defined.
    pub(crate) fn address(&self, word: u64) -> Option<u64> {
        let word = Word::decode(word)?;
        self.numbers.get(&word.number).map(|placed| placed.address(word.instruction))
    }

    /// That of one that never was.
    pub(crate) fn unnamed(&self) -> u64 {
        self.numbers.get(&UNNAMED).map_or(BASE, |placed| placed.address(0))
    }
}

fn key(definition: &Definition) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&definition.name, &definition.file, definition.first_line, &definition.lines).hash(&mut hasher);
    hasher.finish()
}
