//! The writer thread: empties the rings, reads mappings and threads, appends to the file.
//!
//! All its signals are blocked, so no handler of the program runs in it. No fork happens while it holds [`WORK`]: the
//! child could otherwise find a lock taken forever.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use jitlisten::log_line;

use crate::code_map::{self, UNKNOWN_CODE};
use crate::events::{self, LIBRARIES_CHANGED};
use crate::mappings::{Found, Mappings};
use crate::output::Output;
use crate::perf_data::{Batch, Facts, Features, MOST_ADDRESSES, Mapping, Moment};
use crate::place::Pins;
use crate::process::{self, Process};
use crate::python::{self, Python};
use crate::slot::{self, Slot};
use crate::threads::{self, ACTIVE, Scan};
use crate::unwind::Outcome;
use crate::waiting::Watch;
use crate::{clock, measure, wake};

/// Between two looks, in nanoseconds. What was sampled since the last one is lost when the process is killed.
const PERIOD: u64 = 50_000_000;
/// The age of a recording, in nanoseconds, up to which its process may be a short-lived child, which may be killed
/// before the first look: each sample is written at once.
const YOUNG: u64 = 100_000_000;
/// Between two looks at mappings, at least.
const SPACING: Duration = Duration::from_millis(1);
/// So much is written at once.
const BATCH: usize = 1 << 20;
/// For so long a thread that waits has no record, in nanoseconds; for longer, the more threads there are.
const IDLE: u64 = 1_000_000_000;
/// Between two reads of a thread's name, in looks.
const NAMES_EVERY: u64 = 20;
/// Between two looks at the recorder, in looks.
const RECORDER_EVERY: u64 = 8;

/// What the writer knows, for the child of a fork.
#[derive(Default)]
pub(crate) struct Inherited {
    mappings: Found,
    python: Option<python::Inherited>,
}

/// Held while the writer works, and by a thread that forks.
pub(crate) static WORK: Mutex<Inherited> = Mutex::new(Inherited { mappings: Found::new(), python: None });
/// The writer is to finish the file and end.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);
/// The same, and no thread waits for it.
pub(crate) static ABANDON: AtomicBool = AtomicBool::new(false);
/// The file is made, and no earlier recording has its name.
pub(crate) static PLACED: AtomicBool = AtomicBool::new(false);
/// Everything is written: the thread ends.
pub(crate) static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Request to the writer's thread: [`PAUSE`] asks it to end for a while, [`PAUSED`] confirms that.
pub(crate) static GAIT: AtomicU32 = AtomicU32::new(RUN);
pub(crate) const RUN: u32 = 0;
pub(crate) const PAUSE: u32 = 1;
pub(crate) const PAUSED: u32 = 2;

/// The file is not made before the first sample.
pub(crate) static HAS_NO_FILE: AtomicBool = AtomicBool::new(false);
/// The file has to be made now.
pub(crate) static MAKE_FILE: AtomicBool = AtomicBool::new(false);

/// Why the writer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was told to, its time is over, or the file cannot be written.
    Finished,
    /// The process that wanted the recording is gone, or waits no more.
    Abandoned,
    /// All other threads have ended.
    LastThread,
}

/// What a recording consists of so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) samples: AtomicU64,
    pub(crate) incomplete: AtomicU64,
    pub(crate) truncated: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
}

pub(crate) static COUNTERS: Counters = Counters {
    samples: AtomicU64::new(0),
    incomplete: AtomicU64::new(0),
    truncated: AtomicU64::new(0),
    lost: AtomicU64::new(0),
    skipped: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    failures: AtomicU64::new(0),
};

