//! The perf map sink: writes `/tmp/perf-PID.map`, one line per function.
//!
//! ```text
//! 7f3a1c0e5000 1a4 __main__.inner(float64, int64)
//! START (hex)  SIZE (hex)  name: the rest of the line
//! ```
//!
//! perf reads this file (`tools/perf/Documentation/jit-interface.txt` in the kernel), as do bcc, blazesym, samply and
//! others, each with its own rules. All of them accept lower-case hexadecimal numbers without `0x`, single spaces,
//! printable UTF-8 names of at least three characters, no empty lines, and live entries that do not overlap. Try it
//! with `JITLISTEN=perfmap LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! The file may be shared: CPython's `-X perf` (3.12 and newer) appends to the same path. Therefore we open it with
//! `O_APPEND`, write each object with one `write(2)`, and never truncate lines of other writers: see `file`. Maps of
//! processes that exited are removed: see `dead_maps`.
//!
//! The child of a fork has no map until one of its own objects is finalized; then it writes all inherited objects as
//! well. Until then, perf names its samples with the parent's map, if perf has seen the fork. If perf attaches later,
//! it finds no names. The child must then call `jitlisten_enable("perfmap")`, or use images, which it inherits with the
//! mappings.
//!
//! The format cannot express that code was freed, and a reader that finds two functions at one address picks an
//! arbitrary one. Therefore, when an address is reused, we overwrite the dead line in place with a line of equal length
//! that describes zero bytes at address zero. Samples in the dead function are then unnamed or, where the new function
//! covers them, misnamed. The shim delays the reuse of addresses for as long as it can.
//!
//! New lines replace those of code that was freed long ago: see `space`.

#![forbid(unsafe_code)]

mod dead_maps;
mod file;
mod lines;
mod space;
mod stale;

pub use dead_maps::FirstLine;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use self::file::MapFile;
use self::lines::{Batch, FREED, Line, UnwrittenBlock, tombstone};
use self::space::{Block, Hole, Space};
use super::{FinalizedObject, Sink, SinkContext, SinkError, SinkState, printable};
use crate::liveness::CLEAN_UP_TIME;
use crate::log::LogEvent;
use crate::options::NameStyle;
use crate::{AddressRange, ObjectId, log_line};

pub(crate) use lines::RetainedLines;
pub(crate) use stale::StaleMap;
pub(super) use stale::own_map_path;
pub use stale::run_before_program;

pub(crate) struct PerfMap {
    style: NameStyle,
    path: PathBuf,
    context: SinkContext,
    file: Option<MapFile>,
    /// Our lines in the file, keyed by start address.
    lines: BTreeMap<u64, Line>,
    /// Blocks and holes of the file.
    space: Space,
    /// Lines to be written together; `Some` between `begin_batch` and `end_batch`.
    batch: Option<Batch>,
    /// True if `path`, `lines` and `space` still describe the parent's file. Replacing them in the fork handler would
    /// take too long.
    describes_parent_file: bool,
}

/// Size at which a batch is written early.
const MAX_BATCH_BYTES: usize = 1 << 20;

impl PerfMap {
    pub(super) fn new(style: NameStyle, context: &SinkContext) -> Self {
        PerfMap::with_path(own_map_path(), style, context.clone())
    }

    fn with_path(path: PathBuf, style: NameStyle, context: SinkContext) -> Self {
        let (lines, space) = (BTreeMap::new(), Space::default());
        PerfMap { style, path, context, file: None, lines, space, batch: None, describes_parent_file: false }
    }

    fn io_error(&self, verb: &'static str) -> impl FnOnce(io::Error) -> SinkError {
        let path = self.path.clone();
        move |error| SinkError::Io { verb, path, error }
    }

