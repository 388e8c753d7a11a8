//! Arms and disarms threads. An armed thread has a slot with a timer or a counter.

use crate::recording::current::{self, Recording};
use crate::recording::event_name::Counter;
use crate::recording::options::Clock;
use crate::system::clock;
use crate::system::descriptors;
use crate::thread::clock_choice::Choice;
use crate::thread::counter::OpenCounter;
use crate::thread::run_queue::SchedulerTimes;
use crate::thread::slot::Slot;
use crate::thread::slot_state::State;
use crate::thread::source::Periods;
use crate::thread::timer::{self, Timer};
use crate::thread::{counter, slots};
use crate::transparency::disposition::{self, Sender};

/// Maximum number of user clocks, because each takes a descriptor.
const MAX_USER_CLOCKS: u32 = 64;

/// Starts a timer or counter for a thread, which has had these times before. `None` if the thread already has one, or
/// none is available.
pub(crate) fn arm(recording: &Recording, tid: u32, before: SchedulerTimes) -> Option<&'static Slot> {
    if is_armed(tid, usize::MAX) {
        return None;
    }
    let Some((index, slot)) = slots::claim(tid) else {
        recording.counters.threads_without_timer.add(1);
        return None;
    };
    // The thread itself and the scan may both arm it at the same time; the lower slot wins.
    if is_armed(tid, index) {
        slots::release(index, slot);
        return None;
    }
    slot.run_queue.begin(before);
    start_timer(recording, index, slot, tid).then_some(slot)
}

/// True if the thread is armed in a slot below `limit`.
fn is_armed(tid: u32, limit: usize) -> bool {
    slots::find_by_tid(tid).take_while(|(index, _)| *index < limit).any(|(_, slot)| slot.state.is_owned_by(tid))
}

pub(crate) fn find_armed(tid: u32) -> Option<&'static Slot> {
    slots::find_by_tid(tid).map(|(_, slot)| slot).find(|slot| slot.state.is_owned_by(tid))
}

fn start_timer(recording: &Recording, index: usize, slot: &'static Slot, tid: u32) -> bool {
    let (low, high) = recording.main_stack.get();
    if tid == std::process::id() && high != 0 {
        slot.stack.set_exact(low, high);
    }
    slot.source.begin(recording.measure(), tid);
    let is_started = match &recording.counter {
        Some(counter) => start_counter(counter, recording.hz, index, slot),
        None => start_clock_timer(recording, index, slot, tid),
    };
    if is_started {
        recording.counters.threads.add(1);
    } else {
        slot.state.set(State::Ended);
        recording.counters.threads_without_timer.add(1);
    }
    is_started
}

/// Arms a thread with a CPU or wall-clock timer.
fn start_clock_timer(recording: &Recording, index: usize, slot: &'static Slot, tid: u32) -> bool {
    let value = timer::encode_signal_value(index, slot.state.generation());
    let interval = recording.ticks.interval_ns;
    slot.ticks.begin(recording.ticks, random(tid));
    // Set the state before the timer runs, because its first signal may come immediately.
    slot.state.set(State::Armed);
    let signal = disposition::sampling_signal(Sender::Timer);
    let Ok(timer) = Timer::new(recording.clock, tid, signal, value) else { return false };
    // In wall-clock mode, the writer sets the timer.
    if recording.clock == Clock::Cpu && timer.set(1, interval).is_err() {
        timer.delete();
        return false;
    }
    slot.source.set_timer(timer);
    // If sampling ended in the meantime, the timers were deleted before this one existed, so delete it here.
    if !slot.state.is_armed() {
        slot.source.delete_timer();
    } else if recording.clock == Clock::Cpu && tid == clock::own_tid() {
        begin_like_short_threads(recording, index, slot);
    }
    true
}

/// Gives the calling thread the clock that short threads would have needed so far.
fn begin_like_short_threads(recording: &Recording, index: usize, slot: &Slot) {
    let choice = recording.short_threads.choice();
    slot.clock_choice.set_inexact_at_ticks(choice != Choice::Tick);
    if choice == Choice::UserClock {
        start_user_clock(recording, index, slot, recording.short_threads.take_rest());
    }
}

/// Opens a counter for the thread of a slot. Its first sample comes after a random part of the period, because full
/// ones would sample all short threads at the same place. Returns the counter, and the rest of that period.
fn open_counter(counter: &Counter, hz: u32, index: usize, slot: &Slot) -> Option<(OpenCounter, u64)> {
    let (tid, signal) = (slot.state.tid(), disposition::sampling_signal(Sender::Counter));
    let periods = counter.fixed_period(hz).map(|full| Periods { first: random(tid) % full.max(1) + 1, full });
    let running = counter.prepare(tid, signal, index, hz, periods.map(|periods| periods.first)).ok()?;
    slot.source.set_counter(running, periods);
    Some((running, periods.map_or(0, |periods| periods.full.saturating_sub(periods.first))))
}

