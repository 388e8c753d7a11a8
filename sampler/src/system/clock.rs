//! The clock for sample time stamps (perf's `-k mono`): read through the vDSO if available, else by a system call.

use std::mem::MaybeUninit;

use crate::system::vdso;

/// Reads `CLOCK_MONOTONIC` in nanoseconds. Bypasses libc, whose clock functions libfaketime and similar tools replace.
/// Safe in a signal handler.
pub(crate) fn monotonic() -> u64 {
    vdso::read_clock(libc::CLOCK_MONOTONIC).unwrap_or_else(jitlisten::plumbing::monotonic)
}

/// CPU time of a thread of this process, in ns; 0 if it has exited.
pub(crate) fn thread_cpu(tid: u32) -> u64 {
    jitlisten::plumbing::clock_ns(thread_cpu_clock(tid))
}

/// Clock type bits of a thread's CPU clock: `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`.
const THREAD_CPU_CLOCK: libc::clockid_t = 6;

/// Returns the clock id of a thread's CPU time.
pub(crate) fn thread_cpu_clock(tid: u32) -> libc::clockid_t {
    !(tid as libc::clockid_t) << 3 | THREAD_CPU_CLOCK
}

/// Thread id of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: `gettid` has no precondition.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

/// Time between two ticks of the kernel in ns: the resolution of its coarse clocks.
pub(crate) fn tick() -> u64 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `resolution`.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64
}

/// Resource usage of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadUsage {
    /// Context switches because the thread waited.
    pub(crate) voluntary_switches: u64,
    /// Context switches because another thread ran.
    pub(crate) involuntary_switches: u64,
    pub(crate) page_faults: u64,
    pub(crate) cpu_ns: u64,
}

impl ThreadUsage {
    pub(crate) fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    /// Returns the CPU time since an earlier reading if the thread was preempted meanwhile, and did not wait. It waits
    /// in a handler's system calls if a tracer stops it there.
    pub(crate) fn cpu_ns_if_preempted_since(&self, earlier: &ThreadUsage) -> Option<u64> {
        let has_waited = self.voluntary_switches != earlier.voluntary_switches;
        let is_preempted = self.involuntary_switches != earlier.involuntary_switches;
        (is_preempted && !has_waited).then(|| self.cpu_ns.saturating_sub(earlier.cpu_ns))
    }

    /// Reads the usage of the calling thread. Safe in a signal handler.
    pub(crate) fn of_caller() -> ThreadUsage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes to `usage`.
        unsafe { libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: the structure has only integers, and was zeroed.
        let usage = unsafe { usage.assume_init() };
        let nanoseconds = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        ThreadUsage {
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
            page_faults: usage.ru_minflt as u64 + usage.ru_majflt as u64,
            cpu_ns: nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime),
        }
    }
}
