//! `jitlisten clean`: removes perf maps, images and jitdumps that this user's dead processes left, and old saved
//! sources of notebook cells, which belong to no process.
//!
//! The library follows the same rules (`perf_map/dead_maps.rs`, `process_directory.rs`), but keeps recent files and
//! searches only the directories that it writes to.
//!
//! | file | proof that it is ours | removed if |
//! | --- | --- | --- |
//! | `/tmp/perf-PID.map` | its first line | unlocked; its process has exited, or the state is `ended` or `mixed` |
//! | `image-PID-START*/`, `jitdump-PID-START*/` | `alive` in it | its process has exited and holds no lock on `alive` |
//! | `sources/NAME-HASH.py` | `jitlisten-sources` beside it; its hash | it was written over 30 days ago |
//! | `$TMPDIR/jitlisten-{top,lines,doctor}-XXXXXX/` | `jitlisten-scratch` in it | unlocked, over a minute old |
//!
//! A process has exited if no process with its PID has the recorded start time.
//!
//! Files of an active `jitlisten run` are kept: see the library's `liveness.rs`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jitlisten::plumbing::{FirstLine, MarkedDirectory, default_directory, pid_namespace};
use jitlisten_files::{FileName, OwnDirectory, check_appendable};
use jitlisten_report::source_hash;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use crate::outside;
use crate::problem::Problem;
use crate::process;
use crate::recording;
use crate::scratch;

const EXAMPLE: &str = "Example: jitlisten clean --dry-run";

/// Remove perf maps, images and jitdumps of ended processes, and saved sources of notebook cells after 30 days
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Clean {
    /// Remove only the files of these processes
    pids: Vec<u32>,
    /// Only show what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Also remove perf maps without jitlisten's first line, i.e. those of other JITs (node, java, python -X perf)
    #[arg(long)]
    all: bool,
}

/// Retention time of saved cell sources. A notebook kernel or a recording may still need them, but we cannot detect
/// that.
const MAX_CELL_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum size of a saved cell source, as in `python/jitlisten/_lines/sources.py`.
const MAX_CELL_BYTES: u64 = 4 << 20;
/// File name and content of the marker in the directory of saved cell sources.
const CELLS_MARKER: (&str, &[u8]) = ("jitlisten-sources", b"texts of notebook cells, saved by jitlisten\n");
/// Upper bound for the length of a perf map's first line.
const MAX_FIRST_LINE_BYTES: u64 = 256;

/// Files that `clean` can remove.
enum Leftovers {
    /// A perf map, held open and locked, and its directory.
    Map {
        directory: OwnedFd,
        name: String,
        file: File,
    },
    Directory(MarkedDirectory),
    /// Saved sources of notebook cells, and their directory.
    CellTexts(OwnDirectory, Vec<PathBuf>),
}

/// Removable files of one dead process, or removable files that belong to no process.
struct RemovableFiles {
    /// Process ID; 0 for files that belong to no process.
    pid: u32,
    kind: &'static str,
    path: PathBuf,
    bytes: u64,
    leftovers: Leftovers,
}

