//! `jitlisten clean`: removes the perf maps, images and jitdumps that dead processes of this user have left, and old texts of
//! notebook cells, which are of no one process.
//!
//! What is removed, and how a process is known to be dead, is as in the library, which removes them later by itself; that keeps some
//! for a while, and only looks where its own files are, so it has its own search (`perf_map/left.rs`, `image/directory.rs`):
//!
//! | file | its process is dead if it |
//! | --- | --- |
//! | `/tmp/perf-PID.map` with the first line `0 0 jitlisten PID START NAMESPACE STATE` | is of this PID namespace and has another start time, or `STATE` is `ended` or `mixed`; holds no lock |
//! | `image-PID-START*/`, `object-N.so`, `alive`, `dead` | has another start time; holds no lock on `alive` |
//! | `sources/NAME-HASH.py` | (no process) was written more than 30 days ago |
//! | `jitlisten-XXXXXX/`, `jit-PID.dump`, `jitted-PID-*` | is not there; holds no lock on `jit-PID.dump` |

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use jitlisten::FirstLine;

use crate::outside;
use crate::problem::Problem;
use crate::process;

const EXAMPLE: &str = "Example: jitlisten clean --dry-run";

/// Remove the perf maps, images and jitdumps of processes that have ended, and the texts of notebook cells after 30 days
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Clean {
    /// Only the files of these processes
    pids: Vec<u32>,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Perf maps without our first line, too: of other JITs (node, java, python -X perf), of older versions
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
    /// The directory, if there is one, comes last.
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl Clean {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let mut left = perf_maps(Path::new("/tmp"), self.all);
        for place in places() {
            left.extend(directories(&place));
            left.extend(sources(&place));
        }
        left.retain(|dead| self.pids.is_empty() || self.pids.contains(&dead.pid));
        let mut out = std::io::stdout().lock();
        let (mut sum, mut failed) = (0, 0);
        for dead in &left {
            let Some(shown) = dead.paths.last() else { continue };
            match self.remove(dead) {
                Ok(()) => {
                    sum += dead.bytes;
                    let _ = writeln!(out, "{:<8} {:>10}  {}", dead.what, size(dead.bytes), shown.display());
                }
                Err(error) => {
                    failed += 1;
                    let _ = writeln!(std::io::stderr(), "jitlisten: {} stays: {error}", shown.display());
                }
            }
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        let _ = writeln!(out, "{} {verb}, {}", left.len() - failed, size(sum));
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn remove(&self, dead: &Left) -> std::io::Result<()> {
        if self.dry_run {
            return Ok(());
        }
        for path in &dead.paths {
            if path.is_dir() {
                // What others have put there stays, and the directory with it.
                let _ = fs::remove_dir(path);
            } else {
                fs::remove_file(path)?;
            }
        }
        Ok(())
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
    // SAFETY: geteuid has no precondition.
    let usual = PathBuf::from(format!("/var/tmp/jitlisten-{}", unsafe { libc::geteuid() }));
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dumps = variable("HOME").map(|home| home.join(".debug/jit"));
    let mut places: Vec<_> =
        [variable("JITLISTEN_DIR"), variable("JITDUMPDIR"), dumps, Some(usual)].into_iter().flatten().collect();
    places.sort();
    places.dedup();
    places
}

fn perf_maps(directory: &Path, all: bool) -> Vec<Left> {
    entries(directory).into_iter().filter_map(|path| perf_map(path, all)).collect()
}

fn perf_map(path: PathBuf, all: bool) -> Option<Left> {
    let number: u32 = name_of(&path).strip_prefix("perf-")?.strip_suffix(".map")?.parse().ok()?;
    let about = own_file(&path)?;
    let file = open(&path)?;
    let mut first = String::new();
    BufReader::new((&file).take(128)).read_line(&mut first).ok()?;
    let is_dead = match signature(&first) {
        Some(signed) => is_dead(&signed),
        None => all && process::start_time(number).is_none(),
    };
    (is_dead && is_unlocked(&file)).then(|| Left {
        pid: number,
        what: "perf map",
        bytes: about.len(),
        paths: vec![path],
    })
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
fn directories(place: &Path) -> Vec<Left> {
    entries(place).into_iter().filter_map(|path| images(&path).or_else(|| jitdump(&path))).collect()
}

fn images(directory: &Path) -> Option<Left> {
    let name = name_of(directory);
    let mut numbers = name.strip_prefix("image-")?.split('-');
    let (pid, start): (u32, u64) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    own_directory(directory)?;
    if process::start_time(pid) == Some(start) || !open(&directory.join("alive")).is_none_or(|file| is_unlocked(&file))
    {
        return None;
    }
    let is_ours =
        |name: &str| ["alive", "dead"].contains(&name) || (name.starts_with("object-") && name.ends_with(".so"));
    Some(contents(pid, "images", directory, is_ours))
}

fn jitdump(directory: &Path) -> Option<Left> {
    let name = name_of(directory);
    let rest = name.strip_prefix("jitlisten-")?;
    if rest.len() != 6 || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    own_directory(directory)?;
    let dumps: Vec<_> = entries(directory).into_iter().filter(|path| dumped_by(path).is_some()).collect();
    let is_dead = |path: &PathBuf| {
        let is_gone = dumped_by(path).is_some_and(|pid| process::start_time(pid).is_none());
        is_gone && open(path).is_some_and(|file| is_unlocked(&file))
    };
    if dumps.is_empty() || !dumps.iter().all(is_dead) {
        return None;
    }
    let is_ours = |name: &str| name == "dead" || (name.starts_with("jit-") || name.starts_with("jitted-"));
    Some(contents(dumped_by(dumps.first()?)?, "jitdump", directory, is_ours))
}

/// What `python/jitlisten/_lines/sources.py` has saved.
fn sources(place: &Path) -> Option<Left> {
    let directory = place.join("sources");
    own_directory(&directory)?;
    let is_old = |path: &Path| {
        let age = own_file(path).and_then(|about| about.modified().ok()?.elapsed().ok());
        age.is_some_and(|age| age > KEPT)
    };
    let left = contents(0, "sources", &directory, |name| is_cell(name) && is_old(&directory.join(name)));
    (left.paths.len() > 1).then_some(left)
}

/// A name, and the first twelve digits of the text's hash.
fn is_cell(name: &str) -> bool {
    let hash = name.strip_suffix(".py").and_then(|name| name.rsplit_once('-'));
    hash.is_some_and(|(_, hash)| hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn dumped_by(path: &Path) -> Option<u32> {
    name_of(path).strip_prefix("jit-")?.strip_suffix(".dump")?.parse().ok()
}

fn contents(pid: u32, what: &'static str, directory: &Path, is_ours: impl Fn(&str) -> bool) -> Left {
    let mut paths = entries(directory);
    paths.retain(|path| is_ours(&name_of(path)) && own_file(path).is_some());
    let bytes = paths.iter().filter_map(|path| own_file(path)).map(|about| about.len()).sum();
    paths.push(directory.to_owned());
    Left { pid, what, paths, bytes }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn own_file(path: &Path) -> Option<fs::Metadata> {
    own(path).filter(|about| about.is_file() && about.nlink() == 1)
}

fn own_directory(path: &Path) -> Option<fs::Metadata> {
    own(path).filter(fs::Metadata::is_dir)
}

fn own(path: &Path) -> Option<fs::Metadata> {
    // SAFETY: geteuid has no precondition.
    fs::symlink_metadata(path).ok().filter(|about| about.uid() == unsafe { libc::geteuid() })
}

fn open(path: &Path) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()
}

/// Whether no process holds a lock on it (`flock(2)`), in this PID namespace or another.
fn is_unlocked(file: &File) -> bool {
    // SAFETY: the descriptor is open while `file` is borrowed. The lock goes with it.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
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
