//! The sampled threads: arming, disarming, and finding threads that did not arm themselves.
//!
//! ```text
//!   pthread_create ---> the new thread arms itself before its function runs                creation.rs
//!   /proc/self/task --> threads from before the recording, and those created otherwise     scan
//! ```

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::handler::clock;
use crate::recording::event_config;
use crate::recording::event_name::Counter;
use crate::recording::options::Clock;
use crate::thread::slot::Slot;
use crate::thread::slot_state::State;
use crate::thread::slots;
use crate::thread::timer::{self, Timer};
use crate::transparency::disposition::SAMPLING_SIGNAL;

/// True if new threads are sampled.
pub(crate) static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Number of threads for which no timer or no slot was available.
pub(crate) static THREADS_WITHOUT_TIMER: AtomicU64 = AtomicU64::new(0);
/// Number of threads that got a timer.
pub(crate) static SAMPLED_THREADS: AtomicU64 = AtomicU64::new(0);

/// Up to this number of threads, each pass of the writer lists all of them.
pub(crate) const SMALL_THREAD_COUNT: u64 = 64;

/// Starts a timer for a thread. `None` if it already has one, or none is available.
pub(crate) fn arm(tid: u32) -> Option<&'static Slot> {
    if is_armed(tid, usize::MAX) {
        return None;
    }
    let Some((index, slot)) = slots::claim(tid) else {
        THREADS_WITHOUT_TIMER.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    // The thread itself and the scan may both arm it at the same time: the lower slot wins.
    if is_armed(tid, index) {
        slots::release(index, slot);
        return None;
    }
    start_timer(index, slot, tid).then_some(slot)
}

/// True if the thread is armed in a slot below `limit`.
fn is_armed(tid: u32, limit: usize) -> bool {
    slots::find_by_tid(tid).take_while(|(index, _)| *index < limit).any(|(_, slot)| slot.state.is_owned_by(tid))
}

/// Returns the slot of an armed thread.
pub(crate) fn find_armed(tid: u32) -> Option<&'static Slot> {
    slots::find_by_tid(tid).map(|(_, slot)| slot).find(|slot| slot.state.is_owned_by(tid))
}

fn start_timer(index: usize, slot: &'static Slot, tid: u32) -> bool {
    let (low, high) = event_config::main_stack();
    if tid == std::process::id() && high != 0 {
        slot.stack.set_exact(low, high);
    }
    let is_started = match event_config::configured_counter() {
        Some(counter) => start_counter(&counter, index, slot, tid),
        None => start_clock_timer(index, slot, tid),
    };
    if is_started {
        SAMPLED_THREADS.fetch_add(1, Ordering::Relaxed);
    } else {
        slot.state.set(State::Ended);
        THREADS_WITHOUT_TIMER.fetch_add(1, Ordering::Relaxed);
    }
    is_started
}

/// Arms a thread with a CPU or wall-clock timer.
fn start_clock_timer(index: usize, slot: &'static Slot, tid: u32) -> bool {
    let (period, clock) = (event_config::period_ns(), event_config::configured_clock());
    let value = timer::encode_signal_value(index, slot.state.generation());
    let first = first_expiry(period, tid);
    slot.source.prepare_timer(period, first);
    slot.take_unaccounted();
    // Set the state before the timer runs: its first signal may come immediately.
    slot.state.set(State::Armed);
    let Ok(timer) = Timer::new(clock, tid, SAMPLING_SIGNAL.load(Ordering::Acquire), value) else { return false };
    // In wall-clock mode, the writer sets the timer.
    if clock == Clock::Cpu && timer.set(first, period).is_err() {
        timer.delete();
        return false;
    }
    slot.source.set_timer(timer);
    // If sampling ended in the meantime, no timer was found to delete: delete it here.
    if !slot.state.is_armed() {
        slot.source.delete_timer();
    }
    true
}

/// Arms a thread with a perf counter.
fn start_counter(counter: &Counter, index: usize, slot: &'static Slot, tid: u32) -> bool {
    let signal = SAMPLING_SIGNAL.load(Ordering::Acquire);
    let Ok(running) = counter.prepare(tid, signal, index, event_config::rate_hz()) else { return false };
    slot.source.set_counter(running);
    // Set the state before the counter runs: its first signal may come immediately.
    slot.state.set(State::Armed);
    let is_running = running.resume();
    if !is_running {
        slot.source.close_counter();
    }
    is_running
}

