//! The perf map file, and the rules for sharing it between writers.
//!
//! ```text
//! 0 0 jitlisten 4711 90345 4026531836 alive         PID, start time, PID namespace; only if the file was empty
//! 7f3a1c0e5000 1a4 __main__.inner(float64, int64)
//! ```
//!
//! Every process holds a shared lock (`flock(2)`) on its map. Two processes in different PID namespaces that share
//! `/tmp` may have the same PID and therefore the same file. Only a process that gets the exclusive lock may truncate a
//! file that a dead process with the same PID has left. Otherwise it appends, and the file contains the names of both
//! processes. Readers can still resolve names, because two processes rarely have code at the same address.
//!
//! CPython (`-X perf`) takes no lock. The lines that it wrote before this program started cannot be distinguished from
//! those of a dead process.

use std::fs::{File, Metadata};
use std::io::{self, Seek as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::stale::StaleMap;
use crate::liveness::{self, Lock};
use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::{overwrite, write_once};
use crate::sink::SinkError;

/// Maximum number of attempts to open the file while other processes replace it or lock it for a clean-up.
const MAX_ATTEMPTS: usize = 16;

/// An open and locked perf map.
pub(super) struct MapFile {
    /// Descriptor with `O_APPEND`; holds the lock.
    append: CheckedFile,
    /// Descriptor without `O_APPEND`, because with that flag Linux makes even `pwrite(2)` append.
    edit: CheckedFile,
}

/// Descriptors of a [`MapFile`] that the host has not closed, valid for one use.
pub(super) struct OpenMap<'a> {
    append: &'a File,
    edit: &'a File,
}

/// Open map with its size and sharing state; returned by [`MapFile::open`].
pub(super) struct OpenedMap {
    pub(super) file: MapFile,
    /// Length of the file in bytes.
    pub(super) size: u64,
    /// True if another live process uses the same file.
    pub(super) is_shared: bool,
}

impl MapFile {
    /// Opens or creates the file, and truncates it if it is `stale`.
    pub(super) fn open(path: &Path, stale: Option<StaleMap>) -> Result<OpenedMap, SinkError> {
        let io_error = |verb| move |error| SinkError::Io { verb, path: path.to_owned(), error };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let append = jitlisten_files::open_or_create(path).map_err(io_error("open"))?;
            let edit = match jitlisten_files::open_existing(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < MAX_ATTEMPTS => continue,
                edit => edit.map_err(io_error("open"))?,
            };
            let metadata = append.metadata().map_err(io_error("stat"))?;
            let is_last = attempt == MAX_ATTEMPTS;
            match check_owner(&metadata, &edit.metadata().map_err(io_error("stat"))?) {
                Some(FILE_EXCHANGED) if !is_last => continue,
                Some(reason) => return Err(SinkError::NotOurs { path: path.to_owned(), reason }),
                None => {}
            }
            let Some(is_shared) = take_lock(&append, &edit, stale, &metadata, is_last).map_err(io_error("truncate"))?
            else {
                std::thread::yield_now();
                continue;
            };
            let metadata = append.metadata().map_err(io_error("stat"))?;
            if metadata.nlink() == 0 && !is_last {
                continue;
            }
            let checked = |file| CheckedFile::new(file).map_err(io_error("stat"));
            let file = MapFile { append: checked(append)?, edit: checked(edit)? };
            return Ok(OpenedMap { file, size: metadata.size(), is_shared });
        }
    }

    /// Returns the descriptors, unless the host has closed them.
    pub(super) fn get(&self) -> Option<OpenMap<'_>> {
        Some(OpenMap { append: self.append.get()?, edit: self.edit.get()? })
    }

    pub(super) fn identity(&self) -> FileIdentity {
        self.append.identity()
    }

    /// Length of the file in bytes, if it is still open.
    pub(super) fn size(&self) -> Option<u64> {
        self.append.get()?.metadata().ok().map(|metadata| metadata.size())
    }
}

/// Locks the file, and truncates it if it is `stale` and no live process shares it. Returns true if another live
/// process shares the file, or `None` if another process currently holds the exclusive lock.
fn take_lock(
    append: &File,
    edit: &File,
    stale: Option<StaleMap>,
    metadata: &Metadata,
    is_last: bool,
) -> io::Result<Option<bool>> {
    match liveness::lock_exclusive(append) {
        Lock::Taken => {
            if stale.is_some_and(|stale| stale == StaleMap::from_metadata(metadata)) {
                // No line has been added since this program started, so all lines describe a dead process's code.
                edit.set_len(0)?;
            }
            liveness::lock_shared(append);
            Ok(Some(false))
        }
        Lock::Held => match liveness::lock_shared(append) {
            Lock::Held if !is_last => Ok(None),
            _ => Ok(Some(true)),
        },
        // Without locks we cannot tell which process wrote the lines, so we keep them.
        Lock::Unknown => Ok(Some(false)),
    }
}

/// Message for a file that another process removed or replaced during its clean-up.
const FILE_EXCHANGED: &str = "the file changed while it was opened";

/// Returns the reason why we must not write to the file: not a regular file, not ours, or several links.
fn check_owner(appended: &Metadata, edited: &Metadata) -> Option<&'static str> {
    let was_exchanged = appended.nlink() == 0 || (appended.dev(), appended.ino()) != (edited.dev(), edited.ino());
    if was_exchanged { Some(FILE_EXCHANGED) } else { jitlisten_files::check_appendable(appended) }
}

impl OpenMap<'_> {
    /// Appends `text` in one `write(2)` and returns its offset.
    pub(super) fn append(&mut self, text: &str) -> io::Result<u64> {
        let written = write_once(self.append, text.as_bytes())?;
        // After an appending write, the file position is the end of the written bytes.
        let end = self.append.stream_position().unwrap_or(0);
        if written == text.len() {
            return Ok(end.saturating_sub(text.len() as u64));
        }
        self.remove_torn_line(end, written as u64);
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Removes a line that a full disk has cut short, unless another writer has appended to it.
    fn remove_torn_line(&self, end: u64, written: u64) {
        if self.edit.metadata().is_ok_and(|metadata| metadata.size() == end) {
            // If truncating fails, too, the torn line stays as the last line of the file.
            let _ = self.edit.set_len(end.saturating_sub(written));
        }
    }

    /// Overwrites the bytes at `offset` with `text`. Writes nothing and returns false if the existing bytes are not
    /// whole lines, or if `is_expected` rejects them, because another process may have truncated the file in the
    /// meantime.
    pub(super) fn replace(&self, offset: u64, text: &str, is_expected: impl Fn(&[u8]) -> bool) -> io::Result<bool> {
        let mut existing = vec![0; text.len()];
        // The preceding byte must be a newline, too.
        let mut preceding_byte = [b'\n'];
        let was_read = self.edit.read_exact_at(&mut existing, offset).is_ok()
            && (offset == 0 || self.edit.read_exact_at(&mut preceding_byte, offset - 1).is_ok());
        if !was_read || preceding_byte != [b'\n'] || existing.last() != Some(&b'\n') || !is_expected(&existing) {
            return Ok(false);
        }
        overwrite(self.edit, text.as_bytes(), offset).map(|()| true)
    }
}
