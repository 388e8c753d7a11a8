//! The directory of this process's images, and those of ended processes.
//!
//! ```text
//!   $JITLISTEN_DIR, or /var/tmp/jitlisten-UID, or where jitdumps go       the first that may hold executable files
//!     image-4711-9034/            process id, start time (so that a number used again is another process); 0700
//!       alive                     locked (flock) as long as the process, or a child that shares its mappings, lives
//!       object-0.so  object-1.so
//!       dead                      created by the first process that finds this one ended
//! ```
//!
//! Files outlive the process; [`crate::liveness`] says for how long. A process is dead if it does not run and its lock
//! is free. The lock alone counts for a process in another PID namespace, and for one whose children share its
//! mappings.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jitlisten_files::OwnDirectory;

use super::pages;
use crate::liveness::{self, Dead, Lock, start_time};
use crate::process::checked_file::CheckedFile;
use crate::process::write_nosignal::{effective_user, write_whole};
use crate::sink::SinkError;
use crate::{log_line, options::Options};

/// The lock's file.
const ALIVE: &str = "alive";
/// As old as our knowledge that the process is gone.
pub(in crate::sink) const DEAD: &str = "dead";
/// How often a new directory may be taken away under our hands.
const ATTEMPTS: usize = 3;

/// The directory of one process.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    next: u64,
    /// The lock; a host may have closed it.
    _alive: CheckedFile,
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
            return Directory::below(wanted);
        }
        let usual = PathBuf::from(format!("/var/tmp/jitlisten-{}", effective_user()));
        let first = OwnDirectory::create(&usual).map_err(SinkError::io("use", &usual));
        let first = first.and_then(|_| Directory::below(&usual));
        let Some(other) = &options.jitdump_directory else { return first };
        first.or_else(|error| {
            log_line!(Info, "{error}; trying {}", other.display());
            jitlisten_files::create_directories(other).map_err(SinkError::io("create", other))?;
            Directory::below(other)
        })
    }

    fn below(base: &Path) -> Result<Directory, SinkError> {
        if is_remote(base) {
            let error = io::Error::other("a network file system cannot hold code that must not vanish");
            return Err(SinkError::io("use", base)(error));
        }
        remove_dead(base);
        // In another PID namespace a directory without a lock may be taken for a dead process's.
        for _ in 1..ATTEMPTS {
            match Directory::create(base) {
                Err(SinkError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
        }
        Directory::create(base)
    }

    fn create(base: &Path) -> Result<Directory, SinkError> {
        let directory = create_unique(base)?;
        Directory::fill(&directory).inspect_err(|_| {
            let _ = directory.remove_file(ALIVE);
            let _ = fs::remove_dir(directory.path());
        })
    }

    /// Takes the lock and tries whether code may run from here.
    fn fill(directory: &OwnDirectory) -> Result<Directory, SinkError> {
        let path = directory.path();
        let lock = path.join(ALIVE);
        let alive = directory.create_file(ALIVE).map_err(SinkError::io("create", &lock))?;
        // One byte: an empty file has no page to map.
        write_whole(&alive, b"\n").map_err(|(_, error)| SinkError::io("write", &lock)(error))?;
        if liveness::lock_shared(&alive) != Lock::Taken {
            return Err(SinkError::io("lock", &lock)(io::Error::last_os_error()));
        }
        pages::can_execute(&alive).map_err(SinkError::io("execute from", path))?;
        let alive = CheckedFile::new(alive).map_err(SinkError::io("stat", &lock))?;
        Ok(Directory { path: path.to_owned(), next: 0, _alive: alive })
    }

    /// Writes a new file. Nothing is left of one that fails. The owner of the place we are in may have put another
    /// directory there.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<ImageFile, SinkError> {
        let name = format!("object-{}.so", self.next);
        let path = self.path.join(&name);
        self.next += 1;
        let directory = OwnDirectory::open(&self.path).map_err(SinkError::io("open", &self.path))?;
        let file = directory.create_file(&name).map_err(SinkError::io("create", &path))?;
        match write_whole(&file, bytes) {
            Ok(()) => Ok(ImageFile { path, file }),
            Err((_, error)) => {
                let _ = directory.remove_file(&name);
                Err(SinkError::io("write", &path)(error))
            }
        }
    }
}

/// The session may be opened, or the program replaced by `exec`, several times in the life of one process.
fn create_unique(base: &Path) -> Result<OwnDirectory, SinkError> {
    let pid = std::process::id();
    let start = start_time(pid).unwrap_or_default();
    let name = format!("image-{pid}-{start}");
    OwnDirectory::create_unique(base, &name).map_err(SinkError::io("create", &base.join(name)))
}

/// Removes what dead processes of ours have left, as far as this module's head says.
fn remove_dead(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let mut dead = Vec::new();
    for entry in entries.flatten() {
        let is_ours = entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == effective_user());
        let name = entry.file_name();
        let Some((pid, start)) = name.to_str().filter(|_| is_ours).and_then(parse_name) else { continue };
        if start_time(pid) != Some(start) && !is_locked(&entry.path()) {
            dead.push(found_dead(entry.path()));
        }
    }
    liveness::expired(dead, 0).for_each(|path| remove(&path));
}

/// What a dead process has left, from now on if it was not found before.
pub(in crate::sink) fn found_dead(directory: PathBuf) -> Dead<PathBuf> {
    let written = fs::symlink_metadata(&directory).and_then(|metadata| metadata.modified());
    let written = written.unwrap_or(SystemTime::UNIX_EPOCH);
    Dead { since: since_when(&directory, written), written, left: directory }
}