    fn open(&mut self) -> Result<(), SinkError> {
        if self.file.as_ref().is_some_and(|file| file.get().is_some()) {
            return Ok(());
        }
        let inherited = std::mem::take(&mut self.describes_parent_file);
        if inherited {
            self.path = own_map_path();
            self.context = self.context.in_child();
            self.clear_lines();
        }
        // The file is reopened if the host has closed our descriptor.
        let opened_before = self.file.take().map(|file| file.identity());
        let opened = MapFile::open(&self.path, self.context.stale_map.take())?;
        if opened.is_shared && !self.context.map_is_shared.swap(true, Ordering::Relaxed) {
            log_line!(Warn, "{}", LogEvent::PerfMapShared { path: &self.path.display().to_string() });
        }
        // In a child of a fork, the parent has already removed dead maps.
        if opened_before.is_none()
            && !inherited
            && let Some(directory) = self.path.parent()
        {
            dead_maps::remove_dead_maps(CLEAN_UP_TIME, directory, &self.path, self.context.run);
        }
        let retained = std::mem::take(&mut *self.context.retained_lines.lock().unwrap_or_else(PoisonError::into_inner));
        if retained.file == Some(opened.file.identity()) && retained.size <= opened.size {
            // Objects may have been freed in the meantime, so mark all lines as dead. Live objects are written again.
            self.lines = retained.lines;
            self.lines.values_mut().for_each(|line| line.is_live = false);
            self.space = retained.space;
            self.space.mark_all_freed();
        } else if retained.file.is_some() {
            // The retained lines describe another file, which has since been removed or replaced.
            self.context.own_lines.forget();
        }
        if opened_before.is_some_and(|identity| identity != opened.file.identity()) {
            // The file was replaced in the meantime, so our records describe the old file.
            self.clear_lines();
            self.context.own_lines.forget();
        }
        self.file = Some(opened.file);
        if opened.size == 0 {
            self.append(&dead_maps::first_line(self.context.run))?;
        }
        Ok(())
    }

    fn clear_lines(&mut self) {
        self.lines = BTreeMap::new();
        self.space = Space::default();
    }

    /// Overwrites dead lines whose code overlaps `range`.
    fn erase_dead_lines(&mut self, range: AddressRange) -> Result<(), SinkError> {
        let (range_start, range_end) = (range.start().0, range.end().0);
        let overlapping = self.lines.range(..range_end).rev().take_while(|(_, line)| line.end > range_start);
        let dead: Vec<u64> = overlapping.filter(|(_, line)| !line.is_live).map(|(&line_start, _)| line_start).collect();
        for line_start in dead {
            if let (Some(line), Some(file)) =
                (self.lines.remove(&line_start), self.file.as_ref().and_then(MapFile::get))
            {
                let text = tombstone(line.length);
                let prefix = line.prefix(line_start);
                let is_unchanged = |existing: &[u8]| existing.starts_with(prefix.as_bytes());
                file.replace(line.offset, &text, is_unchanged).map_err(self.io_error("write"))?;
            }
        }
        Ok(())
    }

    /// Writes `text`, which contains `lines`, into a hole or appends it.
    fn write(&mut self, object: ObjectId, text: &str, lines: Vec<(u64, Line)>) -> Result<u64, SinkError> {
        self.space.make_holes();
        let length = text.len() as u64;
        let offset = match self.space.take_hole(length) {
            Some((offset, hole)) if self.fill_hole(offset, &hole, text)? => offset,
            _ => self.append(text)?,
        };
        self.record_block(object, offset, length, lines);
        Ok(length)
    }

    /// Records `lines`, which were just written. Their offsets are relative to the block.
    fn record_block(&mut self, object: ObjectId, offset: u64, length: u64, lines: Vec<(u64, Line)>) {
        let starts = lines.iter().map(|line| line.0).collect();
        self.lines
            .extend(lines.into_iter().map(|(start, line)| (start, Line { offset: offset + line.offset, ..line })));
        self.space.record_written(object, Block { offset, length, starts });
    }

