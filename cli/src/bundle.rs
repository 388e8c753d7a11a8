//! Bundles: directories with recordings and all files needed to read them on another machine. `record --bundle` and
//! `jitlisten bundle` create them. Commands that read recordings also accept a bundle, or any directory with recordings
//! in it. `report/src/report/bundle.rs` describes the files. The marker `jitlisten-bundle` lists them: its version,
//! then each path with a zero byte.
//!
//! Files have mode 0600 and directories 0700, regardless of the umask, because source files may be private. An earlier
//! bundle becomes `FOLDER.old`, and any other directory with entries is refused. Of `FOLDER.old`, the files that its
//! marker lists are removed one by one, then empty directories; no link is followed.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jitlisten_files::{OwnDirectory, try_lock};
use jitlisten_report::{Bundle, Error, Lookup, MARKER, ROOT, RecordingFile, sanitize};
use jitlisten_sampler::is_recorded_file;
use rustix::fs::{CWD, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use wire::recording::{IMAGES, old};

use crate::hint::as_argument;
use crate::problem::Problem;
use crate::progress::Progress;
use crate::system::BlockedSignals;

/// Default name of a bundle.
pub(crate) const DEFAULT_BUNDLE: &str = "jitlisten.bundle";
const RECORDING: &str = "perf.data";
const MARKER_VERSION: &str = "jitlisten bundle 2\n";
/// Upper bound for the size of a marker file.
const MAX_MARKER_BYTES: u64 = 64 << 20;

const EXAMPLES: &str = "Examples:
  mpirun -n 8 jitlisten record -o prof.data -- python prog.py && jitlisten bundle prof.*.data -o prof
  jitlisten bundle node1 node2 -o both        folders of recordings, or bundles

`jitlisten lines FOLDER` and all other commands that read recordings read the folder.";

/// Copy recordings and all that a reader needs into one folder, for another machine
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MakeBundle {
    /// Recordings, folders of them, or bundles
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The folder. An earlier bundle is renamed to FOLDER.old
    #[arg(short, long, value_name = "FOLDER", default_value = DEFAULT_BUNDLE)]
    output: PathBuf,
    /// Look here first for the recordings' images, libraries, perf maps and sources
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Copy libraries whole and their debug information, for --native and disassembly, instead of the names of
    /// functions with samples
    #[arg(long)]
    whole: bool,
}

impl MakeBundle {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let recordings = resolve_all(&self.files)?;
        let output = free_name(&self.output);
        let folder = resolve(&output);
        check(&folder)?;
        let replaced = old(&folder);
        if recordings.iter().any(|recording| resolve(&recording.path).starts_with(&replaced)) {
            let problem = format!("{} would be removed, but is to be read", replaced.display());
            return Err(Problem::new(problem).help("choose another -o"));
        }
        let mut bundle = Bundle::new(self.whole);
        let progress = Progress::start(&recordings[0].path, recordings.len());
        add_all(&mut bundle, &recordings, &self.root, || progress.iter().for_each(Progress::count_one))?;
        drop(progress);
        // Until now, a signal ends this process at once.
        let signals = BlockedSignals::termination();
        let (name, parent) = (folder.file_name().unwrap_or_default(), folder.parent().unwrap_or(Path::new("/")));
        let prefix = format!(".{}.", name.to_string_lossy());
        let problem = |error: io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
        let directory = OwnDirectory::create_random(parent, &prefix).map_err(problem)?;
        let written = create_marker(&directory)
            .map_err(problem)
            .and_then(|marker| write(&mut bundle, &directory, marker, &|| signals.is_pending()))
            .and_then(|text| publish(directory.path(), &folder).map(|()| text));
        if written.is_err() {
            let _ = sweep(&directory, Path::new(""), &|_| true, true);
            let _ = fs::remove_dir(directory.path());
            // A signal that interrupted writing ends this process here.
            signals.unblock();
        }
        let text = written?;
        let _ = writeln!(
            io::stderr(),
            "jitlisten: wrote {}: {text}: jitlisten lines {}",
            output.display(),
            as_argument(&output)
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// Directory in which a recorder writes a bundle.
pub(crate) struct Recording {
    directory: OwnDirectory,
    /// Locked, so that no other recorder writes to the directory.
    marker: File,
    /// True if an earlier bundle was renamed.
    has_replaced: bool,
}

impl Recording {
    /// Creates the directory for a new recording. An earlier bundle is renamed.
    pub(crate) fn create(folder: &Path) -> Result<Recording, Problem> {
        let problem = |error: io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
        let folder = &resolve(folder);
        let has_replaced = check(folder)?.is_some();
        if has_replaced {
            rename_old(folder)?;
        } else if folder.exists() {
            fs::remove_dir(folder).map_err(problem)?;
        }
        let directory = OwnDirectory::create_new(folder).map_err(problem)?;
        let marker = create_marker(&directory).map_err(problem)?;
        Ok(Recording { directory, marker, has_replaced })
    }

    /// Path of the recording.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(RECORDING)
    }

    /// Removes the directory if nothing was recorded. An earlier bundle gets its name back.
    fn undo(&self) {
        let folder = self.directory.path();
        let is_marker = |path: &Path| path == Path::new(MARKER);
        let is_removed =
            sweep(&self.directory, Path::new(""), &is_marker, true).is_ok() && fs::remove_dir(folder).is_ok();
        if is_removed && self.has_replaced {
            let _ = fs::rename(old(folder), folder);
        }
    }

    /// Copies all files referenced by the recordings into the directory.
    pub(crate) fn fill(self) -> Result<(), Problem> {
        let mut recordings = folder_recordings(self.directory.path());
        recordings.retain(|path| path.file_name().and_then(OsStr::to_str).is_some_and(is_recorder_name));
        if recordings.is_empty() {
            self.undo();
            return Err(Problem::new("nothing was recorded").help("see above, or try jitlisten doctor"));
        }
        let mut bundle = Bundle::default();
        let recordings: Vec<_> = recordings.into_iter().map(|path| RecordingFile { path, root: None }).collect();
        add_all(&mut bundle, &recordings, &[], || {})?;
        // Signals that the user meant for the program do not stop this.
        let text = write(&mut bundle, &self.directory, self.marker, &|| false)?;
        let _ = writeln!(io::stderr(), "jitlisten: {}: {text}", self.directory.path().display());
        Ok(())
    }
}

/// Returns the directory for a new bundle: `folder`, or `folder.PID` if another recorder writes to that.
pub(crate) fn free_name(folder: &Path) -> PathBuf {
    let marker = jitlisten_files::open_existing(&folder.join(MARKER));
    if marker.is_ok_and(|marker| !try_lock(&marker)) {
        let mut name = resolve(folder).into_os_string();
        name.push(format!(".{}", std::process::id()));
        let (folder, name) = (folder.display(), PathBuf::from(name));
        let _ = writeln!(
            io::stderr(),
            "jitlisten: another recorder is writing {folder}: writing {} instead",
            name.display()
        );
        return name;
    }
    folder.to_owned()
}

/// Returns the absolute path of a directory. Only the user can have created a symbolic link here, so it is followed.
fn resolve(folder: &Path) -> PathBuf {
    fs::canonicalize(folder).or_else(|_| std::path::absolute(folder)).unwrap_or_else(|_| folder.to_owned())
}

fn create_marker(directory: &OwnDirectory) -> io::Result<File> {
    let mut marker = directory.create_file(MARKER)?;
    try_lock(&marker);
    marker.write_all(MARKER_VERSION.as_bytes()).map(|()| marker)
}

/// Adds recordings. Damaged ones among others are left out, with a message.
fn add_all(
    bundle: &mut Bundle,
    recordings: &[RecordingFile],
    roots: &[PathBuf],
    on_add: impl Fn(),
) -> Result<(), Problem> {
    let lookup = Lookup { roots: roots.to_vec(), ..Lookup::default() };
    let mut damaged = 0;
    for recording in recordings {
        let path = &recording.path;
        if let Err(error) = bundle.add(recording, &name_in_bundle(path, recording.root.is_some()), &lookup) {
            damaged += 1;
            let text = format!("{}: {error}", path.display());
            if !matches!(error, Error::BadHeader(_)) || damaged == recordings.len() {
                return Err(Problem::new(text));
            }
            let _ = writeln!(io::stderr(), "jitlisten: {text}; it is not in the bundle");
        }
        on_add();
    }
    Ok(())
}

/// Returns the name of a recording in a new bundle. That of another bundle is named by its folder.
fn name_in_bundle(path: &Path, is_bundled: bool) -> OsString {
    let name = path.file_name().unwrap_or_default();
    let folder = path.parent().map(resolve);
    match folder.as_deref().and_then(Path::file_name).filter(|_| is_bundled) {
        Some(folder) if name.to_str().is_some_and(is_recorder_name) => {
            [folder, OsStr::new("."), name].into_iter().collect()
        }
        _ => name.to_owned(),
    }
}

/// Lists all files in the marker, so that they can be removed even if this process is killed, and then writes them.
/// Returns the number and size of the files.
fn write(
    bundle: &mut Bundle,
    directory: &OwnDirectory,
    mut marker: File,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<String, Problem> {
    let list: Vec<u8> = bundle.paths().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect();
    let marker_problem =
        |error| Problem::new(format!("cannot write {}: {error}", directory.path().join(MARKER).display()));
    marker.write_all(&list).map_err(marker_problem)?;
    let bytes = bundle.write(directory, is_interrupted).map_err(Problem::new)?;
    for (path, why) in bundle.missing() {
        let path = sanitize(&path.to_string_lossy());
        let _ = writeln!(io::stderr(), "jitlisten: {path} is not in the bundle: {why}");
    }
    Ok(format!("{} files, {:.1} MB", bundle.paths().count(), bytes as f64 / 1e6))
}

/// Gives a finished bundle its name. An earlier bundle of this name is renamed.
fn publish(new: &Path, folder: &Path) -> Result<(), Problem> {
    let problem = |error: io::Error| Problem::new(format!("cannot rename {}: {error}", new.display()));
    if check(folder)?.is_none() {
        // Replaces an empty directory, and no other.
        return fs::rename(new, folder).map_err(problem);
    }
    remove_oldest(&old(folder))?;
    match rustix::fs::renameat_with(CWD, new, CWD, folder, RenameFlags::EXCHANGE) {
        Ok(()) => fs::rename(new, old(folder)).inspect_err(|_| {
            let _ = rustix::fs::renameat_with(CWD, new, CWD, folder, RenameFlags::EXCHANGE);
        }),
        // The file system cannot exchange two directories.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            fs::rename(folder, old(folder)).and_then(|()| fs::rename(new, folder))
        }
        Err(error) => Err(error.into()),
    }
    .map_err(problem)
}

/// Renames an earlier bundle.
fn rename_old(folder: &Path) -> Result<(), Problem> {
    remove_oldest(&old(folder))?;
    let problem = |error| Problem::new(format!("cannot rename {}: {error}", folder.display()));
    fs::rename(folder, old(folder)).map_err(problem)
}

/// Checks that a directory may be replaced. Returns a bundle and the paths of its files, or `None` if the directory is
/// empty or missing.
fn check(folder: &Path) -> Result<Option<(OwnDirectory, HashSet<PathBuf>)>, Problem> {
    if fs::symlink_metadata(folder).is_err() {
        return Ok(None);
    }
    refuse_shared_directory(folder)?;
    let io_problem = |error: io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
    // A directory that other users own is unsafe, because they could replace files in it.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| io_problem(error.into()))?;
    if rustix::fs::fstat(&opened).map_err(|error| io_problem(error.into()))?.st_uid != geteuid().as_raw() {
        return Err(Problem::new(format!("{} belongs to another user", folder.display())));
    }
    let entries = Dir::read_from(&opened).map_err(|error| io_problem(error.into()))?;
    let is_entry = |name: &[u8]| name != b"." && name != b"..";
    if !entries.flatten().any(|entry| is_entry(entry.file_name().to_bytes())) {
        return Ok(None);
    }
    open_bundle(folder).map(Some)
}

/// Opens a bundle that has no other files in it. Returns the paths of its files, too.
fn open_bundle(folder: &Path) -> Result<(OwnDirectory, HashSet<PathBuf>), Problem> {
    let problem = |what| Problem::new(format!("{} {what}", folder.display())).help("choose another -o");
    let directory = OwnDirectory::open(folder).map_err(|_| problem("exists and is not a bundle".to_owned()))?;
    let listed = read_marker(&directory).ok_or_else(|| problem("exists and is not a bundle".to_owned()))?;
    match sweep(&directory, Path::new(""), &|path| is_ours(path, &listed), false) {
        Ok(None) => Ok((directory, listed)),
        Ok(Some(other)) => Err(problem(format!("is a bundle with other files in it: {}", other.display()))),
        Err(error) => Err(problem(format!("cannot be read: {error}"))),
    }
}

/// Removes the bundle that an earlier one replaced, if there is one.
fn remove_oldest(folder: &Path) -> Result<(), Problem> {
    if let Some((directory, listed)) = check(folder)? {
        let problem = |error: io::Error| Problem::new(format!("cannot remove {}: {error}", folder.display()));
        sweep(&directory, Path::new(""), &|path| is_ours(path, &listed), true).map_err(problem)?;
        fs::remove_dir(folder).map_err(problem)?;
    }
    Ok(())
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

/// Reads the paths of files from the marker; `None` without a valid marker.
fn read_marker(directory: &OwnDirectory) -> Option<HashSet<PathBuf>> {
    let mut text = Vec::new();
    directory.open_file(MARKER).ok()?.take(MAX_MARKER_BYTES).read_to_end(&mut text).ok()?;
    let paths = text.strip_prefix(MARKER_VERSION.as_bytes())?.split(|byte| *byte == 0);
    Some(paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect())
}

/// Returns true for a file of a bundle: one that the marker lists, or that a recorder wrote before it was killed.
fn is_ours(path: &Path, listed: &HashSet<PathBuf>) -> bool {
    let mut names = path.iter().map(|name| name.to_str().unwrap_or_default());
    let is_written = match (names.next(), names.next(), names.next()) {
        (Some(MARKER), None, _) => true,
        (Some(recording), None, _) => is_recorder_name(recording),
        (Some(images), Some(name), None) => {
            images.strip_suffix(IMAGES).is_some_and(is_recorder_name) && is_recorded_file(name)
        }
        _ => false,
    };
    is_written || listed.contains(path)
}

/// Returns true for the names of recordings in `record --bundle`: `perf.data`, and `perf.data.PID` of children.
fn is_recorder_name(name: &str) -> bool {
    let is_pid = |text: &str| text.parse::<u32>().is_ok_and(|pid| pid.to_string() == text);
    let rest = name.strip_prefix(RECORDING);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_pid))
}

/// Returns the first file in a directory that is not ours. If `remove` is set, removes our files and then empty
/// directories. `prefix` is the path of the directory in the bundle. Links are not followed.
fn sweep(
    directory: &OwnDirectory,
    prefix: &Path,
    is_ours: &dyn Fn(&Path) -> bool,
    remove: bool,
) -> io::Result<Option<PathBuf>> {
    let mut other = None;
    for name in directory.names()? {
        let path = prefix.join(&name);
        if let Ok(below) = directory.open_directory(&name) {
            other = other.or(sweep(&below, &path, is_ours, remove)?);
            if remove {
                let _ = directory.remove_directory(&name);
            }
        } else if !is_ours(&path) || directory.open_file(&name).is_err() {
            other = other.or(Some(path));
        } else if remove {
            directory.remove_file(&name)?;
        }
    }
    Ok(other)
}

/// Returns all recordings in a directory, whatever their names, without those that a newer one of them has replaced.
fn folder_recordings(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let recordings: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_recording(path)).collect();
    let replaced: HashSet<PathBuf> = recordings.iter().map(|path| old(path)).collect();
    recordings.into_iter().filter(|path| !replaced.contains(path)).collect()
}

