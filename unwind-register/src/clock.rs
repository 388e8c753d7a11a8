//! A clock that only goes forwards, asked of the kernel itself.
//!
//! Libraries that stand in for `clock_gettime` of libc (libfaketime) may stop it, and memory in quarantine would never
//! be used again. jitlisten asks the kernel in the same way (`process/clock.rs`); this crate stands alone, and a clock
//! that advances every few milliseconds is fine for quarantines.

/// `CLOCK_MONOTONIC_COARSE` in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let mut _result = libc::SYS_clock_gettime;
    // SAFETY: `syscall` with this number writes a timespec to the address given, and changes rax, rcx and r11. A
    // failure leaves `time` as it is.
    unsafe {
        std::arch::asm!("syscall", inout("rax") _result, in("rdi") i64::from(clock), in("rsi") time,
            out("rcx") _, out("r11") _, options(nostack));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let mut _result = i64::from(clock);
    // SAFETY: `svc` with this number writes a timespec to the address given, and changes x0. A failure leaves `time` as
    // it is.
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
    // SAFETY: writable memory for a timespec; the clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(clock, time) };
}
