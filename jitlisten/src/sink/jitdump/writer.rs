//! The `jitdump` sink: encodes objects as records and writes them.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use jitlisten_files::OwnDirectory;

use super::dump_file::{self, Dump};
use super::lines;
use super::other_jits::{MAX_FUNCTION_BYTES, NewEntries, OtherJits};
use super::record::{self, CodeLoad, Records, UnwindingInfo};
use super::unwinding::{self, EhFrame};
use crate::options::{NameStyle, Options};
use crate::process::{checked_read, clock};
use crate::sink::process_directory::default_directory;
use crate::sink::{FinalizedObject, Sink, SinkContext, SinkError, SinkState, printable};
use crate::{Address, AddressRange, LineRows, Machine, cfi, log_line};

/// Page size. Unwind tables that end within the last page of the text cannot overlap code that is mapped later.
const PAGE_BYTES: u64 = 4096;
/// Minimum time between two polls in ns, so that a burst of objects does not cause a burst of polls.
const POLL_INTERVAL_NS: u64 = 10_000_000;

pub(in crate::sink) struct Jitdump {
    style: NameStyle,
    base: Option<PathBuf>,
    /// True if the user chose `base`, which rules out a fallback.
    is_base_explicit: bool,
    /// Maximum length of the file. The file only grows, because it keeps the records of freed functions.
    quota: u64,
    context: SinkContext,
    other_jits: OtherJits,
    dump: Option<Dump>,
    /// Reusable buffer of encoded records.
    records: Records,
    next_index: u64,
    /// Time of the latest object; times in the file must not decrease.
    latest_time: u64,
    /// Time of the last poll, `CLOCK_MONOTONIC` in ns.
    last_poll: u64,
    /// True between `begin_batch` and `end_batch`, when objects are written together.
    is_batching: bool,
    /// Number of bytes of the batch that were already written.
    batch_bytes: u64,
}

/// Size at which a batch is written early.
const MAX_BATCH_BYTES: usize = 1 << 20;

impl Jitdump {
    pub(in crate::sink) fn new(options: &Options, context: &SinkContext) -> Self {
        let base = options.directory.as_deref().or(options.jitdump_directory.as_deref());
        // Make the path absolute, because the host may change its working directory, or fork, before the file is
        // created.
        let base = base.and_then(|base| std::path::absolute(base).ok());
        Jitdump {
            style: options.names,
            base,
            is_base_explicit: options.directory.is_some(),
            quota: options.quota,
            context: context.clone(),
            other_jits: new_other_jits(context),
            dump: None,
            records: Records::default(),
            next_index: 0,
            latest_time: 0,
            last_poll: 0,
            is_batching: false,
            batch_bytes: 0,
        }
    }

    fn open(&mut self, machine: Machine) -> Result<(), SinkError> {
        if self.dump.is_some() {
            return Ok(());
        }
        let base = self.base.as_deref().ok_or(SinkError::NoDirectory)?;
        let header = record::encode_header(machine, std::process::id(), clock::monotonic());
        let dump = Dump::create(base, &header, self.context.run).or_else(|error| match self.fallback(&error) {
            Some(other) => {
                log_line!(Info, "{error}; trying {}", other.display());
                OwnDirectory::create(&other).map_err(SinkError::io("use", &other))?;
                Dump::create(&other, &header, self.context.run)
            }
            None => Err(error),
        })?;
        log_line!(Info, "jitdump: {}", dump.path().display());
        // Without a jitdump, perf did not drop the mappings of other JITs, so earlier lines need no records.
        self.other_jits.advance_lower_bound();
        self.dump = Some(dump);
        Ok(())
    }

    /// Starts a new file at the next object. The current file is closed without an end marker.
    fn start_new_file(&mut self, context: SinkContext) -> SinkState {
        self.dump = None;
        *self = Jitdump {
            style: self.style,
            base: self.base.take(),
            is_base_explicit: self.is_base_explicit,
            quota: self.quota,
            other_jits: new_other_jits(&context),
            context,
            dump: None,
            records: std::mem::take(&mut self.records),
            next_index: 0,
            latest_time: 0,
            last_poll: 0,
            is_batching: false,
            batch_bytes: 0,
        };
        SinkState::Lost
    }

