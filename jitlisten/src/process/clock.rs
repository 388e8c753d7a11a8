//! Clocks, read with a system call.
//!
//! libfaketime and similar libraries replace libc's `clock_gettime` (some also `syscall`), and stop it or move it by
//! years. perf's times would differ, and our waits and file ages would be wrong. Therefore the system call is made
//! here, also for the shim and the sampler. It is safe in a signal handler and does not change `errno`.
//! `unwind-register` has its own, because it is independent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `CLOCK_MONOTONIC` in nanoseconds: what `perf record -k mono` writes beside its samples, and what a jitdump is in.
///
/// In a time namespace of its own (`time_namespaces(7)`) a process sees a shifted clock and perf does not; such a
/// process cannot know by how much.
pub fn monotonic() -> u64 {
    nanoseconds_of(libc::CLOCK_MONOTONIC)
}

/// The time of day: what the kernel writes beside files.
pub(crate) fn time_of_day() -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanoseconds_of(libc::CLOCK_REALTIME))
}

/// Any clock of the kernel, in nanoseconds; 0 for one that it does not have.
pub fn nanoseconds_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    clock_gettime(clock, &mut now);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    let mut _result = libc::SYS_clock_gettime;
    // SAFETY: `syscall` with this number writes a timespec to the address given, and changes rax, rcx and r11. A
    // failure leaves `now` as it is.
    unsafe {
        std::arch::asm!("syscall", inout("rax") _result, in("rdi") i64::from(clock), in("rsi") now,
            out("rcx") _, out("r11") _, options(nostack));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    let mut _result = i64::from(clock);
    // SAFETY: `svc` with this number writes a timespec to the address given, and changes x0. A failure leaves `now` as
    // it is.
    unsafe {
        std::arch::asm!("svc #0", in("x8") libc::SYS_clock_gettime, inout("x0") _result, in("x1") now,
            options(nostack));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    // SAFETY: writable memory for a timespec; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, now) };
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "libc's clock is what ours is compared with")]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_are_those_of_libc() {
        let (before, now) = (monotonic(), time_of_day());
        let mut libcs = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writable memory for a timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut libcs) };
        let libcs = libcs.tv_sec as u64 * 1_000_000_000 + libcs.tv_nsec as u64;
        assert!(before > 0 && before <= libcs && libcs - before < 60_000_000_000);
        assert!(SystemTime::now().duration_since(now).expect("later") < Duration::from_secs(60));
    }
}
