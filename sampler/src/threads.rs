//! The sampled threads.
//!
//! ```text
//!   pthread_create ---> the new thread itself, before its function runs          interpose.rs
//!   /proc/self/task --> threads from before the start, and those created otherwise           scan
//! ```

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::disposition::SIGNAL;
use crate::event_name::Counter;
use crate::measure::{self, counter_of};
use crate::options::Clock;
use crate::slot::{self, Slot};
use crate::timer::{self, Timer};

/// True if new threads are sampled.
pub(crate) static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Threads for which there was no timer or no slot.
pub(crate) static WITHOUT_TIMER: AtomicU64 = AtomicU64::new(0);
/// Threads that got a timer.
pub(crate) static SAMPLED: AtomicU64 = AtomicU64::new(0);

/// Threads that are looked at in every turn of the writer's.
pub(crate) const FEW: u64 = 64;

/// Starts a timer for a thread, unless it has one.
pub(crate) fn arm(tid: u32) -> Option<&'static Slot> {
    if is_armed(tid, usize::MAX) {
        return None;
    }
    let Some((index, slot)) = slot::claim(tid) else {
        WITHOUT_TIMER.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    // The thread itself and the scan may be at it at the same time: the lower slot wins.
    if is_armed(tid, index) {
        slot.give_back(index);
        return None;
    }
    start_timer(index, slot, tid).then_some(slot)
}

/// Whether a slot below `limit` is this thread's.
fn is_armed(tid: u32, limit: usize) -> bool {
    slot::of(tid).take_while(|(index, _)| *index < limit).any(|(_, slot)| is_of(slot, tid))
}

/// The slot of a thread that has a timer.
pub(crate) fn armed(tid: u32) -> Option<&'static Slot> {
    slot::of(tid).map(|(_, slot)| slot).find(|slot| is_of(slot, tid))
}

fn is_of(slot: &Slot, tid: u32) -> bool {
    let taken = |state| matches!(state, slot::CLAIMED | slot::ARMED);
    slot.tid.load(Ordering::Acquire) == tid && taken(slot.state.load(Ordering::Acquire))
}

fn start_timer(index: usize, slot: &'static Slot, tid: u32) -> bool {
    let (low, high) = measure::main_stack();
    if tid == std::process::id() && high != 0 {
        slot.set_stack(low, high);
    }
    let started = match measure::counter_now() {
        Some(counter) => start_counting(&counter, index, slot, tid),
        None => start_time(index, slot, tid),
    };
    if started {
        SAMPLED.fetch_add(1, Ordering::Relaxed);
    } else {
        slot.state.store(slot::ENDED, Ordering::Release);
        WITHOUT_TIMER.fetch_add(1, Ordering::Relaxed);
    }
    started
}

fn start_time(index: usize, slot: &'static Slot, tid: u32) -> bool {
    let (period, clock) = (measure::period(), measure::clock_now());
    let value = timer::signal_value(index, slot.generation.load(Ordering::Acquire));
    let first = first_expiry(period, tid);
    slot.timer.store(-1, Ordering::Release);
    slot.counter.store(0, Ordering::Release);
    slot.period.store(period, Ordering::Relaxed);
    slot.first.store(first, Ordering::Relaxed);
    measure::time_since_last(slot);
    // Before the timer runs: its first signal may come at once.
    slot.state.store(slot::ARMED, Ordering::SeqCst);
    let Ok(timer) = Timer::new(clock, tid, SIGNAL.load(Ordering::Acquire), value) else { return false };
    // By wall-clock time the writer sets it.
    if clock == Clock::Cpu && timer.set(first, period).is_err() {
        timer.delete();
        return false;
    }
    slot.timer.store(timer.0, Ordering::SeqCst);
    // What has ended the sampling meanwhile has found no timer to delete.
    if slot.state.load(Ordering::SeqCst) != slot::ARMED {
        delete_timer(slot);
    }
    true
}

fn start_counting(counter: &Counter, index: usize, slot: &'static Slot, tid: u32) -> bool {
    let signal = SIGNAL.load(Ordering::Acquire);
    let Ok(running) = counter.prepare(tid, signal, index, measure::rate()) else { return false };
    slot.timer.store(running.descriptor, Ordering::Release);
    slot.counter.store(running.id, Ordering::Release);
    slot.clock.store(0, Ordering::Relaxed);
    // As above.
    slot.state.store(slot::ARMED, Ordering::SeqCst);
    running.go_on() || {
        slot.timer.store(-1, Ordering::Release);
        running.close();
        false
    }
}

/// Anywhere in the first period, so that threads are not sampled in step.
fn first_expiry(period: u64, tid: u32) -> u64 {
    let mut random = clock::monotonic() ^ u64::from(tid) << 32;
    for shift in [13, 7, 17] {
        random ^= if shift == 7 { random >> shift } else { random << shift };
    }
    (random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11).checked_rem(period).unwrap_or(0).max(1)
}