    /// Returns another directory if `base` is not accessible, because `$HOME` may belong to the user before
    /// `setuid(2)`.
    fn fallback(&self, error: &SinkError) -> Option<PathBuf> {
        let SinkError::Io { error, .. } = error else { return None };
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied && !self.is_base_explicit;
        is_denied.then(default_directory)
    }

    /// Checks that the file still exists and copies new lines of other JITs, at most once per [`POLL_INTERVAL_NS`].
    /// `since` is a time at or before now; passing an object's own time saves a call of the clock.
    fn poll(&mut self, since: u64) -> Result<(), SinkError> {
        if since < self.last_poll.saturating_add(POLL_INTERVAL_NS) {
            return Ok(());
        }
        let now = clock::monotonic();
        self.last_poll = now;
        self.dump.as_mut().map_or(Ok(()), Dump::check_not_removed).inspect_err(|_| self.dump = None)?;
        let new_entries = self.other_jits.poll(now);
        self.encode_new_entries(new_entries);
        Ok(())
    }

    /// Writes the buffered records. On failure, the file is truncated to its previous length and closed.
    fn write(&mut self) -> Result<u64, SinkError> {
        let Some(dump) = &mut self.dump else { return Ok(0) };
        if self.records.bytes().is_empty() {
            return Ok(0);
        }
        let written = match dump.length() + self.records.bytes().len() as u64 > self.quota {
            true => Err(dump.quota_error(self.quota)),
            false => dump.append(self.records.bytes()),
        };
        self.records.clear();
        written.inspect_err(|_| self.dump = None)
    }

    /// Encodes one group of records per function.
    fn encode(&mut self, object: &FinalizedObject<'_>) {
        let timestamp = self.latest_time.max(object.finalized_at_ns);
        self.latest_time = timestamp;
        let (pid, tid) = (object.snapshot.pid(), dump_file::current_tid());
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
            let next_start = functions.peek().map(|(next_start, _)| next_start.start());
            let name = &printable(name, self.style);
            let Some(bytes) = function_bytes(object, code) else {
                log_line!(Warn, "{name} is missing in the jitdump: cannot read {code}");
                continue;
            };
            if let Some(rows) = &rows {
                self.records.push_debug_info(timestamp, code.start().0, &lines::function_rows(rows, code));
            }
            if let Some(unwinding) = unwind_tables(object, eh_frame.as_ref(), code, next_start) {
                self.records.push_unwinding_info(timestamp, &unwinding);
            }
            let load = CodeLoad { pid, tid, code, code_index: self.next_index };
            self.next_index += 1;
            self.records.push_code_load(timestamp, &load, name, &bytes);
        }
    }

    /// Encodes one record per new line of another JIT.
    fn encode_new_entries(&mut self, new_entries: NewEntries) {
        let (pid, tid) = (std::process::id(), dump_file::current_tid());
        for entry in new_entries.entries {
            // CPython unmaps its trampolines before the process exits. Keep their names, with zeros for code.
            let code = checked_read::copy(entry.range).unwrap_or_else(|_| vec![0; entry.range.size() as usize]);
            let load = CodeLoad { pid, tid, code: entry.range, code_index: self.next_index };
            self.next_index += 1;
            self.records.push_code_load(new_entries.not_before, &load, &entry.name, &code);
        }
    }
}

fn new_other_jits(context: &SinkContext) -> OtherJits {
    let (own, is_shared) = (context.own_lines.clone(), context.map_is_shared.clone());
    OtherJits::new(own, is_shared, context.stale_map)
}

/// Returns the bytes of a function, or zeros if they cannot be read, because a name without code is better than no
/// name. Returns `None` for an unreadable function of implausible size.
fn function_bytes<'a>(object: &'a FinalizedObject<'_>, code: AddressRange) -> Option<Cow<'a, [u8]>> {
    let zeros = || (code.size() <= MAX_FUNCTION_BYTES).then(|| vec![0; code.size() as usize].into());
    object.snapshot.get(code).map(Cow::Borrowed).or_else(zeros)
}

