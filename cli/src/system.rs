//! Calls of the system that the standard library has no safe name for.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

/// The command gets `SIGTERM` when the thread that starts it ends, however it ends.
pub(crate) fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let in_child = move || {
        // SAFETY: prctl with numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        // SAFETY: getppid has no precondition.
        if unsafe { libc::getppid() } as u32 == parent { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: two system calls and no allocation, which a forked child may do.
    unsafe { command.pre_exec(in_child) };
}

/// Sends a signal to this process, or to a child that has not been waited for.
pub(crate) fn send_signal(pid: u32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Gives a part of a file back to the file system; it reads as zeros.
pub(crate) fn punch_hole(file: &File, from: u64, length: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a descriptor that is open, and numbers.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, from as libc::off_t, length as libc::off_t) };
}

/// Signals that wait until they are asked for, instead of ending this process.
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    /// Those by which a person or the system ends a process.
    pub(crate) fn ends() -> Blocked {
        Blocked::new(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT])
    }

    pub(crate) fn new(signals: &[i32]) -> Blocked {
        let mut set = MaybeUninit::uninit();
        // SAFETY: writes the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in signals {
            // SAFETY: the set was emptied above.
            unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) };
        }
        // SAFETY: the set is initialised; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: as above.
        Blocked(unsafe { set.assume_init() })
    }

    /// They end this process again, but for those that have come by now.
    pub(crate) fn end(self) {
        while self.arrived(Duration::ZERO).is_some() {}
        // SAFETY: the set is initialised; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// The one that has come, or comes within this time.
    pub(crate) fn arrived(&self, within: Duration) -> Option<i32> {
        let within = libc::timespec { tv_sec: within.as_secs() as libc::time_t, tv_nsec: within.subsec_nanos().into() };
        // SAFETY: a set and a time; the sender is not asked for.
        let signal = unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const within) };
        (signal > 0).then_some(signal)
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
