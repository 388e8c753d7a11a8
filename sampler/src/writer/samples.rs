//! The part of the writer that drains the rings.

#![forbid(unsafe_code)]

use std::fs;
use std::sync::atomic::Ordering;

use super::{MAX_BATCH_BYTES, MAX_IDLE_NS, PASSES_PER_NAME_READ, Writer};
use wire::recording::UNSAMPLED_PROCESSES;

use crate::recording::family::Family;
use crate::recording::process;
use crate::system::clock;
use crate::thread::scan::{self, SMALL_THREAD_COUNT};
use crate::thread::slot::Slot;
use crate::thread::slot_state::State;
use crate::thread::source::Measure;
use crate::thread::{arming, slots};
use crate::unwind::Outcome;
use crate::writer::perf_data::{MAX_ADDRESSES, SampleId};

impl Writer {
    /// Writes the samples of all rings, and frees the slots of threads that have exited.
    pub(super) fn drain(&mut self, may_wait: bool) {
        for (index, slot) in slots::iter() {
            let state = slot.state.get();
            if matches!(state, State::Armed | State::Ended) {
                if self.drain_slot(index, slot, may_wait) {
                    self.write_thread_total(slot);
                }
                let max_idle_ns = MAX_IDLE_NS * (1 + self.last_stacks.len() as u64 / SMALL_THREAD_COUNT);
                if slot.ring.is_drained() && (state == State::Ended || slot.wait.idle_ns() >= max_idle_ns) {
                    self.write_idle_sample(index, slot);
                }
            }
            let tid = slot.state.tid();
            if state == State::Ended {
                arming::close_counter(slot);
            }
            if state == State::Ended && !scan::thread_exists(self.pid, tid) {
                // The thread has exited: drain again, for samples added after the drain above.
                let _ = self.drain_slot(index, slot, false);
                if let Some(watch) = &mut self.watch {
                    watch.end_thread(self.recording, index, slot);
                }
                self.write_idle_sample(index, slot);
                self.write_thread_total(slot);
                self.last_stacks.remove(&index);
                if slot.comm_records.load(Ordering::Relaxed) != 0 && tid != self.pid {
                    self.batch.thread_ended(SampleId { tid, ..self.now() });
                }
                slots::free_ended(index, slot);
            }
        }
    }

    /// Replaces the evaluators in a stack by the Python frames that they run. Returns false if the definition of a code
    /// object is missing, because another thread is still writing it.
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
    /// Returns true if it has written any.
    pub(super) fn drain_slot(&mut self, index: usize, slot: &Slot, may_wait: bool) -> bool {
        let tid = slot.state.tid();
        let mut stack = std::mem::take(&mut self.stack);
        let mut is_first = true;
        while let Some(mut sample) = slot.ring.peek(&mut stack) {
            if !self.is_minor() {
                self.create_file();
            }
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
            if self.recording.uses_wall_clock() {
                self.last_stacks.insert(index, (sample.outcome, stack.clone()));
            }
        }
        self.stack = stack;
        self.recording.counters.skipped.add(slot.pace.take_skipped());
        let lost = slot.ring.take_lost();
        if lost > 0 {
            self.recording.counters.lost.add(lost);
            self.batch.lost_samples(SampleId { tid, ..self.now() }, lost);
        }
        !is_first
    }

    /// Writes the time, or the counted events, of the slot's thread since the last such record.
    pub(super) fn write_thread_total(&mut self, slot: &Slot) {
        let tid = slot.state.tid();
        let value = if self.recording.uses_wall_clock() { 0 } else { slot.source.take_unrecorded(tid) };
        if value != 0 {
            self.recorded_total += value;
            self.batch.thread_total(SampleId { tid, ..self.now() }, value);
        }
    }

    /// Passes the time of this process on, if it has no sample; otherwise records what other processes have passed on.
    pub(super) fn pass_on_unsampled_time(&mut self) {
        if self.recording.measure() != Measure::CpuTime {
            return;
        }
        let Some(Family { unsampled_ns: passed_on, .. }) = self.recording.family else { return };
        if self.recording.counters.has_no_sample() {
            passed_on.fetch_add(self.recorded_total, Ordering::Relaxed);
        } else {
            let unsampled_ns = passed_on.swap(0, Ordering::Relaxed);
            if unsampled_ns != 0 {
                self.batch.thread_total(SampleId { tid: UNSAMPLED_PROCESSES, ..self.now() }, unsampled_ns);
            }
        }
    }

    fn write_sample(&mut self, id: SampleId, period: u64, outcome: Outcome, stack: &[u64]) {
        let (stack, outcome) = match stack.split_at_checked(MAX_ADDRESSES) {
            Some((stack, [_, ..])) => (stack, Outcome::Truncated),
            _ => (stack, outcome),
        };
        let counters = &self.recording.counters;
        counters.samples.add(1);
        match outcome {
            Outcome::Complete => {}
            Outcome::Truncated => counters.truncated.add(1),
            Outcome::UnknownCode | Outcome::Broken => counters.incomplete.add(1),
        }
        if self.first_sample == 0 {
            self.first_sample = id.time;
        }
        self.last_sample = self.last_sample.max(id.time);
        self.batch.sample(id, period, stack);
        if self.batch.as_bytes().len() > MAX_BATCH_BYTES {
            self.flush(false);
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

    /// Writes the stack of the slot's last sample again, for the time that the slot's thread has waited there.
    pub(super) fn write_idle_sample(&mut self, index: usize, slot: &Slot) {
        let period = slot.wait.take_idle();
        if period != 0 {
            let id = SampleId { tid: slot.state.tid(), ..self.now() };
            self.repeat_last_sample(index, slot, id, period);
        }
    }

    /// Writes the slot's last stack again, with a new time and period.
    pub(super) fn repeat_last_sample(&mut self, index: usize, slot: &Slot, id: SampleId, period: u64) {
        if let Some((outcome, stack)) = self.last_stacks.remove(&index) {
            self.write_thread_name(slot, id);
            self.write_sample(id, period, outcome, &stack);
            self.last_stacks.insert(index, (outcome, stack));
        }
    }
}

pub(super) fn thread_name(tid: u32) -> Option<Vec<u8>> {
    if tid == clock::own_tid() {
        return Some(process::caller_name());
    }
    let name = fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(name.strip_suffix(b"\n").map_or(name.clone(), <[u8]>::to_vec))
}
