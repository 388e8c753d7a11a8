//! The writer thread: empties the rings, reads mappings and threads, appends to the file.
//!
//! It blocks all signals, so no handler of the program runs in it. While it holds [`WRITER_STATE`], no other thread
//! forks: otherwise a child might inherit a lock that is never released.

pub(crate) mod code_events;
pub(crate) mod existing_file;
pub(crate) mod mappings;
pub(crate) mod output;
pub(crate) mod perf_data;
pub(crate) mod wake;
pub(crate) mod wall_clock;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use jitlisten::log_line;

use crate::handler::clock;
use crate::handler::code_map::{self, UNKNOWN_CODE};
use crate::python::{self, Python};
use crate::recording::event_config;
use crate::recording::process::{self, Process};
use crate::thread::arming::{self, ACTIVE, Scan};
use crate::thread::ring::MAX_NATIVE_FRAMES;
use crate::thread::slot::Slot;
use crate::thread::slot_state::State;
use crate::thread::slots;
use crate::unwind::Outcome;
use code_events::LIBRARIES_CHANGED;
use existing_file::PinnedImages;
use mappings::{KnownMappings, Mappings};
use output::Output;
use perf_data::{Batch, Features, InitialFeatures, MAX_ADDRESSES, Mapping, SampleId};
use wall_clock::Watch;

/// Time between two drains. Samples since the last drain are lost if the process is killed.
const DRAIN_PERIOD_NS: u64 = 50_000_000;
/// Age up to which a recording writes each sample immediately: the process may be a short-lived child that is killed
/// before the first drain.
const EAGER_WRITE_NS: u64 = 100_000_000;
/// Minimal time between two passes of the writer.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(1);
/// The batch is written when it is larger than this.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Waiting time after which a thread's sample is written even though the wait continues; scaled up for many threads.
const MAX_IDLE_NS: u64 = 1_000_000_000;
/// Passes between two reads of a thread's name.
const PASSES_PER_NAME_READ: u64 = 20;
/// Passes between two checks that the recorder is alive.
const PASSES_PER_RECORDER_CHECK: u64 = 8;

/// State of the writer that a fork child inherits.
#[derive(Default)]
pub(crate) struct Inherited {
    mappings: KnownMappings,
    python: Option<python::Inherited>,
}

/// State for fork children. Locked while the writer works, and by a thread that forks.
pub(crate) static WRITER_STATE: Mutex<Inherited> =
    Mutex::new(Inherited { mappings: KnownMappings::new(), python: None });
/// Request to finish the file and exit.
pub(crate) static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Like [`STOP_REQUESTED`], but no thread waits for the writer.
pub(crate) static ABANDON_REQUESTED: AtomicBool = AtomicBool::new(false);
/// True once the file exists, and an earlier recording of that name has been renamed.
pub(crate) static FILE_CREATED: AtomicBool = AtomicBool::new(false);
/// True once everything is written and the writer thread is about to exit.
pub(crate) static RECORDING_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Mode of the writer thread. A caller sets [`PAUSE`] to ask it to exit for a while; it confirms with [`PAUSED`].
pub(crate) static WRITER_MODE: AtomicU32 = AtomicU32::new(RUN);
/// Writer mode: run normally.
pub(crate) const RUN: u32 = 0;
/// Writer mode: exit as soon as possible, and leave the work for the next writer thread.
pub(crate) const PAUSE: u32 = 1;
/// Writer mode: the work has been handed over, the thread is exiting.
pub(crate) const PAUSED: u32 = 2;

/// True while the file has not been created because there is no sample yet.
pub(crate) static FILE_PENDING: AtomicBool = AtomicBool::new(false);
/// Request to create the file now, even without a sample.
pub(crate) static FILE_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The reason why the writer exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Stopped by request, by its time limit, or by a write error.
    Finished,
    /// The process that requested the recording has exited, or no longer waits.
    Abandoned,
    /// All other threads have exited.
    LastThread,
}

/// Counters of the running recording.
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