/// Returns the unwind tables of the function at `code`, if it has any and they fit. `next_start` is the start of the
/// object's next function.
fn unwind_tables(
    object: &FinalizedObject<'_>,
    eh_frame: Option<&EhFrame<'_>>,
    code: AddressRange,
    next_start: Option<Address>,
) -> Option<UnwindingInfo> {
    let limit = mapping_limit(object, code, next_start)?;
    let compiler_tables = eh_frame.and_then(|eh_frame| eh_frame.function_tables(code));
    let tables = compiler_tables.or_else(|| {
        let index = object.derived_rules.binary_search_by_key(&code, |rules| rules.range).ok()?;
        // The address is only needed to encode position-dependent fields; nothing is written there.
        let bytes =
            cfi::encode(object.derived_rules.get(index..=index)?, object.object.machine(), code.start()).ok()?;
        EhFrame::new(&bytes, AddressRange::new(code.start(), bytes.len() as u64)?).function_tables(code)
    });
    tables.filter(|tables| tables.fits(code, limit))
}

/// Returns the address up to which perf may extend the mapping of the function at `code` without overlapping other
/// code; `None` if no tables fit.
fn mapping_limit(object: &FinalizedObject<'_>, code: AddressRange, next_start: Option<Address>) -> Option<u64> {
    let text = object.object.text_at(code.start()).filter(|text| text.range.covers(code));
    let end = text.map_or(code.end(), |text| text.range.end());
    let end_of_page = end.0.checked_next_multiple_of(PAGE_BYTES)?;
    let nearest = next_start.map_or(end_of_page, |next_start| next_start.0.min(end_of_page));
    // Searching other objects is slow, and most functions have a neighbour in their own object, so check that neighbour
    // first.
    let if_tables_fit = |nearest: u64| Some(nearest).filter(|&nearest| unwinding::may_fit(code, nearest));
    if_tables_fit(nearest).and_then(|nearest| {
        if_tables_fit((object.find_next_code)(code.end()).map_or(nearest, |next_start| next_start.0.min(nearest)))
    })
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
            // The process was forked without our handlers, by `clone(2)` or `vfork(2)`. The parent's objects are not
            // written again.
            self.forked();
        }
        self.open(object.object.machine())?;
        self.poll(object.finalized_at_ns)?;
        self.encode(object);
        if self.is_batching && self.records.bytes().len() < MAX_BATCH_BYTES {
            return Ok(0);
        }
        let written = self.write()?;
        self.batch_bytes += if self.is_batching { written } else { 0 };
        Ok(if self.is_batching { 0 } else { written })
    }

    fn begin_batch(&mut self) {
        (self.is_batching, self.batch_bytes) = (true, 0);
    }

    fn end_batch(&mut self) -> Result<u64, SinkError> {
        self.is_batching = false;
        Ok(self.write()? + self.batch_bytes)
    }

    fn freeing(&mut self, _: &FinalizedObject<'_>) -> Result<(), SinkError> {
        // The format lacks a record for freed code. Later code at the same address replaces it from that code's own
        // time on. Other JITs may also reuse the address, so read their lines up to now.
        if self.dump.is_some() {
            self.poll(clock::monotonic())?;
            self.write()?;
        }
        self.other_jits.advance_lower_bound();
        Ok(())
    }

    fn finish(&mut self) -> Result<u64, SinkError> {
        if self.dump.is_none() {
            return Ok(0);
        }
        self.last_poll = 0;
        self.poll(clock::monotonic())?;
        self.write()
    }

    fn forked(&mut self) -> SinkState {
        self.start_new_file(self.context.in_child())
    }

    fn user_changed(&mut self) -> SinkState {
        self.start_new_file(self.context.clone())
    }
}

impl Drop for Jitdump {
    /// Writes the end marker, because the sink is disabled. A process that exits or is killed writes none.
    fn drop(&mut self) {
        if self.dump.is_some() {
            self.records.clear();
            self.records.push_code_close(clock::monotonic());
            // On failure, only the end marker is lost.
            let _ = self.write();
        }
    }
}
