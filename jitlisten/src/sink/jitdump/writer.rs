//! The sink: objects into records, records into the file.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::path::PathBuf;

use super::lines;
use super::other_jits::{LARGEST, News, OtherJits};
use super::place::{self, Dump};
use super::record::{self, CodeLoad, Records, Unwinding};
use super::unwinding::{self, EhFrame};
use crate::options::{NameStyle, Options};
use crate::sink::{FinalizedObject, Forked, Sink, SinkError, Surroundings};
use crate::{Address, AddressRange, LineRows, Machine, cfi, clock, foreign, log_line, name};

/// Tables that end in the page in which the text ends cannot reach code that is mapped later.
const PAGE: u64 = 4096;
/// How long we do not look around again, in nanoseconds: a burst of objects is not a burst of looks.
const INTERVAL: u64 = 10_000_000;

pub(in crate::sink) struct Jitdump {
    style: NameStyle,
    base: Option<PathBuf>,
    /// How many bytes a file may have: it has a record for every function there ever was.
    quota: u64,
    surroundings: Surroundings,
    other_jits: OtherJits,
    dump: Option<Dump>,
    /// The records of one object, kept for its memory.
    records: Records,
    next_index: u64,
    /// The time of the latest object: time does not run backwards in the file.
    latest: u64,
    /// When we looked around.
    looked: u64,
}

impl Jitdump {
    pub(in crate::sink) fn new(options: &Options, surroundings: &Surroundings) -> Self {
        let base = options.directory.as_deref().or(options.jitdump_directory.as_deref());
        // The host may change its directory before the file is made, or before it forks.
        let base = base.and_then(|base| std::path::absolute(base).ok());
        Jitdump {
            style: options.names,
            base,
            quota: options.quota,
            surroundings: surroundings.clone(),
            other_jits: OtherJits::new(surroundings.own_lines.clone(), surroundings.stale_map),
            dump: None,
            records: Records::default(),
            next_index: 0,
            latest: 0,
            looked: 0,
        }
    }

    fn open(&mut self, machine: Machine) -> Result<(), SinkError> {
        if self.dump.is_some() {
            return Ok(());
        }
        let base = self.base.as_deref().ok_or(SinkError::NoDirectory)?;
        let dump = Dump::create(base, &record::header(machine, std::process::id(), clock::monotonic()))?;
        log_line!(Info, "jitdump: {}", dump.path().display());
        // Until now perf's own rules held for the other JITs: their mappings were not dropped.
        self.other_jits.begin_anew();
        self.dump = Some(dump);
        Ok(())
    }

    /// What others did, unless we looked a moment ago: other JITs, and whoever removes directories.
    fn look_around(&mut self) -> Result<(), SinkError> {
        let now = clock::monotonic();
        if now < self.looked.saturating_add(INTERVAL) {
            return Ok(());
        }
        self.looked = now;
        self.dump.as_mut().map_or(Ok(()), Dump::check_that_it_is_there).inspect_err(|_| self.dump = None)?;
        let news = self.other_jits.look(now);
        self.encode_others(news);
        Ok(())
    }

    /// Writes what is in `records`. After a failure the file is as it was, and closed.
    fn write(&mut self) -> Result<u64, SinkError> {
        let Some(dump) = &mut self.dump else { return Ok(0) };
        if self.records.bytes().is_empty() {
            return Ok(0);
        }
        let written = match dump.length() + self.records.bytes().len() as u64 > self.quota {
            true => Err(dump.is_full(self.quota)),
            false => dump.append(self.records.bytes()),
        };
        self.records.clear();
        written.inspect_err(|_| self.dump = None)
    }

    /// One group of records for every function.
    fn encode(&mut self, object: &FinalizedObject<'_>) {
        let timestamp = self.latest.max(object.since);
        self.latest = timestamp;
        let (pid, tid) = (object.live.pid(), place::current_thread());
        let debug_object = object.debug_object.filter(|_| object.object.has_lines());
        let rows = debug_object.map(LineRows::parse).transpose();
        let rows = rows.unwrap_or_else(|error| {
            log_line!(Warn, "an object goes without source lines: {error}");
            None
        });
        let eh_frame = object.object.eh_frame();
        let eh_frame = eh_frame.and_then(|range| Some(EhFrame::new(object.live.get(range)?, range)));
        let mut functions = object.functions(self.style).peekable();
        while let Some((code, name)) = functions.next() {
            let next = functions.peek().map(|(next, _)| next.start());
            let name = &name::printable(name);
            let Some(bytes) = bytes(object, code) else {
                log_line!(Warn, "{name} has no place in a jitdump: {code} cannot be read");
                continue;
            };
            if let Some(rows) = &rows {
                self.records.debug_info(timestamp, code.start().0, &lines::of_function(rows, code));
            }
            if let Some(unwinding) = tables(object, eh_frame.as_ref(), code, next) {
                self.records.unwinding_info(timestamp, &unwinding);
            }
            let load = CodeLoad { pid, tid, code, code_index: self.next_index };
            self.next_index += 1;
            self.records.code_load(timestamp, &load, name, &bytes);
        }
    }

