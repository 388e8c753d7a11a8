//! Signals and other system calls. Uses `libc` only for functions that rustix lacks.

#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal};

/// Makes the kernel send `SIGTERM` to the command when the thread that started it exits for any reason. Also unblocks
/// termination signals in the command.
pub(crate) fn end_with_parent(command: &mut Command) {
    let parent = Some(rustix::process::getpid());
    let prepare_child = move || {
        BlockedSignals::termination().unblock();
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        let has_parent = rustix::process::getppid() == parent;
        if has_parent { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: the closure only makes system calls and does not allocate, so it is safe in a forked child.
    unsafe { command.pre_exec(prepare_child) };
}

/// Sends a signal to this process, or to a child that has not been reaped.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    // The process may have exited.
    let _ = as_pid(pid).map(|pid| rustix::process::kill_process(pid, signal));
}

/// Kills the process group led by `leader`, a child of this process.
pub(crate) fn kill_group(leader: u32) {
    let _ = as_pid(leader).map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Frees a part of a file on disk, which then reads as zeros.
pub(crate) fn punch_hole(file: &File, from: u64, length: u64) {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Some file systems do not support this.
    let _ = rustix::fs::fallocate(file, mode, from, length);
}

/// Signals that stay pending until they are read, instead of terminating this process.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks the signals that a user or the system usually sends to terminate a process.
    pub(crate) fn termination() -> BlockedSignals {
        BlockedSignals::new(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT])
    }

    /// Blocks all signals that other processes send, including those to the process group. Job control signals and
    /// faults of this process remain unblocked.
    pub(crate) fn all_external() -> BlockedSignals {
        let unblocked = [
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGSYS,
        ];
        BlockedSignals::from_numbers((1..=libc::SIGRTMAX()).filter(|signal| !unblocked.contains(signal)))
    }

    pub(crate) fn new(signals: &[Signal]) -> BlockedSignals {
        BlockedSignals::from_numbers(signals.iter().map(|signal| signal.as_raw()))
    }

    fn from_numbers(signals: impl Iterator<Item = i32>) -> BlockedSignals {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call initialises the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // Skip signals that are ignored (`nohup`, `&` in a script), because they are not requests to exit. If blocked,
        // such a signal would become pending and be taken for a request.
        for signal in signals.filter(|signal| *signal == libc::SIGCHLD || !is_ignored(*signal)) {
            // SAFETY: the set was initialised above, and glibc rejects its own internal signals.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: the set is initialised, and a null pointer is valid for the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: `sigemptyset` has initialised the set.
        BlockedSignals(unsafe { set.assume_init() })
    }

    /// Discards pending signals and unblocks all of them.
    pub(crate) fn release(self) {
        while self.wait_number(Duration::ZERO) > 0 {}
        self.unblock();
    }

    /// Unblocks all of them. A pending signal then has its effect.
    pub(crate) fn unblock(&self) {
        // SAFETY: the set is initialised, and a null pointer is valid for the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Returns true if one of the signals is pending, and leaves it so.
    pub(crate) fn is_pending(&self) -> bool {
        let mut pending = MaybeUninit::uninit();
        // SAFETY: the call initialises the set.
        unsafe { libc::sigpending(pending.as_mut_ptr()) };
        // SAFETY: both sets are initialised.
        (1..=libc::SIGRTMAX()).any(|signal| unsafe {
            libc::sigismember(pending.as_ptr(), signal) == 1 && libc::sigismember(&raw const self.0, signal) == 1
        })
    }

    /// Returns a pending signal, or the next one to arrive within the timeout.
    pub(crate) fn wait_signal(&self, timeout: Duration) -> Option<Signal> {
        Signal::from_named_raw(self.wait_number(timeout))
    }

    /// Waits like [`BlockedSignals::wait_signal`], but returns a number, since real-time signals are unnamed. Negative
    /// after a timeout.
    fn wait_number(&self, timeout: Duration) -> i32 {
        let timeout =
            libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos().into() };
        // SAFETY: the set and the timeout are initialised, and a null pointer is valid for the signal's details.
        unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const timeout) }
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action, the call only writes the current action to `action`.
    unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid `sigaction`, and the call has overwritten them.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Bit mask of the standard descriptors that were closed when this process started. Rust's runtime replaces them with
/// `/dev/null` before `main`.
static CLOSED_DESCRIPTORS: AtomicU8 = AtomicU8::new(0);

/// Constructor that runs before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = record_closed_descriptors;

extern "C" fn record_closed_descriptors() {
    for descriptor in 0..3 {
        // SAFETY: `F_GETFD` only reads flags, and a closed descriptor is allowed.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED_DESCRIPTORS.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Ensures that standard descriptors which were closed when this process started are also closed in programs that it
/// executes.
pub(crate) fn keep_descriptors_closed() {
    let closed_descriptors = CLOSED_DESCRIPTORS.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed_descriptors & 1 << descriptor != 0) {
        // SAFETY: the call changes a flag of the runtime's own descriptor, which this process does not use.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Guard that blocks all signals for this thread and for threads that it starts.
pub(crate) struct AllSignalsBlocked(libc::sigset_t);

impl AllSignalsBlocked {
    pub(crate) fn new() -> AllSignalsBlocked {
        let (mut all_signals, mut old_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the call initialises the set.
        unsafe { libc::sigfillset(all_signals.as_mut_ptr()) };
        // SAFETY: the first set is initialised, and the second one is writable.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all_signals.as_ptr(), old_mask.as_mut_ptr()) };
        // SAFETY: `pthread_sigmask` has initialised the old mask.
        AllSignalsBlocked(unsafe { old_mask.assume_init() })
    }
}

impl Drop for AllSignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `pthread_sigmask` initialised the set, and a null pointer is valid for the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
