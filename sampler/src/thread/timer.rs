//! Per-thread timers, and the signal that they send.
//!
//! `timer_create(2)` with `SIGEV_THREAD_ID` signals one thread. A clock id of the form `~tid << 3 | 6` is that thread's
//! CPU time (`clock_getcpuclockid(3)`, `include/linux/posix-timers.h`). CPU timers fire at the kernel's tick, so a rate
//! above `CONFIG_HZ` does not increase the number of samples. The period of a sample is all of the thread's time since
//! the previous sample.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::recording::options::Clock;
use crate::system::clock;
use crate::transparency::disposition::Sender;
use crate::transparency::next;

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

/// Id of a kernel timer. Not deleted when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer(pub(crate) c_int);

impl Timer {
    /// Creates a timer that sends `signal` with `value` to the thread `tid` once it is set.
    pub(crate) fn new(clock: Clock, tid: u32, signal: c_int, value: u64) -> io::Result<Timer> {
        let clock = match clock {
            Clock::Cpu => crate::system::clock::thread_cpu_clock(tid),
            Clock::Wall => libc::CLOCK_MONOTONIC,
        };
        let event = SigEvent { value, signal, notify: SIGEV_THREAD_ID, tid: tid as c_int, padding: [0; 11] };
        let mut number: c_int = 0;
        // SAFETY: the call reads a sigevent and writes an id.
        let result = unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut number) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Timer(number))
    }

    /// Sends the signal after `first` nanoseconds of the clock, then every `period` nanoseconds; a period of 0 means
    /// only once. A pending signal of an earlier setting may be dropped.
    pub(crate) fn set(self, first: u64, period: u64) -> io::Result<()> {
        let spec = TimerSpec { interval: timespec(period), value: timespec(first.max(1)) };
        let no_old_spec: *mut TimerSpec = ptr::null_mut();
        // SAFETY: the call reads the specification, and does not return the old one. If the timer has been deleted, the
        // kernel does not reuse its id before it has used all others.
        match unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, &raw const spec, no_old_spec) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Deletes the timer. A signal that is already pending is still delivered.
    pub(crate) fn delete(self) {
        // SAFETY: the id belongs to this timer, or to no timer if it has already been deleted.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

impl Clock {
    /// Checks that this process can create a timer, because the number of timers is limited (`RLIMIT_SIGPENDING`).
    ///
    /// # Errors
    /// The error of `timer_create(2)`.
    pub fn permitted(self) -> io::Result<()> {
        Timer::new(self, clock::own_tid(), libc::SIGRTMAX(), 0).map(Timer::delete)
    }
}

/// Tag in the values of our signals, because the program may send the same signal.
const SIGNAL_VALUE_TAG: u64 = 0x6a6c;

/// Encodes the value that our signal carries: a slot and the generation of its owner.
pub(crate) fn encode_signal_value(index: usize, generation: u32) -> u64 {
    index as u64 | SIGNAL_VALUE_TAG << 16 | u64::from(generation) << 32
}

/// Decodes the slot and its generation; `None` if the signal is not ours.
pub(crate) fn decode_signal_value(value: u64) -> Option<(usize, u32)> {
    (value >> 16 & 0xffff == SIGNAL_VALUE_TAG).then_some(((value & 0xffff) as usize, (value >> 32) as u32))
}

fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ }
}

/// A signal handler with SA_SIGINFO.
type Handler = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Signals for faults of the thread itself. They stay unblocked in the handler.
const FAULT_SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Signals 32 and 33, which glibc reserves for itself and omits from every set that its functions fill.
const GLIBC_SIGNALS: u64 = 0b11 << 31;

/// Signals for counters: the kernel never sends them by itself, and queues them regardless of `RLIMIT_SIGPENDING`. With
/// a real-time signal and a full queue, it would send `SIGIO` to the descriptor's owner instead, which kills the
/// process by default.
const COUNTER_SIGNALS: [c_int; 2] = [libc::SIGSTKFLT, libc::SIGPWR];

/// Installs `handler` for a signal with the default disposition: for timers, the highest free real-time signal. The
/// handler stays installed, because a signal may still be pending in some thread, and its default action would kill the
/// process.
pub(crate) fn install(handler: Handler, sender: Sender) -> Option<c_int> {
    match sender {
        Sender::Timer => {
            let mut highest = (libc::SIGRTMIN() + 1..=libc::SIGRTMAX()).rev();
            highest.find(|&signal| install_if_default(signal, handler))
        }
        Sender::Counter => COUNTER_SIGNALS.into_iter().find(|&signal| install_if_default(signal, handler)),
    }
}

pub(crate) fn install_if_default(signal: c_int, handler: Handler) -> bool {
    if current_handler(signal) != Some(libc::SIG_DFL) {
        return false;
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // Block all signals, because a host handler nested in ours might jump out of it.
    // SAFETY: `sigfillset` initializes the set.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    for fault in FAULT_SIGNALS {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(&raw mut action.sa_mask, fault) };
    }
    // Block SIGCANCEL too: glibc's handler would unwind through ours.
    // SAFETY: the set begins with the word that the kernel reads, and is aligned for it.
    unsafe { *(&raw mut action.sa_mask).cast::<u64>() |= GLIBC_SIGNALS };
    // SAFETY: the handler is a function of this library, which is never unloaded, and is safe in every thread.
    unsafe { next::sigaction(signal, &raw const action, ptr::null_mut()) == 0 }
}

/// Returns true if our handler is still installed for `signal`.
pub(crate) fn is_installed(signal: c_int, handler: Handler) -> bool {
    current_handler(signal) == Some(handler as libc::sighandler_t)
}

fn current_handler(signal: c_int) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `action` is writable, and the call changes no disposition.
    if unsafe { next::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call above has initialized `action`.
    Some(unsafe { action.assume_init() }.sa_sigaction)
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    extern "C-unwind" fn ignore_signal(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

    /// Reads the mask from the kernel: `sigaction(3)` might have removed signals silently.
    #[test]
    fn only_faults_interrupt_the_handler() {
        // Not the highest real-time signal, because other tests record with it.
        let signal = libc::SIGRTMIN() + 5;
        assert!(install_if_default(signal, ignore_signal));
        // Fields of the kernel's `sigaction`: handler, flags, restorer, mask.
        let mut action = [0_u64; 4];
        let no_new_action: *const u64 = ptr::null();
        // SAFETY: the array is as large as the kernel's structure on x86_64, which is the largest of all architectures,
        // and the call changes no disposition.
        let result =
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, no_new_action, action.as_mut_ptr(), 8_usize) };
        assert_eq!(result, 0);
        let [.., mask] = action;
        let unblocked: Vec<c_int> = (1..=64).filter(|signal| mask & 1 << (signal - 1) == 0).collect();
        let mut expected = [&FAULT_SIGNALS[..], &[libc::SIGKILL, libc::SIGSTOP]].concat();
        expected.sort_unstable();
        assert_eq!(unblocked, expected);
    }
}
