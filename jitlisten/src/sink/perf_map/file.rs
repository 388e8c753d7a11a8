//! The file, and the rules for its several writers.
//!
//! ```text
//! 0 0 jitlisten 4711 90345 4026531836 alive         process, when it began, PID namespace: if the file was empty
//! 7f3a1c0e5000 1a4 __main__.inner(float64, int64)
//! ```
//!
//! Every process holds a shared lock (`flock(2)`) on its map. Processes of two PID namespaces with one `/tmp` may have
//! the same PID, and so one file. Only a process that gets the exclusive lock may truncate the file of a dead process
//! with its PID. Otherwise it appends; then the file has the names of both, and a reader finds those of each, because
//! two processes hardly ever have code at one address.
//!
//! CPython (`-X perf`) takes no lock. Its lines from before this program cannot be distinguished from those of a dead
//! process.

use std::fs::{File, Metadata};
use std::io::{self, Seek as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::stale::StaleMap;
use crate::liveness::{self, Lock};
use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::{overwrite, write_once};
use crate::sink::SinkError;

/// How often the file may be taken away between two looks at it, or locked for a moment by a process that cleans up.
const ATTEMPTS: usize = 16;

/// See the module's head.
pub(super) struct MapFile {
    /// Opened with `O_APPEND`. Holds the lock.
    append: CheckedFile,
    /// The same file without it: Linux appends even `pwrite(2)` on the other one.
    edit: CheckedFile,
}

/// The same, for one use.
pub(super) struct OpenMap<'a> {
    append: &'a File,
    edit: &'a File,
}

/// What was found when the file was opened.
pub(super) struct Opened {
    pub(super) file: MapFile,
    /// Its length.
    pub(super) size: u64,
    /// Another living process has the same file.
    pub(super) is_shared: bool,
}

impl MapFile {
    /// Opens the file, makes it if it is not there, and empties it if it is `stale`.
    pub(super) fn open(path: &Path, stale: Option<StaleMap>) -> Result<Opened, SinkError> {
        let failed = |verb| move |error| SinkError::Io { verb, path: path.to_owned(), error };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let append = jitlisten_files::open_or_create(path).map_err(failed("open"))?;
            let edit = match jitlisten_files::open_existing(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => continue,
                edit => edit.map_err(failed("open"))?,
            };
            let metadata = append.metadata().map_err(failed("stat"))?;
            let last = attempt == ATTEMPTS;
            match check_owner(&metadata, &edit.metadata().map_err(failed("stat"))?) {
                Some(EXCHANGED) if !last => continue,
                Some(found) => return Err(SinkError::NotOurs { path: path.to_owned(), found }),
                None => {}
            }
            let Some(is_shared) = take_lock(&append, &edit, stale, &metadata, last).map_err(failed("truncate"))? else {
                std::thread::yield_now();
                continue;
            };
            let metadata = append.metadata().map_err(failed("stat"))?;
            if metadata.nlink() == 0 && !last {
                continue;
            }
            let own = |file| CheckedFile::new(file).map_err(failed("stat"));
            let file = MapFile { append: own(append)?, edit: own(edit)? };
            return Ok(Opened { file, size: metadata.size(), is_shared });
        }
    }

    /// The file, unless the host has closed it.
    pub(super) fn get(&self) -> Option<OpenMap<'_>> {
        Some(OpenMap { append: self.append.get()?, edit: self.edit.get()? })
    }

    pub(super) fn identity(&self) -> FileIdentity {
        self.append.identity()
    }

    /// Its length, if it is open.
    pub(super) fn size(&self) -> Option<u64> {
        self.append.get()?.metadata().ok().map(|now| now.size())
    }
}

/// Whether the file is shared with another living process; empties it if it is not, and `stale`. `None`: another
/// process has it alone for a moment.
fn take_lock(
    append: &File,
    edit: &File,
    stale: Option<StaleMap>,
    metadata: &Metadata,
    is_last: bool,
) -> io::Result<Option<bool>> {
    match liveness::lock_exclusive(append) {
        Lock::Taken => {
            if stale.is_some_and(|stale| stale == StaleMap::of(metadata)) {
                // Nothing was added to it since this program began, so every line is about code of a dead process.
                edit.set_len(0)?;
            }
            liveness::lock_shared(append);
            Ok(Some(false))
        }
        Lock::Held => match liveness::lock_shared(append) {
            Lock::Held if !is_last => Ok(None),
            _ => Ok(Some(true)),
        },
        // It cannot be known whose the lines are: they stay.
        Lock::Unknown => Ok(Some(false)),
    }
}

/// A process that cleans up may remove the file at any moment.
const EXCHANGED: &str = "the file changed while it was opened";

/// What is wrong with the file, if it is not a plain file of ours that has one name.
fn check_owner(one: &Metadata, other: &Metadata) -> Option<&'static str> {
    let is_another = one.nlink() == 0 || (one.dev(), one.ino()) != (other.dev(), other.ino());
    if is_another { Some(EXCHANGED) } else { jitlisten_files::unacceptable(one) }
}

impl OpenMap<'_> {
    /// Appends `text` in one `write(2)`, and returns where it stands.
    pub(super) fn append(&mut self, text: &str) -> io::Result<u64> {
        let written = write_once(self.append, text.as_bytes())?;
        // After an appending write the position of the descriptor is the end of what was written.
        let end = self.append.stream_position().unwrap_or(0);
        if written == text.len() {
            return Ok(end.saturating_sub(text.len() as u64));
        }
        self.remove_torn_line(end, written as u64);
        Err(io::ErrorKind::StorageFull.into())
    }

    /// A full disk may take part of a line. Cut it off again, unless another writer has appended to it.
    fn remove_torn_line(&self, end: u64, written: u64) {
        if self.edit.metadata().is_ok_and(|metadata| metadata.size() == end) {
            // Where this fails too, the torn line stays: it is the last of the file.
            let _ = self.edit.set_len(end.saturating_sub(written));
        }
    }

    /// Writes `text` over what stands at `offset`. A process that has emptied the file meanwhile has written something
    /// else there: then nothing is done, and `false` is the result. `is_ours` is asked about what stands there.
    pub(super) fn replace(&self, offset: u64, text: &str, is_ours: impl Fn(&[u8]) -> bool) -> io::Result<bool> {
        let mut there = vec![0; text.len()];
        // Also the end of the line before.
        let mut before = [b'\n'];
        let read = self.edit.read_exact_at(&mut there, offset).is_ok()
            && (offset == 0 || self.edit.read_exact_at(&mut before, offset - 1).is_ok());
        if !read || before != [b'\n'] || there.last() != Some(&b'\n') || !is_ours(&there) {
            return Ok(false);
        }
        overwrite(self.edit, text.as_bytes(), offset).map(|()| true)
    }
}
