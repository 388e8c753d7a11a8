//! Who else may write to the memory of this process.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// Process and thread of the [`OwnThread`], 0 if there is none.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Returns whether the calling thread is the only one of this process, except for one of ours. It stays so until it
/// makes another.
pub fn is_alone() -> bool {
    let (own, Some(this)) = (OWN.load(Ordering::Relaxed), this_thread()) else { return false };
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    let mut threads = tasks.map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
    this != own && threads.all(|thread| thread.is_some_and(|thread| [this, own].contains(&number(thread))))
}

/// A thread of ours, which writes no code: it does not count in [`is_alone`].
#[must_use = "it counts again when this is dropped"]
pub struct OwnThread(u64);

impl OwnThread {
    /// The calling thread is ours. One at a time; more of them count.
    pub fn begin() -> OwnThread {
        let this = this_thread().unwrap_or(0);
        let _ = OWN.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
        OwnThread(this)
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let _ = OWN.compare_exchange(self.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// With the number of the process, because numbers of threads are used again after a fork.
fn number(thread: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(thread)
}

fn this_thread() -> Option<u64> {
    let path = fs::read_link("/proc/thread-self").ok()?;
    Some(number(path.file_name()?.to_str()?.parse().ok()?))
}

/// True if the process has its memory open as a file: `/proc/PID/mem` writes to pages that are not writable, as Julia
/// does for code beside other code.
#[derive(Debug, Default)]
pub(crate) struct MemoryAsFile {
    is_open: bool,
    /// Not before then, by [`clock::monotonic`], is it looked for again.
    next_look: u64,
}

impl MemoryAsFile {
    /// Looks, unless that took longer than a twentieth of the time since.
    pub(crate) fn is_open(&mut self) -> bool {
        let began = clock::monotonic();
        if began >= self.next_look {
            self.is_open = has_memory_open();
            let now = clock::monotonic();
            self.next_look = now + 20 * (now - began);
        }
        self.is_open
    }
}

fn has_memory_open() -> bool {
    let own = format!("/proc/{}/mem", std::process::id());
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return false };
    files.flatten().any(|file| {
        let path = file.path();
        let is_own = fs::read_link(&path).is_ok_and(|target| target.as_os_str().as_bytes() == own.as_bytes());
        // The link may be written through if the file may.
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
            let reads = fs::File::open("/proc/self/mem");
            let is_open_to_read = has_memory_open();
            let _writes = fs::OpenOptions::new().write(true).open("/proc/self/mem");
            reads.is_ok() && !is_open_to_read && has_memory_open() && MemoryAsFile::default().is_open()
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_process_with_another_thread_is_not_alone() {
        std::thread::scope(|scope| {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || ended.recv());
            assert!(!is_alone());
            drop(end);
        });
    }

    /// In a child, where no other test runs.
    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_thread_of_ours_does_not_count() {
        assert!(crate::process::in_child(|| {
            let is_alone_first = is_alone();
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let own = std::thread::spawn(move || {
                let _own = OwnThread::begin();
                let says = is_alone();
                let _ = begun.send(says);
                ended.recv()
            });
            let own_says = has_begun.recv() == Ok(true);
            let is_alone_beside = is_alone();
            drop(end);
            let _ = own.join();
            is_alone_first && !own_says && is_alone_beside
        }));
    }
}
