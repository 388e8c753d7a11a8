//! The perf map: `/tmp/perf-PID.map`, one line per function.
//!
//! ```text
//! 7f3a1c0e5000 1a4 __main__.inner(float64, int64)
//! START (hex)  SIZE (hex)  name: the rest of the line
//! ```
//!
//! Read by perf (`tools/perf/Documentation/jit-interface.txt` of the kernel), bcc, blazesym, samply and others, each with
//! its own rules. The format accepted by all of them: lower-case hex without `0x`, single spaces, printable UTF-8 names of
//! three or more characters, no empty line, live entries that do not overlap. See it with
//! `JITLISTEN=perfmap LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! The file may be shared: CPython's `-X perf` (3.12 and newer) appends to the same path. So it is opened with `O_APPEND`,
//! an object is one `write(2)`, and nothing of another writer's is ever cut off.
//!
//! There is no line that says "this code is gone". A reader that finds two functions at one address picks either; so when
//! an address is used again, the dead line is overwritten in place by one of the same length for zero bytes at address
//! zero. Samples taken in the dead function are then unnamed or, where the new function covers them, misnamed; the shim
//! therefore keeps addresses from being used again as long as it can.
//!
//! What is dead for long makes way for new lines: see `space`.

#![forbid(unsafe_code)]

mod space;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Seek as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use self::space::{Block, Space};
use super::{FinalizedObject, Forked, Sink, SinkContext, SinkError};
use crate::name;
use crate::options::NameStyle;
use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::{effective_user, overwrite, write_once};
use crate::{AddressRange, ObjectId};

/// A perf map that was there when the process (or its latest `exec`) began: nothing in it speaks of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleMap {
    inode: u64,
    size: u64,
}

impl StaleMap {
    /// Looks for one. Call it before anything in this process can have written a perf map.
    pub(crate) fn find() -> Option<StaleMap> {
        let metadata = std::fs::symlink_metadata(path_of_this_process()).ok()?;
        (metadata.is_file() && metadata.size() > 0).then(|| StaleMap { inode: metadata.ino(), size: metadata.size() })
    }

    /// Whether the file `metadata` is about still begins with it.
    pub(super) fn is_prefix_of(&self, metadata: &Metadata) -> bool {
        self.inode == metadata.ino() && self.size <= metadata.size()
    }

    /// Its length in bytes.
    pub(super) fn size(self) -> u64 {
        self.size
    }
}

/// perf looks for the process number of the innermost PID namespace, which is what `getpid(2)` returns.
pub(super) fn path_of_this_process() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()))
}

pub(crate) struct PerfMap {
    style: NameStyle,
    path: PathBuf,
    context: SinkContext,
    file: Option<MapFile>,
    /// Every line of ours in the file, by start address.
    lines: BTreeMap<u64, Line>,
    /// Where they stand.
    space: Space,
}

/// What a perf map sink that was switched off has left in the file.
#[derive(Debug, Default)]
pub(crate) struct LeftLines {
    file: Option<FileIdentity>,
    /// The file never becomes shorter: one that is, is another with the same number.
    size: u64,
    lines: BTreeMap<u64, Line>,
    space: Space,
}

struct MapFile {
    /// Opened with `O_APPEND`.
    append: CheckedFile,
    /// The same file without it: Linux appends even `pwrite(2)` on the other one.
    edit: CheckedFile,
}

/// The same, for one use.
struct OpenMap<'a> {
    append: &'a File,
    edit: &'a File,
}

#[derive(Debug)]
struct Line {
    end: u64,
    offset: u64,
    length: usize,
    alive: bool,
}

impl PerfMap {
    pub(super) fn new(style: NameStyle, context: &SinkContext) -> Self {
        PerfMap::at(path_of_this_process(), style, context.clone())
    }

    fn at(path: PathBuf, style: NameStyle, context: SinkContext) -> Self {
        PerfMap { style, path, context, file: None, lines: BTreeMap::new(), space: Space::default() }
    }

    fn failed(&self, verb: &'static str) -> impl FnOnce(io::Error) -> SinkError {
        let path = self.path.clone();
        move |error| SinkError::Io { verb, path, error }
    }

