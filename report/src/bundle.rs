//! Copies of the files that a recording names, for a reader on another machine.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

use jitlisten_files::{OwnDirectory, open_regular};

use crate::lookup::candidates;
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
    /// Named by the recording and not copied, and why.
    pub missing: Vec<(PathBuf, String)>,
}

/// Copies what the report is made of, each file below `root` at the path that the recording has for it: images and
/// libraries that have samples, sources of their lines, perf maps of its processes. With `root` among the roots of a
/// later [`Lookup`](crate::Lookup), the recording can be read where the program never was.
///
/// Copies have mode 0600 in directories of mode 0700: a source may be private.
///
/// # Errors
/// When `root` cannot be written, or the disk is full.
pub fn bundle(report: &Report, root: &Path) -> Result<Bundled, Error> {
    let mut done = Bundled::default();
    let opened = OwnDirectory::create(root).map_err(|error| Error::io("open", root, error))?;
    for path in mapped(report).into_iter().chain(sources(report)) {
        copy(report, &path, &opened, &mut done, LARGEST)?;
    }
    for path in maps(report) {
        // A process need not have one.
        let missing = done.missing.len();
        copy(report, &path, &opened, &mut done, symbols::LARGEST_MAP)?;
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

/// Copies one file. An error that concerns only this file is noted, and copying goes on.
fn copy(report: &Report, path: &Path, root: &OwnDirectory, done: &mut Bundled, largest: u64) -> Result<(), Error> {
    let Some(relative) = below(path) else { return Ok(()) };
    let target = root.path().join(relative);
    if target.exists() {
        return Ok(());
    }
    match found(report, path, largest).and_then(|from| copied(from, root, relative, largest)) {
        Ok(bytes) => {
            done.bytes += bytes;
            done.files.push(target);
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            return Err(Error::io("write", &target, error));
        }
        Err(error) => done.missing.push((path.to_owned(), error.to_string())),
    }
    Ok(())
}

/// The file in one of the roots, or where it is.
fn found(report: &Report, path: &Path, largest: u64) -> io::Result<File> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for candidate in candidates(&report.roots.all(), path) {
        match open_regular(&candidate) {
            Ok(file) if file.metadata()?.len() > largest => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(file) => return Ok(file),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn copied(from: File, root: &OwnDirectory, relative: &Path, largest: u64) -> io::Result<u64> {
    let name = relative.file_name().unwrap_or_default();
    let mut replacement = root.below(relative.parent().unwrap_or(Path::new("")))?.replacement(name)?;
    let bytes = io::copy(&mut from.take(largest), replacement.file())?;
    replacement.file().flush()?;
    replacement.commit().map(|()| bytes)
}

/// A name in a recording is not trusted: nothing is written outside of the folder.
fn below(path: &Path) -> Option<&Path> {
    let relative = path.strip_prefix("/").ok()?;
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && relative.components().next().is_some()).then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside() {
        assert_eq!(below(Path::new("/a/b.py")), Some(Path::new("a/b.py")));
        for path in ["/a/../../etc/passwd", "relative", "/", "/../x"] {
            assert_eq!(below(Path::new(path)), None, "{path}");
        }
    }
}
