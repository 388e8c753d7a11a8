//! A process as seen through `/proc`, and access to its files.
//!
//! The process may belong to another user, run in a container, or be hostile. Its paths are resolved below its root
//! directory, through a descriptor (`openat2(2)` with `RESOLVE_IN_ROOT`), so no link can lead outside. Only regular
//! files are opened, never pipes or devices.

pub(crate) mod jit_list;
pub(crate) mod memory;
pub(crate) mod symbols;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jitlisten::plumbing::MapsLine;
pub(crate) use jitlisten::plumbing::start_time;
use jitlisten_files::reopen_regular;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use crate::problem::Problem;

/// Inode number that identifies the PID namespace of a process. `process` is `self` or a PID.
pub(crate) fn pid_namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|metadata| metadata.ino())
}

/// A running process that this user may inspect.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) mappings: Vec<Mapping>,
    root: OwnedFd,
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) is_executable: bool,
    /// True for executable, read-only memory without a file or name: code of a JIT.
    pub(crate) is_anonymous_code: bool,
    pub(crate) is_main_stack: bool,
    /// Mapped file; empty for anonymous memory.
    pub(crate) path: PathBuf,
}

impl Process {
    /// Opens a running process, or fails with the reason why this user cannot inspect it.
    pub(crate) fn open(pid: u32) -> Result<Process, Problem> {
        let no_such_process = || Problem::new(format!("no such process: {pid}"));
        let start = start_time(pid).ok_or_else(no_such_process)?;
        if is_zombie(pid) {
            return Err(Problem::new(format!("process {pid} is a zombie")));
        }
        let open_problem = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH) => no_such_process(),
            _ if geteuid().is_root() => {
                Problem::new(format!("permission denied for process {pid} (LSM, seccomp or user namespace): {error}"))
            }
            _ => Problem::new(format!(
                "process {pid} belongs to {}",
                owner(pid).map_or("another user".to_owned(), |(user, _)| format!("user {user}"))
            ))
            .help("run this as that user, or as root"),
        };
        let mappings = mappings(pid).map_err(open_problem)?;
        if mappings.is_empty() {
            return Err(Problem::new(format!("process {pid} is a kernel thread, or has ended")));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty());
        let process = Process { pid, start, mappings, root: root.map_err(|error| open_problem(error.into()))? };
        process.check_class()?;
        Ok(process)
    }

    /// Fails for 32-bit programs.
    fn check_class(&self) -> Result<(), Problem> {
        let mut head = [0; 5];
        let read = File::open(format!("/proc/{}/exe", self.pid)).and_then(|mut file| file.read_exact(&mut head));
        if read.is_ok() && head[..4] == *b"\x7fELF" && head[4] != 2 {
            return Err(Problem::new(format!(
                "process {} is a 32-bit program; jitlisten is for 64-bit programs",
                self.pid
            )));
        }
        Ok(())
    }

    /// Returns true if the process that was opened is still running.
    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start) && !is_zombie(self.pid)
    }

    /// Error for a process that has exited.
    pub(crate) fn ended_problem(&self) -> Problem {
        Problem::new(format!("process {} has ended", self.pid))
    }

    /// Returns the files with executable mappings, without adjacent duplicates.
    pub(crate) fn libraries(&self) -> Vec<&Path> {
        let mut paths: Vec<&Path> = self
            .mappings
            .iter()
            .filter(|mapping| mapping.is_executable && mapping.path.is_absolute())
            .map(|mapping| mapping.path.as_path())
            .collect();
        paths.dedup();
        paths
    }

    /// Translates a path in the process, which may be in a container, to a path in our own mount namespace.
    pub(crate) fn visible_path(&self, path: &Path) -> PathBuf {
        if !self.sees_different_file(path) {
            return path.to_owned();
        }
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Opens a directory below the process's root directory, or a file with `O_PATH`.
    pub(crate) fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            // Linux before 5.6 lacks openat2, and a seccomp filter may reject it. A process with our own root directory
            // needs no confinement.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) if self.has_our_root() => {
                Ok(rustix::fs::open(path, flags, Mode::empty())?)
            }
            result => Ok(result?),
        }
    }

    /// Opens a regular file of the process, read-only.
    pub(crate) fn open_file(&self, path: &Path) -> io::Result<File> {
        reopen_regular(self.resolve(path, OFlags::PATH)?)
    }

    fn has_our_root(&self) -> bool {
        let our_identity = rustix::fs::stat("/").ok().map(|stat| identity(&stat));
        our_identity.is_some() && rustix::fs::fstat(&self.root).ok().map(|stat| identity(&stat)) == our_identity
    }

    /// Path of the program's executable, inside the process's root directory.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        let root = fs::read_link(format!("/proc/{}/root", self.pid)).unwrap_or_default();
        Some(relative_to_root(&root, &path))
    }

    /// Path of the program's executable, if it is mapped.
    pub(crate) fn executable(&self) -> Option<&Path> {
        let program = self.program()?;
        self.libraries().into_iter().find(|library| *library == program)
    }

    /// Finds the first library with this file name.
    pub(crate) fn library_named(&self, name: &str) -> Option<&Path> {
        self.libraries().into_iter().find(|path| path.file_name().is_some_and(|file_name| file_name == name))
    }

    /// Finds the first library whose file name starts with `name`.
    pub(crate) fn library_with_prefix(&self, name: &str) -> Option<&Path> {
        let has_prefix =
            |path: &Path| path.file_name().is_some_and(|file_name| file_name.as_bytes().starts_with(name.as_bytes()));
        self.libraries().into_iter().find(|path| has_prefix(path))
    }

    /// Version of the Python in the process, such as 3.11, derived from the names of the executable and of mapped
    /// files.
    pub(crate) fn python(&self) -> Option<(u32, u32)> {
        let executable = self.program().unwrap_or_default();
        let mapped_paths = self.mappings.iter().map(|mapping| mapping.path.as_path());
        std::iter::once(executable.as_path()).chain(mapped_paths).find_map(python_version)
    }

    /// PID of the process in its innermost namespace.
    pub(crate) fn inner_pid(&self) -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(self.pid)
    }

    /// PID of the tracer, if the process is traced.
    pub(crate) fn tracer(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
        line.trim().parse().ok().filter(|tracer| *tracer != 0)
    }

    /// PID namespace of the process, as an inode number; 0 if unknown.
    pub(crate) fn namespace(&self) -> u64 {
        pid_namespace(&self.pid.to_string()).unwrap_or(0)
    }

    /// Returns true if `path` names a different file in the process, which may have its own root directory or mounts.
    pub(crate) fn sees_different_file(&self, path: &Path) -> bool {
        let inside_stat = self.resolve(path, OFlags::PATH).and_then(|stat| Ok(rustix::fs::fstat(stat)?));
        let outside_stat = rustix::fs::statat(CWD, path, AtFlags::empty());
        inside_stat.ok().map(|stat| identity(&stat)) != outside_stat.ok().map(|stat| identity(&stat))
    }

    /// Wall-clock time at which the process started.
    pub(crate) fn started_at(&self) -> Option<SystemTime> {
        let ticks = rustix::param::clock_ticks_per_second();
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = Duration::new(u64::try_from(since_boot.tv_sec).ok()?, u32::try_from(since_boot.tv_nsec).ok()?);
        let age = since_boot.checked_sub(Duration::from_millis(self.start.checked_mul(1000)? / ticks))?;
        SystemTime::now().checked_sub(age)
    }

    /// Time since the process started.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.started_at()?.elapsed().ok()
    }

    /// Returns true if a file was last modified before this process started, so an earlier process with the same PID
    /// wrote it.
    pub(crate) fn started_after(&self, file: &File) -> bool {
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        self.started_at().is_some_and(|started_at| modified.is_ok_and(|modified| modified < started_at))
    }

    /// Returns true if the mappings at these addresses are still those found when the process was opened. `execve(2)`
    /// replaces them.
    pub(crate) fn still_maps(&self, addresses: &[u64]) -> bool {
        let Ok(current_mappings) = mappings(self.pid) else { return false };
        let find_mapping = |mappings: &[Mapping], address| {
            mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address)).cloned()
        };
        addresses.iter().all(|address| {
            let old_mapping = find_mapping(&self.mappings, *address);
            old_mapping.is_some() && old_mapping == find_mapping(&current_mappings, *address)
        })
    }

    /// Returns true if the process has executable memory that belongs to no file.
    pub(crate) fn has_anonymous_code(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.is_anonymous_code)
    }

    /// Returns true if the process has any mappings; an exiting process loses them.
    pub(crate) fn has_memory(&self) -> bool {
        mappings(self.pid).is_ok_and(|mappings| !mappings.is_empty())
    }

    /// Returns true if a signal or a terminal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        state(self.pid) == Some('T')
    }

    /// Gives this thread the rights of the process's user until the guard is dropped, to create or read files on behalf
    /// of that user.
    pub(crate) fn act_as_owner(&self) -> io::Result<ActingAs> {
        let (user, group) = owner(self.pid).ok_or(io::ErrorKind::NotFound)?;
        ActingAs::begin(user, group)
    }
}

