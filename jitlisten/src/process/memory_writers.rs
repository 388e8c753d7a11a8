//! Detection of other writers to this process's memory: other threads, and `/proc/PID/mem`.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// PID and TID of the [`OwnThread`]; 0 if none.
static OWN_THREAD: AtomicU64 = AtomicU64::new(0);

/// Returns true if the calling thread is the only thread of this process, not counting one [`OwnThread`]. The result
/// stays valid until this thread creates another one.
pub fn is_alone() -> bool {
    let (own_thread, Some(current)) = (OWN_THREAD.load(Ordering::Relaxed), this_thread()) else { return false };
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    let mut threads = tasks.map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
    current != own_thread && threads.all(|tid| tid.is_some_and(|tid| [current, own_thread].contains(&thread_key(tid))))
}

/// Marks one of our own threads, which writes no code. [`is_alone`] does not count that thread.
#[must_use = "it counts again when this is dropped"]
pub struct OwnThread(u64);

impl OwnThread {
    /// Marks the calling thread. Only one thread can be marked at a time; a second call has no effect.
    pub fn begin() -> OwnThread {
        let current = this_thread().unwrap_or(0);
        let _ = OWN_THREAD.compare_exchange(0, current, Ordering::Relaxed, Ordering::Relaxed);
        OwnThread(current)
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let _ = OWN_THREAD.compare_exchange(self.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Thread id combined with the PID, because thread ids are reused after a fork.
fn thread_key(tid: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(tid)
}

fn this_thread() -> Option<u64> {
    let path = fs::read_link("/proc/thread-self").ok()?;
    Some(thread_key(path.file_name()?.to_str()?.parse().ok()?))
}

/// Tracks whether the process has `/proc/PID/mem` open. Writes through that file succeed even on read-only pages; Julia
/// uses it to write code next to existing code.
#[derive(Debug, Default)]
pub(crate) struct ProcSelfMem {
    is_open: bool,
    /// Earliest time of the next check, by [`clock::monotonic`].
    next_check: u64,
}

impl ProcSelfMem {
    /// Returns true if the file is open. Checks again only if at least 20 times the duration of the last check has
    /// passed.
    pub(crate) fn is_open(&mut self) -> bool {
        let start = clock::monotonic();
        if start >= self.next_check {
            self.is_open = has_memory_open();
            let now = clock::monotonic();
            self.next_check = now + 20 * (now - start);
        }
        self.is_open
    }
}

fn has_memory_open() -> bool {
    let own_path = format!("/proc/{}/mem", std::process::id());
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return false };
    files.flatten().any(|file| {
        let path = file.path();
        let is_own = fs::read_link(&path).is_ok_and(|target| target.as_os_str().as_bytes() == own_path.as_bytes());
        // The mode of the link shows whether the descriptor was opened for writing.
        is_own && fs::symlink_metadata(path).is_ok_and(|link| link.mode() & 0o200 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn memory_that_is_open_is_found() {
        assert!(crate::process::in_child(|| {
            let reader = fs::File::open("/proc/self/mem");
            let is_open_to_read = has_memory_open();
            let _writer = fs::OpenOptions::new().write(true).open("/proc/self/mem");
            reader.is_ok() && !is_open_to_read && has_memory_open() && ProcSelfMem::default().is_open()
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_process_with_another_thread_is_not_alone() {
        std::thread::scope(|scope| {
            let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || end_receiver.recv());
            assert!(!is_alone());
            drop(end_sender);
        });
    }

    /// Runs in a child process, without other test threads.
    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_thread_of_ours_does_not_count() {
        assert!(crate::process::in_child(|| {
            let is_alone_first = is_alone();
            let (result_sender, result_receiver) = std::sync::mpsc::channel();
            let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
            let own = std::thread::spawn(move || {
                let _own = OwnThread::begin();
                let is_alone_in_own = is_alone();
                let _ = result_sender.send(is_alone_in_own);
                end_receiver.recv()
            });
            let own_is_alone = result_receiver.recv() == Ok(true);
            let is_alone_with_own = is_alone();
            drop(end_sender);
            let _ = own.join();
            is_alone_first && !own_is_alone && is_alone_with_own
        }));
    }
}
