//! Signals, and wrappers of system calls; `libc` only where rustix has no function.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal};

/// The command gets `SIGTERM` when the thread that starts it ends, however it ends. No signal is blocked in it.
pub(crate) fn end_with_parent(command: &mut Command) {
    let parent = Some(rustix::process::getpid());
    let in_child = move || {
        Blocked::ends().unblock();
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        let is_there = rustix::process::getppid() == parent;
        if is_there { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: system calls and no allocation, which a forked child may do.
    unsafe { command.pre_exec(in_child) };
}

/// Sends a signal to this process, or to a child that has not been waited for.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    // It may have ended.
    let _ = as_pid(pid).map(|pid| rustix::process::kill_process(pid, signal));
}

/// Ends a group of processes that a child of this one leads.
pub(crate) fn kill_group(leader: u32) {
    let _ = as_pid(leader).map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Gives a part of a file back to the file system; it reads as zeros.
pub(crate) fn punch_hole(file: &File, from: u64, length: u64) {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Not every file system can.
    let _ = rustix::fs::fallocate(file, mode, from, length);
}

/// Signals that wait until they are asked for, instead of ending this process.
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    /// Those by which a person or the system ends a process.
    pub(crate) fn ends() -> Blocked {
        Blocked::new(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT])
    }

    /// All that others send, which a process group may get for another process in it. Not blocked are those that stop a
    /// job, and faults of this process itself.
    pub(crate) fn sent() -> Blocked {
        let own = [
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
        Blocked::of((1..=libc::SIGRTMAX()).filter(|signal| !own.contains(signal)))
    }

    pub(crate) fn new(signals: &[Signal]) -> Blocked {
        Blocked::of(signals.iter().map(|signal| signal.as_raw()))
    }

    fn of(signals: impl Iterator<Item = i32>) -> Blocked {
        let mut set = MaybeUninit::uninit();
        // SAFETY: writes the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // A signal that is ignored (`nohup`, `&` in a script) is no request; while it is blocked, it would arrive.
        for signal in signals.filter(|signal| *signal == libc::SIGCHLD || !is_ignored(*signal)) {
            // SAFETY: the set was emptied above; glibc refuses its own signals.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: the set is initialised; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: `sigemptyset` has initialised it.
        Blocked(unsafe { set.assume_init() })
    }

    /// They end this process again, but for those that have come by now.
    pub(crate) fn end(self) {
        while self.number_of_arrived(Duration::ZERO) > 0 {}
        self.unblock();
    }

    fn unblock(&self) {
        // SAFETY: the set is initialised; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// The one that has come, or comes within this time.
    pub(crate) fn arrived(&self, within: Duration) -> Option<Signal> {
        Signal::from_named_raw(self.number_of_arrived(within))
    }

    /// Also of real-time signals, which have no names. Negative if none has come.
    fn number_of_arrived(&self, within: Duration) -> i32 {
        let within = libc::timespec { tv_sec: within.as_secs() as libc::time_t, tv_nsec: within.subsec_nanos().into() };
        // SAFETY: a set and a time; the sender is not asked for.
        unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const within) }
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed; the action is written.
    unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a value, and the system has written another.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// The standard descriptors, a bit each, that were closed when this process began. Rust's runtime opens `/dev/null` in
/// their places before `main`.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = find_closed;

extern "C" fn find_closed() {
    for descriptor in 0..3 {
        // SAFETY: asks for the flags of a descriptor, which may be closed.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Lets the programs that this process executes or starts have the standard descriptors that it was started with.
pub(crate) fn keep_closed() {
    let closed = CLOSED.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
        // SAFETY: changes a flag of the runtime's descriptor; nothing of this process depends on it.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Every signal waits, for this thread and those that it starts, until this is dropped.
pub(crate) struct Everything(libc::sigset_t);

impl Everything {
    pub(crate) fn blocked() -> Everything {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: writes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set is filled, and the other one is written.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: written above.
        Everything(unsafe { before.assume_init() })
    }
}

impl Drop for Everything {
    fn drop(&mut self) {
        // SAFETY: a set that the system has filled in; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
