//! The place of a jitdump, and its safe creation in a shared directory.
//!
//! ```text
//!   $JITLISTEN_DIR, or else $JITDUMPDIR, or else $HOME/.debug/jit
//!     `- jitdump-4711-9034/          process id, start time; mode 0700
//!          |- jit-PID.dump            O_EXCL, O_NOFOLLOW, mode 0600; perf knows it by this name
//!          `- jitted-PID-INDEX.so     later, from `perf inject`
//! ```
//!
//! What else is in it, and how long it is kept: see [`crate::sink::process_directory`].
//!
//! perf detects the file by an executable mapping of it, the *marker*. It is never used, and never unmapped while the
//! file is written. A file system mounted `noexec` refuses it, so no jitdump is written there.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use jitlisten_files::{FileName, create_directories, open_to_append};

use crate::liveness::Run;
use crate::process::checked_file::CheckedFile;
use crate::process::write_nosignal::write_whole;
use crate::sink::SinkError;
use crate::sink::process_directory::{ProcessDirectory, discard, remove_dead};

/// A jitdump that is being written.
#[derive(Debug)]
pub(super) struct Dump {
    file: CheckedFile,
    path: PathBuf,
    pid: u32,
    _directory: ProcessDirectory,
    _marker: Marker,
    /// Bytes in the file: a header and whole records.
    length: u64,
}

impl Dump {
    /// Makes a directory below `base`, the file in it with `header`, and the marker. Leaves nothing behind when it
    /// fails.
    pub(super) fn create(base: &Path, header: &[u8], run: Option<Run>) -> Result<Dump, SinkError> {
        create_directories(base).map_err(SinkError::io("create", base))?;
        remove_dead(base, |name| matches!(name, FileName::Jitdump { .. }), run);
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
        // Every write is at the end, whoever else has written.
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

    /// The process whose file it is.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Bytes in the file.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Why nothing more is written.
    pub(super) fn is_full(&self, quota: u64) -> SinkError {
        let error = io::Error::other(format!("{quota} bytes are enough (JITLISTEN_QUOTA)"));
        SinkError::io("add to", &self.path)(error)
    }

    /// A file that was removed can still be written, but never read.
    pub(super) fn check_that_it_is_there(&mut self) -> Result<(), SinkError> {
        let metadata = self.file()?.metadata().map_err(SinkError::io("stat", &self.path))?;
        if metadata.nlink() == 0 {
            return Err(SinkError::io("write", &self.path)(io::ErrorKind::NotFound.into()));
        }
        Ok(())
    }

    /// The file, opened again if the host has closed what it did not know.
    fn file(&mut self) -> Result<&File, SinkError> {
        if self.file.get().is_none() {
            let again =
                open_to_append(&self.path).and_then(CheckedFile::new).map_err(SinkError::io("open", &self.path))?;
            if again.identity() != self.file.identity() {
                return Err(SinkError::NotOurs { path: self.path.clone(), found: "another file" });
            }
            self.file = again;
        }
        self.file
            .unchecked()
            .ok_or_else(|| SinkError::io("open", &self.path)(io::Error::from_raw_os_error(libc::EBADF)))
    }

    /// Appends whole records, all of them or none.
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
                    // Where this fails too, the torn record stays: it is the last of the file, and readers stop there.
                    let _ = file.set_len(length);
                }
                Err(SinkError::io("write", &self.path)(error))
            }
        }
    }
}

/// perf takes the process number in the name for that of the innermost PID namespace, which is what `getpid(2)`
/// returns.
fn file_name() -> FileName {
    FileName::Dump { pid: std::process::id() }
}

/// The thread that is running: perf notes it beside the code.
pub(super) fn current_thread() -> u32 {
    // SAFETY: gettid has no precondition and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// One page of the file, mapped `PROT_READ | PROT_EXEC`.
#[derive(Debug)]
struct Marker {
    address: *mut libc::c_void,
    size: usize,
}

// SAFETY: an address that is only ever unmapped, once, by the owner of the value.
unsafe impl Send for Marker {}

impl Marker {
    fn map(file: &File) -> io::Result<Marker> {
        // SAFETY: sysconf has no precondition.
        let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_EXEC, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is open.
        let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, descriptor, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Marker { address, size })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, is as long as this, and nothing refers to it.
        unsafe { libc::munmap(self.address, self.size) };
    }
}
