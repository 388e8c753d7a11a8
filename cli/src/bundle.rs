//! Bundles: directories that hold a recording and all files needed to read it on another machine. `record --bundle`
//! creates them. Commands that read recordings also accept a bundle, or any directory with recordings in it.
//!
//! ```text
//!   FOLDER/jitlisten-bundle   marker: the version, then a line for each file that we wrote below root
//!   FOLDER/perf.data          recording; with -s, perf.data.PID for each child
//!   FOLDER/perf.data.images/  compilations of Numba
//!   FOLDER/root/...           images, libraries, sources and perf maps, each below its own path
//! ```
//! Files have mode 0600 and directories 0700, regardless of the umask, because source files may be private. An existing
//! directory is replaced only if it contains the marker: the files that the marker lists are removed one by one, then
//! empty directories. If any other file remains, the command stops with an error.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use jitlisten_files::{FileName, OwnDirectory, check_appendable, open_or_create, try_lock};
use jitlisten_report::{Options, Report, bundle, sanitize};
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use wire::recording::{COMPILATIONS, INTERPRETER};

use crate::problem::Problem;

const RECORDING: &str = "perf.data";
const ROOT: &str = "root";
const MARKER: &str = "jitlisten-bundle";
const MARKER_VERSION: &str = "jitlisten bundle 1";
/// Upper bound for the size of a marker file.
const MAX_MARKER_BYTES: u64 = 64 << 20;

/// Path of the recording in a bundle.
pub(crate) fn recording_in(folder: &Path) -> PathBuf {
    folder.join(RECORDING)
}

/// Returns the directory for a new bundle: `folder`, or `folder.PID` if another recorder writes to that.
pub(crate) fn free_name(folder: &Path) -> PathBuf {
    let marker = jitlisten_files::open_existing(&folder.join(MARKER));
    if marker.is_ok_and(|marker| !try_lock(&marker)) {
        let mut name = folder.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let (folder, name) = (folder.display(), PathBuf::from(name));
        let _ = writeln!(
            io::stderr(),
            "jitlisten: another recorder is writing {folder}: recording into {}",
            name.display()
        );
        return name;
    }
    folder.to_owned()
}

/// Locks a bundle, so that no other recorder writes to it while the result exists.
pub(crate) fn lock(folder: &Path) -> Option<File> {
    let marker = jitlisten_files::open_existing(&folder.join(MARKER)).ok()?;
    try_lock(&marker).then_some(marker)
}

/// Creates the directory for a new recording. An existing directory must be empty or a bundle of this user.
pub(crate) fn create(folder: &Path) -> Result<(), Problem> {
    let io_problem = |error: io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
    if fs::symlink_metadata(folder).is_ok() {
        refuse_shared_directory(folder)?;
        let is_empty = fs::read_dir(folder).map_err(io_problem)?.next().is_none();
        // A directory that other users own or can write to is unsafe, because they could replace files in it.
        let opened_folder = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened_folder = opened_folder.map_err(|error| io_problem(error.into()))?;
        if rustix::fs::fstat(&opened_folder).map_err(|error| io_problem(error.into()))?.st_uid != geteuid().as_raw() {
            return Err(Problem::new(format!("{} belongs to another user", folder.display())));
        }
        if !is_empty {
            remove_old(folder)?;
        }
        rustix::fs::fchmod(&opened_folder, Mode::RWXU).map_err(|error| io_problem(error.into()))?;
        let _ = fs::remove_file(folder.join(MARKER));
    }
    // Only the user can have created a symbolic link here, so it is followed.
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let create_contents = || {
        let folder = OwnDirectory::create(&folder)?;
        writeln!(folder.create_file(OsStr::new(MARKER))?, "{MARKER_VERSION}")?;
        OwnDirectory::create_new(&folder.path().join(ROOT))
    };
    create_contents().map(drop).map_err(io_problem)
}

/// Refuses `/`, the home directory and the working directory.
fn refuse_shared_directory(folder: &Path) -> Result<(), Problem> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let protected_directories = [Some(PathBuf::from("/")), home, std::env::current_dir().ok()];
    if protected_directories
        .into_iter()
        .flatten()
        .any(|directory| identity(&directory).is_some_and(|directory| identity(folder) == Some(directory)))
    {
        let directory = folder.display();
        return Err(
            Problem::new(format!("{directory} is the root, home or working directory")).help("choose another -o")
        );
    }
    Ok(())
}

