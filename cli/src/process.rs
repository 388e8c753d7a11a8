//! What `/proc` says of a process.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jitlisten::MapsLine;
pub(crate) use jitlisten::start_time;

use crate::problem::Problem;

/// The number of its PID namespace; of `self` or a process number.
pub(crate) fn pid_namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|metadata| metadata.ino())
}

/// A running process that this user may look into.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) mappings: Vec<Mapping>,
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) offset: u64,
    pub(crate) is_executable: bool,
    /// Empty if it is no file.
    pub(crate) path: PathBuf,
}

impl Process {
    /// Looks at a process, or says why that cannot be.
    pub(crate) fn open(pid: u32) -> Result<Process, Problem> {
        let no_such = || Problem::new(format!("there is no process {pid}"));
        let start = start_time(pid).ok_or_else(no_such)?;
        if is_zombie(pid) {
            return Err(Problem::new(format!("process {pid} has ended already, and waits for its parent")));
        }
        let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => no_such(),
            // SAFETY: geteuid has no precondition.
            _ if unsafe { libc::geteuid() } == 0 => {
                Problem::new(format!("the system does not let root look into process {pid}: {error}"))
            }
            _ => Problem::new(format!(
                "process {pid} belongs to {}: run this as that user, or as root",
                owner(pid).map_or("another user".to_owned(), |user| format!("user {user}"))
            )),
        })?;
        let mut mappings: Vec<_> = MapsLine::all(&maps).map(Mapping::of).collect();
        for mapping in &mut mappings {
            mapping.path = as_it_sees(pid, &mapping.path);
        }
        if mappings.is_empty() {
            return Err(Problem::new(format!("process {pid} is a thread of the kernel, or has ended")));
        }
        let process = Process { pid, start, mappings };
        process.check_class()?;
        Ok(process)
    }

    /// Jitlisten is for 64-bit programs.
    fn check_class(&self) -> Result<(), Problem> {
        let mut head = [0; 5];
        let read = fs::File::open(format!("/proc/{}/exe", self.pid))
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
        if read.is_ok() && head[..4] == *b"\x7fELF" && head[4] != 2 {
            return Err(Problem::new(format!(
                "process {} is a 32-bit program; jitlisten is for 64-bit programs",
                self.pid
            )));
        }
        Ok(())
    }

    /// Whether it is still the process that was opened.
    pub(crate) fn is_there(&self) -> bool {
        start_time(self.pid) == Some(self.start) && !is_zombie(self.pid)
    }

    /// The problem of a process that is no longer there.
    pub(crate) fn ended(&self) -> Problem {
        Problem::new(format!("process {} has ended meanwhile", self.pid))
    }

    /// The files that are mapped with code, each once.
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

    /// A path that the process may open, as this one can open it: the process may be in a container.
    pub(crate) fn visible(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The file of the program, as the process sees it.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        Some(as_it_sees(self.pid, &path))
    }

    /// The program, among the files that are mapped.
    pub(crate) fn executable(&self) -> Option<&Path> {
        let program = self.program()?;
        self.libraries().into_iter().find(|library| *library == program)
    }

    /// A library of that name.
    pub(crate) fn library_named(&self, name: &str) -> Option<&Path> {
        self.libraries().into_iter().find(|path| path.file_name().is_some_and(|found| found == name))
    }

    /// A library whose name begins so.
    pub(crate) fn library_beginning(&self, name: &str) -> Option<&Path> {
        let begins = |path: &Path| path.file_name().is_some_and(|found| found.as_bytes().starts_with(name.as_bytes()));
        self.libraries().into_iter().find(|path| begins(path))
    }

    /// The version of the Python in it: 3.11. From the names of files it maps.
    pub(crate) fn python(&self) -> Option<(u32, u32)> {
        let executable = self.program().unwrap_or_default();
        let mapped = self.mappings.iter().map(|mapping| mapping.path.as_path());
        std::iter::once(executable.as_path()).chain(mapped).find_map(python_version)
    }

    /// The number it has itself, in the innermost PID namespace.
    pub(crate) fn inner_pid(&self) -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(self.pid)
    }

    /// The process that traces it, if one does.
    pub(crate) fn tracer(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
        line.trim().parse().ok().filter(|tracer| *tracer != 0)
    }

    /// Its PID namespace; 0 if that cannot be known.
    pub(crate) fn namespace(&self) -> u64 {
        pid_namespace(&self.pid.to_string()).unwrap_or(0)
    }

    /// Its user and group.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        fs::metadata(format!("/proc/{}", self.pid)).ok().map(|metadata| (metadata.uid(), metadata.gid()))
    }

    /// Whether `path` is another file for it than for this process: it may have a root directory or mounts of its own.
    pub(crate) fn sees_another(&self, path: &Path) -> bool {
        let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        identity(path) != identity(&self.visible(path))
    }
}

/// A path in `/proc/PID/maps` or of a link there has the root directory of the process in front of it, if that is another one.
fn as_it_sees(pid: u32, path: &Path) -> PathBuf {
    let root = fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
    match path.strip_prefix(&root) {
        Ok(inside) if root.is_absolute() && path.is_absolute() => Path::new("/").join(inside),
        _ => path.to_owned(),
    }
}

fn is_zombie(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

/// `python3.11`, `libpython3.11.so.1.0`
fn python_version(path: &Path) -> Option<(u32, u32)> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python")?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Mapping {
    fn of(line: MapsLine<'_>) -> Mapping {
        let path = line.path.strip_suffix(b" (deleted)").unwrap_or(line.path);
        let path = if path.starts_with(b"/") { path } else { &[] };
        Mapping {
            start: line.range.start().0,
            offset: line.offset,
            is_executable: line.is_executable(),
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
        let mapping = Mapping::of(MapsLine::parse(line).unwrap());
        assert_eq!((mapping.start, mapping.offset), (0x7f12a000, 0x1000));
        assert!(mapping.is_executable);
        assert_eq!(mapping.path, Path::new("/usr/lib/a b.so"));
        let heap = MapsLine::parse(b"7f12a000-7f12b000 rw-p 00000000 00:00 0          [heap]").unwrap();
        assert_eq!(Mapping::of(heap).path, Path::new(""));
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
        assert!(Process::open(std::process::id()).is_ok_and(|process| process.is_there()));
    }
}