/// When the process was found dead: now, if it was not found before. Where that cannot be written down, when it last
/// wrote an image.
fn since_when(directory: &Path, written: SystemTime) -> SystemTime {
    let mark = directory.join(DEAD);
    if let Ok(metadata) = fs::symlink_metadata(&mark) {
        return metadata.modified().unwrap_or(written);
    }
    let made = OwnDirectory::open(directory).and_then(|directory| directory.create_file(DEAD));
    made.and_then(|file| file.metadata()?.modified()).unwrap_or(written)
}

/// `image-PID-START` or `image-PID-START-N`
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let mut numbers = name.strip_prefix("image-")?.split('-');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the lock is held, be it in another PID namespace.
fn is_locked(directory: &Path) -> bool {
    let file = OwnDirectory::open(directory).and_then(|directory| directory.open_file(ALIVE));
    file.is_ok_and(|file| liveness::lock_exclusive(&file) != Lock::Taken)
}

/// Removes what this module makes, and the directory if nothing else is in it.
fn remove(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == ALIVE || name == DEAD || (name.starts_with("object-") && name.ends_with(".so")) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_contain_the_process() {
        assert_eq!(parse_name("image-12-345"), Some((12, 345)));
        assert_eq!(parse_name("image-12-345-2"), Some((12, 345)));
        assert_eq!(parse_name("jitdump-12-345"), None);
        assert_eq!(parse_name("image-12"), None);
    }

    /// A place for directories, removed at the end.
    struct Base(PathBuf);

    impl Base {
        fn new(test: &str) -> Base {
            let path = std::env::temp_dir().join(format!("jitlisten-directory-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Base(path)
        }

        /// A directory with an image in it, that was found dead so many hours ago.
        fn add(&self, name: &str, dead_for: Option<u64>) {
            let directory = self.0.join(name);
            fs::create_dir(&directory).unwrap();
            for file in [ALIVE, "object-0.so"] {
                fs::write(directory.join(file), "x").unwrap();
            }
            if let Some(hours) = dead_for {
                let then = crate::process::clock::time_of_day() - Duration::from_secs(hours * 3600);
                File::create(directory.join(DEAD)).unwrap().set_modified(then).unwrap();
            }
        }

        fn has(&self, name: &str) -> bool {
            self.0.join(name).join("object-0.so").exists()
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// No process has such a number: `pid_max` is at most 2^22.
    const UNUSED_PID: u32 = 5_000_000;

    #[test]
    fn sixteen_dead_processes_are_kept() {
        let base = Base::new("count");
        let name = |number: u32| format!("image-{}-1", UNUSED_PID + number);
        (0..20).for_each(|number| base.add(&name(number), Some(u64::from(number))));
        remove_dead(&base.0);
        assert_eq!((0..20).filter(|&number| base.has(&name(number))).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        assert_eq!(fs::read_dir(&base.0).unwrap().count(), 16, "nothing is left of the others");
    }

    #[test]
    fn a_dead_process_is_kept_for_seven_days() {
        let base = Base::new("age");
        base.add("image-5000001-1", Some(7 * 24 - 1));
        base.add("image-5000002-1", Some(7 * 24 + 1));
        base.add("image-5000003-1", None);
        let long_ago = crate::process::clock::time_of_day() - Duration::from_secs(30 * 24 * 3600);
        File::open(base.0.join("image-5000003-1")).unwrap().set_modified(long_ago).unwrap();
        remove_dead(&base.0);
        let left = ["image-5000001-1", "image-5000002-1", "image-5000003-1"].map(|name| base.has(name));
        assert_eq!(left, [true, false, true], "a process that wrote last a month ago may have died just now");
        remove_dead(&base.0);
        assert!(base.has("image-5000003-1"), "and counts from now on");
        assert!(base.0.join("image-5000003-1").join(DEAD).exists());
    }

    #[test]
    fn no_live_process_loses_a_file() {
        let base = Base::new("alive");
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        let (own, reused) = (format!("image-{pid}-{start}"), format!("image-{pid}-{}", start + 1));
        let (locked, unlocked) = ("image-5000001-1", "image-5000002-1");
        let old = Some(365 * 24);
        [&own, &reused, locked, unlocked].into_iter().for_each(|name| base.add(name, old));
        // As a process in another PID namespace, or the child of a dead one, holds it.
        let held = File::open(base.0.join(locked).join(ALIVE)).unwrap();
        assert_eq!(liveness::lock_shared(&held), Lock::Taken);
        remove_dead(&base.0);
        assert_eq!([own.as_str(), &reused, locked, unlocked].map(|name| base.has(name)), [true, false, true, false]);
        drop(held);
        remove_dead(&base.0);
        assert!(!base.has(locked));
    }

    #[test]
    fn what_others_have_put_there_stays() {
        let base = Base::new("others");
        base.add("image-of-my-cat", Some(365 * 24));
        base.add("image-5000001-1", Some(365 * 24));
        fs::write(base.0.join("image-5000001-1/notes.txt"), "x").unwrap();
        fs::write(base.0.join("image-5000002-1"), "a file").unwrap();
        remove_dead(&base.0);
        assert!(base.has("image-of-my-cat"));
        assert!(base.0.join("image-5000001-1/notes.txt").exists() && !base.has("image-5000001-1"));
        assert!(base.0.join("image-5000002-1").exists());
    }

    #[test]
    fn a_directory_holds_its_lock() {
        let base = Base::new("lock");
        let mut directory = Directory::create(&base.0).unwrap();
        let written = directory.write(b"image").unwrap();
        assert!(is_locked(&directory.path));
        assert_eq!(fs::read(&written.path).unwrap(), b"image");
        let path = directory.path.clone();
        drop(directory);
        assert!(!is_locked(&path));
    }
}