/// Removes an old bundle, but only the files that its marker lists.
fn remove_old(folder: &Path) -> Result<(), Problem> {
    let not_a_bundle_problem =
        || Problem::new(format!("{} exists and is not a bundle", folder.display())).help("choose another -o");
    let listed_files = read_marker(folder).ok_or_else(not_a_bundle_problem)?;
    // Files are removed first, because only empty directories can be removed.
    for path in &listed_files {
        let _ = remove_plain(folder, path);
    }
    let mut directories: Vec<&Path> = listed_files.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    directories.dedup();
    for directory in directories.into_iter().filter(|path| !path.as_os_str().is_empty()) {
        if has_no_link(folder, directory) {
            let _ = fs::remove_dir(folder.join(directory));
        }
    }
    for recording in bundle_recordings(folder) {
        let image_directory = image_directory(&recording);
        for name in [COMPILATIONS, INTERPRETER] {
            let _ = fs::remove_file(image_directory.join(name));
        }
        let _ = fs::remove_dir(image_directory);
        let _ = fs::remove_file(recording);
    }
    let _ = fs::remove_dir(folder.join(ROOT));
    if let Ok(metadata) = fs::symlink_metadata(folder.join(ROOT)) {
        let problem = if metadata.is_dir() { "has other files in it" } else { "is not a directory" };
        return Err(Problem::new(format!("{} {problem}", folder.join(ROOT).display())).help("choose another -o"));
    }
    Ok(())
}

/// Reads the paths of files from the marker in `folder`; `None` without a valid marker.
fn read_marker(folder: &Path) -> Option<Vec<PathBuf>> {
    let file = OwnDirectory::open(folder).and_then(|folder| folder.open_file(OsStr::new(MARKER))).ok()?;
    if file.metadata().ok()?.len() > MAX_MARKER_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_MARKER_BYTES).read_to_end(&mut text).ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    if lines.next()? != MARKER_VERSION.as_bytes() {
        return None;
    }
    let is_plain =
        |path: &PathBuf| path.starts_with(ROOT) && path.components().all(|part| matches!(part, Component::Normal(_)));
    Some(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).filter(is_plain).collect())
}

/// Removes a regular file below `folder`, unless its path contains a symbolic link.
fn remove_plain(folder: &Path, path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let is_file = fs::symlink_metadata(folder.join(path))?.is_file();
    if is_file && has_no_link(folder, parent) { fs::remove_file(folder.join(path)) } else { Ok(()) }
}

/// Returns true if every component of `path` below `folder` is a directory rather than a symbolic link.
fn has_no_link(folder: &Path, path: &Path) -> bool {
    let parts = path.ancestors().filter(|part| !part.as_os_str().is_empty());
    parts.map(|part| folder.join(part)).all(|part| fs::symlink_metadata(part).is_ok_and(|metadata| metadata.is_dir()))
}

/// Copies all files referenced by the recordings in `folder` into it.
pub(crate) fn fill(folder: &Path) -> Result<(), Problem> {
    let recordings = bundle_recordings(folder);
    if recordings.is_empty() {
        return Err(Problem::new("nothing was recorded").help("see above, or try jitlisten doctor"));
    }
    let write_problem =
        |error: io::Error| Problem::new(format!("cannot write {}: {error}", folder.join(MARKER).display()));
    let mut marker = open_or_create(&folder.join(MARKER)).map_err(write_problem)?;
    if let Some(reason) = marker.metadata().map_err(write_problem).map(|marker| check_appendable(&marker))? {
        return Err(write_problem(io::Error::other(reason)));
    }
    let (mut files, mut bytes) = (0, 0);
    for file in &recordings {
        let options = Options::default();
        let report =
            Report::open(file, &options).map_err(|error| Problem::new(format!("{}: {error}", file.display())))?;
        let copied = bundle(&report, &folder.join(ROOT)).map_err(Problem::new)?;
        (files, bytes) = (files + copied.files.len(), bytes + copied.bytes);
        for path in copied.files.iter().filter_map(|path| path.strip_prefix(folder).ok()) {
            marker.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat()).map_err(write_problem)?;
        }
        for (path, why) in &copied.missing {
            let path = sanitize(&path.to_string_lossy());
            let _ = writeln!(io::stderr(), "jitlisten: {path} is not in the bundle: {why}");
        }
        remove_images(file);
    }
    let megabytes = bytes as f64 / 1e6;
    let _ = writeln!(io::stderr(), "jitlisten: {}: {files} files, {megabytes:.1} MB", folder.display());
    Ok(())
}

/// Directory where the sampler stores the images of a recording (`sampler/src/writer/output.rs`).
fn image_directory(recording: &Path) -> PathBuf {
    let mut directory = recording.as_os_str().to_owned();
    directory.push(".images");
    directory.into()
}

