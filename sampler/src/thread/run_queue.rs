//! Time of a thread on the run queue: it wanted to run, but others ran. The kernel adds it up, also when the thread is
//! not sampled.

use std::io::Write as _;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Times of a thread since its start, in ns, as in `/proc/self/task/TID/schedstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedulerTimes {
    pub(crate) cpu_ns: u64,
    /// Completed delays only; a delay in progress is not counted.
    pub(crate) run_queue_ns: u64,
}

impl SchedulerTimes {
    /// Reads the times of a thread of this process. `None` if the thread has exited, or the kernel does not tell.
    /// Allocates nothing and takes no lock: a fatal signal may have interrupted code that holds one.
    pub(crate) fn read(tid: u32) -> Option<SchedulerTimes> {
        // The rest of the path's array ends it.
        let (mut path, mut bytes) = ([0_u8; 64], [0_u8; 96]);
        write!(&mut path[..63], "/proc/self/task/{tid}/schedstat").ok()?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is NUL-terminated. libc's functions would be cancellation points.
        let descriptor = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        if descriptor < 0 {
            return None;
        }
        // SAFETY: the array has room for that many bytes.
        let size = unsafe { libc::syscall(libc::SYS_read, descriptor, bytes.as_mut_ptr(), bytes.len()) };
        // SAFETY: the descriptor was opened above.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
        SchedulerTimes::parse(std::str::from_utf8(bytes.get(..usize::try_from(size).ok()?)?).ok()?)
    }

    fn parse(text: &str) -> Option<SchedulerTimes> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some(SchedulerTimes { cpu_ns: numbers.next()??, run_queue_ns: numbers.next()?? })
    }
}

/// The times of a sampled thread that are not part of the recording. All zeros for a thread that starts.
#[derive(Debug)]
pub(crate) struct RunQueue {
    cpu_ns: AtomicU64,
    run_queue_ns: AtomicU64,
    /// Times at the end of the thread; CPU time 0 if it has not ended, or they are unknown.
    end_cpu_ns: AtomicU64,
    end_run_queue_ns: AtomicU64,
}

impl RunQueue {
    /// Begins to record a thread that had these times before.
    pub(super) fn begin(&self, before: SchedulerTimes) {
        self.cpu_ns.store(before.cpu_ns, Relaxed);
        self.run_queue_ns.store(before.run_queue_ns, Relaxed);
        self.end_cpu_ns.store(0, Relaxed);
    }

    /// Stores the thread's times at its end. Returns the recorded part.
    pub(super) fn set_end(&self, times: SchedulerTimes) -> SchedulerTimes {
        self.end_run_queue_ns.store(times.run_queue_ns, Relaxed);
        self.end_cpu_ns.store(times.cpu_ns, Release);
        let before = self.before();
        SchedulerTimes {
            cpu_ns: times.cpu_ns.saturating_sub(before.cpu_ns),
            run_queue_ns: times.run_queue_ns.saturating_sub(before.run_queue_ns),
        }
    }

    /// Returns the thread's times at its end.
    pub(crate) fn end(&self) -> Option<SchedulerTimes> {
        let cpu_ns = self.end_cpu_ns.load(Acquire);
        let run_queue_ns = self.end_run_queue_ns.load(Relaxed);
        (cpu_ns != 0).then_some(SchedulerTimes { cpu_ns, run_queue_ns })
    }

    /// Times that are not part of the recording.
    pub(crate) fn before(&self) -> SchedulerTimes {
        SchedulerTimes { cpu_ns: self.cpu_ns.load(Relaxed), run_queue_ns: self.run_queue_ns.load(Relaxed) }
    }

    /// Leaves out a delay that the sampler has caused.
    pub(crate) fn leave_out(&self, ns: u64) {
        self.run_queue_ns.fetch_add(ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_times_are_parsed() {
        let times = |cpu_ns, run_queue_ns| Some(SchedulerTimes { cpu_ns, run_queue_ns });
        assert_eq!(SchedulerTimes::parse("18446744073709551615 22 3\n"), times(u64::MAX, 22));
        assert_eq!([SchedulerTimes::parse("5"), SchedulerTimes::parse("")], [None, None]);
    }
}
