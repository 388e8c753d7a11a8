//! Bundles: a recording together with all files that its readers need on another machine. `record --bundle` writes one;
//! commands that read recordings accept it in place of a file, and any other folder as the recordings in it.
//!
//! ```text
//!   FOLDER/jitlisten-bundle   the marker: its version, then the files below root that we wrote, a line each
//!   FOLDER/perf.data          the recording; of children, with -s, perf.data.PID
//!   FOLDER/perf.data.images/  what Numba compiled
//!   FOLDER/root/...           images, libraries, sources, perf maps, each at its own path below
//! ```
//! Files have mode 0600 in directories of mode 0700, whatever the umask: a source may be private. An existing folder is
//! replaced only if it has the marker: the files that the marker lists are removed one by one, then empty directories.
//! Any other file stays, and the command refuses.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use jitlisten_files::{FileName, OwnDirectory, open_or_create, unacceptable};
use jitlisten_report::{Options, Report, bundle, printable};
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use crate::problem::Problem;

const RECORDING: &str = "perf.data";
const ROOT: &str = "root";
const MARKER: &str = "jitlisten-bundle";
/// Beside a recording, by `python/jitlisten/_compilations.py`.
const COMPILATIONS: &str = "compilations.jsonl";
const VERSION: &str = "jitlisten bundle 1";
/// No marker of ours is longer.
const LONGEST: u64 = 64 << 20;

/// Where the recording of a folder is written to.
pub(crate) fn recording_in(folder: &Path) -> PathBuf {
    folder.join(RECORDING)
}

/// Makes the folder for a new recording: one that does not exist, is empty, or is a bundle of this user.
pub(crate) fn make(folder: &Path) -> Result<(), Problem> {
    let failed = |error: io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
    if fs::symlink_metadata(folder).is_ok() {
        refuse_places_of_others(folder)?;
        let is_empty = fs::read_dir(folder).map_err(failed)?.next().is_none();
        // A file in another user's folder, or in one that others may write to, can be exchanged.
        let opened = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|error| failed(error.into()))?;
        if rustix::fs::fstat(&opened).map_err(|error| failed(error.into()))?.st_uid != geteuid().as_raw() {
            return Err(Problem::new(format!("{} belongs to another user", folder.display())));
        }
        if !is_empty {
            remove_old(folder)?;
        }
        rustix::fs::fchmod(&opened, Mode::RWXU).map_err(|error| failed(error.into()))?;
        let _ = fs::remove_file(folder.join(MARKER));
    }
    // A link to a folder is the user's.
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let make = || {
        let folder = OwnDirectory::create(&folder)?;
        writeln!(folder.create_file(OsStr::new(MARKER))?, "{VERSION}")?;
        OwnDirectory::create_new(&folder.path().join(ROOT))
    };
    make().map(drop).map_err(failed)
}

/// `/`, the home and the working directory are no folders for one recording.
fn refuse_places_of_others(folder: &Path) -> Result<(), Problem> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = [Some(PathBuf::from("/")), home, std::env::current_dir().ok()];
    if places.into_iter().flatten().any(|place| identity(&place).is_some_and(|place| identity(folder) == Some(place))) {
        let place = folder.display();
        return Err(Problem::new(format!("{place} is the root, home or working directory")).help("choose another -o"));
    }
    Ok(())
}

/// Removes an old bundle, by the names that it says we wrote.
fn remove_old(folder: &Path) -> Result<(), Problem> {
    let no_bundle =
        || Problem::new(format!("{} exists and is not a bundle", folder.display())).help("choose another -o");
    let written = written_by_us(folder).ok_or_else(no_bundle)?;
    // Directories behind what is in them.
    for path in &written {
        let _ = remove_plain(folder, path);
    }
    let mut directories: Vec<&Path> = written.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    directories.dedup();
    for directory in directories.into_iter().filter(|path| !path.as_os_str().is_empty()) {
        if has_no_link(folder, directory) {
            let _ = fs::remove_dir(folder.join(directory));
        }
    }
    for recording in recordings_of(folder) {
        let beside = beside(&recording);
        let _ = fs::remove_file(beside.join(COMPILATIONS));
        let _ = fs::remove_dir(beside);
        let _ = fs::remove_file(recording);
    }
    let _ = fs::remove_dir(folder.join(ROOT));
    if let Ok(found) = fs::symlink_metadata(folder.join(ROOT)) {
        let what = if found.is_dir() { "has other files in it" } else { "is not a directory" };
        return Err(Problem::new(format!("{} {what}", folder.join(ROOT).display())).help("choose another -o"));
    }
    Ok(())
}

