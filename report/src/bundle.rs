//! Copies of the files that a recording names, for a reader on another machine.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::lookup::{candidates, open_file};
use crate::{Error, Report, symbols};

/// Larger files are not copied: what a recording names may be sparse and of any size.
const LARGEST: u64 = 4 << 30;

/// What [`bundle`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundled {
    /// The copies.
    pub files: Vec<PathBuf>,
    /// Their size in bytes.
    pub bytes: u64,
    /// Named by the recording, and not there, or larger than 4 GB.
    pub missing: Vec<PathBuf>,
}

/// Copies what the report is made of, each file below `root` at the path that the recording has for it: images and
/// libraries that have samples, sources of their lines, perf maps of its processes. With `root` among the roots of a
/// later [`Lookup`](crate::Lookup), the recording can be read where the program never was.
///
/// # Errors
/// When a file cannot be written.
pub fn bundle(report: &Report, root: &Path) -> Result<Bundled, Error> {
    let mut done = Bundled::default();
    for path in mapped(report).into_iter().chain(sources(report)) {
        copy(report, &path, root, &mut done, LARGEST)?;
    }
    for path in maps(report) {
        // A process need not have one.
        let missing = done.missing.len();
        copy(report, &path, root, &mut done, symbols::LARGEST_MAP)?;
        done.missing.truncate(missing);
    }
    Ok(done)
}

/// The files in which something was sampled.
fn mapped(report: &Report) -> BTreeSet<PathBuf> {
    let recording = &report.recording;
    let files = recording.locations.iter().filter_map(|location| location.place);
    files
        .filter_map(|place| recording.files.get(place.file as usize))
        .map(|file| PathBuf::from(&file.path))
        .filter(|path| path.is_absolute() && !path.starts_with("//anon"))
        .collect()
}

fn sources(report: &Report) -> BTreeSet<PathBuf> {
    report.symbols.sources.iter().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

fn maps(report: &Report) -> BTreeSet<PathBuf> {
    let processes = report.recording.locations.iter().filter_map(|location| location.pid);
    processes.map(|pid| PathBuf::from(format!("/tmp/perf-{pid}.map"))).collect()
}

fn copy(report: &Report, path: &Path, root: &Path, done: &mut Bundled, largest: u64) -> Result<(), Error> {
    let Some(target) = below(root, path) else { return Ok(()) };
    let found = candidates(&report.roots.all(), path).find_map(|candidate| open_file(&candidate).ok());
    let is_small = |file: &File| file.metadata().is_ok_and(|data| data.len() <= largest);
    let Some(from) = found.filter(is_small) else {
        done.missing.push(path.to_owned());
        return Ok(());
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|error| Error::io("make", parent, error))?;
    }
    if target.exists() {
        return Ok(());
    }
    let mut from = from.take(largest);
    let copied = File::create_new(&target).and_then(|mut to| io::copy(&mut from, &mut to));
    done.bytes += copied.map_err(|error| Error::io("write", &target, error))?;
    done.files.push(target);
    Ok(())
}

/// A name in a recording is not trusted: nothing is written outside of the folder.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let relative = path.strip_prefix("/").ok()?;
    let is_plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    (is_plain && relative.components().next().is_some()).then(|| root.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside() {
        let root = Path::new("/bundle/root");
        assert_eq!(below(root, Path::new("/a/b.py")), Some(PathBuf::from("/bundle/root/a/b.py")));
        for path in ["/a/../../etc/passwd", "relative", "/", "/../x"] {
            assert_eq!(below(root, Path::new(path)), None, "{path}");
        }
    }
}