impl Clean {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let namespace = pid_namespace();
        let mut removable = perf_maps(Path::new("/tmp"), self.all, namespace);
        for directory in output_directories() {
            removable.extend(process_directories(&directory, namespace));
            removable.extend(old_cell_texts(&directory));
        }
        removable.retain(|removable| self.pids.is_empty() || self.pids.contains(&removable.pid));
        let mut out = String::new();
        let (mut count, mut total_bytes, mut failed) = (0, 0, false);
        let mut add = |kind, size: &str, path: &Path, removal: io::Result<()>| match removal {
            Ok(()) => {
                count += 1;
                let _ = writeln!(out, "{kind:<8} {size:>10}  {}", path.display());
            }
            // Another process has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                failed = true;
                let _ = io::stderr().write_all(format!("jitlisten: {} stays: {error}\n", path.display()).as_bytes());
            }
        };
        for RemovableFiles { kind, path, bytes, leftovers, .. } in removable {
            let removal = if self.dry_run { Ok(()) } else { leftovers.remove() };
            total_bytes += if removal.is_ok() { bytes } else { 0 };
            add(kind, &format_size(bytes), &path, removal);
        }
        let abandoned = if self.pids.is_empty() { scratch::find_abandoned() } else { Vec::new() };
        for path in &abandoned {
            add("scratch", "", path, if self.dry_run { Ok(()) } else { fs::remove_dir_all(path) });
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        let _ = writeln!(out, "{count} {verb}, {}", format_size(total_bytes));
        recording::print(out.as_bytes())?;
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

impl Leftovers {
    fn remove(self) -> io::Result<()> {
        match self {
            // We hold the map's lock until `file` is closed, so no new process with this PID can have started writing
            // to it.
            Leftovers::Map { directory, name, file: _locked } => {
                Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
            }
            Leftovers::Directory(directory) => directory.remove(),
            Leftovers::CellTexts(directory, files) => {
                files.iter().try_for_each(|file| directory.remove_file(file.as_os_str()))
            }
        }
    }
}

fn format_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Directories that may contain images and jitdumps: see `Options` and `sink/image/directory.rs` in the library.
fn output_directories() -> Vec<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dumps = variable("HOME").map(|home| home.join(".debug/jit"));
    let mut directories: Vec<_> = [variable("JITLISTEN_DIR"), variable("JITDUMPDIR"), dumps, Some(default_directory())]
        .into_iter()
        .flatten()
        .collect();
    directories.sort();
    directories.dedup();
    directories
}

fn sorted_names(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

fn perf_maps(directory: &Path, all: bool, namespace: u64) -> Vec<RemovableFiles> {
    let maps = sorted_names(directory).into_iter().filter_map(|name| match FileName::parse(&name)? {
        FileName::PerfMap { pid } => perf_map(directory, pid, all, namespace),
        _ => None,
    });
    maps.collect()
}

fn perf_map(directory: &Path, pid: u32, all: bool, namespace: u64) -> Option<RemovableFiles> {
    let name = FileName::PerfMap { pid }.to_string();
    // The removal uses the open directory, so replacing its path with another directory or a link cannot redirect it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open_directory = rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let file = File::from(rustix::fs::openat(&open_directory, &name, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    if check_appendable(&metadata).is_some() {
        return None;
    }
    let mut first_line = String::new();
    let _ = BufReader::new((&file).take(MAX_FIRST_LINE_BYTES)).read_line(&mut first_line);
    let is_dead = match parse_first_line(&first_line) {
        Some(first_line) => first_line.owner.process.pid == pid && is_dead(&first_line, namespace),
        None => all && process::start_time(pid).is_none(),
    };
    let path = directory.join(&name);
    let leftovers =
        (is_dead && is_unlocked(&file)).then_some(Leftovers::Map { directory: open_directory, name, file })?;
    Some(RemovableFiles { pid, kind: "perf map", path, bytes: metadata.len(), leftovers })
}

/// Parses the first line of a perf map, which jitlisten wrote from inside or from outside the process.
fn parse_first_line(line: &str) -> Option<FirstLine> {
    FirstLine::parse(line.replacen(outside::MARK, "0 0 jitlisten ", 1).as_bytes())
}

fn is_dead(first_line: &FirstLine, namespace: u64) -> bool {
    let has_ended = first_line.is_ended || first_line.owner.process.is_alive(namespace) == Some(false);
    has_ended && !first_line.owner.belongs_to_running(namespace, None)
}