/// The writer thread's state.
pub(crate) struct Writer {
    output: Option<Output>,
    pins: PinnedImages,
    pid: u32,
    batch: Batch,
    mappings: Mappings,
    /// True if the mappings have changed since they were last stored in [`WRITER_STATE`].
    has_new_mappings: bool,
    scan: Scan,
    /// End of the recording by [`clock::monotonic`].
    deadline: Option<u64>,
    /// The process whose exit ends the recording.
    recorder: Option<Process>,
    passes: u64,
    /// Earliest time to read the mappings again because of unknown code.
    next_mapping_read: u64,
    /// Time of the last read of the mappings; 0 before the first. A fork child reads them at its first sample: many
    /// children exit without one.
    last_mapping_read: u64,
    /// Start of the recording; the time of the initial mappings.
    began: u64,
    next_drain: u64,
    /// Delay between two reads of the mappings because of unknown code; grows while they find nothing new.
    mapping_backoff_ns: u64,
    first_sample: u64,
    last_sample: u64,
    stack: Vec<u64>,
    merged: Vec<u64>,
    /// Wall-clock mode: checks of waiting threads, and the time of the next one.
    watch: Option<Watch>,
    next_watch: u64,
    /// Wall-clock mode: the last stack of each slot.
    last_stacks: BTreeMap<usize, (Outcome, Vec<u64>)>,
    python: Option<Python>,
    /// True if the recording shows Python frames.
    wants_python: bool,
}

impl Writer {
    pub(crate) fn new(
        output: Output,
        deadline: Option<u64>,
        wants_python: bool,
        recorder: Option<Process>,
        inherited: Inherited,
    ) -> Writer {
        let (mut pins, began) = (PinnedImages::for_recording(output.path()), clock::monotonic());
        if !output.is_deferred() {
            pins.pin_deferred();
        }
        let inherited_python = inherited.python.filter(|_| wants_python);
        Writer {
            python: inherited_python.and_then(|inherited| Python::inherit(inherited, pins.directory())),
            pins,
            output: Some(output),
            pid: std::process::id(),
            batch: Batch::default(),
            mappings: Mappings::with_inherited(inherited.mappings),
            has_new_mappings: false,
            scan: Scan::default(),
            deadline,
            recorder,
            passes: 0,
            next_mapping_read: 0,
            last_mapping_read: 0,
            began,
            // The existing threads are already armed.
            next_drain: began + DRAIN_PERIOD_NS,
            mapping_backoff_ns: 0,
            first_sample: 0,
            last_sample: 0,
            stack: Vec::with_capacity(MAX_NATIVE_FRAMES as usize),
            merged: Vec::new(),
            watch: event_config::uses_wall_clock().then(Watch::default),
            next_watch: if event_config::uses_wall_clock() { 0 } else { u64::MAX },
            last_stacks: BTreeMap::new(),
            wants_python,
        }
    }

    fn now(&self) -> SampleId {
        SampleId { pid: self.pid, tid: self.pid, time: clock::monotonic() }
    }

    /// Writes the records that precede the first sample.
    pub(crate) fn write_preamble(&mut self, after_exec: bool) {
        wake::notify_on_samples_until(self.began + EAGER_WRITE_NS);
        self.batch.comm(self.now(), &thread_name(self.pid).unwrap_or_default(), after_exec);
        if self.mappings.are_inherited() && code_map::has_libraries() && !event_config::uses_wall_clock() {
            return;
        }
        self.write_code_events();
        self.read_mappings(self.began);
        event_config::set_main_stack(self.mappings.main_stack, process::main_stack_limit());
        self.flush();
    }

    /// Reads the mappings at the first sample. Returns true once there has been a sample.
    fn ensure_begun(&mut self) -> bool {
        if self.last_mapping_read == 0 && slots::iter().any(|(_, slot)| !slot.ring.is_drained()) {
            self.read_mappings(self.began);
        }
        self.last_mapping_read != 0
    }

