//! The threads of the process, as the kernel lists them.
//!
//! ```text
//!   pthread_create ---> the new thread arms itself before its function runs                creation.rs
//!   /proc/self/task --> threads from before the recording, or not from pthread_create      Scan
//! ```

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::ptr;

use crate::recording::current::Recording;
use crate::system::clock;
use crate::thread::arming::{arm, disarm};
use crate::thread::run_queue::SchedulerTimes;
use crate::thread::slot_state::State;
use crate::thread::slots;

/// Maximum number of threads to list in every pass of the writer.
pub(crate) const SMALL_THREAD_COUNT: u64 = 64;
/// Passes between two scans while every thread is sampled. Each scan opens a directory, whose descriptor a program that
/// counts on the lowest free number may notice.
const PASSES_PER_SCAN: u64 = 20;

/// Returns true if the main thread has exited. The kernel then clears the list of robust mutexes that glibc registers
/// for every thread. False if the kernel does not allow the query.
fn main_thread_has_ended(pid: u32) -> bool {
    let (mut list, mut size) = (ptr::dangling_mut::<c_void>(), 0_usize);
    // SAFETY: `get_robust_list` writes a pointer and a size.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, pid, &raw mut list, &raw mut size) };
    result == 0 && list.is_null()
}

/// Returns true if the calling thread, which is about to exit, is the program's last thread: all other threads
/// except the writer have exited or are about to.
pub(crate) fn is_last_program_thread(recording: &Recording) -> bool {
    let (own_tid, pid) = (clock::own_tid(), std::process::id());
    let is_ending = |tid: &u32| {
        slots::find_by_tid(*tid).any(|(_, slot)| slot.state.get() == State::Ended) || !thread_exists(pid, *tid)
    };
    (own_tid == pid || main_thread_has_ended(pid))
        && list_threads(own_tid)
            .iter()
            .all(|tid| [own_tid, pid, recording.writer.tid()].contains(tid) || is_ending(tid))
}

/// Returns true if the caller and the writer are the only threads of the process, or if that is unknown.
pub(crate) fn may_be_single_threaded() -> bool {
    count_task_links() <= 2 + 2
}

/// Link count of the task directory: the number of threads plus 2. 0 if the directory is missing.
fn count_task_links() -> u64 {
    fs::metadata("/proc/self/task").map_or(0, |metadata| metadata.nlink())
}

/// Lists all threads, or only the sampled threads if /proc is unusable (after chroot, or in another PID namespace).
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
    /// Number of passes since the last full scan.
    skipped_scans: u64,
    /// Threads that had no timer at the last scan; they may have been about to arm themselves.
    previously_unarmed: BTreeSet<u32>,
}

impl Scan {
    /// Creates a scan that ignores the writer's own thread.
    pub(crate) fn ignoring(writer_tid: u32) -> Self {
        Scan { writer_tid, ..Scan::default() }
    }

    /// Returns true if every other thread has exited, whether or not it reported its exit. The process then ends with
    /// the writer.
    pub(crate) fn is_writer_last(&self) -> bool {
        let pid = std::process::id();
        main_thread_has_ended(pid)
            && list_threads(self.writer_tid)
                .iter()
                .all(|tid| [self.writer_tid, pid].contains(tid) || !thread_exists(pid, *tid))
    }

    /// Returns true if a full scan is due. Threads may have started and exited in equal numbers, so scans also run
    /// periodically while the link count stays the same; the more threads, the less often, and less often if there are
    /// as many `slots` as threads.
    fn is_due(&mut self, link_count: u64, slots: u64) -> bool {
        self.skipped_scans += 1;
        // The links are the threads, with the writer, and two others.
        let min_passes = if slots + 3 == link_count { PASSES_PER_SCAN - 1 } else { 0 };
        let is_due = link_count != self.link_count
            || !self.previously_unarmed.is_empty()
            || self.skipped_scans > min_passes.max(link_count / SMALL_THREAD_COUNT);
        if is_due {
            (self.link_count, self.skipped_scans) = (link_count, 0);
        }
        is_due
    }

    /// Scans the threads if due. Arms threads that had no timer in two consecutive scans, and disarms exited threads.
    pub(crate) fn update(&mut self, recording: &Recording) {
        let used_slots = slots::iter().filter(|(_, slot)| slot.state.get() != State::Free).count();
        if !self.is_due(count_task_links(), used_slots as u64) {
            return;
        }
        let tasks: BTreeSet<u32> = read_task_ids().collect();
        // After chroot, or in another PID namespace, /proc does not describe our threads.
        if !tasks.contains(&self.writer_tid) {
            return;
        }
        // Include ended slots: no timer was available for their threads, or the threads are about to exit.
        let armed_tids: BTreeSet<u32> = slots::iter()
            .filter(|(_, slot)| slot.state.get() != State::Free)
            .map(|(_, slot)| slot.state.tid())
            .collect();
        let existing_tids: BTreeSet<u32> = tasks.into_iter().filter(|&tid| tid != self.writer_tid).collect();
        let unarmed_tids: BTreeSet<u32> = existing_tids.difference(&armed_tids).copied().collect();
        for &tid in unarmed_tids.intersection(&self.previously_unarmed) {
            arm(recording, tid, SchedulerTimes::read(tid).unwrap_or_default());
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
pub(crate) fn arm_all(recording: &Recording) {
    for tid in read_task_ids() {
        arm(recording, tid, SchedulerTimes::read(tid).unwrap_or_default());
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
    use crate::recording::current;

    /// A thread pool may be replaced by another pool of the same size.
    #[test]
    fn threads_are_scanned_even_if_their_number_is_unchanged() {
        let mut scan = Scan::ignoring(1);
        let count_scans = |scan: &mut Scan, links, slots| (0..100).filter(|_| scan.is_due(links, slots)).count();
        assert_eq!(count_scans(&mut scan, 6, 2), 100);
        // All threads are sampled: a scan each second.
        assert_eq!(count_scans(&mut scan, 6, 3), 5);
        // 10,000 threads: scanned once because their number has changed, and then every eight seconds.
        assert_eq!(count_scans(&mut scan, 10_002, 1), 1);
        assert_eq!(count_scans(&mut scan, 10_002, 1), 1);
        assert_eq!(count_scans(&mut scan, 402, 1), 15);
    }

    /// After chroot, a thread list that lacks the scanning thread belongs to another process.
    #[test]
    fn a_foreign_procfs_marks_no_thread_as_exited() {
        let _lock = slots::lock_for_test();
        let slot = slots::claim(u32::MAX).unwrap().1;
        slot.state.set(State::Armed);
        current::publish_for_test();
        Scan::ignoring(u32::MAX - 1).update(current::last().unwrap());
        assert!(slot.state.change(State::Armed, State::Free));
    }
}
