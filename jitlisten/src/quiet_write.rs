//! System calls that must not let the host notice: a write that never kills by signal.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::ptr;

/// One `write(2)` (again after `EINTR`), with `SIGXFSZ` held back: past `RLIMIT_FSIZE` the kernel sends it, and its default
/// action ends the process.
pub(crate) fn write_once(file: &File, bytes: &[u8]) -> io::Result<usize> {
    let held = HeldSignal::hold(libc::SIGXFSZ);
    let result = loop {
        // SAFETY: `bytes` is readable for its length, and the descriptor is open while `file` is borrowed.
        let written = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) => break Ok(written),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    break Err(error);
                }
            }
        }
    };
    held.release(matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EFBIG)));
    result
}

/// As many writes as it takes. A failure tells how many bytes were written before it.
pub(crate) fn write_whole(file: &File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match write_once(file, rest) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            // Nearly always everything; a disk that fills up takes a part and refuses the rest.
            Ok(more) => written += more,
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

/// The user whose files are ours.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: geteuid has no precondition and cannot fail.
    unsafe { libc::geteuid() }
}

/// A signal blocked in this thread.
struct HeldSignal {
    signal: libc::sigset_t,
    before: libc::sigset_t,
}

impl HeldSignal {
    fn hold(number: libc::c_int) -> Self {
        let mut signal = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `signal` is writable memory for a set, which this call initialises.
        unsafe { libc::sigemptyset(signal.as_mut_ptr()) };
        // SAFETY: the set was initialised above; the number is a valid signal.
        unsafe { libc::sigaddset(signal.as_mut_ptr(), number) };
        // SAFETY: both are sets, the second one is written by the call, which cannot fail for SIG_BLOCK.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signal.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: sigemptyset initialised it.
        let signal = unsafe { signal.assume_init() };
        // SAFETY: pthread_sigmask initialised it.
        let before = unsafe { before.assume_init() };
        HeldSignal { signal, before }
    }

    /// Restores the mask; `sent` tells that our call has caused the signal, which is taken off first.
    fn release(self, sent: bool) {
        if sent {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the time are valid for the call; no information about the signal is asked for.
            unsafe { libc::sigtimedwait(&self.signal, ptr::null_mut(), &now) };
        }
        // SAFETY: `before` is the mask that was in force; the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
