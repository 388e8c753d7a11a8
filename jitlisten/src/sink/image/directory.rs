//! Directory for the images of this process.
//!
//! ```text
//!   $JITLISTEN_DIR, or /var/tmp/jitlisten-UID, or the jitdump directory   the first without noexec
//!     image-4711-9034/            PID and start time (which tells processes with the same PID apart); 0700
//!       object-0.so  object-1.so
//! ```
//!
//! [`crate::sink::process_directory`] describes the other files in the directory, and how long all are kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jitlisten_files::{FileName, OwnDirectory, create_directories};

use super::pages;
use crate::liveness::{CLEAN_UP_TIME, Run};
use crate::process::remote_file::is_remote;
use crate::process::write_nosignal::write_whole;
use crate::sink::SinkError;
use crate::sink::process_directory::{ProcessDirectory, default_directory, discard, remove_dead};
use crate::{log_line, options::Options};

/// Directory for the images of one process.
#[derive(Debug)]
pub(super) struct Directory {
    directory: ProcessDirectory,
    next_number: u64,
}

pub(super) struct ImageFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Directory {
    /// Creates the directory in the first usable base directory.
    pub(super) fn open(options: &Options) -> Result<Directory, SinkError> {
        if let Some(explicit_base) = &options.directory {
            return Directory::create_below(explicit_base, options.run);
        }
        let default_base = default_directory();
        let default_result = OwnDirectory::create(&default_base).map_err(SinkError::io("use", &default_base));
        let default_result = default_result.and_then(|_| Directory::create_below(&default_base, options.run));
        let Some(fallback) = &options.jitdump_directory else { return default_result };
        default_result.or_else(|error| {
            log_line!(Info, "{error}; trying {}", fallback.display());
            create_directories(fallback).map_err(SinkError::io("create", fallback))?;
            Directory::create_below(fallback, options.run)
        })
    }

    fn create_below(base: &Path, run: Option<Run>) -> Result<Directory, SinkError> {
        // The code pages would be lost if the server failed.
        if File::open(base).is_ok_and(|directory| is_remote(&directory)) {
            let error = io::Error::other("a network file system cannot hold code that must not vanish");
            return Err(SinkError::io("use", base)(error));
        }
        remove_dead(CLEAN_UP_TIME, base, |name| matches!(name, FileName::Images { .. }), run);
        Directory::create(base, run)
    }

    /// Creates the directory, and checks that its files can be mapped as executable.
    fn create(base: &Path, run: Option<Run>) -> Result<Directory, SinkError> {
        let directory = ProcessDirectory::create(
            base,
            |own, attempt| FileName::Images { pid: own.pid, start: own.start, attempt },
            run,
        )?;
        let check = || {
            directory.lock()?;
            // Check with the marker, because an empty file has no page to map.
            let mapped = directory.marker().map_or_else(|| Err(io::ErrorKind::NotFound.into()), pages::can_execute);
            mapped.map_err(SinkError::io("execute from", directory.path()))
        };
        check().inspect_err(|_| discard(directory.path()))?;
        Ok(Directory { directory, next_number: 0 })
    }

    /// Writes a new file, or removes it again on failure.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<ImageFile, SinkError> {
        let name = FileName::Image { number: self.next_number };
        let path = self.directory.path().join(name.to_string());
        self.next_number += 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::{ProcessIdentity, pid_namespace};
    use crate::sink::process_directory::MarkedDirectory;

    #[test]
    fn a_directory_has_a_locked_marker() {
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
