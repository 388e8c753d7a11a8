//! Kernel clocks, read with a direct system call.
//!
//! libfaketime and similar libraries interpose libc's `clock_gettime` (some also `syscall`), and stop the clock or
//! shift it by years. Our timestamps would then not match perf's, and our timeouts and file ages would be wrong.
//! Therefore this module makes the system call itself, also for the shim and the sampler. It is async-signal-safe and
//! does not change `errno`. `unwind-register` has its own copy, because it is independent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `CLOCK_MONOTONIC` in ns, the clock that `perf record -k mono` and jitdump files use.
///
/// A process in its own time namespace (`time_namespaces(7)`) sees a shifted clock, but perf does not. The process
/// cannot determine the offset.
pub fn monotonic() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Wall-clock time, comparable with file timestamps.
pub(crate) fn time_of_day() -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(clock_ns(libc::CLOCK_REALTIME))
}

/// Time of any kernel clock in ns; 0 if the kernel does not have it.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    clock_gettime(clock, &mut now);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    let mut _result = libc::SYS_clock_gettime;
    // SAFETY: this system call writes a timespec to the given address, and changes rax, rcx and r11. On failure it
    // leaves `now` unchanged.
    unsafe {
        std::arch::asm!("syscall", inout("rax") _result, in("rdi") i64::from(clock), in("rsi") now,
            out("rcx") _, out("r11") _, options(nostack));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    let mut _result = i64::from(clock);
    // SAFETY: this system call writes a timespec to the given address, and changes x0. On failure it leaves `now`
    // unchanged.
    unsafe {
        std::arch::asm!("svc #0", in("x8") libc::SYS_clock_gettime, inout("x0") _result, in("x1") now,
            options(nostack));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn clock_gettime(clock: libc::clockid_t, now: &mut libc::timespec) {
    // SAFETY: `now` is writable memory for a timespec; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, now) };
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "libc's clock is what ours is compared with")]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_are_those_of_libc() {
        let (before, now) = (monotonic(), time_of_day());
        let mut libc_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `libc_time` is writable memory for a timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut libc_time) };
        let libc_time = libc_time.tv_sec as u64 * 1_000_000_000 + libc_time.tv_nsec as u64;
        assert!(before > 0 && before <= libc_time && libc_time - before < 60_000_000_000);
        assert!(SystemTime::now().duration_since(now).expect("later") < Duration::from_secs(60));
    }
}