/// The files below the folder that its marker lists; `None` without a marker.
fn written_by_us(folder: &Path) -> Option<Vec<PathBuf>> {
    let file = OwnDirectory::open(folder).and_then(|folder| folder.open_file(OsStr::new(MARKER))).ok()?;
    if file.metadata().ok()?.len() > LONGEST {
        return None;
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    if lines.next()? != VERSION.as_bytes() {
        return None;
    }
    let is_plain =
        |path: &PathBuf| path.starts_with(ROOT) && path.components().all(|part| matches!(part, Component::Normal(_)));
    Some(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).filter(is_plain).collect())
}

/// Removes a regular file below the folder, unless a link leads there.
fn remove_plain(folder: &Path, path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let is_file = fs::symlink_metadata(folder.join(path))?.is_file();
    if is_file && has_no_link(folder, parent) { fs::remove_file(folder.join(path)) } else { Ok(()) }
}

/// Whether every part of the path below the folder is a directory.
fn has_no_link(folder: &Path, path: &Path) -> bool {
    let parts = path.ancestors().filter(|part| !part.as_os_str().is_empty());
    parts.map(|part| folder.join(part)).all(|part| fs::symlink_metadata(part).is_ok_and(|found| found.is_dir()))
}

/// Copies what the folder's recordings name into it.
pub(crate) fn fill(folder: &Path) -> Result<(), Problem> {
    let recordings = recordings_of(folder);
    if recordings.is_empty() {
        return Err(Problem::new("nothing was recorded").help("see above, or try jitlisten doctor"));
    }
    let cannot = |error: io::Error| Problem::new(format!("cannot write {}: {error}", folder.join(MARKER).display()));
    let mut marker = open_or_create(&folder.join(MARKER)).map_err(cannot)?;
    if let Some(reason) = marker.metadata().map_err(cannot).map(|marker| unacceptable(&marker))? {
        return Err(cannot(io::Error::other(reason)));
    }
    let (mut files, mut bytes) = (0, 0);
    for file in &recordings {
        let options = Options::default();
        let report =
            Report::open(file, &options).map_err(|error| Problem::new(format!("{}: {error}", file.display())))?;
        let done = bundle(&report, &folder.join(ROOT)).map_err(Problem::new)?;
        (files, bytes) = (files + done.files.len(), bytes + done.bytes);
        for path in done.files.iter().filter_map(|path| path.strip_prefix(folder).ok()) {
            marker.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat()).map_err(cannot)?;
        }
        for (missing, why) in &done.missing {
            let missing = printable(&missing.to_string_lossy());
            let _ = writeln!(io::stderr(), "jitlisten: {missing} is not in the bundle: {why}");
        }
        remove_pinned(file);
    }
    let megabytes = bytes as f64 / 1e6;
    let _ = writeln!(io::stderr(), "jitlisten: {}: {files} files, {megabytes:.1} MB", folder.display());
    Ok(())
}

/// Where the sampler keeps what belongs to a recording (`sampler/src/output.rs`).
fn beside(recording: &Path) -> PathBuf {
    let mut directory = recording.as_os_str().to_owned();
    directory.push(".images");
    directory.into()
}

/// Removes the images beside a recording: they are below the root now. What Numba compiled stays.
fn remove_pinned(recording: &Path) {
    let directory = beside(recording);
    if let Ok(opened) = OwnDirectory::open(&directory) {
        let names = opened.names().unwrap_or_default();
        for name in names.iter().filter(|name| matches!(FileName::parse(name), Some(FileName::KeptImage { .. }))) {
            let _ = opened.remove_file(name);
        }
    }
    let _ = fs::remove_dir(directory);
}

/// `perf.data`, and `perf.data.PID` of children.
fn recordings_of(folder: &Path) -> Vec<PathBuf> {
    let is_recording = |name: &OsStr| {
        let rest = name.to_str().and_then(|name| name.strip_prefix(RECORDING));
        let is_pid = |text: &str| text.parse::<u32>().is_ok_and(|pid| pid.to_string() == text);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_pid))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| is_recording(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Recordings of any name.
fn recordings_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_recording(path)).collect();
    found.sort();
    found
}