/// Returns a random time within the first period, so that threads are not sampled in step.
fn first_expiry(period: u64, tid: u32) -> u64 {
    let mut random = clock::monotonic() ^ u64::from(tid) << 32;
    for shift in [13, 7, 17] {
        random ^= if shift == 7 { random >> shift } else { random << shift };
    }
    (random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11).checked_rem(period).unwrap_or(0).max(1)
}

/// Ends the sampling of the calling thread, which is about to exit and owns this slot.
pub(crate) fn retire_slot(slot: &Slot) {
    // Stop the timer first: its handler and this function must never use the slot together.
    slot.source.stop();
    // From here on the handler ignores a pending signal.
    if slot.state.change(State::Armed, State::Claimed) {
        // SAFETY: called in the slot's thread, and the handler checks the state first.
        unsafe { slot.close_ring(clock::monotonic()) };
        slot.state.set(State::Ended);
    }
    close_counter(slot);
}

/// Ends the sampling of the calling thread, if it is sampled.
pub(crate) fn retire_caller() {
    if let Some(slot) = find_armed(clock::own_tid()) {
        retire_slot(slot);
    }
}

/// Writes the calling thread's final sample, because an exec will replace the program. If the exec fails, its timer
/// restarts.
pub(crate) fn flush_caller() {
    let Some(slot) = find_armed(clock::own_tid()) else { return };
    // A signal that arrives in the meantime is ignored.
    if !slot.state.change(State::Armed, State::Claimed) {
        return;
    }
    // SAFETY: called in the slot's thread, and the handler checks the state first.
    unsafe { slot.close_ring(clock::monotonic()) };
    if !event_config::uses_wall_clock() {
        slot.source.restart_timer();
    }
    slot.state.set(State::Armed);
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

/// Ends the sampling of a thread. The samples in its ring will still be written.
pub(crate) fn disarm(slot: &Slot) {
    if slot.state.change(State::Armed, State::Ended) {
        slot.source.stop();
        close_counter(slot);
    }
}

/// Closes the counter of a slot that is no longer sampled. Does nothing while a handler may be using it.
pub(crate) fn close_counter(slot: &Slot) {
    if slot.state.has_no_handler() {
        slot.source.close_counter();
    }
}

/// Thread id of the writer.
pub(crate) static WRITER_TID: AtomicU32 = AtomicU32::new(0);

/// Returns true if the main thread has exited. The kernel then clears its list of robust mutexes, which glibc registers
/// in every thread. False if the kernel does not allow the query.
fn main_thread_has_ended(pid: u32) -> bool {
    let (mut list, mut size) = (ptr::dangling_mut::<c_void>(), 0_usize);
    // SAFETY: `get_robust_list` writes a pointer and a size.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, pid, &raw mut list, &raw mut size) };
    result == 0 && list.is_null()
}

/// Returns true if the calling thread, which is about to exit, is the program's last one: all others except the writer
/// have exited or are about to.
pub(crate) fn is_last_program_thread() -> bool {
    let (own_tid, pid) = (clock::own_tid(), std::process::id());
    let is_ending = |tid: &u32| {
        slots::find_by_tid(*tid).any(|(_, slot)| slot.state.get() == State::Ended) || !thread_exists(pid, *tid)
    };
    (own_tid == pid || main_thread_has_ended(pid))
        && list_threads(own_tid)
            .iter()
            .all(|tid| [own_tid, pid, WRITER_TID.load(Ordering::Acquire)].contains(tid) || is_ending(tid))
}

/// Returns true while the kernel still lists the writer thread. libc reports its end slightly earlier.
pub(crate) fn writer_exists() -> bool {
    thread_exists(std::process::id(), WRITER_TID.load(Ordering::Acquire))
}

/// Returns true if the process has no thread but the caller and the writer, or if that is unknown.
pub(crate) fn may_be_single_threaded() -> bool {
    count_task_links() <= 2 + 2
}

/// Link count of the task directory: the number of threads plus 2. 0 if the directory is missing.
fn count_task_links() -> u64 {
    fs::metadata("/proc/self/task").map_or(0, |metadata| metadata.nlink())
}

/// Lists all threads. Lists only the sampled ones if /proc is unusable: after chroot, or in another PID namespace.
fn list_threads(own_tid: u32) -> Vec<u32> {
    let tasks: Vec<u32> = read_task_ids().collect();
    if tasks.contains(&own_tid) {
        return tasks;
    }
    let slots = slots::iter().filter(|(_, slot)| slot.state.get() != State::Free);
    slots.map(|(_, slot)| slot.state.tid()).collect()
}

/// Finds threads that were not created through `pthread_create`, and threads that have exited.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    writer_tid: u32,
    link_count: u64,
    /// Passes since the last full scan.
    skipped_scans: u64,
    /// Threads without a timer at the last scan: they may be about to arm themselves.
    previously_unarmed: BTreeSet<u32>,
}

