//! The clock of the samples' time stamps (`-k mono` of perf): the vDSO's if there is one, else jitlisten's system call.

use crate::vdso;

/// `CLOCK_MONOTONIC` in nanoseconds, not by libc, which libfaketime and its kin stand in for. Safe in a signal handler.
pub(crate) fn monotonic() -> u64 {
    vdso::read_clock(libc::CLOCK_MONOTONIC).unwrap_or_else(jitlisten::plumbing::monotonic)
}

/// The time that a thread of this process has spent on a processor; 0 for one that is gone.
pub(crate) fn thread_cpu(tid: u32) -> u64 {
    jitlisten::plumbing::nanoseconds_of(thread_cpu_clock(tid))
}

/// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`
const THREAD_CPU_CLOCK: libc::clockid_t = 6;

/// The clock of a thread's CPU time.
pub(crate) fn thread_cpu_clock(tid: u32) -> libc::clockid_t {
    !(tid as libc::clockid_t) << 3 | THREAD_CPU_CLOCK
}

/// The number of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: has no precondition.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}