    /// Overwrites a hole with `text` and pads it with a tombstone. Returns false if another writer has changed the
    /// hole.
    fn fill_hole(&mut self, offset: u64, hole: &Hole, text: &str) -> Result<bool, SinkError> {
        let Some(file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(true) };
        let known_line = |start: &u64| Some((*start, self.lines.get(start)?));
        let first_line = hole.starts.iter().filter_map(known_line).find(|(_, line)| line.offset == offset);
        let prefix = first_line.map_or_else(|| FREED.to_owned(), |(start, line)| line.prefix(start));
        let padding_bytes = (hole.length as usize).saturating_sub(text.len());
        let filled = if padding_bytes > 0 { text.to_owned() + &tombstone(padding_bytes) } else { text.to_owned() };
        let is_unchanged = |existing: &[u8]| existing.starts_with(prefix.as_bytes());
        if !file.replace(offset, &filled, is_unchanged).map_err(self.io_error("write"))? {
            // Discard all holes. `lines` is kept, because each line is checked before it is overwritten.
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

    /// Appends `text` in one `write(2)` and returns its offset.
    fn append(&mut self, text: &str) -> Result<u64, SinkError> {
        let Some(mut file) = self.file.as_ref().and_then(MapFile::get) else { return Ok(0) };
        let start = file.append(text).map_err(self.io_error("write"))?;
        self.context.own_lines.add(start..start + text.len() as u64);
        Ok(start)
    }

    fn write_batch(&mut self) -> Result<(), SinkError> {
        let Some(batch) = &mut self.batch else { return Ok(()) };
        let (text, blocks) = (std::mem::take(&mut batch.text), std::mem::take(&mut batch.blocks));
        batch.written_bytes += text.len() as u64;
        if text.is_empty() {
            return Ok(());
        }
        let mut offset = self.append(&text)?;
        for UnwrittenBlock { object, length, lines } in blocks {
            self.record_block(object, offset, length, lines);
            offset += length;
        }
        Ok(())
    }
}

impl Sink for PerfMap {
    fn begin_batch(&mut self) {
        self.batch = Some(Batch::default());
    }

    fn end_batch(&mut self) -> Result<u64, SinkError> {
        self.write_batch()?;
        Ok(self.batch.take().map_or(0, |batch| batch.written_bytes))
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        if self.batch.as_ref().is_none_or(|batch| batch.blocks.is_empty()) {
            self.open()?;
        }
        let mut text = String::new();
        let mut lines = Vec::new();
        for (range, name) in object.functions(self.style) {
            self.erase_dead_lines(range)?;
            let offset = text.len();
            let name = printable(name, self.style);
            // perf skips names of fewer than three bytes; other readers skip names of fewer than three characters.
            let padding = &"  "[..3_usize.saturating_sub(name.chars().count()).min(2)];
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:x} {:x} {name}{padding}", range.start().0, range.size());
            let length = text.len() - offset;
            lines.push((range.start().0, Line { end: range.end().0, offset: offset as u64, length, is_live: true }));
        }
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(batch) = &mut self.batch {
            batch.text += &text;
            batch.blocks.push(UnwrittenBlock { object: object.id, length: text.len() as u64, lines });
            let is_full = batch.text.len() >= MAX_BATCH_BYTES;
            return if is_full { self.write_batch().map(|()| 0) } else { Ok(0) };
        }
        self.write(object.id, &text, lines)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        if self.describes_parent_file {
            return Ok(());
        }
        for function in object.object.functions() {
            if let Some(line) = self.lines.get_mut(&function.range.start().0) {
                line.is_live = false;
            }
        }
        self.space.mark_freed(object.id);
        Ok(())
    }

    fn finish(&mut self) -> Result<u64, SinkError> {
        if let Some(file) = self.file.take() {
            let retained = RetainedLines {
                file: Some(file.identity()),
                size: file.size().unwrap_or(u64::MAX),
                lines: std::mem::take(&mut self.lines),
                space: std::mem::take(&mut self.space),
            };
            *self.context.retained_lines.lock().unwrap_or_else(PoisonError::into_inner) = retained;
        }
        Ok(0)
    }

    fn forked(&mut self) -> SinkState {
        // Closing the file also releases our share of the parent's lock.
        self.file = None;
        self.batch = None;
        self.describes_parent_file = true;
        SinkState::Lost
    }
}

#[cfg(test)]
mod tests;
