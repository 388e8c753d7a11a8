//! `jitlisten clean`: removes perf maps, images and jitdumps of dead processes of this user, and old texts of notebook
//! cells, which belong to no process.
//!
//! The library follows the same rules (`perf_map/left.rs`, `image/directory.rs`), but keeps recent files and searches
//! only the directories that it writes to.
//!
//! | file | its process is dead if it |
//! | --- | --- |
//! | `/tmp/perf-PID.map` | is of this PID namespace and has another start time, `ended` or `mixed`; holds no lock |
//! | `image-PID-START*/`, `object-N.so`, `alive`, `dead` | has another start time; holds no lock on `alive` |
//! | `sources/NAME-HASH.py` | (no process) was written more than 30 days ago |
//! | `$TMPDIR/jitlisten-{top,lines}-XXXXXX/` | holds no lock on it; is older than a minute (`scratch.rs`) |
//! | `jitlisten-XXXXXX/`, `jit-PID.dump`, `jitted-PID-*` | is not there; holds no lock on `jit-PID.dump` |
//!
//! The first line of a perf map is `0 0 jitlisten PID START NAMESPACE STATE`.

#![forbid(unsafe_code)]

use std::env;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::process::geteuid;

use jitlisten::plumbing::FirstLine;

use crate::outside;
use crate::problem::Problem;
use crate::process;
use crate::scratch;

const EXAMPLE: &str = "Example: jitlisten clean --dry-run";

/// Remove perf maps, images and jitdumps of ended processes, and texts of notebook cells after 30 days
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Clean {
    /// Only the files of these processes
    pids: Vec<u32>,
    /// Only show what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Also perf maps without jitlisten's first line: of other JITs (node, java, python -X perf)
    #[arg(long)]
    all: bool,
}

/// Texts of notebook cells are kept so long: a kernel or a recording may need them, which is not known here.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Files of one dead process.
struct Left {
    /// 0: of no one process.
    pid: u32,
    what: &'static str,
    directory: Rc<Directory>,
    names: Vec<String>,
    /// Where the directory is that goes with them.
    parent: Option<Rc<Directory>>,
    bytes: u64,
}