/// The calling thread, whose slot this is, ends.
pub(crate) fn this_thread_ends(slot: &Slot) {
    // The timer first: its handler and this are never at it together.
    let counter = counter_of(slot);
    match counter {
        Some(counter) => counter.stop(),
        None => delete_timer(slot),
    }
    // A signal that waits is passed over from here on.
    if slot.state.compare_exchange(slot::ARMED, slot::CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let period = slot.owed.swap(0, Ordering::Relaxed) + measure::time_since_last(slot);
        // SAFETY: in the thread itself, and the handler looks at the state first.
        unsafe { slot.close(clock::monotonic(), period) };
        slot.state.store(slot::ENDED, Ordering::Release);
    }
    close_counter(slot);
}

/// The calling thread ends, if it is sampled.
pub(crate) fn caller_ends() {
    if let Some(slot) = armed(clock::own_tid()) {
        this_thread_ends(slot);
    }
}

/// The calling thread's program ends, unless the call that is to end it fails: then its timer begins anew.
pub(crate) fn caller_may_end() {
    let Some(slot) = armed(clock::own_tid()) else { return };
    // A signal that comes meanwhile is passed over.
    if slot.state.compare_exchange(slot::ARMED, slot::CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    let (owed, period) = (slot.owed.swap(0, Ordering::Relaxed), slot.period.load(Ordering::Relaxed));
    // SAFETY: in the thread itself, and the handler looks at the state first.
    unsafe { slot.close(clock::monotonic(), owed + measure::time_since_last(slot)) };
    let timer = slot.timer.load(Ordering::SeqCst);
    if measure::counter_now().is_none() && !measure::is_wall() && timer >= 0 {
        slot.first.store(period, Ordering::Relaxed);
        let _ = Timer(timer).set(period, period);
    }
    slot.state.store(slot::ARMED, Ordering::SeqCst);
}

/// The calling thread's counter sends no signal until [`unmute_caller`].
pub(crate) fn mute_caller() {
    if let Some(counter) = armed(clock::own_tid()).and_then(counter_of) {
        counter.mute();
    }
}

pub(crate) fn unmute_caller() {
    let tid = clock::own_tid();
    if let Some(counter) = armed(tid).and_then(counter_of) {
        counter.unmute(tid);
    }
}

/// Ends the sampling of a thread. What is in its ring is still written.
pub(crate) fn disarm(slot: &Slot) {
    if slot.state.compare_exchange(slot::ARMED, slot::ENDED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        match counter_of(slot) {
            Some(counter) => counter.stop(),
            None => delete_timer(slot),
        }
        close_counter(slot);
    }
}

fn delete_timer(slot: &Slot) {
    let timer = slot.timer.swap(-1, Ordering::SeqCst);
    if timer >= 0 {
        Timer(timer).delete();
    }
}

/// Gives back the descriptor of a slot that is sampled no more, unless its handler may be using it: then later.
pub(crate) fn close_counter(slot: &Slot) {
    let idle = slot.running.load(Ordering::SeqCst) == 0;
    if let Some(counter) = counter_of(slot).filter(|_| idle)
        && slot.timer.compare_exchange(counter.descriptor, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        counter.close();
    }
}

/// Whether no handler runs at this moment, in any thread that is sampled.
pub(crate) fn no_handler_runs() -> bool {
    slot::all().all(|(_, slot)| slot.running.load(Ordering::SeqCst) == 0)
}

/// The writer's number.
pub(crate) static WRITER: AtomicU32 = AtomicU32::new(0);

/// Returns whether the main thread has ended, however it did: then the kernel has taken back its list of robust
/// mutexes, which glibc sets in every thread. `false` where the kernel does not tell.
fn main_thread_has_ended(pid: u32) -> bool {
    let (mut list, mut size) = (ptr::dangling_mut::<c_void>(), 0_usize);
    // SAFETY: writes a pointer and a size.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, pid, &raw mut list, &raw mut size) };
    result == 0 && list.is_null()
}

/// Returns whether the calling thread, which is about to end, is the last one of the program's: of the others, all but
/// the writer have ended or are about to.
pub(crate) fn only_writer_is_left() -> bool {
    let (own, pid) = (clock::own_tid(), std::process::id());
    let is_ending = |tid: &u32| {
        slot::of(*tid).any(|(_, slot)| slot.state.load(Ordering::SeqCst) == slot::ENDED) || !exists(pid, *tid)
    };
    (own == pid || main_thread_has_ended(pid))
        && tasks_of(own).iter().all(|tid| [own, pid, WRITER.load(Ordering::Acquire)].contains(tid) || is_ending(tid))
}

/// Returns whether the kernel has the writer's thread still. libc says somewhat earlier that it has ended.
pub(crate) fn writer_exists() -> bool {
    exists(std::process::id(), WRITER.load(Ordering::Acquire))
}

/// Returns whether the process has no thread but the caller and the writer, or that is not known.
pub(crate) fn may_be_the_only_one() -> bool {
    links() <= 2 + 2
}

/// The number of links of the threads' directory: theirs, and two. 0 if it is not there.
fn links() -> u64 {
    fs::metadata("/proc/self/task").map_or(0, |about| about.nlink())
}

/// All threads; those that are sampled where the process has left /proc by chroot, or has that of other numbers.
fn tasks_of(own: u32) -> Vec<u32> {
    let tasks: Vec<u32> = tasks().collect();
    if tasks.contains(&own) {
        return tasks;
    }
    let used = slot::all().filter(|(_, slot)| slot.state.load(Ordering::Acquire) != slot::FREE);
    used.map(|(_, slot)| slot.tid.load(Ordering::Acquire)).collect()
}

/// Finds threads that came another way than through `pthread_create`, and those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    own: u32,
    links: u64,
    /// Looks since the last one at every thread.
    unseen: u64,
    /// Threads of the last look that had no timer: they may be about to arm themselves.
    young: BTreeSet<u32>,
}

