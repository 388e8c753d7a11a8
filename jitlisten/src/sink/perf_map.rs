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
//! an object is one `write(2)`, and nothing of another writer's is ever cut off: see `file`. What dead processes have left is
//! removed by a rule: see `left`.
//!
//! The child of a fork has no map before it finalizes an object of its own; then everything it has inherited is written with
//! it. Until then, perf names its samples by the map of its parent, if it has seen the fork: it copies the mappings of the
//! parent with the file they belong to. A perf that is attached to such a child later finds no names; that child has to call
//! `jitlisten_enable("perfmap")`, or use images, which are inherited with the mappings.
//!
//! There is no line that says "this code is gone". A reader that finds two functions at one address picks either; so when
//! an address is used again, the dead line is overwritten in place by one of the same length for zero bytes at address
//! zero. Samples taken in the dead function are then unnamed or, where the new function covers them, misnamed; the shim
//! therefore keeps addresses from being used again as long as it can.
//!
//! What is dead for long makes way for new lines: see `space`.

#![forbid(unsafe_code)]

mod file;
mod left;
mod space;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use self::file::MapFile;
use self::space::{Block, Hole, Space};
use super::{FinalizedObject, Forked, Sink, SinkContext, SinkError};
use crate::options::NameStyle;
use crate::process::checked_file::FileIdentity;
use crate::{AddressRange, ObjectId, log_line, name};

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
        (metadata.is_file() && metadata.size() > 0).then(|| StaleMap::of(&metadata))
    }

    fn of(metadata: &Metadata) -> StaleMap {
        StaleMap { inode: metadata.ino(), size: metadata.size() }
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
    /// What is written together, while there is much.
    many: Option<Many>,
    /// Lines and space are those of the parent. To give their memory back would take a fork long.
    of_parent: bool,
}

/// Lines of many objects that are not written yet.
#[derive(Default)]
struct Many {
    text: String,
    blocks: Vec<Unwritten>,
    written: u64,
}

/// The lines of one of them, with offsets in their text.
struct Unwritten {
    object: ObjectId,
    length: u64,
    lines: Vec<(u64, Line)>,
}

/// This much is written at once.
const LARGEST_WRITE: usize = 1 << 20;