/// Arms a thread with a perf counter.
fn start_counter(counter: &Counter, hz: u32, index: usize, slot: &'static Slot) -> bool {
    let Some((running, rest_of_period)) = open_counter(counter, hz, index, slot) else { return false };
    // The first sample stands for a full period, too.
    slot.source.add_pending(rest_of_period);
    // Set the state before the counter runs, because its first signal may come immediately.
    slot.state.set(State::Armed);
    let is_running = running.resume();
    if !is_running {
        slot.source.close_counter();
    }
    is_running
}

/// Opens the user clock of the calling thread, whose slot has this index, if the writer could open one and there are
/// not too many. `rest_ns` is CPU time that has no sample yet.
pub(crate) fn start_user_clock(recording: &Recording, index: usize, slot: &Slot, rest_ns: i64) {
    let max_clocks = u64::from(MAX_USER_CLOCKS).min(descriptors::descriptor_limit() / 16);
    let can_open = recording.unused_clock.get().is_some() && u64::from(counter::open_count()) < max_clocks;
    let Some(clock) = recording.user_clock.as_ref().filter(|_| can_open) else { return };
    let Some((running, _)) = open_counter(clock, recording.hz, index, slot) else { return };
    slot.ticks.begin_rest(rest_ns);
    // If sampling ended in the meantime, counters were stopped before this one existed. The writer closes it.
    if !slot.state.is_armed() || !running.resume() {
        running.stop();
    }
}

/// Closes the user clock of the calling thread.
pub(crate) fn end_user_clock(slot: &Slot) {
    if let Some(counter) = slot.source.counter() {
        counter.stop();
    }
    slot.source.close_counter();
}

pub(crate) fn random(tid: u32) -> u64 {
    let mut random = clock::monotonic() ^ u64::from(tid) << 32;
    for shift in [13, 7, 17] {
        random ^= if shift == 7 { random >> shift } else { random << shift };
    }
    random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
}

/// Stops sampling the calling thread, which is about to exit and owns this slot.
pub(crate) fn retire_slot(slot: &Slot) {
    // Stop the timer first, because its handler and this function must never use the slot at the same time.
    slot.source.stop();
    // From here on the handler ignores a pending signal.
    if slot.state.change(State::Armed, State::Claimed) {
        if let Some(recording) = current::last() {
            // SAFETY: this is the slot's thread, and its handler checks the state first.
            unsafe { slot.close(clock::monotonic(), recording) };
            count_run_queue(recording, slot);
        }
        slot.state.set(State::Ended);
    }
    close_counter(slot);
}

/// Stops sampling the calling thread, if it is sampled.
pub(crate) fn retire_caller() {
    if let Some(slot) = find_armed(clock::own_tid()) {
        retire_slot(slot);
    }
}

/// Writes the time that the calling thread has waited, because an exec will replace the program.
pub(crate) fn flush_caller() {
    let Some(slot) = find_armed(clock::own_tid()) else { return };
    // A signal that arrives in the meantime is ignored.
    if !slot.state.change(State::Armed, State::Claimed) {
        return;
    }
    // SAFETY: this is the slot's thread, and its handler checks the state first.
    unsafe { slot.flush_idle(clock::monotonic()) };
    slot.state.set(State::Armed);
    // The recording may have ended in the meantime.
    if current::sampling().is_none() {
        disarm(slot);
    }
}

/// Stops the signals of the calling thread's counter until [`unmute_caller`].
pub(crate) fn mute_caller() {
    if let Some(counter) = find_armed(clock::own_tid()).and_then(|slot| slot.source.counter()) {
        counter.mute();
    }
}

/// Undoes [`mute_caller`].
pub(crate) fn unmute_caller() {
    let tid = clock::own_tid();
    if let Some(counter) = find_armed(tid).and_then(|slot| slot.source.counter()) {
        counter.unmute(tid);
    }
}

/// Adds the thread's time on the run queue to the recording's, when it is no longer sampled.
fn count_run_queue(recording: &Recording, slot: &Slot) {
    if let Some(times) = SchedulerTimes::read(slot.state.tid()) {
        recording.counters.add_run_queue(slot.run_queue.set_end(times));
    }
}

/// Stops sampling a thread. The samples in its ring will still be written.
pub(crate) fn disarm(slot: &Slot) {
    if slot.state.change(State::Armed, State::Ended) {
        slot.source.stop();
        slot.source.set_final_total(slot.state.tid());
        if let Some(recording) = current::last() {
            count_run_queue(recording, slot);
        }
        close_counter(slot);
    }
}

/// Closes the counter of a slot that is no longer sampled. Does nothing while a handler may be using it.
pub(crate) fn close_counter(slot: &Slot) {
    if slot.state.has_no_handler() {
        slot.source.close_counter();
    }
}
