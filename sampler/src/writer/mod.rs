//! The writer: empties the rings, reads mappings and threads, appends to the file.
//!
//! While the writer holds [`INHERITED`], no other thread forks. Otherwise a child might inherit a lock that is never
//! released.

pub(crate) mod code_events;
mod code_records;
pub(crate) mod event_queue;
pub(crate) mod existing_file;
mod file;
pub(crate) mod file_names;
pub(crate) mod handle;
pub(crate) mod held_file;
pub(crate) mod mappings;
pub(crate) mod origin;
pub(crate) mod output;
pub(crate) mod perf_data;
mod samples;
mod system_call;
pub(crate) mod thread;
pub(crate) mod wake;
pub(crate) mod wall_clock;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jitlisten::log_line;
use wire::perf_data::{PROCESS_NAME_TID, RUN_TID};

use crate::handler::code_map;
use crate::python::{self, Python};
use crate::recording::current::Recording;
use crate::recording::launcher::Rank;
use crate::recording::options::Options;
use crate::recording::process::{self, Process, is_launcher};
use crate::recording::{family, process_name};
use crate::system::clock;
use crate::thread::ring::MAX_NATIVE_FRAMES;
use crate::thread::scan::Scan;
use crate::thread::slot_state::State;
use crate::thread::{arming, slots};
use crate::unwind::Outcome;
use existing_file::PinnedImages;
use mappings::{KnownMappings, Mappings};
use output::Output;
use perf_data::{Batch, SampleId};
use thread::{PAUSE, PAUSED};
use wall_clock::Watch;

/// Time between two drains. Samples since the last drain are lost if the process is killed.
const DRAIN_PERIOD_NS: u64 = 50_000_000;
/// Until this age, a recording writes each sample immediately, because the process may be a short-lived child that is
/// killed before the first drain.
const EAGER_WRITE_NS: u64 = 100_000_000;
/// Until this age, the writer of a program with a closed standard descriptor opens no file.
const STARTUP_NS: u64 = 1_000_000_000;
/// Minimum time between two passes of the writer.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(1);
/// Batch size above which the batch is written to the file.
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

/// State for fork children. Locked while a writer works, and by a thread that forks. Static because the writer of an
/// abandoned recording may still work when the next one has begun.
pub(crate) static INHERITED: Mutex<Inherited> = Mutex::new(Inherited { mappings: KnownMappings::new(), python: None });

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

/// The writer thread's state.
pub(crate) struct Writer {
    recording: &'static Recording,
    output: Option<Output>,
    pins: PinnedImages,
    pid: u32,
    batch: Batch,
    mappings: Mappings,
    /// True if the mappings have changed since they were last stored in [`INHERITED`].
    has_new_mappings: bool,
    /// True once the program has compiled code.
    has_code: bool,
    scan: Scan,
    /// Time at which the recording ends, by [`clock::monotonic`].
    deadline: Option<u64>,
    /// The process whose exit ends the recording.
    recorder: Option<Process>,
    passes: u64,
    /// Earliest time to read the mappings again because of unknown code.
    next_mapping_read: u64,
    /// Time of the last read of the mappings; 0 before the first. A fork child reads them at its first sample, because
    /// many children exit without one.
    last_mapping_read: u64,
    /// Start time of the recording; also the time stamp of the initial mappings.
    began: u64,
    next_drain: u64,
    /// Delay between two reads of the mappings because of unknown code; grows while reads find nothing new.
    mapping_backoff_ns: u64,
    first_sample: u64,
    last_sample: u64,
    /// Sum of the threads' recorded totals.
    recorded_total: u64,
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
    rank: Option<Rank>,
    /// CPU time of children that ended before the recording; `None` if children are recorded.
    children_before_ns: Option<u64>,
}

impl Writer {
    pub(crate) fn new(
        recording: &'static Recording,
        output: Output,
        options: &Options,
        inherited: Inherited,
    ) -> Writer {
        let (mut pins, began) = (PinnedImages::for_recording(output.path()), clock::monotonic());
        if !output.is_deferred() {
            recording.set_has_file();
            pins.pin_deferred();
        }
        let inherited_python = inherited.python.filter(|_| options.python);
        let uses_wall_clock = recording.uses_wall_clock();
        let are_children_unrecorded = !options.children && !is_launcher("self");
        Writer {
            recording,
            python: inherited_python.and_then(|inherited| Python::inherit(inherited, pins.directory())),
            pins,
            output: Some(output),
            pid: recording.pid,
            batch: Batch::default(),
            mappings: Mappings::with_inherited(inherited.mappings),
            has_new_mappings: false,
            has_code: false,
            scan: Scan::default(),
            deadline: options.seconds.map(|seconds| clock::monotonic() + u64::from(seconds) * 1_000_000_000),
            recorder: options.recorder,
            passes: 0,
            next_mapping_read: 0,
            last_mapping_read: 0,
            began,
            // The existing threads are already armed.
            next_drain: began + DRAIN_PERIOD_NS,
            mapping_backoff_ns: 0,
            first_sample: 0,
            last_sample: 0,
            recorded_total: 0,
            stack: Vec::with_capacity(MAX_NATIVE_FRAMES as usize),
            merged: Vec::new(),
            watch: uses_wall_clock.then(Watch::default),
            next_watch: if uses_wall_clock { 0 } else { u64::MAX },
            last_stacks: BTreeMap::new(),
            wants_python: options.python,
            rank: options.rank,
            children_before_ns: are_children_unrecorded.then(family::waited_children_ns),
        }
    }