    /// Runs the writer until the recording ends. `Err` returns the writer, for another thread to continue with it.
    pub(crate) fn run(mut self: Box<Self>) -> Result<End, Box<Writer>> {
        arming::WRITER_TID.store(clock::own_tid(), Ordering::Release);
        self.scan = Scan::ignoring(clock::own_tid());
        let end = loop {
            let wake_count = wake::wake_count();
            if WRITER_MODE.compare_exchange(PAUSE, PAUSED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Err(self);
            }
            if STOP_REQUESTED.load(Ordering::Acquire)
                || self.deadline.is_some_and(|deadline| clock::monotonic() >= deadline)
            {
                break End::Finished;
            }
            if ABANDON_REQUESTED.load(Ordering::Acquire) {
                break End::Abandoned;
            }
            if self.passes.is_multiple_of(PASSES_PER_RECORDER_CHECK) && self.recorder.is_some_and(Process::has_ended) {
                log_line!(Warn, "the recording ends: the process that requested it has exited");
                break End::Abandoned;
            }
            {
                let mut shared_state = WRITER_STATE.lock().unwrap_or_else(PoisonError::into_inner);
                self.sample_waiting_threads();
                self.run_pass();
                if std::mem::take(&mut self.has_new_mappings) {
                    *shared_state = Inherited {
                        mappings: self.mappings.known_mappings(),
                        python: self.python.as_ref().map(Python::inherited),
                    };
                }
            }
            wake::complete_pass(wake_count);
            if self.output.is_none() {
                break End::Finished;
            }
            if self.passes != 0 && self.scan.is_writer_last() {
                break End::LastThread;
            }
            let next = self.next_drain.min(self.next_watch);
            wake::wait_for_wake(wake_count, Duration::from_nanos(next.saturating_sub(clock::monotonic())));
            // Libraries are often loaded in quick succession: wait for more. A caller that ends the recording must not
            // wait.
            let is_caller_waiting = [&wake::DRAIN_REQUESTED, &STOP_REQUESTED, &ABANDON_REQUESTED]
                .iter()
                .any(|request| request.load(Ordering::Acquire));
            if wake::wake_count() != wake_count && !is_caller_waiting {
                std::thread::sleep(MIN_PASS_INTERVAL);
            }
        };
        self.finish();
        Ok(end)
    }

    /// Drains the rings, finishes the file, and publishes that the writer is done.
    pub(crate) fn finish(mut self) {
        let _shared_state = WRITER_STATE.lock().unwrap_or_else(PoisonError::into_inner);
        self.end();
        RECORDING_WRITTEN.store(true, Ordering::Release);
        wake::complete_last_pass();
    }

    /// Wall-clock mode: samples waiting threads, or makes running ones sample themselves.
    fn sample_waiting_threads(&mut self) {
        let now = clock::monotonic();
        if let Some(mut watch) = self.watch.take_if(|_| now >= self.next_watch) {
            self.next_watch = watch.check(now, |index, slot, remote_sample| {
                self.drain_slot(index, slot, false);
                self.write_idle_sample(index, slot);
                let id = SampleId { pid: self.pid, tid: slot.state.tid(), time: now };
                self.last_stacks.insert(index, (remote_sample.outcome, remote_sample.stack));
                self.repeat_last_sample(index, slot, id, remote_sample.period);
            });
            self.watch = Some(watch);
        }
    }

    /// Writes the stack of the slot's last sample again, for the time its thread has waited there.
    fn write_idle_sample(&mut self, index: usize, slot: &Slot) {
        let period = slot.wait.take_idle();
        if period != 0 {
            let id = SampleId { tid: slot.state.tid(), ..self.now() };
            self.repeat_last_sample(index, slot, id, period);
        }
    }

    /// Writes the slot's last stack again, with a new time and period.
    fn repeat_last_sample(&mut self, index: usize, slot: &Slot, id: SampleId, period: u64) {
        if let Some((outcome, stack)) = self.last_stacks.remove(&index) {
            self.write_thread_name(slot, id);
            self.write_sample(id, period, outcome, &stack);
            self.last_stacks.insert(index, (outcome, stack));
        }
    }

    /// One pass of the writer: processes events, and drains the rings when due.
    fn run_pass(&mut self) {
        // Clear the request before reading the rings: whoever sets it has already added a sample.
        let is_drain_requested = wake::DRAIN_REQUESTED.swap(false, Ordering::AcqRel);
        let has_begun = self.ensure_begun();
        if has_begun {
            self.write_code_events();
        }
        self.update_code();
        let now = clock::monotonic();
        let is_drain_due = now >= self.next_drain;
        // If only a code event woke the writer, the rings can wait until the next drain.
        if !is_drain_due && !is_drain_requested {
            return;
        }
        if is_drain_due {
            self.passes += 1;
            self.next_drain = now + DRAIN_PERIOD_NS;
            self.scan.update();
        }
        if has_begun {
            self.drain(true);
        }
        self.batch.finished_round();
        self.flush();
        code_map::reclaim(slots::no_handler_is_running);
    }

