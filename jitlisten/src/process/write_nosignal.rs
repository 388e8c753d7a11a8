//! System calls without side effects for the host: writes that raise no signals, and high descriptor numbers.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _};
use std::ptr;

/// Calls `write(2)` once, retrying only on `EINTR`.
pub(crate) fn write_once(file: &File, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for its length, and the descriptor is open while `file` is borrowed.
    call_without_signals(|| unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

/// Overwrites the bytes at `offset`; the range must lie within the file.
pub(crate) fn overwrite(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `bytes` is readable for its length, and the descriptor is open while `file` is borrowed.
    let written =
        call_without_signals(|| unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset) })?;
    if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Runs `call`, retrying on `EINTR`, and blocks the signals that a write may raise and that would kill the process:
/// `SIGXFSZ` (beyond `RLIMIT_FSIZE`) and `SIGPIPE` (pipe without a reader).
fn call_without_signals(call: impl Fn() -> isize) -> io::Result<usize> {
    let blocked = BlockedSignals::block();
    let result = loop {
        match usize::try_from(call()) {
            Ok(written) => break Ok(written),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    break Err(error);
                }
            }
        }
    };
    blocked.release(result.as_ref().err().and_then(|error| match error.raw_os_error()? {
        libc::EFBIG => Some(libc::SIGXFSZ),
        libc::EPIPE => Some(libc::SIGPIPE),
        _ => None,
    }));
    result
}

/// Runs `work` so that its writes raise no signal in the host; they return an error instead.
pub fn without_write_signals<T>(work: impl FnOnce() -> T) -> T {
    let blocked = BlockedSignals::block();
    let result = work();
    blocked.release([libc::SIGXFSZ, libc::SIGPIPE].into_iter().filter(|&signal| is_pending(signal)));
    result
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = set_of(&[]);
    // SAFETY: `sigpending` overwrites the set; the number is a valid signal.
    unsafe { libc::sigpending(&raw mut pending) == 0 && libc::sigismember(&pending, signal) == 1 }
}

/// Writes all of `bytes`. On error, returns the number of bytes written before it.
pub(crate) fn write_whole(file: &File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while let Some(remaining) = bytes.get(written..).filter(|remaining| !remaining.is_empty()) {
        match write_once(file, remaining) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            // A write usually accepts everything. A disk that is filling up accepts a part and refuses the rest.
            Ok(count) => written += count,
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

/// Effective user id of the process; this user owns our files.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: geteuid has no precondition and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns true if the process runs as an unprivileged user and can no longer change its user. Servers may switch users
/// for each request.
pub(crate) fn user_is_final() -> bool {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: the pointers refer to writable memory for three user ids.
    let failed = unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) } != 0;
    !failed && real == effective && effective == saved && effective != 0
}

/// Duplicates the descriptor to a high number that programs do not expect, with close-on-exec.
pub(crate) fn duplicate_high(file: BorrowedFd<'_>) -> Option<File> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable memory for the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    // Cap the number, because the kernel's descriptor table grows with the highest one.
    let min_fd = limit.rlim_cur.min(1024) * 3 / 4;
    // SAFETY: the descriptor is open; the call makes a new one or fails.
    let copy = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, min_fd as libc::c_int) };
    // SAFETY: `copy` is a new descriptor that nothing else knows.
    (copy >= 0).then(|| unsafe { File::from_raw_fd(copy) })
}

/// Guard for signals that are blocked in this thread.
struct BlockedSignals {
    old_mask: libc::sigset_t,
    /// Signals that were pending before our calls and therefore belong to the host.
    pending: libc::sigset_t,
}

impl BlockedSignals {
    fn block() -> Self {
        let signals = set_of(&[libc::SIGXFSZ, libc::SIGPIPE]);
        let (mut old_mask, mut pending) = (set_of(&[]), set_of(&[]));
        // SAFETY: all arguments are signal sets; the call overwrites the last one.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &raw mut old_mask) };
        // SAFETY: `pending` is a signal set, which the call overwrites.
        unsafe { libc::sigpending(&raw mut pending) };
        BlockedSignals { old_mask, pending }
    }

    /// Restores the mask, after consuming the signals that our calls have `caused`.
    fn release(self, caused: impl IntoIterator<Item = libc::c_int>) {
        // SAFETY: `pending` is a signal set, and the number is a valid signal.
        for signal in caused.into_iter().filter(|&signal| unsafe { libc::sigismember(&self.pending, signal) } == 0) {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the timeout are valid for the call; no signal information is requested.
            unsafe { libc::sigtimedwait(&set_of(&[signal]), ptr::null_mut(), &now) };
        }
        // SAFETY: `old_mask` is the mask saved by `hold`; the current mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, ptr::null_mut()) };
    }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: writable memory for a signal set, which this call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: the set was initialised above; the number is a valid signal.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: `sigemptyset` has initialised it.
    unsafe { set.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::checked_file::CheckedFile;
    use std::fs;

    #[test]
    fn a_descriptor_number_that_was_reused_is_left_alone() {
        let path = std::env::temp_dir().join(format!("jitlisten-own-file-{}", std::process::id()));
        let ours = CheckedFile::new(File::create(&path).unwrap()).unwrap();
        let number = ours.get().unwrap().as_raw_fd();
        assert!(number > 31, "{number} is a number that programs know");
        let theirs = File::open("/dev/null").unwrap();
        // SAFETY: the call closes the descriptor of `ours`, as careless programs do, and opens another file under its
        // number.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        assert!(ours.get().is_none());
        drop(ours);
        // SAFETY: the call only reads descriptor flags.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "closed under the feet of its owner");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error_and_nothing_else() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        // SAFETY: the call restores the default action, which a host may have. The test runtime ignores the signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        assert_eq!(write_once(&writer, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    /// Runs in a separate process, because the limit applies to all threads.
    #[test]
    fn a_write_past_the_limit_of_file_sizes_is_an_error_and_nothing_else() {
        const VARIABLE: &str = "JITLISTEN_TEST_FILE_LIMIT";
        const NAME: &str = "a_write_past_the_limit_of_file_sizes_is_an_error_and_nothing_else";
        let path = std::env::temp_dir().join(format!("jitlisten-limit-{}", std::process::id()));
        if std::env::var_os(VARIABLE).is_none() {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", "ulimit -f 0; exec \"$0\" \"$1\""]).arg(std::env::current_exe().unwrap()).arg(NAME);
            shell.env(VARIABLE, "1");
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            return;
        }
        // SAFETY: the call sets the default action, which a host may have.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
        let file = File::create(&path).unwrap();
        let error = without_write_signals(|| io::Write::write_all(&mut &file, b"x")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        assert!(!is_pending(libc::SIGXFSZ));
        fs::remove_file(path).unwrap();
    }
}