/// Finds removable images and jitdumps in a directory.
fn process_directories(parent: &Path, namespace: u64) -> Vec<RemovableFiles> {
    let removable = sorted_names(parent).into_iter().filter_map(|name| {
        let directory = MarkedDirectory::open(parent, &name)?;
        if directory.owner.belongs_to_running(namespace, None) || !directory.is_dead(namespace) {
            return None;
        }
        let kind = if matches!(directory.name, FileName::Images { .. }) { "images" } else { "jitdump" };
        let (pid, bytes) = (directory.owner.process.pid, directory.bytes());
        Some(RemovableFiles { pid, kind, path: parent.join(&name), bytes, leftovers: Leftovers::Directory(directory) })
    });
    removable.collect()
}

/// Finds expired cell sources, which `python/jitlisten/_lines/sources.py` saved.
fn old_cell_texts(parent: &Path) -> Option<RemovableFiles> {
    let path = parent.join("sources");
    let directory = OwnDirectory::open(&path).ok()?;
    if !directory.has_file(CELLS_MARKER.0, CELLS_MARKER.1) {
        return None;
    }
    let (mut files, mut bytes) = (Vec::new(), 0);
    for name in directory.names().unwrap_or_default() {
        let Some((metadata, text)) = read_own_file(&directory, &name, MAX_CELL_BYTES) else { continue };
        let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
        if is_cell_text(&name, &text) && age.is_some_and(|age| age > MAX_CELL_AGE) {
            bytes += metadata.len();
            files.push(name.into());
        }
    }
    let leftovers = (!files.is_empty()).then_some(Leftovers::CellTexts(directory, files))?;
    Some(RemovableFiles { pid: 0, kind: "sources", path, bytes, leftovers })
}

/// Reads a file and its metadata. `None` unless the file belongs to this user, has a single link and fits in
/// `max_bytes`.
fn read_own_file(directory: &OwnDirectory, name: &OsStr, max_bytes: u64) -> Option<(fs::Metadata, Vec<u8>)> {
    let mut file = directory.open_file(name).ok()?;
    let metadata = file.metadata().ok().filter(|file| check_appendable(file).is_none() && file.len() <= max_bytes)?;
    let mut text = Vec::new();
    (&mut file).take(max_bytes).read_to_end(&mut text).ok()?;
    Some((metadata, text))
}

/// Returns true if the name is `NAME-HASH.py`, where HASH is the first twelve digits of the content's hash.
fn is_cell_text(name: &OsStr, text: &[u8]) -> bool {
    let hash = name.to_str().and_then(|name| name.strip_suffix(".py")?.rsplit_once('-'));
    hash.is_some_and(|(_, hash)| source_hash(text).get(..12) == Some(hash))
}

/// Returns true if no process holds a lock on the file (`flock(2)`), in this PID namespace or another. This function
/// acquires the lock, which lasts until `file` is closed.
fn is_unlocked(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_tells_whose_the_map_is() {
        for mark in ["0 0 jitlisten ", outside::MARK] {
            let first_line = parse_first_line(&format!("{mark}12 345 4026531836 alive\n")).expect("signed");
            assert_eq!((first_line.owner.process.pid, first_line.is_ended), (12, false));
        }
        for state in ["ended", "mixed"] {
            let line = format!("0 0 jitlisten 12 345 4026531836 {state}\n");
            assert!(parse_first_line(&line).is_some_and(|first_line| first_line.is_ended), "{state}");
        }
        for line in ["7f00 10 f", "0 0 jitlisten", "0 0 jitlisten 12 345", ""] {
            assert_eq!(parse_first_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_saved_text_is_known_by_its_hash() {
        assert!(is_cell_text(OsStr::new("cell-2-2d711642b726.py"), b"x"));
        for name in ["cell-0123456789ab.py", "backup-202401011230.py", "2d711642b726.py", "cell-2d711642b726", "a-.py"]
        {
            assert!(!is_cell_text(OsStr::new(name), b"x"), "{name}");
        }
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(
            [format_size(0), format_size(1023), format_size(1536), format_size(3 << 20)],
            ["0 B", "1023 B", "1.5 KiB", "3.0 MiB"]
        );
    }
}
