//! The clock for sample time stamps (perf's `-k mono`): read through the vDSO if available, else by a system call.

use crate::handler::vdso;

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