    fn open(&mut self) -> Result<(), SinkError> {
        if self.file.as_ref().is_some_and(|file| file.get().is_some()) {
            return Ok(());
        }
        // Opened again when the host has closed what it did not know.
        let opened_before = self.file.take().map(|file| file.append.identity());
        let append = create(&self.path).map_err(self.failed("open"))?;
        let edit = OpenOptions::new().write(true).custom_flags(SAFELY).open(&self.path);
        let edit = edit.map_err(self.failed("open"))?;
        let found = check_owner(&append, &edit).map_err(self.failed("stat"))?;
        if let Some(found) = found {
            return Err(SinkError::NotOurs { path: self.path.clone(), found });
        }
        let metadata = append.metadata().map_err(self.failed("stat"))?;
        if self.context.stale_map.take() == Some(StaleMap { inode: metadata.ino(), size: metadata.size() }) {
            // Nothing was added to it since this program began, so every line is about code of a dead process.
            edit.set_len(0).map_err(self.failed("truncate"))?;
        }
        let mut left = self.context.left_lines.lock().unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::take(&mut *left);
        if left.file == Some(FileIdentity::of(&metadata)) && left.size <= metadata.size() {
            // What became of that code since is unknown: what is alive will be written again.
            self.lines = left.lines;
            self.lines.values_mut().for_each(|line| line.alive = false);
            self.space = left.space;
            self.space.all_freed();
        } else if left.file.is_some() {
            // The file was removed.
            self.context.own_lines.forget();
        }
        let own = |file| CheckedFile::new(file).map_err(self.failed("stat"));
        let file = MapFile { append: own(append)?, edit: own(edit)? };
        if opened_before.is_some_and(|before| before != file.append.identity()) {
            // The file was removed meanwhile: what we knew of it holds no longer.
            self.lines.clear();
            self.space = Space::default();
            self.context.own_lines.forget();
        }
        self.file = Some(file);
        Ok(())
    }

    /// Overwrites dead lines whose code overlaps `range`.
    fn retire(&mut self, range: AddressRange) -> Result<(), SinkError> {
        let (start, end) = (range.start().0, range.end().0);
        let overlapping = self.lines.range(..end).rev().take_while(|(_, line)| line.end > start);
        let dead: Vec<u64> = overlapping.filter(|(_, line)| !line.alive).map(|(&at, _)| at).collect();
        for at in dead {
            if let (Some(line), Some(file)) = (self.lines.remove(&at), self.file.as_ref().and_then(MapFile::get)) {
                let text = tombstone(line.length);
                overwrite(file.edit, text.as_bytes(), line.offset).map_err(self.failed("write"))?;
            }
        }
        Ok(())
    }

    /// Writes `text`, which is `lines`, where dead lines have stood for long, or behind everything.
    fn write(&mut self, object: ObjectId, text: &str, lines: Vec<(u64, Line)>) -> Result<u64, SinkError> {
        while let Some(block) = self.space.surplus() {
            for start in &block.starts {
                if self.lines.get(start).is_some_and(|line| block.contains(line.offset)) {
                    self.lines.remove(start);
                }
            }
        }
        let starts = lines.iter().map(|line| line.0).collect();
        let length = text.len() as u64;
        let offset = match self.space.take_hole(length) {
            Some((offset, hole)) => {
                self.fill(offset, hole, text)?;
                offset
            }
            None => self.append(text)?,
        };
        self.lines.extend(lines.into_iter().map(|(at, line)| (at, Line { offset: offset + line.offset, ..line })));
        self.space.written(object, Block { offset, length, starts });
        Ok(length)
    }

    /// Writes `text` into a hole, and a line about no code behind it.
    fn fill(&mut self, offset: u64, hole: u64, text: &str) -> Result<(), SinkError> {
        let Some(file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(()) };
        let rest = (hole as usize).saturating_sub(text.len());
        let filled = if rest > 0 { text.to_owned() + &tombstone(rest) } else { text.to_owned() };
        overwrite(file.edit, filled.as_bytes(), offset).map_err(self.failed("write"))
    }

