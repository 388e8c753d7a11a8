//! Per-process directories for images or a jitdump, and their removal after the process has exited.
//!
//! ```text
//!   image-4711-9034/, jitdump-4711-9034/    PID and start time (which tells processes with the same PID apart); 0700
//!     alive                the marker: `jitlisten files of PID START NAMESPACE [RUN]`; locked (flock) as long as the
//!                          process, or a child that shares its mappings, lives
//!     object-0.so ...      files of the sink
//!     dead                 created by the first process that finds this one dead; its mtime is the time of discovery,
//!                          its content the size of all files
//! ```
//!
//! Files outlive the process; [`crate::liveness`] defines for how long. A process is dead if it does not run and its
//! lock is free. We only remove files from directories with the marker, and only files whose names have exactly the
//! form of a [`FileName`]. All other files belong to the user and are kept, along with their directory.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jitlisten_files::{FileName, OwnDirectory, create_with_free_name};

use crate::liveness::{self, DeadOwner, Lock, MAX_DIRECTORY_ENTRIES, Owner, ProcessIdentity, Run, TimeLimit};
use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::{effective_user, write_whole};
use crate::sink::SinkError;

/// Maximum total size of the images that dead processes have left, and separately of their jitdumps.
const MAX_DEAD_BYTES: u64 = 2 << 30;
/// Number of a dead process's files whose sizes are read. The others are assumed to have the same mean size.
const MEASURED_FILES: usize = 256;
const MAX_MARKER_BYTES: u64 = 256;
const MARKER_PREFIX: &str = "jitlisten files of ";

/// Returns the directory of this user's files, if `JITLISTEN_DIR` names no other.
pub fn default_directory() -> PathBuf {
    PathBuf::from(format!("/var/tmp/jitlisten-{}", effective_user()))
}

#[derive(Debug)]
pub(super) struct ProcessDirectory {
    path: PathBuf,
    identity: FileIdentity,
    /// Marker file, on which we hold a lock. The host may have closed it.
    marker: CheckedFile,
}

impl ProcessDirectory {
    /// Creates a new directory below `base`. `name` returns the directory name for an attempt number, because a process
    /// may open several sessions, or replace its program with `exec`.
    pub(super) fn create(
        base: &Path,
        name: fn(ProcessIdentity, u64) -> FileName,
        run: Option<Run>,
    ) -> Result<ProcessDirectory, SinkError> {
        let own = ProcessIdentity::own();
        let path = create_with_free_name(|attempt| {
            let path = base.join(name(own, attempt).to_string());
            OwnDirectory::create_new(&path).map(|_| path)
        });
        let path = path.map_err(SinkError::io("create", &base.join(name(own, 0).to_string())))?;
        ProcessDirectory::with_marker(&path, run).inspect_err(|_| discard(&path))
    }

    fn with_marker(path: &Path, run: Option<Run>) -> Result<ProcessDirectory, SinkError> {
        let identity = FileIdentity::from_metadata(&fs::symlink_metadata(path).map_err(SinkError::io("stat", path))?);
        let lock = path.join(FileName::Alive.to_string());
        let marker = create_file(path, FileName::Alive)?;
        let text = format!("{MARKER_PREFIX}{}\n", Owner { process: ProcessIdentity::own(), run });
        write_whole(&marker, text.as_bytes()).map_err(|(_, error)| SinkError::io("write", &lock)(error))?;
        let marker = CheckedFile::new(marker).map_err(SinkError::io("stat", &lock))?;
        Ok(ProcessDirectory { path: path.to_owned(), identity, marker })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the marker. If the file system does not support locks, only the PID shows whether the process is alive.
    pub(super) fn lock(&self) -> Result<(), SinkError> {
        match self.marker.get().map(liveness::lock_shared) {
            Some(Lock::Taken) => Ok(()),
            _ => Err(SinkError::io("lock", &self.path.join(FileName::Alive.to_string()))(io::Error::last_os_error())),
        }
    }

    /// Returns the marker file, which is never empty.
    pub(super) fn marker(&self) -> Option<&File> {
        self.marker.get()
    }

    /// Creates a file, unless our directory was replaced by another one.
    pub(super) fn create_file(&self, name: FileName) -> Result<File, SinkError> {
        let metadata = fs::symlink_metadata(&self.path).map_err(SinkError::io("stat", &self.path))?;
        if FileIdentity::from_metadata(&metadata) != self.identity {
            return Err(SinkError::NotOurs { path: self.path.clone(), reason: "another directory" });
        }
        create_file(&self.path, name)
    }
}

/// Removes a directory of this process that contains only the marker. Errors are ignored.
pub(super) fn discard(directory: &Path) {
    let _ = fs::remove_file(directory.join(FileName::Alive.to_string()));
    let _ = fs::remove_dir(directory);
}

fn create_file(directory: &Path, name: FileName) -> Result<File, SinkError> {
    let name = name.to_string();
    let file = OwnDirectory::open(directory).and_then(|opened| opened.create_file(OsStr::new(&name)));
    file.map_err(SinkError::io("create", &directory.join(&name)))
}

/// Removes directories of this user's dead processes below `base`: examines as many as `time` allows, and again removes
/// as many. `kind` selects directories by name; the module documentation lists the conditions.
pub(super) fn remove_dead(time: Duration, base: &Path, kind: fn(&FileName) -> bool, run: Option<Run>) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let namespace = liveness::pid_namespace();
    let names = entries.flatten().take(MAX_DIRECTORY_ENTRIES).map(|entry| entry.file_name());
    let own_names = names.filter(|name| FileName::parse(name).is_some_and(|name| kind(&name))).collect();
    let examined = TimeLimit::after(time).entries(own_names);
    let dead = examined.filter_map(|name| MarkedDirectory::open(base, &name)?.check_dead(run, namespace)).collect();
    let limit = TimeLimit::after(time);
    for name in liveness::expired(dead, MAX_DEAD_BYTES) {
        if let Some(directory) = MarkedDirectory::open(base, &name) {
            let _ = directory.remove_while(|| !limit.is_over());
        }
    }
}