    /// Reads the mappings again if libraries have changed or a sample hit unknown code.
    fn update_code(&mut self) {
        let now = clock::monotonic();
        let change_time = LIBRARIES_CHANGED.swap(0, Ordering::AcqRel);
        let is_retry_due = UNKNOWN_CODE.load(Ordering::Relaxed) && now >= self.next_mapping_read;
        if change_time == 0 && !is_retry_due {
            return;
        }
        UNKNOWN_CODE.store(false, Ordering::Relaxed);
        // The mappings exist since the loader's notification, or else since some time after the last read.
        let since = if change_time != 0 { change_time } else { self.last_mapping_read + 1 };
        let has_new = self.read_mappings(since);
        // Unknown code that stays unknown, such as that of another JIT, must not cost ever more reads.
        self.mapping_backoff_ns =
            if has_new { 0 } else { (self.mapping_backoff_ns * 2).clamp(100_000_000, 5_000_000_000) };
        self.next_mapping_read = now + self.mapping_backoff_ns;
    }

    /// Writes records for code events, and pins the images they name.
    fn write_code_events(&mut self) {
        for event in code_events::take_events() {
            let id = SampleId { time: event.time, ..self.now() };
            let (start, end) = (event.range.start().0, event.range.end().0);
            let mut mapping =
                Mapping { start, end, offset: 0, device: (0, 0), inode: 0, build_id: None, path: b"//anon".to_vec() };
            if let Some((path, offset)) = event.image {
                let path = self.pins.pin(&path).unwrap_or(path);
                (mapping.path, mapping.offset) = (path.as_os_str().as_bytes().to_vec(), offset);
            }
            self.batch.mapping(id, &mapping);
        }
    }