/// Removes the images in a recording's image directory, because the bundle now has copies of them. Numba's compilations
/// are kept.
fn remove_images(recording: &Path) {
    let directory = image_directory(recording);
    if let Ok(images) = OwnDirectory::open(&directory) {
        let names = images.names().unwrap_or_default();
        for name in names.iter().filter(|name| matches!(FileName::parse(name), Some(FileName::KeptImage { .. }))) {
            let _ = images.remove_file(name);
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Recordings of a bundle: `perf.data`, and `perf.data.PID` of children.
fn bundle_recordings(folder: &Path) -> Vec<PathBuf> {
    let is_recording = |name: &OsStr| {
        let rest = name.to_str().and_then(|name| name.strip_prefix(RECORDING));
        let is_pid = |text: &str| text.parse::<u32>().is_ok_and(|pid| pid.to_string() == text);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_pid))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut recordings: Vec<PathBuf> = entries
        .filter(|entry| is_recording(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect();
    recordings.sort();
    recordings
}

/// Returns all recordings in a directory, regardless of their names.
fn folder_recordings(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut recordings: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_recording(path)).collect();
    recordings.sort();
    recordings
}

/// Returns true if the file has the magic number of `perf.data`, in either byte order.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut magic = [0; 8];
    let mut read_magic = || File::open(path)?.read_exact(&mut magic);
    path.is_file() && read_magic().is_ok() && [*b"PERFILE2", *b"2ELIFREP"].contains(&magic)
}

/// Returns the recordings at a path, and the root directory for their files if they are in a bundle.
pub(crate) fn resolve_recordings(path: &Path) -> (Vec<PathBuf>, Option<PathBuf>) {
    let root = |folder: &Path| Some(folder.join(ROOT)).filter(|root| root.is_dir());
    if path.is_dir() {
        let root = root(path);
        return (if root.is_some() { bundle_recordings(path) } else { folder_recordings(path) }, root);
    }
    (vec![path.to_owned()], path.parent().and_then(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Temporary directory of a test, removed when dropped.
    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new(name: &str) -> TestDirectory {
            let path = std::env::temp_dir().join(format!("jitlisten-bundle-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            TestDirectory(path)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(folder: &Path) -> String {
        create(folder).expect_err("refused").to_string()
    }

    #[test]
    fn a_project_with_a_folder_root_is_no_bundle() {
        let directory = TestDirectory::new("project");
        let thesis = directory.write("src/thesis.tex", "thesis");
        directory.write("root/file", "x");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        directory.write("perf.data", "x");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        directory.write(MARKER, "jitlisten bundle 2\n");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        assert!(thesis.exists() && directory.0.join("root/file").exists() && directory.0.join("perf.data").exists());
    }

    #[test]
    fn a_bundle_is_made_anew_and_other_files_stay() {
        let directory = TestDirectory::new("anew");
        let folder = directory.0.join("folder");
        create(&folder).unwrap();
        let ours = directory.write("folder/root/usr/lib/a.so", "x");
        directory.write("folder/perf.data", "x");
        directory.write("folder/perf.data.12", "x");
        let notes = directory.write("folder/perf.data.notes", "notes");
        fs::write(folder.join(MARKER), format!("{MARKER_VERSION}\nroot/usr/lib/a.so\n")).unwrap();
        create(&folder).unwrap();
        assert!(!ours.exists() && !folder.join("root/usr").exists() && !folder.join("perf.data.12").exists());
        assert!(notes.exists() && folder.join(ROOT).is_dir());
        // An unlisted file below the root directory makes the command fail.
        let foreign_file = directory.write("folder/root/usr/notes", "notes");
        assert!(refusal(&folder).contains("has other files in it"));
        assert!(foreign_file.exists() && notes.exists());
    }

    #[test]
    fn a_marker_that_lies_reaches_nothing_outside() {
        let directory = TestDirectory::new("lies");
        let victim = directory.write("outside/victim", "precious");
        directory.write("folder/root/a", "x");
        let lines =
            ["../outside/victim", "root/../../outside/victim", "root/link/victim", "root", "/etc/passwd", "root/a"];
        directory.write("folder/jitlisten-bundle", &format!("{MARKER_VERSION}\n{}\n", lines.join("\n")));
        std::os::unix::fs::symlink(directory.0.join("outside"), directory.0.join("folder/root/link")).unwrap();
        assert!(refusal(&directory.0.join("folder")).contains("has other files in it"));
        assert!(victim.exists() && directory.0.join("folder/root/link").is_symlink());
        fs::remove_file(directory.0.join("folder/root/link")).unwrap();
        fs::remove_dir(directory.0.join("folder/root")).unwrap();
        std::os::unix::fs::symlink(directory.0.join("outside"), directory.0.join("folder/root")).unwrap();
        fs::write(directory.0.join("folder/jitlisten-bundle"), format!("{MARKER_VERSION}\nroot/victim\n")).unwrap();
        assert!(refusal(&directory.0.join("folder")).contains("is not a directory"));
        assert!(victim.exists());
    }

    #[test]
    fn the_root_and_the_working_directory_are_refused() {
        for directory in [PathBuf::from("/"), std::env::current_dir().unwrap()] {
            assert!(refusal(&directory).contains("root, home or working directory"), "{}", directory.display());
        }
    }

    #[test]
    fn only_images_of_the_sampler_are_removed_beside_a_recording() {
        let directory = TestDirectory::new("pinned");
        let recording = directory.write("perf.data", "x");
        let notes = directory.write("perf.data.images/notes", "x");
        let image = directory.write("perf.data.images/image-1-2-object-3.so", "x");
        remove_images(&recording);
        assert!(notes.exists() && !image.exists() && recording.exists());
    }
}