impl Scan {
    /// Creates a scan that ignores the writer's own thread.
    pub(crate) fn ignoring(writer_tid: u32) -> Self {
        Scan { writer_tid, ..Scan::default() }
    }

    /// Returns true if every other thread has exited, whether or not it reported its end. The process then ends with
    /// the writer.
    pub(crate) fn is_writer_last(&self) -> bool {
        let pid = std::process::id();
        main_thread_has_ended(pid)
            && list_threads(self.writer_tid)
                .iter()
                .all(|tid| [self.writer_tid, pid].contains(tid) || !thread_exists(pid, *tid))
    }

    /// Returns true if a full scan is due. As many threads may have started as have exited, so a scan also runs without
    /// a change of the link count; the more threads, the less often.
    fn is_due(&mut self, link_count: u64) -> bool {
        self.skipped_scans += 1;
        let is_due = link_count != self.link_count
            || !self.previously_unarmed.is_empty()
            || self.skipped_scans > link_count / SMALL_THREAD_COUNT;
        if is_due {
            (self.link_count, self.skipped_scans) = (link_count, 0);
        }
        is_due
    }

    /// Scans the threads if due. Arms threads that had no timer at two scans, and disarms exited threads.
    pub(crate) fn update(&mut self) {
        let link_count = count_task_links();
        if !self.is_due(link_count) {
            return;
        }
        let tasks: BTreeSet<u32> = read_task_ids().collect();
        // After chroot, or in another PID namespace, /proc does not describe our threads.
        if !tasks.contains(&self.writer_tid) {
            return;
        }
        // Include ended slots: no timer was available for the thread, or it is about to exit.
        let armed_tids: BTreeSet<u32> = slots::iter()
            .filter(|(_, slot)| slot.state.get() != State::Free)
            .map(|(_, slot)| slot.state.tid())
            .collect();
        let existing_tids: BTreeSet<u32> = tasks.into_iter().filter(|&tid| tid != self.writer_tid).collect();
        let unarmed_tids: BTreeSet<u32> = existing_tids.difference(&armed_tids).copied().collect();
        for &tid in unarmed_tids.intersection(&self.previously_unarmed) {
            arm(tid);
        }
        self.previously_unarmed = unarmed_tids.difference(&self.previously_unarmed).copied().collect();
        for (_, slot) in slots::iter() {
            if !existing_tids.contains(&slot.state.tid()) {
                disarm(slot);
            }
        }
    }
}

/// Arms every existing thread.
pub(crate) fn arm_all() {
    for tid in read_task_ids() {
        arm(tid);
    }
}

/// Reads the thread ids of this process from /proc.
fn read_task_ids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if a thread of this process has this id. Also true if a seccomp filter refuses the query.
pub(crate) fn thread_exists(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only checks that the target exists.
    (unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) }) == 0
        || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool of threads may be replaced by another one of the same size.
    #[test]
    fn threads_are_looked_at_where_their_number_stays() {
        let mut scan = Scan::ignoring(1);
        let count_scans = |scan: &mut Scan, link_count| (0..100).filter(|_| scan.is_due(link_count)).count();
        assert_eq!(count_scans(&mut scan, 6), 100);
        // 10,000 threads: scanned once because their number has changed, and then every eight seconds.
        assert_eq!(count_scans(&mut scan, 10_002), 1);
        assert_eq!(count_scans(&mut scan, 10_002), 1);
        assert_eq!(count_scans(&mut scan, 402), 15);
    }

    /// After chroot, a list without the scanning thread is not of this process.
    #[test]
    fn a_proc_that_is_not_ours_ends_nothing() {
        let _lock = slots::lock_for_test();
        let slot = slots::claim(u32::MAX).unwrap().1;
        slot.state.set(State::Armed);
        Scan::ignoring(u32::MAX - 1).update();
        assert!(slot.state.change(State::Armed, State::Free));
    }
}
