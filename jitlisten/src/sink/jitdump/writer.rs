//! The sink: encodes objects as records and writes them.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use jitlisten_files::OwnDirectory;

use super::lines;
use super::other_jits::{LARGEST, News, OtherJits};
use super::place::{self, Dump};
use super::record::{self, CodeLoad, Records, Unwinding};
use super::unwinding::{self, EhFrame};
use crate::options::{NameStyle, Options};
use crate::process::write_nosignal::effective_user;
use crate::process::{checked_read, clock};
use crate::sink::{FinalizedObject, Forked, Sink, SinkContext, SinkError, printable};
use crate::{Address, AddressRange, LineRows, Machine, cfi, log_line};

/// Tables that end in the page in which the text ends cannot reach code that is mapped later.
const PAGE: u64 = 4096;
/// How long we do not look around again, in nanoseconds: a burst of objects is not a burst of looks.
const INTERVAL: u64 = 10_000_000;

pub(in crate::sink) struct Jitdump {
    style: NameStyle,
    base: Option<PathBuf>,
    /// Nowhere else, then.
    base_is_asked_for: bool,
    /// How many bytes a file may have: it has a record for every function there ever was.
    quota: u64,
    context: SinkContext,
    other_jits: OtherJits,
    dump: Option<Dump>,
    /// The records of one object, kept for its memory.
    records: Records,
    next_index: u64,
    /// The time of the latest object: time does not run backwards in the file.
    latest: u64,
    /// When we looked around.
    looked: u64,
    /// Many objects follow: they are written together.
    many: bool,
    /// Bytes of them written so far.
    many_written: u64,
}

/// This much is written at once.
const LARGEST_WRITE: usize = 1 << 20;

impl Jitdump {
    pub(in crate::sink) fn new(options: &Options, context: &SinkContext) -> Self {
        let base = options.directory.as_deref().or(options.jitdump_directory.as_deref());
        // The host may change its directory before the file is made, or before it forks.
        let base = base.and_then(|base| std::path::absolute(base).ok());
        Jitdump {
            style: options.names,
            base,
            base_is_asked_for: options.directory.is_some(),
            quota: options.quota,
            context: context.clone(),
            other_jits: other_jits(context),
            dump: None,
            records: Records::default(),
            next_index: 0,
            latest: 0,
            looked: 0,
            many: false,
            many_written: 0,
        }
    }

    fn open(&mut self, machine: Machine) -> Result<(), SinkError> {
        if self.dump.is_some() {
            return Ok(());
        }
        let base = self.base.as_deref().ok_or(SinkError::NoDirectory)?;
        let header = record::header(machine, std::process::id(), clock::monotonic());
        let dump = Dump::create(base, &header, self.context.run).or_else(|error| match self.fallback(&error) {
            Some(other) => {
                log_line!(Info, "{error}; trying {}", other.display());
                OwnDirectory::create(&other).map_err(SinkError::io("use", &other))?;
                Dump::create(&other, &header, self.context.run)
            }
            None => Err(error),
        })?;
        log_line!(Info, "jitdump: {}", dump.path().display());
        // Until now perf's own rules held for the other JITs: their mappings were not dropped.
        self.other_jits.begin_anew();
        self.dump = Some(dump);
        Ok(())
    }

    /// A new file at the next object. The one there is is closed without a word in it.
    fn begin_anew(&mut self, context: SinkContext) -> Forked {
        self.dump = None;
        *self = Jitdump {
            style: self.style,
            base: self.base.take(),
            base_is_asked_for: self.base_is_asked_for,
            quota: self.quota,
            other_jits: other_jits(&context),
            context,
            dump: None,
            records: std::mem::take(&mut self.records),
            next_index: 0,
            latest: 0,
            looked: 0,
            many: false,
            many_written: 0,
        };
        Forked::KnowsNothing
    }

    /// The home directory may be that of the user the process was before `setuid(2)`.
    fn fallback(&self, error: &SinkError) -> Option<PathBuf> {
        let SinkError::Io { error, .. } = error else { return None };
        let refused = error.kind() == io::ErrorKind::PermissionDenied && !self.base_is_asked_for;
        refused.then(|| PathBuf::from(format!("/var/tmp/jitlisten-{}", effective_user())))
    }