/// Returns true if the file has the magic number of `perf.data`, in either byte order.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut magic = [0; 8];
    let mut read_magic = || File::open(path)?.read_exact(&mut magic);
    path.is_file() && read_magic().is_ok() && [*b"PERFILE2", *b"2ELIFREP"].contains(&magic)
}

/// Returns the recordings at a path, with the directory of their files if they are in a bundle.
pub(crate) fn resolve_recordings(path: &Path) -> Vec<RecordingFile> {
    let root = |folder: &Path| Some(folder.join(ROOT)).filter(|root| root.is_dir());
    if !path.is_dir() {
        return vec![RecordingFile { path: path.to_owned(), root: path.parent().and_then(root) }];
    }
    let other_parts = (2..).map(|number: u32| path.join(number.to_string())).take_while(|part| root(part).is_some());
    let parts = std::iter::once(path.to_owned()).chain(other_parts.filter(|_| root(path).is_some()));
    let recordings = parts.flat_map(|part| {
        let root = root(&part);
        folder_recordings(&part).into_iter().map(move |path| RecordingFile { path, root: root.clone() })
    });
    recordings.collect()
}

/// Returns the recordings at all paths. Of `p.data*`, the folder of images of a recording that is also named is
/// omitted.
///
/// # Errors
/// If one of them has none.
pub(crate) fn resolve_all(paths: &[PathBuf]) -> Result<Vec<RecordingFile>, Problem> {
    let mut files = Vec::new();
    let images: HashSet<PathBuf> = paths.iter().map(|path| wire::recording::images(path)).collect();
    for path in paths.iter().filter(|path| !images.contains(*path)) {
        let recordings = resolve_recordings(path);
        if recordings.is_empty() {
            return Err(Problem::new(format!("there is no recording in {}", path.display())));
        }
        files.extend(recordings);
    }
    // A recording counts once, even if the user names it and its folder.
    let mut identities = HashSet::new();
    files.retain(|file| {
        fs::metadata(&file.path).map_or(true, |metadata| identities.insert((metadata.dev(), metadata.ino())))
    });
    Ok(files)
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
        Recording::create(folder).err().expect("refused").to_string()
    }

    fn marker(paths: &[&str]) -> String {
        MARKER_VERSION.to_owned() + &paths.iter().map(|path| format!("{path}\0")).collect::<String>()
    }

    #[test]
    fn images_named_beside_their_recording_are_no_recordings() {
        let directory = TestDirectory::new("images");
        let recording = directory.write("p.data", "PERFILE2");
        let images = directory.write("p.data.images/interpreter.json", "{}").parent().unwrap().to_owned();
        let resolved = resolve_all(&[recording.clone(), images.clone()]).unwrap();
        assert_eq!(resolved.iter().map(|file| &file.path).collect::<Vec<_>>(), [&recording]);
        assert!(resolve_all(&[images]).is_err());
    }

    #[test]
    fn a_recording_counts_once_and_the_one_that_it_replaced_not_at_all() {
        let directory = TestDirectory::new("twice");
        let recording = directory.write("p.data", "PERFILE2");
        let link = directory.0.join("link");
        std::os::unix::fs::symlink(&recording, &link).unwrap();
        directory.write("p.data.old", "PERFILE2");
        let resolved = resolve_all(&[recording.clone(), directory.0.clone(), link]).unwrap();
        assert_eq!(resolved.iter().map(|file| &file.path).collect::<Vec<_>>(), [&recording]);
    }

    #[test]
    fn a_project_with_a_folder_root_is_no_bundle() {
        let directory = TestDirectory::new("project");
        let thesis = directory.write("src/thesis.tex", "thesis");
        directory.write("root/file", "x");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        directory.write("perf.data", "x");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        directory.write(MARKER, "jitlisten bundle 3\n");
        assert!(refusal(&directory.0).contains("is not a bundle"));
        assert!(thesis.exists() && directory.0.join("root/file").exists() && directory.0.join("perf.data").exists());
    }

    #[test]
    fn an_earlier_bundle_is_kept_once_and_one_with_other_files_is_refused() {
        let directory = TestDirectory::new("anew");
        let folder = directory.0.join("folder");
        Recording::create(&folder).unwrap();
        // A recorder that is killed has not listed these files.
        for name in ["perf.data", "perf.data.12", "perf.data.12.images/image-1-2-object-3.so"] {
            directory.write(&format!("folder/{name}"), "first");
        }
        drop(Recording::create(&folder).unwrap());
        assert_eq!(fs::read_to_string(directory.0.join("folder.old/perf.data.12")).unwrap(), "first");
        directory.write("folder/root/usr/lib/a.so", "second");
        fs::write(folder.join(MARKER), marker(&["root/usr/lib/a.so"])).unwrap();
        drop(Recording::create(&folder).unwrap());
        assert!(directory.0.join("folder.old/root/usr/lib/a.so").exists(), "the second");
        assert!(!directory.0.join("folder.old/perf.data").exists(), "the first");
        let notes = directory.write("folder.old/root/usr/notes", "notes");
        assert!(refusal(&folder).contains("other files in it: root/usr/notes"));
        assert!(notes.exists() && directory.0.join("folder.old/root/usr/lib/a.so").exists());
        fs::remove_file(&notes).unwrap();
        let notes = directory.write("folder/perf.data.notes", "notes");
        assert!(refusal(&folder).contains("other files in it: perf.data.notes"));
        assert!(notes.exists());
    }

    #[test]
    fn a_marker_that_lies_reaches_nothing_outside() {
        let directory = TestDirectory::new("lies");
        let victim = directory.write("outside/victim", "precious");
        directory.write("folder.old/root/a", "x");
        let paths =
            ["../outside/victim", "root/../../outside/victim", "root/link/victim", "root", "/etc/passwd", "root/a"];
        directory.write("folder.old/jitlisten-bundle", &marker(&paths));
        let remove = || remove_oldest(&directory.0.join("folder.old"));
        for link in ["folder.old/root/link", "folder.old/root/b"] {
            let link = directory.0.join(link);
            std::os::unix::fs::symlink(directory.0.join("outside"), &link).unwrap();
            assert!(remove().expect_err("refused").to_string().contains("other files in it: root/"));
            assert!(victim.exists() && link.is_symlink() && directory.0.join("folder.old/root/a").exists());
            fs::remove_file(link).unwrap();
        }
        remove().unwrap();
        assert!(victim.exists() && !directory.0.join("folder.old").exists());
    }

    #[test]
    fn the_root_and_the_working_directory_are_refused() {
        for directory in [PathBuf::from("/"), std::env::current_dir().unwrap()] {
            assert!(refusal(&directory).contains("root, home or working directory"), "{}", directory.display());
        }
    }

    #[test]
    fn a_new_bundle_replaces_an_empty_directory_or_a_bundle_and_nothing_else() {
        let directory = TestDirectory::new("publish");
        let folder = directory.0.join("folder");
        let publish_new = |content: &str| {
            directory.write("new/perf.data", content);
            fs::set_permissions(directory.0.join("new"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
            directory.write("new/jitlisten-bundle", &marker(&[]));
            publish(&directory.0.join("new"), &folder)
        };
        fs::create_dir(&folder).unwrap();
        publish_new("first").unwrap();
        publish_new("second").unwrap();
        let content = |path: &str| fs::read_to_string(directory.0.join(path)).unwrap();
        assert_eq!((content("folder/perf.data"), content("folder.old/perf.data")), ("second".into(), "first".into()));
        directory.write("folder/notes", "notes");
        publish_new("third").expect_err("refused");
        assert_eq!((content("folder/perf.data"), content("folder.old/perf.data")), ("second".into(), "first".into()));
    }
}