/// Guard of [`Process::act_as_owner`], with the IDs to restore.
pub(crate) struct ActingAs(Option<(Uid, Gid, Vec<Gid>)>);

impl ActingAs {
    fn begin(user: u32, group: u32) -> io::Result<ActingAs> {
        let old_ids = (geteuid(), rustix::process::getegid());
        if !old_ids.0.is_root() || user == 0 {
            return Ok(ActingAs(None));
        }
        let guard = ActingAs(Some((old_ids.0, old_ids.1, rustix::process::getgroups()?)));
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::thread::set_thread_groups(&[group])?;
        rustix::thread::set_thread_res_gid(None, group, None)?;
        rustix::thread::set_thread_res_uid(None, user, None)?;
        Ok(guard)
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        if let Some((user, group, groups)) = &self.0 {
            // Restoring saved IDs cannot fail.
            let _ = rustix::thread::set_thread_res_uid(None, *user, None);
            let _ = rustix::thread::set_thread_res_gid(None, *group, None);
            let _ = rustix::thread::set_thread_groups(groups);
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let mut mappings: Vec<_> = MapsLine::parse_all(&maps).map(Mapping::from_line).collect();
    let root = fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
    for mapping in &mut mappings {
        mapping.path = relative_to_root(&root, &mapping.path);
    }
    Ok(mappings)
}

/// Makes a path from `/proc/PID` relative to the root directory of the process. The kernel includes that directory in
/// the path if it differs from ours.
fn relative_to_root(root: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix(root) {
        Ok(inside) if root.is_absolute() && path.is_absolute() => Path::new("/").join(inside),
        _ => path.to_owned(),
    }
}

fn is_zombie(pid: u32) -> bool {
    matches!(state(pid), Some('Z' | 'X'))
}

/// State of a process: the third field of `proc_pid_stat(5)`.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).map(|byte| char::from(*byte))
}

/// User and group of a process, from its status file. `/proc/PID` itself belongs to root if the process is not
/// dumpable.
fn owner(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let last_number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().last()?.parse().ok()
    };
    Some((last_number("Uid:")?, last_number("Gid:")?))
}