/// Whether it is a file that begins as a `perf.data` does, of either byte order.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut magic = [0; 8];
    let mut file = || File::open(path)?.read_exact(&mut magic);
    path.is_file() && file().is_ok() && [*b"PERFILE2", *b"2ELIFREP"].contains(&magic)
}

/// The recordings that a path means, and where the files that they name are, if they are those of a bundle.
pub(crate) fn opened(path: &Path) -> (Vec<PathBuf>, Option<PathBuf>) {
    let root = |folder: &Path| Some(folder.join(ROOT)).filter(|root| root.is_dir());
    if path.is_dir() {
        let root = root(path);
        return (if root.is_some() { recordings_of(path) } else { recordings_in(path) }, root);
    }
    (vec![path.to_owned()], path.parent().and_then(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the test's own, removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("jitlisten-bundle-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Place(path)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(folder: &Path) -> String {
        make(folder).expect_err("refused").to_string()
    }

    #[test]
    fn a_project_with_a_folder_root_is_no_bundle() {
        let place = Place::new("project");
        let thesis = place.write("src/thesis.tex", "thesis");
        place.write("root/file", "x");
        assert!(refusal(&place.0).contains("is not a bundle"));
        place.write("perf.data", "x");
        assert!(refusal(&place.0).contains("is not a bundle"));
        place.write(MARKER, "jitlisten bundle 2\n");
        assert!(refusal(&place.0).contains("is not a bundle"));
        assert!(thesis.exists() && place.0.join("root/file").exists() && place.0.join("perf.data").exists());
    }

    #[test]
    fn a_bundle_is_made_anew_and_other_files_stay() {
        let place = Place::new("anew");
        let folder = place.0.join("folder");
        make(&folder).unwrap();
        let ours = place.write("folder/root/usr/lib/a.so", "x");
        place.write("folder/perf.data", "x");
        place.write("folder/perf.data.12", "x");
        let notes = place.write("folder/perf.data.notes", "notes");
        fs::write(folder.join(MARKER), format!("{VERSION}\nroot/usr/lib/a.so\n")).unwrap();
        make(&folder).unwrap();
        assert!(!ours.exists() && !folder.join("root/usr").exists() && !folder.join("perf.data.12").exists());
        assert!(notes.exists() && folder.join(ROOT).is_dir());
        // A file of another's below the root is a reason to refuse.
        let other = place.write("folder/root/usr/notes", "notes");
        assert!(refusal(&folder).contains("has other files in it"));
        assert!(other.exists() && notes.exists());
    }

    #[test]
    fn a_marker_that_lies_reaches_nothing_outside() {
        let place = Place::new("lies");
        let victim = place.write("outside/victim", "precious");
        place.write("folder/root/a", "x");
        let lines =
            ["../outside/victim", "root/../../outside/victim", "root/link/victim", "root", "/etc/passwd", "root/a"];
        place.write("folder/jitlisten-bundle", &format!("{VERSION}\n{}\n", lines.join("\n")));
        std::os::unix::fs::symlink(place.0.join("outside"), place.0.join("folder/root/link")).unwrap();
        assert!(refusal(&place.0.join("folder")).contains("has other files in it"));
        assert!(victim.exists() && place.0.join("folder/root/link").is_symlink());
        fs::remove_file(place.0.join("folder/root/link")).unwrap();
        fs::remove_dir(place.0.join("folder/root")).unwrap();
        std::os::unix::fs::symlink(place.0.join("outside"), place.0.join("folder/root")).unwrap();
        fs::write(place.0.join("folder/jitlisten-bundle"), format!("{VERSION}\nroot/victim\n")).unwrap();
        assert!(refusal(&place.0.join("folder")).contains("is not a directory"));
        assert!(victim.exists());
    }

    #[test]
    fn the_root_and_the_working_directory_are_refused() {
        for place in [PathBuf::from("/"), std::env::current_dir().unwrap()] {
            assert!(refusal(&place).contains("root, home or working directory"), "{}", place.display());
        }
    }

    #[test]
    fn only_images_of_the_sampler_are_removed_beside_a_recording() {
        let place = Place::new("pinned");
        let recording = place.write("perf.data", "x");
        let notes = place.write("perf.data.images/notes", "x");
        let image = place.write("perf.data.images/image-1-2-object-3.so", "x");
        remove_pinned(&recording);
        assert!(notes.exists() && !image.exists() && recording.exists());
    }
}
