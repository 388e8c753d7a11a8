//! The directory of this process's images.
//!
//! ```text
//!   $JITLISTEN_DIR, or /var/tmp/jitlisten-UID, or where jitdumps go       the first that may hold executable files
//!     image-4711-9034/            process id, start time (so that a number used again is another process); 0700
//!       object-0.so  object-1.so
//! ```
//!
//! What else is in it, and how long it is kept: see [`crate::sink::process_directory`].

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use jitlisten_files::{FileName, OwnDirectory, create_directories};

use super::pages;
use crate::liveness::Run;
use crate::process::write_nosignal::{effective_user, write_whole};
use crate::sink::SinkError;
use crate::sink::process_directory::{ProcessDirectory, discard, remove_dead};
use crate::{log_line, options::Options};

/// The directory of one process.
#[derive(Debug)]
pub(super) struct Directory {
    directory: ProcessDirectory,
    next: u64,
}

/// A file that is done.
pub(super) struct ImageFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Directory {
    /// Makes the directory of this process at the first place that will do.
    pub(super) fn open(options: &Options) -> Result<Directory, SinkError> {
        if let Some(wanted) = &options.directory {
            return Directory::below(wanted, options.run);
        }
        let usual = PathBuf::from(format!("/var/tmp/jitlisten-{}", effective_user()));
        let first = OwnDirectory::create(&usual).map_err(SinkError::io("use", &usual));
        let first = first.and_then(|_| Directory::below(&usual, options.run));
        let Some(other) = &options.jitdump_directory else { return first };
        first.or_else(|error| {
            log_line!(Info, "{error}; trying {}", other.display());
            create_directories(other).map_err(SinkError::io("create", other))?;
            Directory::below(other, options.run)
        })
    }

    fn below(base: &Path, run: Option<Run>) -> Result<Directory, SinkError> {
        if is_remote(base) {
            let error = io::Error::other("a network file system cannot hold code that must not vanish");
            return Err(SinkError::io("use", base)(error));
        }
        remove_dead(base, |name| matches!(name, FileName::Images { .. }), run);
        Directory::create(base, run)
    }

    /// Makes the directory and tries whether code may run from here.
    fn create(base: &Path, run: Option<Run>) -> Result<Directory, SinkError> {
        let directory = ProcessDirectory::create(
            base,
            |own, attempt| FileName::Images { pid: own.pid, start: own.start, attempt },
            run,
        )?;
        let try_out = || {
            directory.lock()?;
            // An empty file has no page to map.
            let executable = directory.marker().map_or_else(|| Err(io::ErrorKind::NotFound.into()), pages::can_execute);
            executable.map_err(SinkError::io("execute from", directory.path()))
        };
        try_out().inspect_err(|_| discard(directory.path()))?;
        Ok(Directory { directory, next: 0 })
    }

    /// Writes a new file. Nothing is left of one that fails.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<ImageFile, SinkError> {
        let name = FileName::Image { number: self.next };
        let path = self.directory.path().join(name.to_string());
        self.next += 1;
        let file = self.directory.create_file(name)?;
        match write_whole(&file, bytes) {
            Ok(()) => Ok(ImageFile { path, file }),
            Err((_, error)) => {
                let _ = fs::remove_file(&path);
                Err(SinkError::io("write", &path)(error))
            }
        }
    }
}

/// Whether files at `path` come over a network (`statfs(2)`): when it fails, their pages are gone, and the code with
/// them.
fn is_remote(path: &Path) -> bool {
    const REMOTE: [u32; 8] = [
        0x6969,      // NFS_SUPER_MAGIC
        0xff53_4d42, // CIFS_SUPER_MAGIC
        0xfe53_4d42, // SMB2_SUPER_MAGIC
        0x517b,      // SMB_SUPER_MAGIC
        0x5346_414f, // AFS_SUPER_MAGIC
        0x00c3_6400, // CEPH_SUPER_MAGIC
        0x0bd0_0bd0, // LUSTRE_SUPER_MAGIC
        0x0102_1997, // V9FS_MAGIC
    ];
    let Ok(directory) = File::open(path) else { return false };
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and `found` is writable memory for the structure.
    let result = unsafe { libc::fstatfs(directory.as_raw_fd(), found.as_mut_ptr()) };
    // SAFETY: zeros are a valid `statfs`, whatever the call has written of it.
    let found = unsafe { found.assume_init() };
    result == 0 && REMOTE.contains(&(found.f_type as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::{ProcessIdentity, pid_namespace};
    use crate::sink::process_directory::MarkedDirectory;

    #[test]
    fn a_directory_has_a_marker_and_holds_its_lock() {
        let base = std::env::temp_dir().join(format!("jitlisten-images-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let mut directory = Directory::create(&base, None).unwrap();
        let written = directory.write(b"image").unwrap();
        assert_eq!(fs::read(&written.path).unwrap(), b"image");
        let name = directory.directory.path().file_name().unwrap().to_owned();
        let marked = MarkedDirectory::open(&base, &name).expect("the marker");
        assert_eq!(marked.owner.process, ProcessIdentity::own());
        assert!(!marked.is_dead(pid_namespace()));
        drop(directory);
        marked.remove().unwrap();
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0, "nothing is left");
        fs::remove_dir(base).unwrap();
    }
}