    /// Reads the mappings and writes the new ones. Returns true if there were any.
    fn read_mappings(&mut self, since: u64) -> bool {
        let id = SampleId { time: since, ..self.now() };
        if self.last_mapping_read == 0
            && let Some(output) = &self.output
        {
            self.batch.initial_features(&initial_features(), output.attribute());
        }
        self.last_mapping_read = clock::monotonic();
        let Some((text, new_mappings, ranges)) = self.mappings.refresh() else { return false };
        for mapping in &new_mappings {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&mapping.path));
            match is_image_path(&path).then(|| self.pins.pin(&path)).flatten() {
                Some(pinned) => {
                    let path = pinned.as_os_str().as_bytes().to_vec();
                    self.batch.mapping(id, &Mapping { path, ..mapping.clone() });
                }
                None => self.batch.mapping(id, mapping),
            }
        }
        if !new_mappings.is_empty() {
            self.has_new_mappings = true;
            code_map::publish_libraries(ranges);
            if self.wants_python && self.python.is_none() {
                self.python = Python::find(&text, &new_mappings, self.pins.directory());
            }
            if let Some(python) = &self.python {
                python.find_asyncio(&new_mappings);
            }
        }
        !new_mappings.is_empty()
    }

    /// Writes the samples of all rings, and frees the slots of threads that have exited.
    fn drain(&mut self, may_wait: bool) {
        for (index, slot) in slots::iter() {
            let state = slot.state.get();
            if matches!(state, State::Armed | State::Ended) {
                self.drain_slot(index, slot, may_wait);
                let max_idle_ns = MAX_IDLE_NS * (1 + self.last_stacks.len() as u64 / arming::SMALL_THREAD_COUNT);
                if slot.ring.is_drained() && (state == State::Ended || slot.wait.idle_ns() >= max_idle_ns) {
                    self.write_idle_sample(index, slot);
                }
            }
            let tid = slot.state.tid();
            if state == State::Ended {
                arming::close_counter(slot);
            }
            if state == State::Ended && !arming::thread_exists(self.pid, tid) {
                // The thread has exited: drain again, for samples added after the drain above.
                self.drain_slot(index, slot, false);
                self.write_idle_sample(index, slot);
                self.last_stacks.remove(&index);
                if slot.comm_records.load(Ordering::Relaxed) != 0 && tid != self.pid {
                    self.batch.thread_ended(SampleId { tid, ..self.now() });
                }
                slots::free_ended(index, slot);
            }
        }
    }

    /// Replaces evaluators in a stack by the Python frames they run. Returns false if a code object is not defined yet:
    /// another thread is still defining it.
    fn merge_python_frames(
        &mut self,
        index: usize,
        stack: &mut Vec<u64>,
        outcome: &mut Outcome,
        may_wait: bool,
    ) -> bool {
        let Some(python) = &mut self.python else { return true };
        if !python.can_name(stack) {
            let (batch, pid) = (&mut self.batch, self.pid);
            python.take_definitions(|time, mapping| batch.mapping(SampleId { pid, tid: pid, time }, &mapping));
        }
        if may_wait && !python.can_name(stack) {
            return false;
        }
        // Python frames are complete even where native unwinding stops early.
        let is_joined = python.merge(index, stack, *outcome, &mut self.merged);
        if is_joined && matches!(outcome, Outcome::Broken | Outcome::UnknownCode) {
            *outcome = Outcome::Complete;
        }
        std::mem::swap(stack, &mut self.merged);
        true
    }

    /// Writes the samples of one ring. With `may_wait`, stops at a sample whose Python frames are not all defined yet.
    fn drain_slot(&mut self, index: usize, slot: &Slot, may_wait: bool) {
        let tid = slot.state.tid();
        let mut stack = std::mem::take(&mut self.stack);
        let mut is_first = true;
        while let Some(mut sample) = slot.ring.peek(&mut stack) {
            self.create_file();
            let id = SampleId { pid: self.pid, tid, time: sample.time };
            if sample.count == 0 {
                slot.ring.pop(&sample);
                self.repeat_last_sample(index, slot, id, sample.period);
                continue;
            }
            let is_named = self.merge_python_frames(index, &mut stack, &mut sample.outcome, may_wait);
            if !is_named {
                break;
            }
            slot.ring.pop(&sample);
            if std::mem::take(&mut is_first) {
                self.write_thread_name(slot, id);
            }
            self.write_sample(id, sample.period, sample.outcome, &stack);
            if event_config::uses_wall_clock() {
                self.last_stacks.insert(index, (sample.outcome, stack.clone()));
            }
        }
        self.stack = stack;
        COUNTERS.skipped.fetch_add(slot.pace.take_skipped(), Ordering::Relaxed);
        let lost = slot.ring.take_lost();
        if lost > 0 {
            COUNTERS.lost.fetch_add(lost, Ordering::Relaxed);
            self.batch.lost_samples(SampleId { tid, ..self.now() }, lost);
        }
    }

    /// Writes one sample and counts it.
    fn write_sample(&mut self, id: SampleId, period: u64, outcome: Outcome, stack: &[u64]) {
        let (stack, outcome) = match stack.split_at_checked(MAX_ADDRESSES) {
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
            self.first_sample = id.time;
        }
        self.last_sample = self.last_sample.max(id.time);
        self.batch.sample(id, period, stack);
        if self.batch.as_bytes().len() > MAX_BATCH_BYTES {
            self.flush();
        }
    }

    /// Writes the thread's name before its first sample, and again later, because names change.
    fn write_thread_name(&mut self, slot: &Slot, id: SampleId) {
        let count = slot.comm_records.load(Ordering::Relaxed);
        if count == 0 && id.tid != id.pid {
            self.batch.thread_started(id);
        }
        if count < 2 || self.passes.is_multiple_of(PASSES_PER_NAME_READ) {
            let name = thread_name(id.tid).or_else(|| thread_name(id.pid)).unwrap_or_default();
            self.batch.comm(id, &name, false);
            slot.comm_records.store(count.saturating_add(1), Ordering::Relaxed);
        }
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.output.as_ref().is_some_and(Output::is_deferred) {
            let has_no_events = [&COUNTERS.samples, &COUNTERS.lost, &arming::THREADS_WITHOUT_TIMER]
                .iter()
                .all(|counter| counter.load(Ordering::Relaxed) == 0);
            let is_requested = FILE_REQUESTED.load(Ordering::Acquire);
            if has_no_events && !is_requested && self.batch.as_bytes().len() < MAX_BATCH_BYTES {
                return;
            }
            self.create_file();
        }
        if let Some(python) = &mut self.python {
            python.write_images();
        }
        self.append();
    }

    /// Creates the file if it does not exist yet. Until then nothing is written next to it: the images of an earlier
    /// recording may be there.
    fn create_file(&mut self) {
        if self.output.as_ref().is_some_and(Output::is_deferred) {
            self.append();
            self.pins.pin_deferred();
            FILE_CREATED.store(true, Ordering::Release);
        }
    }

    fn append(&mut self) {
        if let Some(output) = &mut self.output {
            match output.append(&self.batch) {
                Ok(()) => {
                    COUNTERS.bytes.store(output.size(), Ordering::Relaxed);
                    FILE_PENDING.store(false, Ordering::Release);
                }
                Err(error) => self.give_up(&error),
            }
        }
        self.batch.clear();
    }

    /// Ends the recording after a write error. The records in the file remain readable.
    fn give_up(&mut self, error: &io::Error) {
        let path = self.output.take().map(|output| output.path().to_owned()).unwrap_or_default();
        COUNTERS.failures.fetch_add(1, Ordering::Relaxed);
        log_line!(Error, "the recording stops: write {}: {error}", path.display());
        self.end_sampling();
    }

    /// Disarms all threads, and waits for running handlers.
    fn end_sampling(&self) {
        ACTIVE.store(false, Ordering::SeqCst);
        for (_, slot) in slots::iter() {
            arming::disarm(slot);
        }
        // A handler's work is bounded, but its thread may be preempted in it: wait a limited time.
        for _ in 0..1000 {
            if slots::no_handler_is_running() {
                break;
            }
            std::thread::yield_now();
        }
        slots::iter().for_each(|(_, slot)| arming::close_counter(slot));
    }

    /// Ends the recording: drains everything, and finishes or discards the file.
    fn end(&mut self) {
        if let Some(watch) = &self.watch {
            watch.end();
        }
        self.end_sampling();
        if self.ensure_begun() {
            self.write_code_events();
        }
        self.drain(false);
        self.batch.finished_round();
        self.flush();
        if let Some(python) = self.python.take() {
            python.end();
        }
        if let Some(output) = self.output.take() {
            let path = output.path().to_owned();
            let is_empty = [&COUNTERS.samples, &COUNTERS.lost].iter().all(|count| count.load(Ordering::Relaxed) == 0);
            if FILE_REQUESTED.load(Ordering::Acquire) && is_empty {
                output.discard();
            } else if let Err(error) = output.finish(&self.features()) {
                log_line!(Warn, "the recording has no header: write {}: {error}", path.display());
            }
        }
        code_events::forget_code();
    }

    fn features(&self) -> Features {
        let initial = InitialFeatures { version: format!("{VERSION} ({})", totals()), ..initial_features() };
        Features { initial, first_sample: self.first_sample, last_sample: self.last_sample }
    }
}