impl Scan {
    /// A scan that leaves out the thread `own`, the writer.
    pub(crate) fn without(own: u32) -> Self {
        Scan { own, ..Scan::default() }
    }

    /// Returns whether every other thread has ended, the last one without a word: the process ends with this one.
    pub(crate) fn is_last(&self) -> bool {
        let pid = std::process::id();
        main_thread_has_ended(pid)
            && tasks_of(self.own).iter().all(|tid| [self.own, pid].contains(tid) || !exists(pid, *tid))
    }

    /// Whether to look at every thread. As many may have come as have gone, so it is done without a sign of it, too:
    /// the less often, the more there are to look at.
    fn is_due(&mut self, links: u64) -> bool {
        self.unseen += 1;
        let is_due = links != self.links || !self.young.is_empty() || self.unseen > links / FEW;
        if is_due {
            (self.links, self.unseen) = (links, 0);
        }
        is_due
    }

    /// Looks whether threads have come or gone, and arms those that have been there for two looks.
    pub(crate) fn look(&mut self) {
        let links = links();
        if !self.is_due(links) {
            return;
        }
        let tasks: BTreeSet<u32> = tasks().collect();
        // Where the process has left /proc by chroot, or has that of other numbers, it says nothing of our threads.
        if !tasks.contains(&self.own) {
            return;
        }
        // Also one that has ended: for this thread there was no timer, or it is about to end.
        let armed: BTreeSet<u32> = slot::all()
            .filter(|(_, slot)| slot.state.load(Ordering::Acquire) != slot::FREE)
            .map(|(_, slot)| slot.tid.load(Ordering::Acquire))
            .collect();
        let there: BTreeSet<u32> = tasks.into_iter().filter(|&tid| tid != self.own).collect();
        let unarmed: BTreeSet<u32> = there.difference(&armed).copied().collect();
        for &tid in unarmed.intersection(&self.young) {
            arm(tid);
        }
        self.young = unarmed.difference(&self.young).copied().collect();
        for (_, slot) in slot::all() {
            if !there.contains(&slot.tid.load(Ordering::Acquire)) {
                disarm(slot);
            }
        }
    }
}

/// Arms every thread that is there.
pub(crate) fn arm_all() {
    for tid in tasks() {
        arm(tid);
    }
}

fn tasks() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a thread of this process has that number, or may have: a filter may refuse the question.
pub(crate) fn exists(pid: u32, tid: u32) -> bool {
    // SAFETY: no signal is sent.
    (unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) }) == 0
        || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool of threads after another one of the same size.
    #[test]
    fn threads_are_looked_at_where_their_number_stays() {
        let mut scan = Scan::without(1);
        let due = |scan: &mut Scan, links| (0..100).filter(|_| scan.is_due(links)).count();
        assert_eq!(due(&mut scan, 6), 100);
        // 10,000 threads: the one time that their number is new, and then every eight seconds.
        assert_eq!(due(&mut scan, 10_002), 1);
        assert_eq!(due(&mut scan, 10_002), 1);
        assert_eq!(due(&mut scan, 402), 15);
    }

    /// As after chroot: a list without the thread that looks is not of this process.
    #[test]
    fn a_proc_that_is_not_ours_ends_nothing() {
        let _alone = slot::alone();
        let slot = slot::claim(u32::MAX).unwrap().1;
        slot.timer.store(-1, Ordering::Relaxed);
        slot.state.store(slot::ARMED, Ordering::Release);
        Scan::without(u32::MAX - 1).look();
        assert_eq!(slot.state.swap(slot::FREE, Ordering::AcqRel), slot::ARMED);
    }
}
