//! Copies of the files that a recording names, for use on another machine.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

use jitlisten_files::{OwnDirectory, open_regular};

use super::Report;
use crate::error::Error;
use crate::lookup::candidates;
use crate::symbols;

/// Maximum size of a copied file. A recording can name sparse files of any size.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Result of [`bundle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundled {
    /// Paths of the copies.
    pub files: Vec<PathBuf>,
    /// Total size in bytes.
    pub bytes: u64,
    /// Files that could not be copied, with the reason.
    pub missing: Vec<(PathBuf, String)>,
}

/// Copies the files that the report needs to the same paths below `root`: images and libraries that have samples, the
/// sources of their lines, and the perf maps of the processes. A later [`Lookup`](crate::Lookup) with `root` among its
/// roots can then read the recording on another machine.
///
/// Copies have mode 0600 in directories of mode 0700, because a source may be private.
///
/// # Errors
/// Returns an error if `root` cannot be written or the disk is full.
pub fn bundle(report: &Report, root: &Path) -> Result<Bundled, Error> {
    let mut bundled = Bundled::default();
    let output = OwnDirectory::create(root).map_err(|error| Error::io("open", root, error))?;
    for path in sampled_files(report).into_iter().chain(source_files(report)) {
        copy(report, &path, &output, &mut bundled, MAX_FILE_BYTES)?;
    }
    for path in perf_maps(report) {
        // A missing perf map is normal and not reported.
        let missing_before = bundled.missing.len();
        copy(report, &path, &output, &mut bundled, symbols::MAX_MAP_BYTES)?;
        bundled.missing.truncate(missing_before);
    }
    Ok(bundled)
}

/// Returns the files that have samples.
fn sampled_files(report: &Report) -> BTreeSet<PathBuf> {
    let recording = &report.recording;
    let files = recording.locations.iter().filter_map(|location| location.position);
    files
        .filter_map(|position| recording.files.get(position.file as usize))
        .map(|file| PathBuf::from(&file.path))
        .filter(|path| path.is_absolute() && !path.starts_with("//anon"))
        .collect()
}

fn source_files(report: &Report) -> BTreeSet<PathBuf> {
    report.symbols.sources.iter().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

fn perf_maps(report: &Report) -> BTreeSet<PathBuf> {
    let processes = report.recording.locations.iter().filter_map(|location| location.pid);
    processes.map(|pid| PathBuf::from(format!("/tmp/perf-{pid}.map"))).collect()
}

/// Copies one file. Errors that concern only this file are added to `bundled`.
fn copy(report: &Report, path: &Path, root: &OwnDirectory, bundled: &mut Bundled, max_bytes: u64) -> Result<(), Error> {
    let Some(relative) = relative_path(path) else { return Ok(()) };
    let target = root.path().join(relative);
    if target.exists() {
        return Ok(());
    }
    match open_original(report, path, max_bytes).and_then(|from| copy_into(from, root, relative, max_bytes)) {
        Ok(bytes) => {
            bundled.bytes += bytes;
            bundled.files.push(target);
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            return Err(Error::io("write", &target, error));
        }
        Err(error) => bundled.missing.push((path.to_owned(), error.to_string())),
    }
    Ok(())
}

/// Opens the file in the first root that has it.
fn open_original(report: &Report, path: &Path, max_bytes: u64) -> io::Result<File> {
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for candidate in candidates(&report.roots.all(), path) {
        match open_regular(&candidate) {
            Ok(file) if file.metadata()?.len() > max_bytes => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(file) => return Ok(file),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

fn copy_into(from: File, root: &OwnDirectory, relative: &Path, max_bytes: u64) -> io::Result<u64> {
    let name = relative.file_name().unwrap_or_default();
    let mut replacement = root.create_below(relative.parent().unwrap_or(Path::new("")))?.replacement(name)?;
    let bytes = io::copy(&mut from.take(max_bytes), replacement.file())?;
    replacement.file().flush()?;
    replacement.commit().map(|()| bytes)
}

/// Returns the path below the output directory. A recording is untrusted, so no path in it may lead outside.
fn relative_path(path: &Path) -> Option<&Path> {
    let relative = path.strip_prefix("/").ok()?;
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && relative.components().next().is_some()).then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside_of_the_directory() {
        assert_eq!(relative_path(Path::new("/a/b.py")), Some(Path::new("a/b.py")));
        for path in ["/a/../../etc/passwd", "relative", "/", "/../x"] {
            assert_eq!(relative_path(Path::new(path)), None, "{path}");
        }
    }
}