    /// Appends `text` in one `write(2)`, and returns where it stands.
    fn append(&mut self, text: &str) -> Result<u64, SinkError> {
        let Some(mut file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(0) };
        let written = write_once(file.append, text.as_bytes());
        // After an appending write the position of the descriptor is the end of what was written.
        let end = file.append.stream_position().unwrap_or(0);
        match written {
            Ok(written) if written == text.len() => {
                let start = end.saturating_sub(text.len() as u64);
                self.context.own_lines.add(start..end);
                Ok(start)
            }
            Ok(written) => {
                file.remove_torn_line(end, written as u64);
                Err(self.failed("write")(io::ErrorKind::StorageFull.into()))
            }
            Err(error) => Err(self.failed("write")(error)),
        }
    }
}

impl MapFile {
    fn get(&self) -> Option<OpenMap<'_>> {
        Some(OpenMap { append: self.append.get()?, edit: self.edit.get()? })
    }
}

/// Never follows a link, never waits for a reader of a pipe, never becomes a controlling terminal.
const SAFELY: i32 = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;

/// Opens the file to append to it. A new one has mode 0600, whatever the host's umask would have taken from that.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(SAFELY);
    match options.clone().create_new(true).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o600)).map(|()| file),
        // It is there, be it since a moment ago.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

impl OpenMap<'_> {
    /// A full disk may take part of a line. Cut it off again, unless another writer has appended to it.
    fn remove_torn_line(&self, end: u64, written: u64) {
        if self.edit.metadata().is_ok_and(|metadata| metadata.size() == end) {
            // Where this fails too, the torn line stays: it is the last of the file.
            let _ = self.edit.set_len(end.saturating_sub(written));
        }
    }
}

/// What is wrong with the file, if it is not a plain file of ours that has one name.
fn check_owner(append: &File, edit: &File) -> io::Result<Option<&'static str>> {
    let (one, other) = (append.metadata()?, edit.metadata()?);
    Ok(if !one.is_file() {
        Some("not a regular file")
    } else if one.uid() != effective_user() {
        Some("owned by another user")
    } else if one.nlink() != 1 {
        Some("a file with several names")
    } else if (one.dev(), one.ino()) != (other.dev(), other.ino()) {
        Some("a file that changes while it is opened")
    } else {
        None
    })
}

/// A line of `length` bytes, newline included, about no code at all.
fn tombstone(length: usize) -> String {
    let name_length = length.saturating_sub("0 0 \n".len());
    format!("0 0 {:-<name_length$}\n", "freed")
}