const VERSION: &str = concat!("jitlisten ", env!("CARGO_PKG_VERSION"));

fn initial_features() -> InitialFeatures {
    let (hostname, release) = process::host_and_release();
    let command_line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let command_line = command_line.strip_suffix(&[0]).unwrap_or(&command_line);
    let command_line = command_line.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    InitialFeatures { hostname, release, version: VERSION.to_owned(), command_line }
}

/// Formats the counters that show how complete the samples are, for `report/src/recording/format.rs` and for people.
fn totals() -> String {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "samples {}, incomplete {}, truncated {}, lost {}, skipped {}, threads {}, threads without a timer {}",
        get(&COUNTERS.samples),
        get(&COUNTERS.incomplete),
        get(&COUNTERS.truncated),
        get(&COUNTERS.lost),
        get(&COUNTERS.skipped),
        get(&arming::SAMPLED_THREADS),
        get(&arming::THREADS_WITHOUT_TIMER),
    )
}

/// Returns true for the path of an image: `.../image-PID-START/object-N.so`.
fn is_image_path(path: &std::path::Path) -> bool {
    let starts_with = |name: Option<&std::ffi::OsStr>, prefix: &str| {
        name.and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    };
    starts_with(path.file_name(), "object-")
        && starts_with(path.parent().and_then(|parent| parent.file_name()), "image-")
}

/// Returns the name of a thread of this process.
fn thread_name(tid: u32) -> Option<Vec<u8>> {
    if tid == clock::own_tid() {
        return Some(process::caller_name());
    }
    let name = fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(name.strip_suffix(b"\n").map_or(name.clone(), <[u8]>::to_vec))
}
