//! The perf map: `/tmp/perf-PID.map`, one line per function.
//!
//! ```text
//! 7f3a1c0e5000 1a4 __main__.inner(float64, int64)
//! START (hex)  SIZE (hex)  name: the rest of the line
//! ```
//!
//! Read by perf (`tools/perf/Documentation/jit-interface.txt` of the kernel), bcc, blazesym, samply and others, each
//! with its own rules. The format accepted by all of them: lower-case hex without `0x`, single spaces, printable UTF-8
//! names of three or more characters, no empty line, live entries that do not overlap. See it with `JITLISTEN=perfmap
//! LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! The file may be shared: CPython's `-X perf` (3.12 and newer) appends to the same path. Therefore it is opened with
//! `O_APPEND`, an object is one `write(2)`, and lines of others are never cut off: see `file`. Maps of ended processes
//! are removed: see `left`.
//!
//! The child of a fork has no map before it finalizes an object of its own; then all inherited objects are written with
//! it. Until then, perf names its samples with the map of its parent, if it has seen the fork. A perf that attaches
//! later finds no names: that child must call `jitlisten_enable("perfmap")`, or use images, which are inherited with
//! the mappings.
//!
//! The format cannot express that code was freed. A reader that finds two functions at one address picks either.
//! Therefore, when an address is reused, the dead line is overwritten in place with a line of equal length for zero
//! bytes at address zero. Samples of the dead function are then unnamed or, where the new function covers them,
//! misnamed; the shim delays the reuse of addresses as long as it can.
//!
//! Lines of code that was freed long ago are replaced with new ones: see `space`.

#![forbid(unsafe_code)]

mod file;
mod left;
mod lines;
mod space;
mod stale;

pub use left::FirstLine;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use self::file::MapFile;
use self::lines::{FREED, Line, Many, Unwritten, tombstone};
use self::space::{Block, Hole, Space};
use super::{FinalizedObject, Forked, Sink, SinkContext, SinkError, printable};
use crate::options::NameStyle;
use crate::{AddressRange, ObjectId, log_line};

pub(crate) use lines::LeftLines;
pub(crate) use stale::StaleMap;
pub use stale::before_program;
pub(super) use stale::path_of_this_process;

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

/// This much is written at once.
const LARGEST_WRITE: usize = 1 << 20;

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
                "{path} also belongs to another process, in a PID namespace that shares /tmp: it has the code of both"
            );
        }
        // A child of a fork leaves that to its parent, which has done it.
        if opened_before.is_none()
            && !inherited
            && let Some(directory) = self.path.parent()
        {
            left::remove_old(directory, &self.path, self.context.run);
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
            self.append(&left::first_line(self.context.run))?;
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
            let name = printable(name, self.style);
            // perf skips names of fewer than three bytes, other readers those of fewer characters.
            let padding = &"  "[..3_usize.saturating_sub(name.chars().count()).min(2)];
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:x} {:x} {name}{padding}", range.start().0, range.size());
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
mod tests;