/// An existing directory of this user that contains the marker of a process.
#[derive(Debug)]
pub struct MarkedDirectory {
    directory: OwnDirectory,
    marker: File,
    /// Owner of the files.
    pub owner: Owner,
    /// Name of the directory.
    pub name: FileName,
}

impl MarkedDirectory {
    /// Opens the directory. Returns `None` unless its name, owner and marker are as this module creates them.
    pub fn open(base: &Path, name: &OsStr) -> Option<MarkedDirectory> {
        let parsed = FileName::parse(name)?;
        let directory = OwnDirectory::open(&base.join(name)).ok()?;
        let mut marker = directory.open_file(OsStr::new(&FileName::Alive.to_string())).ok()?;
        let mut text = String::new();
        (&mut marker).take(MAX_MARKER_BYTES).read_to_string(&mut text).ok()?;
        let owner = Owner::parse(text.strip_prefix(MARKER_PREFIX)?.strip_suffix('\n')?)?;
        let names_owner = match parsed {
            FileName::Images { pid, start, .. } | FileName::Jitdump { pid, start, .. } => {
                (pid, start) == (owner.process.pid, owner.process.start)
            }
            _ => false,
        };
        names_owner.then_some(MarkedDirectory { directory, marker, owner, name: parsed })
    }

    /// Returns true if the process is dead and the lock is free.
    pub fn is_dead(&self, namespace: u64) -> bool {
        // The `dead` file is permanent, because a dead process stays dead.
        if self.directory.contains(OsStr::new(&FileName::Dead.to_string())) {
            return true;
        }
        let written = fs::symlink_metadata(self.directory.path()).and_then(|metadata| metadata.modified());
        self.owner.is_gone(namespace, written.unwrap_or(SystemTime::UNIX_EPOCH))
            && liveness::lock_exclusive(&self.marker) == Lock::Taken
    }

    /// Returns the directory's entry for [`liveness::expired`] if the process is dead and its run has ended.
    fn check_dead(&self, run: Option<Run>, namespace: u64) -> Option<DeadOwner<OsString>> {
        if self.owner.belongs_to_running(namespace, run) || !self.is_dead(namespace) {
            return None;
        }
        let metadata = fs::symlink_metadata(self.directory.path()).ok()?;
        let written = metadata.modified().ok()?;
        // If the directory is read-only, use the time of the last write as the time of death.
        let (since, bytes) = self.dead_since().unwrap_or_else(|| (written, self.estimated_bytes()));
        Some(DeadOwner { since, written, bytes, files: self.name.to_string().into() })
    }

    /// Returns the time when the process was found dead, and the size of its files. Marks the process as dead now if no
    /// other process has done so.
    fn dead_since(&self) -> Option<(SystemTime, u64)> {
        let name = FileName::Dead.to_string();
        if let Ok(mut dead_file) = self.directory.open_file(OsStr::new(&name)) {
            let mut text = String::new();
            (&mut dead_file).take(MAX_MARKER_BYTES).read_to_string(&mut text).ok()?;
            return Some((dead_file.metadata().ok()?.modified().ok()?, text.trim_end().parse().unwrap_or_default()));
        }
        let bytes = self.estimated_bytes();
        let dead_file = self.directory.create_file(OsStr::new(&name)).ok()?;
        write_whole(&dead_file, format!("{bytes}\n").as_bytes()).ok()?;
        Some((dead_file.metadata().ok()?.modified().ok()?, bytes))
    }

