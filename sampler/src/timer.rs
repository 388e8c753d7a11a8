//! One timer for each thread, and the signal that it sends.
//!
//! `timer_create(2)` with `SIGEV_THREAD_ID` sends to one thread; a clock of the form `~tid << 3 | 6` is that thread's
//! CPU time (`clock_getcpuclockid(3)`, `include/linux/posix-timers.h`). CPU timers fire at the kernel's tick, so a rate
//! above `CONFIG_HZ` gives no more samples. The period of a sample is all of the thread's time since the one before it.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::clock;
use crate::disposition;
use crate::options::Clock;

/// `SIGEV_THREAD_ID` of `<signal.h>`
const SIGEV_THREAD_ID: c_int = 4;
/// `SI_TIMER` of `<signal.h>`
pub(crate) const SI_TIMER: c_int = -2;

/// `struct sigevent` as the kernel reads it.
#[repr(C)]
struct SigEvent {
    value: u64,
    signal: c_int,
    notify: c_int,
    tid: c_int,
    padding: [c_int; 11],
}

const _: () = assert!(size_of::<SigEvent>() == 64);

#[repr(C)]
struct TimerSpec {
    interval: libc::timespec,
    value: libc::timespec,
}

/// A timer of the kernel's. Its number; not deleted when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer(pub(crate) c_int);

impl Timer {
    /// A timer that sends `signal` with `value` to the thread `tid` when it is set.
    pub(crate) fn new(clock: Clock, tid: u32, signal: c_int, value: u64) -> io::Result<Timer> {
        let clock = match clock {
            Clock::Cpu => crate::clock::thread_cpu_clock(tid),
            Clock::Wall => libc::CLOCK_MONOTONIC,
        };
        let event = SigEvent { value, signal, notify: SIGEV_THREAD_ID, tid: tid as c_int, padding: [0; 11] };
        let mut number: c_int = 0;
        // SAFETY: reads a sigevent and writes a number.
        let made = unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut number) };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Timer(number))
    }

    /// Sends after `first` nanoseconds of the clock, then every `period`; 0: once. A signal of before that still waits
    /// may be dropped.
    pub(crate) fn set(self, first: u64, period: u64) -> io::Result<()> {
        let spec = TimerSpec { interval: timespec(period), value: timespec(first.max(1)) };
        let none: *mut TimerSpec = ptr::null_mut();
        // SAFETY: reads the specification; the old one is not asked for. The number may be of no timer by now: the
        // kernel gives it to no other one before it has given all others.
        match unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, &raw const spec, none) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// No further signal is made. One that waits still comes.
    pub(crate) fn delete(self) {
        // SAFETY: a number of a timer, or of none by now.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

impl Clock {
    /// Whether the system gives this process a timer: how many there may be is limited (`RLIMIT_SIGPENDING`).
    ///
    /// # Errors
    /// Why not.
    pub fn permitted(self) -> io::Result<()> {
        Timer::new(self, clock::own_tid(), libc::SIGRTMAX(), 0).map(Timer::delete)
    }
}

/// In the values of our signals: the program may send the same signal.
const SIGNAL_VALUE_TAG: u64 = 0x6a6c;

/// What our signal carries: which slot, and of which owner.
pub(crate) fn encode_signal_value(index: usize, generation: u32) -> u64 {
    index as u64 | SIGNAL_VALUE_TAG << 16 | u64::from(generation) << 32
}

/// The slot and its owner, if the value is one of ours.
pub(crate) fn decode_signal_value(value: u64) -> Option<(usize, u32)> {
    (value >> 16 & 0xffff == SIGNAL_VALUE_TAG).then_some(((value & 0xffff) as usize, (value >> 32) as u32))
}

fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ }
}

/// A signal's handler.
type Handler = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Signals that mean that the thread itself has gone wrong; they come in the handler, too.
const FAULT_SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Signals 32 and 33, which glibc takes for itself and leaves out of every set that its functions fill.
const GLIBC_SIGNALS: u64 = 0b11 << 31;

/// The signals of counters, of which the kernel itself sends none. It queues them whatever `RLIMIT_SIGPENDING` says;
/// instead of a real-time signal it would send a descriptor's owner `SIGIO` there, whose default is the end of the
/// process.
const COUNTER_SIGNALS: [c_int; 2] = [libc::SIGSTKFLT, libc::SIGPWR];

/// Returns whether `signal` is one for counters, or else for timers.
pub(crate) fn is_suitable(signal: c_int, is_counted: bool) -> bool {
    COUNTER_SIGNALS.contains(&signal) == is_counted
}

/// Installs `handler` for a signal that is not in use, whose disposition is the default: for timers the highest
/// real-time one. It stays, because a signal may still wait in some thread, and the default is the end of the process.
pub(crate) fn install(handler: Handler, is_counted: bool) -> Option<c_int> {
    let highest = (libc::SIGRTMIN() + 1..=libc::SIGRTMAX()).rev();
    let mut signals = COUNTER_SIGNALS.into_iter().chain(highest).filter(|&signal| is_suitable(signal, is_counted));
    signals.find(|&signal| install_if_default(signal, handler))
}

/// Installs `handler` for `signal`, if its disposition is the default. Returns whether it was.
pub(crate) fn install_if_default(signal: c_int, handler: Handler) -> bool {
    if current_handler(signal) != Some(libc::SIG_DFL) {
        return false;
    }
    // SAFETY: all zeros is a valid disposition.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // A handler of the host's that came meanwhile might jump out of ours.
    // SAFETY: writes the set.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    for fault in FAULT_SIGNALS {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(&raw mut action.sa_mask, fault) };
    }
    // And that of glibc's for `pthread_cancel` unwinds from where the thread waits, through ours if it came in between.
    // SAFETY: the set begins with the word that the kernel reads, aligned as that.
    unsafe { *(&raw mut action.sa_mask).cast::<u64>() |= GLIBC_SIGNALS };
    // SAFETY: the handler is a function of this library, which is never unloaded, and safe in every thread.
    unsafe { disposition::next_sigaction(signal, &raw const action, ptr::null_mut()) == 0 }
}

/// Whether the disposition of `signal` is still ours.
pub(crate) fn is_installed(signal: c_int, handler: Handler) -> bool {
    current_handler(signal) == Some(handler as libc::sighandler_t)
}

/// What is done for `signal`.
fn current_handler(signal: c_int) -> Option<libc::sighandler_t> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: writable memory for the disposition; nothing is changed.
    if unsafe { disposition::next_sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has written it.
    Some(unsafe { now.assume_init() }.sa_sigaction)
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    extern "C-unwind" fn nothing(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

    /// As the kernel has it: `sigaction(3)` might have taken some out, and would not say so.
    #[test]
    fn nothing_but_faults_comes_while_the_handler_runs() {
        // Not the highest: that one is for the other tests' recordings.
        let signal = libc::SIGRTMIN() + 5;
        assert!(install_if_default(signal, nothing));
        // Handler, flags, restorer, mask.
        let mut action = [0_u64; 4];
        let none: *const u64 = ptr::null();
        // SAFETY: writable memory for the kernel's structure on x86_64, which is the largest one; nothing is changed.
        let read = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, action.as_mut_ptr(), 8_usize) };
        assert_eq!(read, 0);
        let [.., mask] = action;
        let open: Vec<c_int> = (1..=64).filter(|signal| mask & 1 << (signal - 1) == 0).collect();
        let mut expected = [&FAULT_SIGNALS[..], &[libc::SIGKILL, libc::SIGSTOP]].concat();
        expected.sort_unstable();
        assert_eq!(open, expected);
    }
}