/// What a perf map sink that was switched off has left in the file.
#[derive(Debug, Default)]
pub(crate) struct LeftLines {
    file: Option<FileIdentity>,
    /// The file never becomes shorter: one that is, is another with the same number.
    size: u64,
    lines: BTreeMap<u64, Line>,
    space: Space,
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
        let (lines, space) = (BTreeMap::new(), Space::default());
        PerfMap { style, path, context, file: None, lines, space, many: None, of_parent: false }
    }

    fn failed(&self, verb: &'static str) -> impl FnOnce(io::Error) -> SinkError {
        let path = self.path.clone();
        move |error| SinkError::Io { verb, path, error }
    }

    fn open(&mut self) -> Result<(), SinkError> {
        if self.file.as_ref().is_some_and(|file| file.get().is_some()) {
            return Ok(());
        }
        let inherited = std::mem::take(&mut self.of_parent);
        if inherited {
            self.forget();
        }
        // Opened again when the host has closed what it did not know.
        let opened_before = self.file.take().map(|file| file.identity());
        let opened = MapFile::open(&self.path, self.context.stale_map.take())?;
        if opened.is_shared && !self.context.map_is_shared.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            log_line!(
                Warn,
                "{path} is also the map of another process, in a PID namespace that shares /tmp: it has both"
            );
        }
        // A child of a fork leaves that to its parent, which has done it.
        if opened_before.is_none()
            && !inherited
            && let Some(directory) = self.path.parent()
        {
            left::remove_old(directory, &self.path);
        }
        let left = std::mem::take(&mut *self.context.left_lines.lock().unwrap_or_else(PoisonError::into_inner));
        if left.file == Some(opened.file.identity()) && left.size <= opened.size {
            // What became of that code since is unknown: what is alive will be written again.
            self.lines = left.lines;
            self.lines.values_mut().for_each(|line| line.alive = false);
            self.space = left.space;
            self.space.all_freed();
        } else if left.file.is_some() {
            // The file was removed.
            self.context.own_lines.forget();
        }
        if opened_before.is_some_and(|before| before != opened.file.identity()) {
            // The file was removed meanwhile: what we knew of it holds no longer.
            self.forget();
            self.context.own_lines.forget();
        }
        self.file = Some(opened.file);
        if opened.size == 0 {
            self.append(&left::first_line())?;
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.lines = BTreeMap::new();
        self.space = Space::default();
    }

    /// Overwrites dead lines whose code overlaps `range`.
    fn retire(&mut self, range: AddressRange) -> Result<(), SinkError> {
        let (start, end) = (range.start().0, range.end().0);
        let overlapping = self.lines.range(..end).rev().take_while(|(_, line)| line.end > start);
        let dead: Vec<u64> = overlapping.filter(|(_, line)| !line.alive).map(|(&at, _)| at).collect();
        for at in dead {
            if let (Some(line), Some(file)) = (self.lines.remove(&at), self.file.as_ref().and_then(MapFile::get)) {
                let text = tombstone(line.length);
                let beginning = line.beginning(at);
                let is_ours = |there: &[u8]| there.starts_with(beginning.as_bytes());
                file.replace(line.offset, &text, is_ours).map_err(self.failed("write"))?;
            }
        }
        Ok(())
    }

    /// Writes `text`, which is `lines`, where dead lines have stood for long, or behind everything.
    fn write(&mut self, object: ObjectId, text: &str, lines: Vec<(u64, Line)>) -> Result<u64, SinkError> {
        self.space.make_holes();
        let length = text.len() as u64;
        let offset = match self.space.take_hole(length) {
            Some((offset, hole)) if self.fill(offset, &hole, text)? => offset,
            _ => self.append(text)?,
        };
        self.remember(object, offset, length, lines);
        Ok(length)
    }

    /// `lines`, with offsets in their block, are in the file now.
    fn remember(&mut self, object: ObjectId, offset: u64, length: u64, lines: Vec<(u64, Line)>) {
        let starts = lines.iter().map(|line| line.0).collect();
        self.lines.extend(lines.into_iter().map(|(at, line)| (at, Line { offset: offset + line.offset, ..line })));
        self.space.written(object, Block { offset, length, starts });
    }

    /// Writes `text` into a hole, and a line about no code behind it. Not if the file is not as we left it.
    fn fill(&mut self, offset: u64, hole: &Hole, text: &str) -> Result<bool, SinkError> {
        let Some(file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(true) };
        let known = |start: &u64| Some((*start, self.lines.get(start)?));
        let first = hole.starts.iter().filter_map(known).find(|(_, line)| line.offset == offset);
        let beginning = first.map_or_else(|| FREED.to_owned(), |(start, line)| line.beginning(start));
        let rest = (hole.length as usize).saturating_sub(text.len());
        let filled = if rest > 0 { text.to_owned() + &tombstone(rest) } else { text.to_owned() };
        let is_ours = |there: &[u8]| there.starts_with(beginning.as_bytes());
        if !file.replace(offset, &filled, is_ours).map_err(self.failed("write"))? {
            // Nothing more is written over it. The lines stay known: each is looked at before it is overwritten.
            self.space = Space::default();
            return Ok(false);
        }
        let bytes = offset..offset + hole.length;
        for start in &hole.starts {
            if self.lines.get(start).is_some_and(|line| bytes.contains(&line.offset)) {
                self.lines.remove(start);
            }
        }
        Ok(true)
    }

    /// Appends `text` in one `write(2)`, and returns where it stands.
    fn append(&mut self, text: &str) -> Result<u64, SinkError> {
        let Some(mut file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(0) };
        let start = file.append(text).map_err(self.failed("write"))?;
        self.context.own_lines.add(start..start + text.len() as u64);
        Ok(start)
    }

    /// Writes what has come together.
    fn write_many(&mut self) -> Result<(), SinkError> {
        let Some(many) = &mut self.many else { return Ok(()) };
        let (text, blocks) = (std::mem::take(&mut many.text), std::mem::take(&mut many.blocks));
        many.written += text.len() as u64;
        if text.is_empty() {
            return Ok(());
        }
        let mut offset = self.append(&text)?;
        for Unwritten { object, length, lines } in blocks {
            self.remember(object, offset, length, lines);
            offset += length;
        }
        Ok(())
    }
}

impl Line {
    /// What it begins with, at the address `start`.
    fn beginning(&self, start: u64) -> String {
        format!("{start:x} {:x} ", self.end - start)
    }
}

/// What every line about no code begins with.
const FREED: &str = "0 0 freed";

/// A line of `length` bytes, newline included, about no code at all.
fn tombstone(length: usize) -> String {
    let padded = length.saturating_sub(1);
    format!("{FREED:-<padded$}\n")
}

impl Sink for PerfMap {
    fn many_begin(&mut self) {
        self.many = Some(Many::default());
    }