    /// Names of files that jitlisten or `perf inject` creates here. The marker is last, after the time of death, because
    /// a removal may be interrupted.
    fn file_names(&self) -> Vec<FileName> {
        let is_ours = |name: &FileName| match *name {
            FileName::Alive | FileName::Dead => true,
            FileName::Image { .. } => matches!(self.name, FileName::Images { .. }),
            FileName::Dump { pid } | FileName::Injected { pid, .. } => {
                matches!(self.name, FileName::Jitdump { .. }) && pid == self.owner.process.pid
            }
            _ => false,
        };
        let names = self.directory.names().unwrap_or_default();
        let mut names: Vec<FileName> = names.iter().filter_map(|name| FileName::parse(name).filter(is_ours)).collect();
        names.sort_by_key(|name| (*name == FileName::Alive, *name == FileName::Dead));
        names
    }

    /// Returns the metadata of a regular file of this user.
    fn metadata(&self, name: FileName) -> Option<fs::Metadata> {
        let metadata = fs::symlink_metadata(self.directory.path().join(name.to_string())).ok()?;
        (metadata.is_file() && metadata.uid() == effective_user()).then_some(metadata)
    }

    /// Regular files of this user that jitlisten or `perf inject` created here. The marker is last.
    pub fn files(&self) -> Vec<(FileName, fs::Metadata)> {
        self.file_names().into_iter().filter_map(|name| Some((name, self.metadata(name)?))).collect()
    }

    /// Disk space that removal would free. Images that are hard-linked next to a recording do not count.
    pub fn bytes(&self) -> u64 {
        self.file_names().into_iter().map(|name| self.freed_bytes(name)).sum()
    }

    fn freed_bytes(&self, name: FileName) -> u64 {
        self.metadata(name).filter(|metadata| metadata.nlink() == 1).map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Estimates [`Self::bytes`] from a part of the files.
    fn estimated_bytes(&self) -> u64 {
        let names = self.file_names();
        let step = names.len().div_ceil(MEASURED_FILES).max(1);
        names.into_iter().step_by(step).map(|name| self.freed_bytes(name)).sum::<u64>() * step as u64
    }

    /// Removes the files, and the directory if it is then empty.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        self.remove_while(|| true)
    }