impl Sink for PerfMap {
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        self.open()?;
        let mut text = String::new();
        let mut lines = Vec::new();
        for (range, name) in object.functions(self.style) {
            self.retire(range)?;
            let offset = text.len();
            let name = name::printable(name);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:x} {:x} {name}", range.start().0, range.size());
            let length = text.len() - offset;
            lines.push((range.start().0, Line { end: range.end().0, offset: offset as u64, length, alive: true }));
        }
        if text.is_empty() {
            return Ok(0);
        }
        self.write(object.id, &text, lines)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        for function in object.object.functions() {
            if let Some(line) = self.lines.get_mut(&function.range.start().0) {
                line.alive = false;
            }
        }
        self.space.freed(object.id);
        Ok(())
    }

    fn ending(&mut self) -> Result<u64, SinkError> {
        if let Some(file) = self.file.take() {
            let left = LeftLines {
                file: Some(file.append.identity()),
                size: file.append.get().and_then(|file| file.metadata().ok()).map_or(u64::MAX, |now| now.size()),
                lines: std::mem::take(&mut self.lines),
                space: std::mem::take(&mut self.space),
            };
            *self.context.left_lines.lock().unwrap_or_else(PoisonError::into_inner) = left;
        }
        Ok(0)
    }

    fn forked(&mut self) -> Forked {
        let path = path_of_this_process();
        *self = PerfMap::at(path, self.style, self.context.in_child());
        Forked::KnowsNothing
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::LoadedObject;
    use crate::code_snapshot::CodeSnapshot;
    use crate::name::ReadableName;

    /// Three functions and their wrappers, as Numba 0.68 compiled them.
    const NUMBA: &[u8] = include_bytes!("../../testdata/numba-0.68-llvm22-plain.o");

    struct Reported {
        id: ObjectId,
        snapshot: CodeSnapshot,
        object: LoadedObject,
        names: Vec<ReadableName>,
        padding: crate::sink::HeaderPadding,
    }

    impl Reported {
        fn new() -> Reported {
            Reported::moved(0)
        }

        /// Another one, in other pages: its sections' `sh_addr` makes the difference.
        fn moved(pages: u64) -> Reported {
            let mut bytes = NUMBA.to_vec();
            let start = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
            let count = u16::from_le_bytes(bytes[60..62].try_into().unwrap()) as usize;
            for section in 0..count {
                let field = start + section * 64 + 16;
                let address = u64::from_le_bytes(bytes[field..field + 8].try_into().unwrap());
                if address != 0 {
                    bytes[field..field + 8].copy_from_slice(&(address + pages * 0x1000).to_le_bytes());
                }
            }
            let object = LoadedObject::parse(&bytes).unwrap();
            let functions = object.functions().iter();
            let names = functions.map(|function| name::readable(&function.linkage_name, None)).collect();
            let id = ObjectId(pages);
            Reported { id, snapshot: CodeSnapshot::of(&object), object, names, padding: Default::default() }
        }

        fn finalized(&self) -> FinalizedObject<'_> {
            FinalizedObject {
                id: self.id,
                object: &self.object,
                names: &self.names,
                made_rules: &[],
                debug_object: None,
                snapshot: &self.snapshot,
                since: 0,
                next_code: &|_| None,
                origin: crate::session::Origin::Caller,
                neighbours: &|_| Default::default(),
                padding: &self.padding,
            }
        }

        fn lines(&self) -> usize {
            self.object.functions().len()
        }
    }

    /// A directory of its own for one test, removed with everything in it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("jitlisten-{}-{test}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn map(&self) -> PathBuf {
            self.0.join("perf-1.map")
        }

        fn text(&self) -> String {
            fs::read_to_string(self.map()).unwrap()
        }

        fn sink(&self, stale: Option<StaleMap>) -> PerfMap {
            PerfMap::at(self.map(), NameStyle::Readable, SinkContext { stale_map: stale, ..SinkContext::default() })
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_line_is_start_size_name() {
        let (scratch, reported) = (Scratch::new("line"), Reported::new());
        let bytes = scratch.sink(None).finalized(&reported.finalized()).unwrap();
        let text = scratch.text();
        assert_eq!((text.len() as u64, text.lines().count()), (bytes, reported.lines()));
        for (line, function) in text.lines().zip(reported.object.functions()) {
            let [start, size, name] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert_eq!(start, format!("{:x}", function.range.start().0));
            assert_eq!(size, format!("{:x}", function.range.size()));
            assert!(name.len() >= 3, "{line}");
        }
    }

    #[test]
    fn what_another_writer_appends_is_kept() {
        let (scratch, reported) = (Scratch::new("shared"), Reported::new());
        fs::write(scratch.map(), "1000 10 py::before\n").unwrap();
        let mut sink = scratch.sink(None);
        sink.finalized(&reported.finalized()).unwrap();
        let mut other = OpenOptions::new().append(true).open(scratch.map()).unwrap();
        io::Write::write_all(&mut other, b"2000 10 py::after\n").unwrap();
        sink.freeing(&reported.finalized()).unwrap();
        sink.finalized(&reported.finalized()).unwrap();
        let text = scratch.text();
        assert!(text.starts_with("1000 10 py::before\n") && text.contains("\n2000 10 py::after\n"), "{text}");
        assert_eq!(text.lines().count(), 2 + 2 * reported.lines());
    }

    #[test]
    fn a_dead_line_makes_way_for_a_new_one_at_its_address() {
        let (scratch, reported) = (Scratch::new("reuse"), Reported::new());
        let mut sink = scratch.sink(None);
        sink.finalized(&reported.finalized()).unwrap();
        let once = scratch.text();
        sink.freeing(&reported.finalized()).unwrap();
        assert_eq!(scratch.text(), once, "freed code keeps its name until its address is used again");
        sink.finalized(&reported.finalized()).unwrap();
        let text = scratch.text();
        let (dead, alive) = text.split_at(once.len());
        assert_eq!(alive, once);
        assert!(dead.lines().all(|line| line.starts_with("0 0 freed")), "{dead}");
        assert_eq!(dead.lines().count(), reported.lines());
    }

    #[test]
    fn a_map_of_code_that_comes_and_goes_does_not_grow_for_ever() {
        let scratch = Scratch::new("forever");
        let stays = Reported::moved(1_000_000);
        let mut sink = scratch.sink(None);
        sink.finalized(&stays.finalized()).unwrap();
        let once = scratch.text();
        let mut other = OpenOptions::new().append(true).open(scratch.map()).unwrap();
        let foreign = "1000 10 py::between\n";
        io::Write::write_all(&mut other, foreign.as_bytes()).unwrap();
        sink.space = Space::keeping(5 * once.len() as u64);
        for turn in 1..1000 {
            let passing = Reported::moved(16 * turn);
            sink.finalized(&passing.finalized()).unwrap();
            let text = scratch.text();
            for function in passing.object.functions() {
                let line = format!("\n{:x} {:x} ", function.range.start().0, function.range.size());
                assert!(text.contains(&line), "turn {turn} is not reported");
            }
            sink.freeing(&passing.finalized()).unwrap();
        }
        let text = scratch.text();
        assert!(text.starts_with(&once) && text.contains(foreign), "what lives stays, and what is not ours");
        assert!(text.len() <= 10 * once.len(), "{} bytes, {} for one object", text.len(), once.len());
        assert!(text.lines().all(|line| line.splitn(3, ' ').count() == 3), "{text}");
        assert_eq!(sink.lines.len(), 7 * stays.lines(), "nothing is remembered of what is not in the file");
    }

    #[test]
    fn switched_off_and_on_again_each_function_has_one_line() {
        let (scratch, reported) = (Scratch::new("again"), Reported::new());
        let context = SinkContext::default();
        for _ in 0..3 {
            let mut sink = PerfMap::at(scratch.map(), NameStyle::Readable, context.clone());
            sink.finalized(&reported.finalized()).unwrap();
            sink.ending().unwrap();
        }
        let text = scratch.text();
        let (dead, alive): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("0 0 freed"));
        assert_eq!((dead.len(), alive.len()), (2 * reported.lines(), reported.lines()), "{text}");
    }

    /// A new file mostly has the number of the one that was removed.
    #[test]
    fn a_map_that_was_removed_while_the_sink_was_off_begins_anew() {
        let (scratch, reported) = (Scratch::new("removed"), Reported::new());
        let context = SinkContext::default();
        for _ in 0..3 {
            let mut sink = PerfMap::at(scratch.map(), NameStyle::Readable, context.clone());
            let bytes = sink.finalized(&reported.finalized()).unwrap();
            sink.ending().unwrap();
            let text = scratch.text();
            assert_eq!((text.len() as u64, text.lines().count()), (bytes, reported.lines()), "{text:?}");
            assert!(context.own_lines.contains(bytes - 1) && !context.own_lines.contains(bytes));
            fs::remove_file(scratch.map()).unwrap();
        }
    }

    #[test]
    fn a_map_of_a_dead_process_is_emptied_unless_it_was_added_to() {
        let (scratch, reported) = (Scratch::new("stale"), Reported::new());
        let found = || {
            let metadata = fs::metadata(scratch.map()).unwrap();
            Some(StaleMap { inode: metadata.ino(), size: metadata.size() })
        };
        fs::write(scratch.map(), "1000 10 dead\n").unwrap();
        scratch.sink(found()).finalized(&reported.finalized()).unwrap();
        assert!(!scratch.text().contains("dead"));
        fs::write(scratch.map(), "1000 10 dead\n").unwrap();
        let stale = found();
        fs::write(scratch.map(), "1000 10 dead\n2000 10 py::alive\n").unwrap();
        scratch.sink(stale).finalized(&reported.finalized()).unwrap();
        assert!(scratch.text().contains("py::alive"));
    }

    #[test]
    fn bait_is_refused() {
        let (scratch, reported) = (Scratch::new("bait"), Reported::new());
        let victim = scratch.0.join("victim");
        fs::write(&victim, "precious").unwrap();
        let plants: [fn(&PathBuf, &PathBuf) -> io::Result<()>; 2] =
            [|from, to| std::os::unix::fs::symlink(from, to), |from, to| fs::hard_link(from, to)];
        for plant in plants {
            plant(&victim, &scratch.map()).unwrap();
            assert!(scratch.sink(None).finalized(&reported.finalized()).is_err());
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
            fs::remove_file(scratch.map()).unwrap();
        }
        fs::create_dir(scratch.map()).unwrap();
        assert!(scratch.sink(None).finalized(&reported.finalized()).is_err());
    }
}
