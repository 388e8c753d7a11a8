//! Kernel clocks, read with a direct system call.
//!
//! A preloaded library that interposes libc's `clock_gettime` (libfaketime) may stop the clock, and quarantined memory
//! would then never be reused.

/// Returns `CLOCK_MONOTONIC_COARSE` in nanoseconds. Its resolution of a few milliseconds is enough for quarantines.
pub(crate) fn now() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// Time of any kernel clock in ns; 0 if the kernel does not have it. Async-signal-safe; does not change `errno`.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    clock_gettime(clock, &mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let mut _result = libc::SYS_clock_gettime;
    // SAFETY: `syscall` with this number writes a timespec to the given address and clobbers rax, rcx and r11. On
    // failure `time` is unchanged.
    unsafe {
        std::arch::asm!("syscall", inout("rax") _result, in("rdi") i64::from(clock), in("rsi") time,
            out("rcx") _, out("r11") _, options(nostack));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let mut _result = i64::from(clock);
    // SAFETY: `svc` with this number writes a timespec to the given address and clobbers x0. On failure `time` is
    // unchanged.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_clock_gettime,
            inout("x0") _result,
            in("x1") time,
            options(nostack),
        );
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    // SAFETY: `time` is writable; the clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(clock, time) };
}
