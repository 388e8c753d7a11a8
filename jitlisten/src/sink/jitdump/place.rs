//! The place of a jitdump, and its safe creation in a shared directory.
//!
//! ```text
//!   $JITLISTEN_DIR, or else $JITDUMPDIR, or else $HOME/.debug/jit
//!     `- jitlisten-XXXXXX/            fresh, mode 0700
//!          |- jit-PID.dump            mode 0600; perf knows it by this name
//!          |- jitted-PID-INDEX.so     later, from `perf inject`
//!          `- dead                    created by the first process that finds that the process has ended
//! ```
//!
//! The file is locked (`flock`) as long as the process lives and has it open. A process that creates one removes those
//! of ended processes, with the output of `perf inject`: [`crate::liveness`] says when.
//!
//! perf detects the file by an executable mapping of it, the *marker*. It is never used, and never unmapped while the
//! file is written. A file system mounted `noexec` refuses it, so no jitdump is written there.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::SystemTime;

use jitlisten_files::OwnDirectory;

use crate::liveness::{self, Lock};
use crate::process::checked_file::CheckedFile;
use crate::process::clock;
use crate::process::write_nosignal::{effective_user, write_whole};
use crate::sink::SinkError;
use crate::sink::image::{DEAD, found_dead};

/// In the name of the directory: as mkdtemp(3) has them.
const NAME_LETTERS: usize = 6;

/// A jitdump that is being written.
#[derive(Debug)]
pub(super) struct Dump {
    file: CheckedFile,
    path: PathBuf,
    pid: u32,
    _marker: Marker,
    /// Bytes in the file: a header and whole records.
    length: u64,
}

impl Dump {
    /// Makes a directory below `base`, the file in it with `header`, and the marker. Leaves nothing behind when it
    /// fails.
    pub(super) fn create(base: &Path, header: &[u8]) -> Result<Dump, SinkError> {
        jitlisten_files::create_directories(base).map_err(SinkError::io("create", base))?;
        remove_dead(base);
        let directory = fresh_directory(base)?;
        Dump::create_in(&directory, header).inspect_err(|_| {
            // Where even this fails there is nothing more to be done, and nothing that harms.
            let _ = directory.remove_file(file_name());
            let _ = fs::remove_dir(directory.path());
        })
    }

    fn create_in(directory: &OwnDirectory, header: &[u8]) -> Result<Dump, SinkError> {
        let path = directory.path().join(file_name());
        let file = jitlisten_files::open_or_create(&path).map_err(SinkError::io("create", &path))?;
        write_whole(&file, header).map_err(|(_, error)| SinkError::io("write", &path)(error))?;
        // Without a lock it is known by its number alone.
        liveness::lock_shared(&file);
        let marker = Marker::map(&file).map_err(SinkError::io("map as executable", &path))?;
        let file = CheckedFile::new(file).map_err(SinkError::io("stat", &path))?;
        Ok(Dump { file, path, pid: std::process::id(), _marker: marker, length: header.len() as u64 })
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
            let again = jitlisten_files::open_to_append(&self.path)
                .and_then(CheckedFile::new)
                .map_err(SinkError::io("open", &self.path))?;
            if again.identity() != self.file.identity() {
                return Err(SinkError::NotOurs { path: self.path.clone(), found: "another file" });
            }
            again.get().map(liveness::lock_shared);
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

/// Removes what dead processes of ours have left, as far as [`crate::liveness`] says.
fn remove_dead(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let mut dead = Vec::new();
    for entry in entries.flatten() {
        let is_ours = entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == effective_user());
        if is_ours && entry.file_name().to_str().is_some_and(is_directory_name) && is_dead(&entry.path()) {
            dead.push(found_dead(entry.path()));
        }
    }
    for directory in liveness::expired(dead, 0) {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == DEAD || pid_of(&name).is_some() || (name.starts_with("jitted-") && name.ends_with(".so")) {
                let _ = fs::remove_file(entry.path());
            }
        }
        // Whatever else is in it stays.
        let _ = fs::remove_dir(&directory);
    }
}