impl Clean {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let mut left = perf_maps(Path::new("/tmp"), self.all);
        for place in places().iter().filter_map(|place| Directory::open(place)).map(Rc::new) {
            left.extend(directories(&place));
            left.extend(sources(&place));
        }
        left.retain(|dead| self.pids.is_empty() || self.pids.contains(&dead.pid));
        let mut out = io::stdout().lock();
        let (mut sum, mut failed) = (0, 0);
        for dead in &left {
            let shown = dead.shown();
            match self.remove(dead) {
                Ok(()) => {
                    sum += dead.bytes;
                    let _ = writeln!(out, "{:<8} {:>10}  {}", dead.what, size(dead.bytes), shown.display());
                }
                Err(error) => {
                    failed += 1;
                    let _ = writeln!(io::stderr(), "jitlisten: {} stays: {error}", shown.display());
                }
            }
        }
        let abandoned = if self.pids.is_empty() { scratch::abandoned() } else { Vec::new() };
        for path in &abandoned {
            let removed = if self.dry_run { Ok(()) } else { std::fs::remove_dir_all(path) };
            match removed {
                Ok(()) => {
                    let _ = writeln!(out, "{:<8} {:>10}  {}", "scratch", "", path.display());
                }
                Err(error) => {
                    failed += 1;
                    let _ = writeln!(io::stderr(), "jitlisten: {} stays: {error}", path.display());
                }
            }
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        let _ = writeln!(out, "{} {verb}, {}", left.len() + abandoned.len() - failed, size(sum));
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn remove(&self, dead: &Left) -> io::Result<()> {
        if self.dry_run {
            return Ok(());
        }
        for name in &dead.names {
            rustix::fs::unlinkat(&dead.directory.descriptor, name, AtFlags::empty())?;
        }
        if let (Some(parent), Some(name)) = (&dead.parent, dead.directory.path.file_name()) {
            // What others have put there stays, and the directory with it.
            let _ = rustix::fs::unlinkat(&parent.descriptor, name, AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

impl Left {
    fn shown(&self) -> PathBuf {
        match (&self.parent, self.names.first()) {
            (None, Some(name)) => self.directory.path.join(name),
            _ => self.directory.path.clone(),
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Where images and jitdumps may be: see `Options` and `sink/image/directory.rs` in the library.
fn places() -> Vec<PathBuf> {
    let usual = PathBuf::from(format!("/var/tmp/jitlisten-{}", geteuid().as_raw()));
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dumps = variable("HOME").map(|home| home.join(".debug/jit"));
    let mut places: Vec<_> =
        [variable("JITLISTEN_DIR"), variable("JITDUMPDIR"), dumps, Some(usual)].into_iter().flatten().collect();
    places.sort();
    places.dedup();
    places
}

fn perf_maps(directory: &Path, all: bool) -> Vec<Left> {
    let Some(directory) = Directory::open(directory).map(Rc::new) else { return Vec::new() };
    directory.names().into_iter().filter_map(|name| perf_map(&directory, name, all)).collect()
}

fn perf_map(directory: &Rc<Directory>, name: String, all: bool) -> Option<Left> {
    let number: u32 = name.strip_prefix("perf-")?.strip_suffix(".map")?.parse().ok()?;
    let bytes = directory.size_of(&name)?;
    let file = directory.file(&name)?;
    let mut first = String::new();
    BufReader::new((&file).take(128)).read_line(&mut first).ok()?;
    let is_dead = match signature(&first) {
        Some(signed) => is_dead(&signed),
        None => all && process::start_time(number).is_none(),
    };
    let directory = Rc::clone(directory);
    let left = Left { pid: number, what: "perf map", directory, names: vec![name], parent: None, bytes };
    (is_dead && is_unlocked(&file)).then_some(left)
}

/// The first line of a perf map that jitlisten has written, from inside the process or from outside.
fn signature(line: &str) -> Option<FirstLine> {
    FirstLine::parse(line.replacen(outside::MARK, "0 0 jitlisten ", 1).as_bytes())
}

fn is_dead(signed: &FirstLine) -> bool {
    let here = process::pid_namespace("self");
    signed.is_ended || (here == Some(signed.namespace) && process::start_time(signed.pid) != Some(signed.start))
}

/// Images and jitdumps below `place`.
fn directories(place: &Rc<Directory>) -> Vec<Left> {
    let below = |name: &String| {
        place.directory(name).and_then(|found| images(place, &found).or_else(|| jitdump(place, &found)))
    };
    place.names().iter().filter_map(below).collect()
}

fn images(parent: &Rc<Directory>, directory: &Rc<Directory>) -> Option<Left> {
    let name = directory.path.file_name()?.to_str()?;
    let mut numbers = name.strip_prefix("image-")?.split('-');
    let (pid, start): (u32, u64) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    if process::start_time(pid) == Some(start) || !directory.file("alive").is_none_or(|file| is_unlocked(&file)) {
        return None;
    }
    let is_ours =
        |name: &str| ["alive", "dead"].contains(&name) || (name.starts_with("object-") && name.ends_with(".so"));
    Some(contents(pid, "images", parent, directory, is_ours))
}

fn jitdump(parent: &Rc<Directory>, directory: &Rc<Directory>) -> Option<Left> {
    let rest = directory.path.file_name()?.to_str()?.strip_prefix("jitlisten-")?;
    if rest.len() != 6 || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let dumps: Vec<_> = directory.names().into_iter().filter(|name| dumped_by(name).is_some()).collect();
    let is_dead = |name: &String| {
        let is_gone = dumped_by(name).is_some_and(|pid| process::start_time(pid).is_none());
        is_gone && directory.file(name).is_some_and(|file| is_unlocked(&file))
    };
    if dumps.is_empty() || !dumps.iter().all(is_dead) {
        return None;
    }
    let is_ours = |name: &str| name == "dead" || (name.starts_with("jit-") || name.starts_with("jitted-"));
    Some(contents(dumped_by(dumps.first()?)?, "jitdump", parent, directory, is_ours))
}

/// What `python/jitlisten/_lines/sources.py` has saved.
fn sources(place: &Rc<Directory>) -> Option<Left> {
    let directory = place.directory("sources")?;
    let is_old = |name: &str| {
        let modified = directory.file(name).and_then(|file| file.metadata().ok()?.modified().ok());
        modified.and_then(|modified| modified.elapsed().ok()).is_some_and(|age| age > KEPT)
    };
    let left = contents(0, "sources", place, &directory, |name| is_cell(name) && is_old(name));
    (!left.names.is_empty()).then_some(left)
}

/// A name, and the first twelve digits of the text's hash.
fn is_cell(name: &str) -> bool {
    let hash = name.strip_suffix(".py").and_then(|name| name.rsplit_once('-'));
    hash.is_some_and(|(_, hash)| hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn dumped_by(name: &str) -> Option<u32> {
    name.strip_prefix("jit-")?.strip_suffix(".dump")?.parse().ok()
}

fn contents(
    pid: u32,
    what: &'static str,
    parent: &Rc<Directory>,
    directory: &Rc<Directory>,
    is_ours: impl Fn(&str) -> bool,
) -> Left {
    let mut names = directory.names();
    names.retain(|name| is_ours(name) && directory.size_of(name).is_some());
    let bytes = names.iter().filter_map(|name| directory.size_of(name)).sum();
    Left { pid, what, directory: Rc::clone(directory), names, parent: Some(Rc::clone(parent)), bytes }
}

/// A directory that is held open: whoever renames it, or puts a link in its place, does not make us remove files
/// elsewhere.
struct Directory {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Directory {
    const FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

    fn open(path: &Path) -> Option<Directory> {
        let descriptor = rustix::fs::open(path, Directory::FLAGS, Mode::empty()).ok()?;
        Some(Directory { path: path.to_owned(), descriptor })
    }

    fn names(&self) -> Vec<String> {
        let entries = rustix::fs::Dir::read_from(&self.descriptor).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// A directory in it that is this user's.
    fn directory(&self, name: &str) -> Option<Rc<Directory>> {
        let flags = Directory::FLAGS | OFlags::NOFOLLOW;
        let descriptor = rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()).ok()?;
        let is_ours = rustix::fs::fstat(&descriptor).is_ok_and(|found| found.st_uid == geteuid().as_raw());
        is_ours.then(|| Rc::new(Directory { path: self.path.join(name), descriptor }))
    }

    /// The size of a regular file in it that is this user's, and has no other name.
    fn size_of(&self, name: &str) -> Option<u64> {
        let found = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        (is_file && found.st_uid == geteuid().as_raw() && found.st_nlink == 1).then_some(found.st_size as u64)
    }

    /// That file, opened for reading.
    fn file(&self, name: &str) -> Option<File> {
        self.size_of(name)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()).ok().map(File::from)
    }
}

/// Whether no process holds a lock on it (`flock(2)`), in this PID namespace or another. The lock goes with the file.
fn is_unlocked(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_tells_whose_the_map_is() {
        for mark in ["0 0 jitlisten ", outside::MARK] {
            let signed = signature(&format!("{mark}12 345 4026531836 alive\n")).expect("signed");
            assert_eq!((signed.pid, signed.start, signed.namespace, signed.is_ended), (12, 345, 4026531836, false));
        }
        for state in ["ended", "mixed"] {
            let line = format!("0 0 jitlisten 12 345 4026531836 {state}\n");
            assert!(signature(&line).is_some_and(|signed| signed.is_ended), "{state}");
        }
        for other in ["7f00 10 f", "0 0 jitlisten", "0 0 jitlisten 12 345", ""] {
            assert_eq!(signature(other), None, "{other}");
        }
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!([size(0), size(1023), size(1536), size(3 << 20)], ["0 B", "1023 B", "1.5 KiB", "3.0 MiB"]);
    }
}
