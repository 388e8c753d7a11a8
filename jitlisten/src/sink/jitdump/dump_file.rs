//! The jitdump file, and its safe creation in a shared directory.
//!
//! ```text
//!   $JITLISTEN_DIR, or else $JITDUMPDIR, or else $HOME/.debug/jit
//!     `- jitdump-4711-9034/          PID, start time; mode 0700
//!          |- jit-PID.dump            O_EXCL, O_NOFOLLOW, mode 0600; perf recognizes it by this name
//!          `- jitted-PID-INDEX.so     later, from `perf inject`
//! ```
//!
//! [`crate::sink::process_directory`] describes the other files in the directory, and how long all are kept.
//!
//! perf detects the file by an executable mapping of it, the *marker*. The marker is never accessed, and stays mapped
//! as long as the file is written. On a file system mounted `noexec` it cannot be mapped, so no jitdump can be written
//! there.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use jitlisten_files::{FileName, create_directories, open_to_append};

use crate::liveness::{CLEAN_UP_TIME, Run};
use crate::process::checked_file::CheckedFile;
use crate::process::write_nosignal::write_whole;
use crate::sink::SinkError;
use crate::sink::process_directory::{ProcessDirectory, discard, remove_dead};

/// An open jitdump.
#[derive(Debug)]
pub(super) struct Dump {
    file: CheckedFile,
    path: PathBuf,
    pid: u32,
    _directory: ProcessDirectory,
    _marker: Marker,
    /// Length of the file: the header and whole records.
    length: u64,
}

impl Dump {
    /// Creates a directory below `base`, the file with `header` in it, and the marker. Removes all three on failure.
    pub(super) fn create(base: &Path, header: &[u8], run: Option<Run>) -> Result<Dump, SinkError> {
        create_directories(base).map_err(SinkError::io("create", base))?;
        remove_dead(CLEAN_UP_TIME, base, |name| matches!(name, FileName::Jitdump { .. }), run);
        let directory = ProcessDirectory::create(
            base,
            |own, attempt| FileName::Jitdump { pid: own.pid, start: own.start, attempt },
            run,
        )?;
        let _ = directory.lock();
        let path = directory.path().to_owned();
        Dump::create_in(directory, header).inspect_err(|_| {
            let _ = std::fs::remove_file(path.join(file_name().to_string()));
            discard(&path);
        })
    }

    fn create_in(directory: ProcessDirectory, header: &[u8]) -> Result<Dump, SinkError> {
        let path = directory.path().join(file_name().to_string());
        directory.create_file(file_name())?;
        // `O_APPEND` makes our records go to the end even if another process has written to the file.
        let file = open_to_append(&path).map_err(SinkError::io("open", &path))?;
        write_whole(&file, header).map_err(|(_, error)| SinkError::io("write", &path)(error))?;
        let marker = Marker::map(&file).map_err(SinkError::io("map as executable", &path))?;
        let file = CheckedFile::new(file).map_err(SinkError::io("stat", &path))?;
        let (pid, length) = (std::process::id(), header.len() as u64);
        Ok(Dump { file, path, pid, _directory: directory, _marker: marker, length })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// PID of the process that created the file.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the error for a file that has reached its quota.
    pub(super) fn quota_error(&self, quota: u64) -> SinkError {
        let error = io::Error::other(format!("{quota} bytes are enough (JITLISTEN_QUOTA)"));
        SinkError::io("add to", &self.path)(error)
    }

    /// Returns an error if the file was removed: writes would still succeed, but the records would be lost.
    pub(super) fn check_not_removed(&mut self) -> Result<(), SinkError> {
        let metadata = self.file()?.metadata().map_err(SinkError::io("stat", &self.path))?;
        if metadata.nlink() == 0 {
            return Err(SinkError::io("write", &self.path)(io::ErrorKind::NotFound.into()));
        }
        Ok(())
    }

    /// Returns the file; reopens it if the host has closed the descriptor.
    fn file(&mut self) -> Result<&File, SinkError> {
        if self.file.get().is_none() {
            let reopened =
                open_to_append(&self.path).and_then(CheckedFile::new).map_err(SinkError::io("open", &self.path))?;
            if reopened.identity() != self.file.identity() {
                return Err(SinkError::NotOurs { path: self.path.clone(), reason: "another file" });
            }
            self.file = reopened;
        }
        self.file
            .unchecked()
            .ok_or_else(|| SinkError::io("open", &self.path)(io::Error::from_raw_os_error(libc::EBADF)))
    }

    /// Appends whole records: either all of them or none.
    pub(super) fn append(&mut self, records: &[u8]) -> Result<u64, SinkError> {
        let length = self.length;
        let file = self.file()?;
        match write_whole(file, records) {
            Ok(()) => {
                self.length += records.len() as u64;
                Ok(records.len() as u64)
            }
            Err((written, error)) => {
                if written > 0 {
                    // If truncating fails, too, the torn record stays at the end of the file, where readers stop.
                    let _ = file.set_len(length);
                }
                Err(SinkError::io("write", &self.path)(error))
            }
        }
    }
}

/// Name of the file. perf expects the PID of the innermost PID namespace, which `getpid(2)` returns.
fn file_name() -> FileName {
    FileName::Dump { pid: std::process::id() }
}

/// Kernel ID of the current thread, which perf stores with the code.
pub(super) fn current_tid() -> u32 {
    // SAFETY: gettid has no precondition and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Executable mapping of the file's first page. perf uses it to detect the jitdump.
#[derive(Debug)]
struct Marker {
    address: *mut libc::c_void,
    size: usize,
}

// SAFETY: the address is only passed to munmap, once, by the owner of the value.
unsafe impl Send for Marker {}

impl Marker {
    fn map(file: &File) -> io::Result<Marker> {
        // SAFETY: sysconf has no precondition.
        let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let (protection, fd) = (libc::PROT_READ | libc::PROT_EXEC, file.as_raw_fd());
        // SAFETY: the kernel chooses the address of the new mapping, and the file is open.
        let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Marker { address, size })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this size, and nothing refers to it.
        unsafe { libc::munmap(self.address, self.size) };
    }
}