    /// Removes files while the condition holds, and the directory if it is then empty.
    fn remove_while(self, may_continue: impl Fn() -> bool) -> io::Result<()> {
        for name in self.file_names() {
            // Without the time of death, the process would seem to have died just now.
            if !matches!(name, FileName::Dead | FileName::Alive) && !may_continue() {
                return Ok(());
            }
            if self.metadata(name).is_some() {
                let removed = self.directory.remove_file(OsStr::new(&name.to_string()));
                // Another process may be removing the same files.
                removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
            }
        }
        // Fails if the directory still contains files of the user.
        let _ = fs::remove_dir(self.directory.path());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::clock;

    /// PID that no process can have, because `pid_max` is at most 2^22.
    const UNUSED_PID: u32 = 5_000_000;

    const UNLIMITED: Duration = Duration::from_secs(600);

    /// Parent directory for a test; removed on drop.
    struct BaseDirectory(PathBuf);

    impl BaseDirectory {
        fn new(test: &str) -> BaseDirectory {
            let path = std::env::temp_dir().join(format!("jitlisten-directory-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            BaseDirectory(path)
        }

        /// Adds a directory for images or for a jitdump, with a marker that names the given process.
        fn add(&self, name: &str, pid: u32, start: u64, run: Option<Run>) {
            let file = match FileName::parse(name) {
                Some(FileName::Jitdump { .. }) => FileName::Dump { pid },
                _ => FileName::Image { number: 0 },
            };
            let directory = self.0.join(name);
            fs::create_dir(&directory).unwrap();
            let owner = Owner { process: ProcessIdentity { pid, start, ..ProcessIdentity::own() }, run };
            fs::write(directory.join("alive"), format!("{MARKER_PREFIX}{owner}\n")).unwrap();
            fs::write(directory.join(file.to_string()), "x").unwrap();
        }

        /// Marks the process as found dead `hours` ago, with files of `bytes` bytes.
        fn mark_dead(&self, name: &str, hours: u64, bytes: u64) {
            fs::write(self.0.join(name).join("dead"), format!("{bytes}\n")).unwrap();
            let found_at = clock::time_of_day() - Duration::from_secs(hours * 3600);
            File::options().write(true).open(self.0.join(name).join("dead")).unwrap().set_modified(found_at).unwrap();
        }

        fn clean(&self) {
            remove_dead(UNLIMITED, &self.0, |_| true, None);
        }

        fn has(&self, name: &str) -> bool {
            self.0.join(name).exists()
        }
    }

    impl Drop for BaseDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn dead_processes_are_kept_up_to_a_size() {
        let base = BaseDirectory::new("size");
        let name = |number: u32| format!("image-{}-1", UNUSED_PID + number);
        for number in 0..40 {
            base.add(&name(number), UNUSED_PID + number, 1, None);
            base.mark_dead(&name(number), u64::from(number), MAX_DEAD_BYTES / 30);
        }
        base.clean();
        assert_eq!((0..40).filter(|&number| base.has(&name(number))).collect::<Vec<_>>(), (0..31).collect::<Vec<_>>());
    }

    #[test]
    fn a_dead_process_is_kept_for_seven_days() {
        let base = BaseDirectory::new("age");
        for (number, name) in ["image-5000000-1", "jitdump-5000001-1", "image-5000002-1"].iter().enumerate() {
            base.add(name, UNUSED_PID + number as u32, 1, None);
        }
        base.mark_dead("image-5000000-1", 7 * 24 - 1, 1);
        base.mark_dead("jitdump-5000001-1", 7 * 24 + 1, 1);
        let long_ago = clock::time_of_day() - Duration::from_secs(30 * 24 * 3600);
        File::open(base.0.join("image-5000002-1")).unwrap().set_modified(long_ago).unwrap();
        base.clean();
        let remaining = ["image-5000000-1", "jitdump-5000001-1", "image-5000002-1"].map(|name| base.has(name));
        assert_eq!(remaining, [true, false, true], "a process that wrote last a month ago may have died just now");
        base.clean();
        let dead_mark = fs::read_to_string(base.0.join("image-5000002-1/dead")).unwrap();
        assert!(dead_mark.trim().parse::<u64>().is_ok_and(|bytes| bytes >= 512), "and counts from now on: {dead_mark}");
    }

    /// The clean-up runs in the host's first compilation.
    #[test]
    fn a_clean_up_without_time_removes_nothing_and_later_ones_continue() {
        let base = BaseDirectory::new("time");
        base.add("image-5000000-1", UNUSED_PID, 1, None);
        for number in 1..2000 {
            fs::write(base.0.join(format!("image-5000000-1/object-{number}.so")), "x").unwrap();
        }
        base.mark_dead("image-5000000-1", 8 * 24, 1);
        remove_dead(Duration::ZERO, &base.0, |_| true, None);
        let directory = MarkedDirectory::open(&base.0, OsStr::new("image-5000000-1")).unwrap();
        let (bytes, estimate) = (directory.bytes(), directory.estimated_bytes());
        assert!(directory.file_names().len() == 2002 && estimate.abs_diff(bytes) <= bytes / 10, "{bytes} {estimate}");
        let removed = std::cell::Cell::new(0);
        let may_continue = || removed.replace(removed.get() + 1) < 500;
        directory.remove_while(may_continue).unwrap();
        let directory = MarkedDirectory::open(&base.0, OsStr::new("image-5000000-1")).expect("the marker is last");
        assert_eq!(directory.file_names().len(), 1502);
        base.clean();
        assert!(!base.has("image-5000000-1"));
    }

    #[test]
    fn no_live_process_loses_a_file() {
        let base = BaseDirectory::new("alive");
        let own = ProcessIdentity::own();
        let (own_name, reused) =
            (format!("image-{}-{}", own.pid, own.start), format!("image-{}-{}", own.pid, own.start + 1));
        base.add(&own_name, own.pid, own.start, None);
        base.add(&own_name.replace("image", "jitdump"), own.pid, own.start, None);
        base.add(&reused, own.pid, own.start + 1, None);
        base.add("image-5000001-1", UNUSED_PID + 1, 1, None);
        // Lock the marker, as a process in another PID namespace or the child of a dead process would.
        let locked_marker = File::open(base.0.join("image-5000001-1/alive")).unwrap();
        assert_eq!(liveness::lock_shared(&locked_marker), Lock::Taken);
        let names = [&own_name, &own_name.replace("image", "jitdump"), &reused, "image-5000001-1"];
        let found_dead = || names.map(|name| base.0.join(name).join("dead").exists());
        base.clean();
        assert_eq!(found_dead(), [false, false, true, false]);
        drop(locked_marker);
        base.clean();
        assert_eq!(found_dead(), [false, false, true, true]);
    }

    /// `jitlisten run -s -- perf record ...` may start many workers, and the recording refers to the files of all of
    /// them.
    #[test]
    fn files_of_an_unfinished_run_are_kept() {
        let base = BaseDirectory::new("run");
        let own = ProcessIdentity::own();
        let ended = ProcessIdentity { start: own.start + 1, ..own };
        let in_other_namespace = ProcessIdentity { namespace: own.namespace + 1, ..own };
        for (number, run) in [own, ended, in_other_namespace].into_iter().enumerate() {
            let name = format!("image-500000{number}-1");
            base.add(&name, UNUSED_PID + number as u32, 1, Some(Run(run)));
            base.mark_dead(&name, 365 * 24, 1);
        }
        remove_dead(UNLIMITED, &base.0, |_| true, Some(Run(in_other_namespace)));
        assert_eq!([0, 1, 2].map(|number| base.has(&format!("image-500000{number}-1"))), [true, false, true]);
        base.clean();
        assert!(!base.has("image-5000002-1"), "whether it is over cannot be seen from here");
    }

    #[test]
    fn user_files_are_kept() {
        let base = BaseDirectory::new("others");
        let own = ProcessIdentity::own();
        // Directories without a marker, with a malformed one, or with that of another process.
        for (name, marker) in [
            ("image-5000000-1", None),
            ("image-5000001-1", Some("x\n".to_owned())),
            ("image-5000002-1", Some(format!("{MARKER_PREFIX}{} 2 {}\n", UNUSED_PID + 2, own.namespace))),
            ("image-5000003-1", Some(format!("{MARKER_PREFIX}{} 1 {}\nmore", UNUSED_PID + 3, own.namespace))),
            ("image-of-my-cat", Some(format!("{MARKER_PREFIX}{} 1 {}\n", UNUSED_PID + 4, own.namespace))),
            ("jitlisten-report", Some(format!("{MARKER_PREFIX}{} 1 {}\n", UNUSED_PID + 5, own.namespace))),
        ] {
            base.add(name, UNUSED_PID, 1, None);
            base.mark_dead(name, 365 * 24, 1);
            match marker {
                Some(marker) => fs::write(base.0.join(name).join("alive"), marker).unwrap(),
                None => fs::remove_file(base.0.join(name).join("alive")).unwrap(),
            }
        }
        // User files in one of our directories.
        base.add("image-5000006-1", UNUSED_PID + 6, 1, None);
        base.add("jitdump-5000007-1", UNUSED_PID + 7, 1, None);
        let user_files = [
            "image-5000006-1/object-detector.so",
            "image-5000006-1/jit-5000006.dump",
            "image-5000006-1/notes.txt",
            "jitdump-5000007-1/jit-notes.txt",
            "jitdump-5000007-1/jit-5.dump",
            "jitdump-5000007-1/object-0.so",
        ];
        user_files.iter().for_each(|name| fs::write(base.0.join(name), "precious").unwrap());
        std::os::unix::fs::symlink(base.0.join("elsewhere"), base.0.join("image-5000006-1/object-7.so")).unwrap();
        ["image-5000006-1", "jitdump-5000007-1"].iter().for_each(|name| base.mark_dead(name, 365 * 24, 1));
        fs::create_dir(base.0.join("elsewhere")).unwrap();
        fs::write(base.0.join("elsewhere/alive"), format!("{MARKER_PREFIX}{} 1 {}\n", UNUSED_PID + 8, own.namespace))
            .unwrap();
        fs::write(base.0.join("elsewhere/object-0.so"), "precious").unwrap();
        std::os::unix::fs::symlink(base.0.join("elsewhere"), base.0.join("image-5000008-1")).unwrap();
        base.clean();
        for directory in 0..4 {
            assert!(base.has(&format!("image-500000{directory}-1/object-0.so")), "{directory}");
        }
        assert!(base.has("image-of-my-cat/object-0.so") && base.has("jitlisten-report/object-0.so"));
        assert!(user_files.iter().all(|name| base.has(name)) && base.has("elsewhere/object-0.so"));
        assert!(base.0.join("image-5000006-1/object-7.so").is_symlink());
        assert!(!base.has("image-5000006-1/object-0.so") && !base.has("jitdump-5000007-1/jit-5000007.dump"));
    }
}