/// `jitlisten-XXXXXX`
fn is_directory_name(name: &str) -> bool {
    name.strip_prefix("jitlisten-")
        .is_some_and(|rest| rest.len() == NAME_LETTERS && rest.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// `jit-PID.dump`
fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix("jit-")?.strip_suffix(".dump")?.parse().ok()
}

/// Whether the process that made the directory is dead: the lock is not held, and the number of its file is not in use.
/// Without a file in it, it is of a process that is about to make one.
fn is_dead(directory: &Path) -> bool {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let dumps: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(|name| pid_of(name).is_some()).collect();
    !dumps.is_empty()
        && dumps.iter().all(|name| {
            let file = jitlisten_files::open_to_append(&directory.join(name));
            pid_of(name).is_some_and(|pid| liveness::start_time(pid).is_none())
                && file.is_ok_and(|file| liveness::lock_exclusive(&file) == Lock::Taken)
        })
}

/// perf takes the process number in the name for that of the innermost PID namespace, which is what `getpid(2)`
/// returns.
fn file_name() -> String {
    format!("jit-{}.dump", std::process::id())
}

/// A directory that no other user could have made or can look into.
fn fresh_directory(base: &Path) -> Result<OwnDirectory, SinkError> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let since = clock::time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut number = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 20;
    loop {
        let mut rest = number;
        let letters: String = (0..NAME_LETTERS)
            .map(|_| {
                let letter = LETTERS[(rest % LETTERS.len() as u64) as usize];
                rest /= LETTERS.len() as u64;
                char::from(letter)
            })
            .collect();
        match OwnDirectory::create_new(&base.join(format!("jitlisten-{letters}"))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number = number.wrapping_add(1),
            made => return made.map_err(SinkError::io("create a directory in", base)),
        }
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// No process has such a number: `pid_max` is at most 2^22.
    const UNUSED_PID: u32 = 5_000_000;

    fn add(base: &Path, name: &str, pid: u32, dead_for: Option<u64>) {
        let directory = base.join(name);
        fs::create_dir_all(&directory).unwrap();
        for file in [format!("jit-{pid}.dump"), format!("jitted-{pid}-0.so")] {
            fs::write(directory.join(file), "x").unwrap();
        }
        if let Some(hours) = dead_for {
            let then = clock::time_of_day() - Duration::from_secs(hours * 3600);
            File::create(directory.join(DEAD)).unwrap().set_modified(then).unwrap();
        }
    }

    #[test]
    fn what_dead_processes_have_left_is_removed() {
        let base = std::env::temp_dir().join(format!("jitlisten-dumps-{}", std::process::id()));
        let old = Some(365 * 24);
        (10..28).for_each(|number| add(&base, &format!("jitlisten-{number:06}"), UNUSED_PID, Some(number)));
        add(&base, "jitlisten-old000", UNUSED_PID, old);
        add(&base, "jitlisten-locked", UNUSED_PID + 1, old);
        add(&base, "jitlisten-living", std::process::id(), old);
        add(&base, "java-jit-20261121", UNUSED_PID, old);
        add(&base, "jitlisten-notes0", UNUSED_PID, old);
        fs::write(base.join("jitlisten-notes0/notes"), "x").unwrap();
        fs::create_dir_all(base.join("jitlisten-begins")).unwrap();
        let held = File::open(base.join(format!("jitlisten-locked/jit-{}.dump", UNUSED_PID + 1))).unwrap();
        assert_eq!(liveness::lock_shared(&held), Lock::Taken);
        remove_dead(&base);
        let has = |name: &str| base.join(name).exists();
        assert_eq!(
            (10..28).filter(|number| has(&format!("jitlisten-{number:06}"))).collect::<Vec<_>>(),
            (10..26).collect::<Vec<_>>()
        );
        assert!(!has("jitlisten-old000"));
        assert!(
            has("jitlisten-locked") && has("jitlisten-living") && has("jitlisten-begins") && has("java-jit-20261121")
        );
        assert_eq!(fs::read_dir(base.join("jitlisten-notes0")).unwrap().count(), 1, "the notes");
        fs::remove_dir_all(base).unwrap();
    }
}