    fn now(&self) -> SampleId {
        SampleId { pid: self.pid, tid: self.pid, time: clock::monotonic() }
    }

    /// Writes the records that precede the first sample.
    pub(crate) fn write_preamble(&mut self, after_exec: bool) {
        if process::are_standard_descriptors_open() {
            self.recording.wake.notify_on_samples_until(self.began + EAGER_WRITE_NS);
        }
        // Readers forget all mappings at an exec: it precedes the first of them.
        let began = SampleId { time: self.began, ..self.now() };
        self.batch.comm(began, &samples::thread_name(self.pid).unwrap_or_default(), after_exec);
        if let Some(run) = self.output.as_ref().and_then(|output| output.owner().run) {
            self.batch.process_fact(began, RUN_TID, &run.to_string());
        }
        if self.mappings.are_inherited() && code_map::has_libraries() && !self.recording.uses_wall_clock() {
            return;
        }
        self.write_code_events();
        self.read_mappings(self.began);
        // The kernel grows the main stack down to the limit, and places no other mapping there.
        let (low, high) = self.mappings.main_stack;
        self.recording.main_stack.set_exact(low.min(high.saturating_sub(process::main_stack_limit())), high);
        self.flush(false);
    }

    /// Reads the mappings at the first sample. Returns true once there has been a sample.
    fn ensure_begun(&mut self) -> bool {
        if self.last_mapping_read == 0 && slots::iter().any(|(_, slot)| !slot.ring.is_drained()) {
            self.read_mappings(self.began);
        }
        self.last_mapping_read != 0
    }

    /// Runs the writer until the recording ends. `Err` returns the writer, so that another thread can continue with it.
    pub(crate) fn run(mut self: Box<Self>) -> Result<End, Box<Writer>> {
        self.recording.writer.set_tid(clock::own_tid());
        self.scan = Scan::ignoring(clock::own_tid());
        if !process::are_standard_descriptors_open() {
            self.wait_for_startup();
        }
        self.open_unused_clock();
        let end = loop {
            let wake_count = self.recording.wake.count();
            let pause = &self.recording.requests.pause;
            if pause.compare_exchange(PAUSE, PAUSED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Err(self);
            }
            if let Some(end) = self.requested_end() {
                break end;
            }
            {
                let mut shared_state = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
                self.sample_waiting_threads();
                self.run_pass();
                if std::mem::take(&mut self.has_new_mappings) {
                    *shared_state = Inherited {
                        mappings: self.mappings.known_mappings(),
                        python: self.python.as_ref().map(Python::inherited),
                    };
                }
            }
            self.recording.wake.complete_pass(wake_count);
            if self.output.is_none() {
                break End::Finished;
            }
            if self.passes != 0 && self.scan.is_writer_last() {
                break End::LastThread;
            }
            self.wait_for_next_pass(wake_count);
        };
        self.finish();
        Ok(end)
    }

    /// Waits until the program has probably started, at most until a request. A program with a closed standard
    /// descriptor inspects its descriptors while it starts, and would take a file that this thread opens for its own:
    /// Python then refuses to run.
    fn wait_for_startup(&self) {
        let Recording { wake, requests, .. } = self.recording;
        loop {
            let wake_count = wake.count();
            let remaining_ns = (self.began + STARTUP_NS).saturating_sub(clock::monotonic());
            if remaining_ns == 0
                || wake.is_drain_requested()
                || requests.pause.load(Ordering::Acquire) == PAUSE
                || requests.end_is_requested()
            {
                return;
            }
            wake.wait(wake_count, Duration::from_nanos(remaining_ns.min(STARTUP_NS - 1)));
        }
    }

    /// Returns the reason to end the recording now, if there is one.
    fn requested_end(&self) -> Option<End> {
        let requests = &self.recording.requests;
        if requests.stop.load(Ordering::Acquire) || self.deadline.is_some_and(|deadline| clock::monotonic() >= deadline)
        {
            return Some(End::Finished);
        }
        if requests.abandon.load(Ordering::Acquire) {
            return Some(End::Abandoned);
        }
        let is_check_due = self.passes.is_multiple_of(PASSES_PER_RECORDER_CHECK);
        (is_check_due && self.recorder.is_some_and(Process::has_ended)).then(|| {
            log_line!(Warn, "the recording ends: the process that requested it has exited");
            End::Abandoned
        })
    }