impl Counters {
    pub(crate) fn reset(&self) {
        let Counters { samples, incomplete, truncated, lost, skipped, bytes, failures } = self;
        for counter in [samples, incomplete, truncated, lost, skipped, bytes, failures] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

pub(crate) struct Writer {
    output: Option<Output>,
    pins: Pins,
    pid: u32,
    batch: Batch,
    mappings: Mappings,
    /// They are not what they were when they were last put into [`WORK`].
    has_new_mappings: bool,
    scan: Scan,
    /// By [`clock::monotonic`].
    until: Option<u64>,
    /// Whose end is the recording's.
    recorder: Option<Process>,
    looks: u64,
    /// When mappings may be looked at again because of unknown code, and how long to wait after that.
    next_mappings: u64,
    /// 0: they were not looked at yet. A child of a fork does it at its first sample: many end before that.
    last_mappings: u64,
    /// From when on what the mappings have is there.
    began: u64,
    next_drain: u64,
    patience: u64,
    first_sample: u64,
    last_sample: u64,
    stack: Vec<u64>,
    merged: Vec<u64>,
    /// By wall-clock time: when to look at threads again, and the last stack of each slot.
    watch: Option<Watch>,
    next_watch: u64,
    last: BTreeMap<usize, (Outcome, Vec<u64>)>,
    python: Option<Python>,
    /// Whether an interpreter is looked for.
    wants_python: bool,
}

impl Writer {
    pub(crate) fn new(
        output: Output,
        until: Option<u64>,
        wants_python: bool,
        recorder: Option<Process>,
        inherited: Inherited,
    ) -> Writer {
        let (mut pins, began) = (Pins::beside(output.path()), clock::monotonic());
        if !output.is_later() {
            pins.has_place();
        }
        let of_parent = inherited.python.filter(|_| wants_python);
        Writer {
            python: of_parent.and_then(|inherited| Python::of_parent(inherited, pins.directory())),
            pins,
            output: Some(output),
            pid: std::process::id(),
            batch: Batch::default(),
            mappings: Mappings::inheriting(inherited.mappings),
            has_new_mappings: false,
            scan: Scan::default(),
            until,
            recorder,
            looks: 0,
            next_mappings: 0,
            last_mappings: 0,
            began,
            // Threads that are there are armed already.
            next_drain: began + PERIOD,
            patience: 0,
            first_sample: 0,
            last_sample: 0,
            stack: Vec::with_capacity(slot::MOST_FRAMES as usize),
            merged: Vec::new(),
            watch: measure::is_wall().then(Watch::default),
            next_watch: if measure::is_wall() { 0 } else { u64::MAX },
            last: BTreeMap::new(),
            wants_python,
        }
    }

    fn now(&self) -> Moment {
        Moment { pid: self.pid, tid: self.pid, time: clock::monotonic() }
    }

    /// What is there before the first sample.
    pub(crate) fn begin(&mut self, after_exec: bool) {
        wake::at_each_sample_until(self.began + YOUNG);
        self.batch.comm(self.now(), &name_of(self.pid).unwrap_or_default(), after_exec);
        if self.mappings.are_inherited() && code_map::has_libraries() && !measure::is_wall() {
            return;
        }
        self.take_events();
        self.look_at_mappings(self.began);
        measure::set_main_stack(self.mappings.main_stack, process::main_stack_limit());
        self.flush();
    }

    /// Whether there is a sample, or was one: then mappings were looked at.
    fn has_begun(&mut self) -> bool {
        if self.last_mappings == 0 && slot::all().any(|(_, slot)| !slot.is_empty()) {
            self.look_at_mappings(self.began);
        }
        self.last_mappings != 0
    }

    /// The thread's function. Returns the writer where another thread is to go on with it.
    pub(crate) fn run(mut self: Box<Self>) -> Result<End, Box<Writer>> {
        threads::WRITER.store(clock::own_tid(), Ordering::Release);
        self.scan = Scan::without(clock::own_tid());
        let end = loop {
            let seen = wake::seen();
            if GAIT.compare_exchange(PAUSE, PAUSED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Err(self);
            }
            if STOP.load(Ordering::Acquire) || self.until.is_some_and(|until| clock::monotonic() >= until) {
                break End::Finished;
            }
            if ABANDON.load(Ordering::Acquire) {
                break End::Abandoned;
            }
            if self.looks.is_multiple_of(RECORDER_EVERY) && self.recorder.is_some_and(Process::has_ended) {
                log_line!(Warn, "the recording ends: the process that requested it has exited");
                break End::Abandoned;
            }
            {
                let mut work = WORK.lock().unwrap_or_else(PoisonError::into_inner);
                self.watch();
                self.look();
                if std::mem::take(&mut self.has_new_mappings) {
                    *work = Inherited {
                        mappings: self.mappings.found(),
                        python: self.python.as_ref().map(Python::inherited),
                    };
                }
            }
            wake::has_looked(seen);
            if self.output.is_none() {
                break End::Finished;
            }
            if self.looks != 0 && self.scan.is_last() {
                break End::LastThread;
            }
            let next = self.next_drain.min(self.next_watch);
            wake::wait(seen, Duration::from_nanos(next.saturating_sub(clock::monotonic())));
            // Libraries come in crowds; who ends the recording waits for it.
            let is_waited_for = [&wake::DRAIN, &STOP, &ABANDON].iter().any(|wish| wish.load(Ordering::Acquire));
            if wake::seen() != seen && !is_waited_for {
                std::thread::sleep(SPACING);
            }
        };
        self.finish();
        Ok(end)
    }

    /// Ends the recording.
    pub(crate) fn finish(mut self) {
        let _work = WORK.lock().unwrap_or_else(PoisonError::into_inner);
        self.end();
        WRITTEN.store(true, Ordering::Release);
        wake::has_ended();
    }

    /// By wall-clock time: samples the threads that wait, or have others sample themselves.
    fn watch(&mut self) {
        let now = clock::monotonic();
        if let Some(mut watch) = self.watch.take_if(|_| now >= self.next_watch) {
            self.next_watch = watch.look(now, |index, slot, found| {
                self.drain_slot(index, slot, false);
                self.end_idle(index, slot);
                let at = Moment { pid: self.pid, tid: slot.tid.load(Ordering::Acquire), time: now };
                self.last.insert(index, (found.outcome, found.stack));
                self.repeat(index, slot, at, found.period);
            });
            self.watch = Some(watch);
        }
    }

    /// The stack of the slot's last sample, for as long as its thread has waited there.
    fn end_idle(&mut self, index: usize, slot: &Slot) {
        let period = slot.idle.swap(0, Ordering::AcqRel);
        if period != 0 {
            let at = Moment { tid: slot.tid.load(Ordering::Acquire), ..self.now() };
            self.repeat(index, slot, at, period);
        }
    }

    fn repeat(&mut self, index: usize, slot: &Slot, at: Moment, period: u64) {
        if let Some((outcome, stack)) = self.last.remove(&index) {
            self.announce(slot, at);
            self.put(at, period, outcome, &stack);
            self.last.insert(index, (outcome, stack));
        }
    }

    fn look(&mut self) {
        // First: who has set it has put a sample.
        let fills_up = wake::DRAIN.swap(false, Ordering::AcqRel);
        let has_begun = self.has_begun();
        if has_begun {
            self.take_events();
        }
        self.look_for_code();
        let now = clock::monotonic();
        let is_time = now >= self.next_drain;
        // Woken because of code alone, the rest waits for its time.
        if !is_time && !fills_up {
            return;
        }
        if is_time {
            self.looks += 1;
            self.next_drain = now + PERIOD;
            self.scan.look();
        }
        if has_begun {
            self.drain(true);
        }
        self.batch.round();
        self.flush();
        code_map::reclaim(threads::no_handler_runs);
    }

    fn look_for_code(&mut self) {
        let now = clock::monotonic();
        let changed = LIBRARIES_CHANGED.swap(0, Ordering::AcqRel);
        let wanted = UNKNOWN_CODE.load(Ordering::Relaxed) && now >= self.next_mappings;
        if changed == 0 && !wanted {
            return;
        }
        UNKNOWN_CODE.store(false, Ordering::Relaxed);
        // They are there since the loader said so, or else since some time after the last look.
        let since = if changed != 0 { changed } else { self.last_mappings + 1 };
        let found = self.look_at_mappings(since);
        // Code that stays unknown, a program's own JIT's perhaps, must not cost more and more.
        self.patience = if found { 0 } else { (self.patience * 2).clamp(100_000_000, 5_000_000_000) };
        self.next_mappings = now + self.patience;
    }

    fn take_events(&mut self) {
        for event in events::take() {
            let at = Moment { time: event.time, ..self.now() };
            let (start, end) = (event.range.start().0, event.range.end().0);
            let mut mapping =
                Mapping { start, end, offset: 0, device: (0, 0), inode: 0, build_id: None, path: b"//anon".to_vec() };
            if let Some((path, offset)) = event.image {
                let path = self.pins.pin(&path).unwrap_or(path);
                (mapping.path, mapping.offset) = (path.as_os_str().as_bytes().to_vec(), offset);
            }
            self.batch.mapping(at, &mapping);
        }
    }

    /// Returns whether there was anything new.
    fn look_at_mappings(&mut self, since: u64) -> bool {
        let at = Moment { time: since, ..self.now() };
        if self.last_mappings == 0
            && let Some(output) = &self.output
        {
            self.batch.facts(&facts(), output.attribute());
        }
        self.last_mappings = clock::monotonic();
        let Some((text, new, ranges)) = self.mappings.look() else { return false };
        for mapping in &new {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&mapping.path));
            match is_image(&path).then(|| self.pins.pin(&path)).flatten() {
                Some(pinned) => {
                    let path = pinned.as_os_str().as_bytes().to_vec();
                    self.batch.mapping(at, &Mapping { path, ..mapping.clone() });
                }
                None => self.batch.mapping(at, mapping),
            }
        }
        if !new.is_empty() {
            self.has_new_mappings = true;
            code_map::publish_libraries(ranges);
            if self.wants_python && self.python.is_none() {
                self.python = Python::find(&text, &new, self.pins.directory());
            }
            if let Some(python) = &self.python {
                python.look(&new);
            }
        }
        !new.is_empty()
    }

