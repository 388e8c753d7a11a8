//! Signals and other system calls; `libc` only where rustix lacks a function.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal};

/// Makes the command get `SIGTERM` when the thread that starts it ends for any reason. Signals are unblocked in the
/// command.
pub(crate) fn end_with_parent(command: &mut Command) {
    let parent = Some(rustix::process::getpid());
    let prepare_child = move || {
        BlockedSignals::termination().unblock();
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        let has_parent = rustix::process::getppid() == parent;
        if has_parent { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: the closure makes system calls and does not allocate, so a forked child may run it.
    unsafe { command.pre_exec(prepare_child) };
}

/// Sends a signal to this process, or to a child that has not been waited for.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    // The process may have exited.
    let _ = as_pid(pid).map(|pid| rustix::process::kill_process(pid, signal));
}

/// Kills a process group led by a child of this process.
pub(crate) fn kill_group(leader: u32) {
    let _ = as_pid(leader).map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Frees a part of a file in the file system; it then reads as zeros.
pub(crate) fn punch_hole(file: &File, from: u64, length: u64) {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Some file systems do not support this.
    let _ = rustix::fs::fallocate(file, mode, from, length);
}

/// Signals that stay pending until they are requested, instead of ending this process.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks the signals with which a user or the system ends a process.
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
        // SAFETY: initialises the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // An ignored signal (`nohup`, `&` in a script) is not a request. While blocked, it would be delivered here
        // nevertheless.
        for signal in signals.filter(|signal| *signal == libc::SIGCHLD || !is_ignored(*signal)) {
            // SAFETY: the set was emptied above; glibc refuses its own signals.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: the set is initialised; the previous mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: `sigemptyset` has initialised it.
        BlockedSignals(unsafe { set.assume_init() })
    }

    /// Restores the effect of the signals, after discarding the pending ones.
    pub(crate) fn release(self) {
        while self.wait_number(Duration::ZERO) > 0 {}
        self.unblock();
    }

    fn unblock(&self) {
        // SAFETY: the set is initialised; the previous mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Returns a pending signal, or the next one within the timeout.
    pub(crate) fn wait_signal(&self, timeout: Duration) -> Option<Signal> {
        Signal::from_named_raw(self.wait_number(timeout))
    }

    /// Like [`BlockedSignals::wait_signal`], but includes real-time signals, which have no names. Negative after a
    /// timeout.
    fn wait_number(&self, timeout: Duration) -> i32 {
        let timeout =
            libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos().into() };
        // SAFETY: a set and a time; the sender's data is not requested.
        unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const timeout) }
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the action is only read, into `action`.
    unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid value, and the system has overwritten them.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Bit mask of the standard descriptors that were closed when this process started. Rust's runtime opens `/dev/null` in
/// their places before `main`.
static CLOSED_DESCRIPTORS: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = record_closed_descriptors;

extern "C" fn record_closed_descriptors() {
    for descriptor in 0..3 {
        // SAFETY: reads the flags of a descriptor, which may be closed.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED_DESCRIPTORS.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Makes the standard descriptors that were closed at the start of this process closed in the programs that it
/// executes, too.
pub(crate) fn keep_closed() {
    let closed_descriptors = CLOSED_DESCRIPTORS.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed_descriptors & 1 << descriptor != 0) {
        // SAFETY: changes a flag of the runtime's descriptor, which this process does not use.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Guard that blocks all signals for this thread, and for threads that it starts.
pub(crate) struct AllSignalsBlocked(libc::sigset_t);

impl AllSignalsBlocked {
    pub(crate) fn new() -> AllSignalsBlocked {
        let (mut all_signals, mut old_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: initialises the set.
        unsafe { libc::sigfillset(all_signals.as_mut_ptr()) };
        // SAFETY: the first set is initialised, and the second one is written.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all_signals.as_ptr(), old_mask.as_mut_ptr()) };
        // SAFETY: `pthread_sigmask` has initialised it.
        AllSignalsBlocked(unsafe { old_mask.assume_init() })
    }
}

impl Drop for AllSignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the system has initialised the set; the previous mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