    /// Sleeps until the next drain, the next check of waiting threads, or a wake-up that `wake_count` does not include.
    fn wait_for_next_pass(&self, wake_count: u32) {
        let Recording { wake, requests, .. } = self.recording;
        let next = self.next_drain.min(self.next_watch);
        wake.wait(wake_count, Duration::from_nanos(next.saturating_sub(clock::monotonic())));
        // Libraries are often loaded in quick succession, so wait for more. Do not delay a caller that ends the
        // recording.
        let is_caller_waiting = wake.is_drain_requested() || requests.end_is_requested();
        if wake.count() != wake_count && !is_caller_waiting {
            std::thread::sleep(MIN_PASS_INTERVAL);
        }
    }

    /// Drains the rings, finishes the file, and marks the recording as written.
    pub(crate) fn finish(mut self) {
        let _shared_state = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
        self.end();
        self.recording.set_written();
    }

    /// Wall-clock mode: samples waiting threads, or makes running ones sample themselves.
    fn sample_waiting_threads(&mut self) {
        let now = clock::monotonic();
        if let Some(mut watch) = self.watch.take_if(|_| now >= self.next_watch) {
            self.next_watch = watch.check(self.recording, now, |index, slot, remote_sample| {
                let _ = self.drain_slot(index, slot, false);
                self.write_idle_sample(index, slot);
                let id = SampleId { pid: self.pid, tid: slot.state.tid(), time: now };
                self.last_stacks.insert(index, (remote_sample.outcome, remote_sample.stack));
                self.repeat_last_sample(index, slot, id, remote_sample.period);
            });
            self.watch = Some(watch);
        }
    }

    /// One pass of the writer: processes events, and drains the rings when due.
    fn run_pass(&mut self) {
        // Clear the request before reading the rings: a thread that sets it has already added its sample.
        let is_drain_requested = self.recording.wake.take_drain_request();
        let is_write_requested = self.recording.wake.take_write_request();
        let has_begun = self.ensure_begun();
        if has_begun {
            self.write_code_events();
        }
        self.update_code();
        if has_begun && let Some(name) = process_name::take_new() {
            self.batch.process_fact(self.now(), PROCESS_NAME_TID, &name);
        }
        let now = clock::monotonic();
        let is_drain_due = now >= self.next_drain;
        // If only a code event woke the writer, the rings can wait until the next drain.
        if !is_drain_due && !is_drain_requested {
            return;
        }
        if is_drain_due {
            self.passes += 1;
            self.next_drain = now + DRAIN_PERIOD_NS;
            self.scan.update(self.recording);
        }
        if has_begun {
            self.drain(true);
        }
        self.batch.finished_round();
        self.flush(is_write_requested);
        code_map::reclaim(slots::no_handler_is_running);
    }

    /// Opens the unused clock for this thread. It stays open if another thread continues the work.
    fn open_unused_clock(&self) {
        let Recording { user_clock, unused_clock, hz, .. } = self.recording;
        if let Some(clock) = user_clock
            && unused_clock.get().is_none()
        {
            clock.open_unused(*hz).and_then(|unused| unused_clock.set(unused).ok());
        }
    }

    /// Disarms all threads, and waits for running handlers.
    fn end_sampling(&self) {
        self.recording.set_sampling(false);
        for (_, slot) in slots::iter() {
            arming::disarm(slot);
        }
        // A handler's work is bounded, but its thread may be preempted, so wait for a limited time.
        for _ in 0..1000 {
            if slots::no_handler_is_running() {
                break;
            }
            std::thread::yield_now();
        }
        slots::iter().for_each(|(_, slot)| arming::close_counter(slot));
        if let Some(unused) = self.recording.unused_clock.get() {
            unused.close();
        }
    }

    /// Ends the recording: drains everything, and finishes or discards the file.
    fn end(&mut self) {
        self.end_sampling();
        if let Some(watch) = &mut self.watch {
            watch.end(self.recording);
        }
        if self.ensure_begun() {
            self.write_code_events();
            if let Some(name) = process_name::take_new() {
                self.batch.process_fact(self.now(), PROCESS_NAME_TID, &name);
            }
        }
        self.drain(false);
        for (_, slot) in slots::iter().filter(|(_, slot)| slot.state.get() == State::Ended) {
            self.write_thread_total(slot);
        }
        self.pass_on_unsampled_time();
        self.batch.finished_round();
        self.flush(true);
        if let Some(python) = self.python.take() {
            python.end();
        }
        if let Some(output) = self.output.take() {
            let path = output.path().to_owned();
            let is_empty = self.recording.counters.has_no_sample();
            if self.recording.requests.file.load(Ordering::Acquire) && is_empty {
                output.discard();
            } else if let Err(error) = output.finish(&self.features()) {
                log_line!(Warn, "the recording has no header: write {}: {error}", path.display());
            }
        }
        code_events::forget_code();
    }
}