    /// What others did, unless we looked a moment ago: other JITs, and programs that remove directories.
    /// `since` is now or before; an object knows when it became final, which saves the question.
    fn look_for_news(&mut self, since: u64) -> Result<(), SinkError> {
        if since < self.looked.saturating_add(INTERVAL) {
            return Ok(());
        }
        let now = clock::monotonic();
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
        let (pid, tid) = (object.snapshot.pid(), place::current_thread());
        let debug_object = object.debug_object.filter(|_| object.object.has_lines());
        let rows = debug_object.map(LineRows::parse).transpose();
        let rows = rows.unwrap_or_else(|error| {
            log_line!(Warn, "an object has no source lines: {error}");
            None
        });
        let eh_frame = object.object.eh_frame();
        let eh_frame = eh_frame.and_then(|range| Some(EhFrame::new(object.snapshot.get(range)?, range)));
        let mut functions = object.functions(self.style).peekable();
        while let Some((code, name)) = functions.next() {
            let next = functions.peek().map(|(next, _)| next.start());
            let name = &printable(name, self.style);
            let Some(bytes) = bytes(object, code) else {
                log_line!(Warn, "{name} is missing in the jitdump: cannot read {code}");
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
            let code = checked_read::copy(entry.range).unwrap_or_else(|_| vec![0; entry.range.size() as usize]);
            let load = CodeLoad { pid, tid, code: entry.range, code_index: self.next_index };
            self.next_index += 1;
            self.records.code_load(news.since, &load, &entry.name, &code);
        }
    }
}

fn other_jits(context: &SinkContext) -> OtherJits {
    let (own, is_shared) = (context.own_lines.clone(), context.map_is_shared.clone());
    OtherJits::new(own, is_shared, context.stale_map)
}

/// The bytes of a function. Zeros where they cannot be read, because a name is worth more than bytes; nothing where
/// that would be more zeros than any function has bytes.
fn bytes<'a>(object: &'a FinalizedObject<'_>, code: AddressRange) -> Option<Cow<'a, [u8]>> {
    let zeros = || (code.size() <= LARGEST).then(|| vec![0; code.size() as usize].into());
    object.snapshot.get(code).map(Cow::Borrowed).or_else(zeros)
}

/// The unwind tables of the function at `code`, if there are any and space for them; `next` is where the next function
/// of the object begins.
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

/// Up to where perf may prolong the mapping of the function at `code` without taking what belongs to another; `None`
/// where that is too near for any tables.
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
        if self.dump.as_ref().is_some_and(|dump| dump.pid() != object.snapshot.pid()) {
            // A fork without handlers: clone(2), vfork(2). What the parent had compiled is not written again.
            self.forked();
        }
        self.open(object.object.machine())?;
        self.look_for_news(object.since)?;
        self.encode(object);
        if self.many && self.records.bytes().len() < LARGEST_WRITE {
            return Ok(0);
        }
        let written = self.write()?;
        self.many_written += if self.many { written } else { 0 };
        Ok(if self.many { 0 } else { written })
    }

    fn many_begin(&mut self) {
        (self.many, self.many_written) = (true, 0);
    }

    fn many_end(&mut self) -> Result<u64, SinkError> {
        self.many = false;
        Ok(self.write()? + self.many_written)
    }

    fn freeing(&mut self, _: &FinalizedObject<'_>) -> Result<(), SinkError> {
        // The format has no record for it: what is loaded there later takes its place from its own time on. Lines of
        // others that come from now on may be about this very place.
        if self.dump.is_some() {
            self.look_for_news(clock::monotonic())?;
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
        self.look_for_news(clock::monotonic())?;
        self.write()
    }

    fn forked(&mut self) -> Forked {
        self.begin_anew(self.context.in_child())
    }

    fn user_changed(&mut self) -> Forked {
        self.begin_anew(self.context.clone())
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
