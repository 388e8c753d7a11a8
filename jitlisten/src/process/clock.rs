//! Kernel clocks, read with a direct system call.
//!
//! libfaketime and similar libraries interpose libc's `clock_gettime` (some also `syscall`), and stop the clock or
//! shift it by years. Our timestamps would then not match perf's, and our timeouts and file ages would be wrong.
//! Therefore `unwind-register` makes the system call itself, also for this crate, the shim and the sampler. It is
//! async-signal-safe and does not change `errno`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use unwind_register::clock_ns;

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

#[cfg(test)]
#[allow(unsafe_code)]
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