/// Returns true for the libraries of glibc, which before 2.34 consisted of several files.
pub(crate) fn is_libc(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_versioned = |library: &str| name.strip_prefix(library).is_some_and(|rest| rest.starts_with("-2."));
    ["libc.so.6", "libpthread.so.0", "libdl.so.2"].contains(&&*name)
        || ["libc", "libpthread", "libdl"].iter().any(|library| is_versioned(library))
}

/// Parses names like `python3.11` and `libpython3.11.so.1.0`.
fn python_version(path: &Path) -> Option<(u32, u32)> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python")?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Mapping {
    fn from_line(line: MapsLine<'_>) -> Mapping {
        let path = line.path.strip_suffix(b" (deleted)").unwrap_or(line.path);
        let path = if path.starts_with(b"/") { path } else { &[] };
        Mapping {
            start: line.range.start().0,
            end: line.range.start().0.saturating_add(line.range.size()),
            offset: line.offset,
            is_executable: line.is_executable(),
            is_anonymous_code: line.is_executable() && !line.is_writable() && line.path.is_empty(),
            is_main_stack: line.path == b"[stack]",
            path: PathBuf::from(std::ffi::OsStr::from_bytes(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps() {
        let line = b"7f12a000-7f12b000 r-xp 00001000 08:01 1234                       /usr/lib/a b.so";
        let mapping = Mapping::from_line(MapsLine::parse(line).unwrap());
        assert_eq!((mapping.start, mapping.offset), (0x7f12a000, 0x1000));
        assert!(mapping.is_executable);
        assert_eq!(mapping.path, Path::new("/usr/lib/a b.so"));
        let heap = MapsLine::parse(b"7f12a000-7f12b000 rw-p 00000000 00:00 0          [heap]").unwrap();
        assert_eq!(Mapping::from_line(heap).path, Path::new(""));
    }

    #[test]
    fn the_version_is_in_the_name() {
        let version = |path: &str| python_version(Path::new(path));
        assert_eq!(version("/usr/bin/python3.11"), Some((3, 11)));
        assert_eq!(version("/usr/lib/libpython3.14.so.1.0"), Some((3, 14)));
        assert_eq!(version("/usr/lib/libpythonic.so"), None);
    }

    #[test]
    fn no_process_has_such_a_number() {
        assert!(Process::open(5_000_000).is_err());
        assert!(Process::open(std::process::id()).is_ok_and(|process| process.is_alive()));
    }
}