    fn drain(&mut self, may_wait: bool) {
        for (index, slot) in slot::all() {
            let state = slot.state.load(Ordering::Acquire);
            if matches!(state, slot::ARMED | slot::ENDED) {
                self.drain_slot(index, slot, may_wait);
                let longest = IDLE * (1 + self.last.len() as u64 / threads::FEW);
                if slot.is_empty() && (state == slot::ENDED || slot.idle.load(Ordering::Relaxed) >= longest) {
                    self.end_idle(index, slot);
                }
            }
            let tid = slot.tid.load(Ordering::Acquire);
            if state == slot::ENDED {
                threads::close_counter(slot);
            }
            if state == slot::ENDED && !threads::exists(self.pid, tid) {
                // It cannot write any more; what came between the drain and its end is here now.
                self.drain_slot(index, slot, false);
                self.end_idle(index, slot);
                self.last.remove(&index);
                if slot.announced.load(Ordering::Relaxed) != 0 && tid != self.pid {
                    self.batch.thread_ended(Moment { tid, ..self.now() });
                }
                slot.free_ended(index);
            }
        }
    }

    /// Puts the frames of the interpreter into their places. Returns false where one has no name yet: another thread is
    /// still saying it.
    fn names(&mut self, index: usize, stack: &mut Vec<u64>, outcome: &mut Outcome, may_wait: bool) -> bool {
        let Some(python) = &mut self.python else { return true };
        if !python.knows(stack) {
            let (batch, pid) = (&mut self.batch, self.pid);
            python.take(|time, mapping| batch.mapping(Moment { pid, tid: pid, time }, &mapping));
        }
        if may_wait && !python.knows(stack) {
            return false;
        }
        // The interpreter's frames are whole where the native ones end early.
        let is_joined = python.merge(index, stack, *outcome, &mut self.merged);
        if is_joined && matches!(outcome, Outcome::Broken | Outcome::UnknownCode) {
            *outcome = Outcome::Complete;
        }
        std::mem::swap(stack, &mut self.merged);
        true
    }