    fn many_end(&mut self) -> Result<u64, SinkError> {
        self.write_many()?;
        Ok(self.many.take().map_or(0, |many| many.written))
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        if self.many.as_ref().is_none_or(|many| many.blocks.is_empty()) {
            self.open()?;
        }
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
        if let Some(many) = &mut self.many {
            many.text += &text;
            many.blocks.push(Unwritten { object: object.id, length: text.len() as u64, lines });
            let enough = many.text.len() >= LARGEST_WRITE;
            return if enough { self.write_many().map(|()| 0) } else { Ok(0) };
        }
        self.write(object.id, &text, lines)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        if self.of_parent {
            return Ok(());
        }
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
                file: Some(file.identity()),
                size: file.size().unwrap_or(u64::MAX),
                lines: std::mem::take(&mut self.lines),
                space: std::mem::take(&mut self.space),
            };
            *self.context.left_lines.lock().unwrap_or_else(PoisonError::into_inner) = left;
        }
        Ok(0)
    }

    fn forked(&mut self) -> Forked {
        self.path = path_of_this_process();
        self.context = self.context.in_child();
        // With it, our part of the parent's lock.
        self.file = None;
        self.many = None;
        self.of_parent = true;
        Forked::KnowsNothing
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

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
            Reported {
                id,
                snapshot: CodeSnapshot::of(std::process::id(), &object),
                object,
                names,
                padding: Default::default(),
            }
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
            let text = fs::read_to_string(self.map()).unwrap();
            without_first_line(&text).to_owned()
        }

        fn sink(&self, stale: Option<StaleMap>) -> PerfMap {
            PerfMap::at(self.map(), NameStyle::Readable, SinkContext { stale_map: stale, ..SinkContext::default() })
        }
    }

    fn without_first_line(text: &str) -> &str {
        text.split_once('\n').filter(|(first, _)| first.starts_with("0 0 jitlisten ")).map_or(text, |(_, rest)| rest)
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

    /// A reader that finds two functions at one address picks either.
    #[test]
    fn a_dead_line_makes_way_even_where_its_bytes_wait_for_a_new_object() {
        let scratch = Scratch::new("hole");
        let mut sink = scratch.sink(None);
        sink.space = Space::keeping(0);
        let [first, between, second] = [16, 32, 48].map(Reported::moved);
        for reported in [&first, &between, &second] {
            sink.finalized(&reported.finalized()).unwrap();
        }
        sink.freeing(&first.finalized()).unwrap();
        sink.freeing(&second.finalized()).unwrap();
        // Its lines fit into none of the two holes; then those of `second` go into the one that `first` has left.
        sink.finalized(&Reported::moved(1 << 36).finalized()).unwrap();
        sink.finalized(&second.finalized()).unwrap();
        let text = scratch.text();
        for function in second.object.functions() {
            let line = format!("{:x} ", function.range.start().0);
            assert_eq!(text.lines().filter(|there| there.starts_with(&line)).count(), 1, "{text}");
        }
        assert_eq!(sink.lines.len(), 3 * second.lines(), "nothing is remembered of what is not in the file");
    }

    #[test]
    fn a_file_that_is_not_as_it_was_left_is_written_at_its_end() {
        let scratch = Scratch::new("rewritten");
        let mut sink = scratch.sink(None);
        sink.space = Space::keeping(0);
        let [first, second] = [16, 32].map(Reported::moved);
        sink.finalized(&first.finalized()).unwrap();
        sink.finalized(&second.finalized()).unwrap();
        sink.freeing(&first.finalized()).unwrap();
        sink.freeing(&second.finalized()).unwrap();
        // Another writer has lines of its own where those of `first` stood.
        let text = fs::read_to_string(scratch.map()).unwrap();
        let line = text.lines().nth(1).unwrap();
        let foreign = format!("{:-<width$}", "1000 10 py::foreign", width = line.len());
        fs::write(scratch.map(), text.replacen(line, &foreign, 1)).unwrap();
        sink.finalized(&Reported::moved(48).finalized()).unwrap();
        sink.finalized(&second.finalized()).unwrap();
        let text = scratch.text();
        assert!(text.starts_with(&foreign), "{text}");
        for function in second.object.functions() {
            let line = format!("{:x} ", function.range.start().0);
            assert_eq!(text.lines().filter(|there| there.starts_with(&line)).count(), 1, "{text}");
        }
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
            let end = fs::metadata(scratch.map()).unwrap().len();
            assert!(context.own_lines.contains(end - 1) && !context.own_lines.contains(end));
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