    /// One record for every new line of another JIT.
    fn encode_others(&mut self, news: News) {
        let (pid, tid) = (std::process::id(), place::current_thread());
        for entry in news.entries {
            // CPython unmaps its trampolines before the process exits: their names are worth more than their bytes.
            let code = foreign::copy(entry.range).unwrap_or_else(|_| vec![0; entry.range.size() as usize]);
            let load = CodeLoad { pid, tid, code: entry.range, code_index: self.next_index };
            self.next_index += 1;
            self.records.code_load(news.since, &load, &entry.name, &code);
        }
    }
}

/// The bytes of a function. Zeros where they cannot be read, because a name is worth more than bytes; nothing where that would be
/// more zeros than anybody's function has bytes.
fn bytes<'a>(object: &'a FinalizedObject<'_>, code: AddressRange) -> Option<Cow<'a, [u8]>> {
    let zeros = || (code.size() <= LARGEST).then(|| vec![0; code.size() as usize].into());
    object.live.get(code).map(Cow::Borrowed).or_else(zeros)
}

/// The unwind tables of the function at `code`, if there are any and room for them; `next` is where the next function of the
/// object begins.
fn tables(
    object: &FinalizedObject<'_>,
    eh_frame: Option<&EhFrame<'_>>,
    code: AddressRange,
    next: Option<Address>,
) -> Option<Unwinding> {
    let limit = limit(object, code, next)?;
    let compilers = eh_frame.and_then(|eh_frame| eh_frame.of_function(code));
    let found = compilers.or_else(|| {
        let made = object.made_rules.binary_search_by_key(&code, |made| made.range).ok()?;
        // The bytes are made for a place of their own, which need not hold them.
        let bytes = cfi::encode(object.made_rules.get(made..=made)?, object.object.machine(), code.start()).ok()?;
        EhFrame::new(&bytes, AddressRange::new(code.start(), bytes.len() as u64)?).of_function(code)
    });
    found.filter(|found| found.fits(code, limit))
}

/// Up to where perf may prolong the mapping of the function at `code` without taking what belongs to another; `None` where
/// that is too near for any tables.
fn limit(object: &FinalizedObject<'_>, code: AddressRange, next: Option<Address>) -> Option<u64> {
    let text = object.object.text_at(code.start()).filter(|text| text.range.covers(code));
    let end = text.map_or(code.end(), |text| text.range.end());
    let end_of_page = end.0.checked_next_multiple_of(PAGE)?;
    let near = next.map_or(end_of_page, |next| next.0.min(end_of_page));
    // Looking for other objects is what takes time, and most functions have a neighbour in their own.
    let limit = |near: u64| Some(near).filter(|&near| unwinding::may_fit(code, near));
    limit(near).and_then(|near| limit((object.next_code)(code.end()).map_or(near, |next| next.0.min(near))))
}

impl Sink for Jitdump {
    fn wants_debug_object(&self) -> bool {
        true
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        if object.object.functions().is_empty() {
            return Ok(0);
        }
        if self.dump.as_ref().is_some_and(|dump| dump.pid() != object.live.pid()) {
            // A fork that nobody has told us of: clone(2), vfork(2). What the parent had compiled is not told again.
            self.forked();
        }
        self.open(object.object.machine())?;
        self.look_around()?;
        self.encode(object);
        self.write()
    }

    fn freeing(&mut self, _: &FinalizedObject<'_>) -> Result<(), SinkError> {
        // The format has no word for it: what is loaded there later takes the place from its own time on. Lines of others
        // that come from now on may be about this very place.
        if self.dump.is_some() {
            self.look_around()?;
            self.write()?;
        }
        self.other_jits.begin_anew();
        Ok(())
    }

    fn ending(&mut self) -> Result<u64, SinkError> {
        if self.dump.is_none() {
            return Ok(0);
        }
        self.looked = 0;
        self.look_around()?;
        self.write()
    }

    fn forked(&mut self) -> Forked {
        let (style, base, quota) = (self.style, self.base.take(), self.quota);
        let surroundings = self.surroundings.in_child();
        // The parent's file is closed here without a word in it.
        self.dump = None;
        let other_jits = OtherJits::new(surroundings.own_lines.clone(), surroundings.stale_map);
        let records = std::mem::take(&mut self.records);
        *self = Jitdump {
            style,
            base,
            quota,
            surroundings,
            other_jits,
            dump: None,
            records,
            next_index: 0,
            latest: 0,
            looked: 0,
        };
        Forked::KnowsNothing
    }
}

impl Drop for Jitdump {
    /// Switched off: the file ends. A process that ends, or is killed, writes no such record.
    fn drop(&mut self) {
        if self.dump.is_some() {
            self.records.clear();
            self.records.code_close(clock::monotonic());
            // Nothing is lost but the record that says that nothing is to come.
            let _ = self.write();
        }
    }
}