    fn drain_slot(&mut self, index: usize, slot: &Slot, may_wait: bool) {
        let tid = slot.tid.load(Ordering::Acquire);
        let mut stack = std::mem::take(&mut self.stack);
        let mut is_first = true;
        while let Some(mut sample) = slot.peek(&mut stack) {
            self.take_place();
            let at = Moment { pid: self.pid, tid, time: sample.time };
            if sample.count == 0 {
                slot.pop(&sample);
                self.repeat(index, slot, at, sample.period);
                continue;
            }
            let is_named = self.names(index, &mut stack, &mut sample.outcome, may_wait);
            if !is_named {
                break;
            }
            slot.pop(&sample);
            if std::mem::take(&mut is_first) {
                self.announce(slot, at);
            }
            self.put(at, sample.period, sample.outcome, &stack);
            if measure::is_wall() {
                self.last.insert(index, (sample.outcome, stack.clone()));
            }
        }
        self.stack = stack;
        COUNTERS.skipped.fetch_add(slot.skipped.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        let lost = slot.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            COUNTERS.lost.fetch_add(lost, Ordering::Relaxed);
            self.batch.lost(Moment { tid, ..self.now() }, lost);
        }
    }

    fn put(&mut self, at: Moment, period: u64, outcome: Outcome, stack: &[u64]) {
        let (stack, outcome) = match stack.split_at_checked(MOST_ADDRESSES) {
            Some((stack, [_, ..])) => (stack, Outcome::Truncated),
            _ => (stack, outcome),
        };
        COUNTERS.samples.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Complete => {}
            Outcome::Truncated => drop(COUNTERS.truncated.fetch_add(1, Ordering::Relaxed)),
            Outcome::UnknownCode | Outcome::Broken => {
                COUNTERS.incomplete.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.first_sample == 0 {
            self.first_sample = at.time;
        }
        self.last_sample = self.last_sample.max(at.time);
        self.batch.sample(at, period, stack);
        if self.batch.as_bytes().len() > BATCH {
            self.flush();
        }
    }

    /// Names the thread, before its first sample, and again later: names change.
    fn announce(&mut self, slot: &Slot, at: Moment) {
        let times = slot.announced.load(Ordering::Relaxed);
        if times == 0 && at.tid != at.pid {
            self.batch.thread_started(at);
        }
        if times < 2 || self.looks.is_multiple_of(NAMES_EVERY) {
            let name = name_of(at.tid).or_else(|| name_of(at.pid)).unwrap_or_default();
            self.batch.comm(at, &name, false);
            slot.announced.store(times.saturating_add(1), Ordering::Relaxed);
        }
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.output.as_ref().is_some_and(Output::is_later) {
            let says_nothing = [&COUNTERS.samples, &COUNTERS.lost, &threads::WITHOUT_TIMER]
                .iter()
                .all(|counter| counter.load(Ordering::Relaxed) == 0);
            let is_wanted = MAKE_FILE.load(Ordering::Acquire);
            if says_nothing && !is_wanted && self.batch.as_bytes().len() < BATCH {
                return;
            }
            self.take_place();
        }
        if let Some(python) = &mut self.python {
            python.write();
        }
        self.append();
    }

    /// Makes the file if it is not made yet. Before that nothing is written beside it, where the images of an earlier
    /// recording may be.
    fn take_place(&mut self) {
        if self.output.as_ref().is_some_and(Output::is_later) {
            self.append();
            self.pins.has_place();
            PLACED.store(true, Ordering::Release);
        }
    }

    fn append(&mut self) {
        if let Some(output) = &mut self.output {
            match output.append(&self.batch) {
                Ok(()) => {
                    COUNTERS.bytes.store(output.size(), Ordering::Relaxed);
                    HAS_NO_FILE.store(false, Ordering::Release);
                }
                Err(error) => self.give_up(&error),
            }
        }
        self.batch.clear();
    }

    /// What is in the file stays, and can be read.
    fn give_up(&mut self, error: &io::Error) {
        let path = self.output.take().map(|output| output.path().to_owned()).unwrap_or_default();
        COUNTERS.failures.fetch_add(1, Ordering::Relaxed);
        log_line!(Error, "the recording stops: write {}: {error}", path.display());
        self.end_sampling();
    }

    fn end_sampling(&self) {
        ACTIVE.store(false, Ordering::SeqCst);
        for (_, slot) in slot::all() {
            threads::disarm(slot);
        }
        // A handler is bounded; a thread that was put aside in the middle of one is waited for a while.
        for _ in 0..1000 {
            if threads::no_handler_runs() {
                break;
            }
            std::thread::yield_now();
        }
        slot::all().for_each(|(_, slot)| threads::close_counter(slot));
    }

    fn end(&mut self) {
        if let Some(watch) = &self.watch {
            watch.end();
        }
        self.end_sampling();
        if self.has_begun() {
            self.take_events();
        }
        self.drain(false);
        self.batch.round();
        self.flush();
        if let Some(python) = self.python.take() {
            python.end();
        }
        if let Some(output) = self.output.take() {
            let path = output.path().to_owned();
            let is_empty = [&COUNTERS.samples, &COUNTERS.lost].iter().all(|count| count.load(Ordering::Relaxed) == 0);
            if MAKE_FILE.load(Ordering::Acquire) && is_empty {
                output.discard();
            } else if let Err(error) = output.finish(&self.features()) {
                log_line!(Warn, "the recording has no header: write {}: {error}", path.display());
            }
        }
        events::forget_code();
    }

    fn features(&self) -> Features {
        let facts = Facts { version: format!("{VERSION} ({})", totals()), ..facts() };
        Features { facts, first_sample: self.first_sample, last_sample: self.last_sample }
    }
}

const VERSION: &str = concat!("jitlisten ", env!("CARGO_PKG_VERSION"));

fn facts() -> Facts {
    let (hostname, release) = process::system();
    let command_line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let command_line = command_line.strip_suffix(&[0]).unwrap_or(&command_line);
    let command_line = command_line.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    Facts { hostname, release, version: VERSION.to_owned(), command_line }
}

/// The counters that tell how far the samples can be believed, for `report/src/recording/format.rs` and people.
fn totals() -> String {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "samples {}, incomplete {}, truncated {}, lost {}, skipped {}, threads {}, threads without a timer {}",
        get(&COUNTERS.samples),
        get(&COUNTERS.incomplete),
        get(&COUNTERS.truncated),
        get(&COUNTERS.lost),
        get(&COUNTERS.skipped),
        get(&threads::SAMPLED),
        get(&threads::WITHOUT_TIMER),
    )
}

/// `.../image-PID-START/object-N.so`: what the image sink writes.
fn is_image(path: &std::path::Path) -> bool {
    let begins = |name: Option<&std::ffi::OsStr>, with: &str| {
        name.and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(with))
    };
    begins(path.file_name(), "object-") && begins(path.parent().and_then(|parent| parent.file_name()), "image-")
}

fn name_of(tid: u32) -> Option<Vec<u8>> {
    if tid == clock::own_tid() {
        return Some(process::own_name());
    }
    let name = fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(name.strip_suffix(b"\n").map_or(name.clone(), <[u8]>::to_vec))
}
