//! Existing files at the path of a recording, and the images next to it.
//!
//! ```text
//!   FILE             an existing recording is renamed to FILE.old, as perf does; any other file is refused
//!   FILE.images/     renamed to FILE.old.images/; refused if another user owns it or others may write to it
//! ```
//!
//! A shell script may start several programs. The recording of an earlier one is renamed to `FILE.PID`, so that
//! `FILE.old` stays that of the previous command.
//!
//! A recording without a sample is not kept, and does not replace another recording.
//!
//! A recorder locks its file while it writes (`fcntl_locking(2)`). A file that another recorder has locked is neither
//! renamed nor replaced, regardless of its content: the second recorder writes to `FILE.PID`. The lock of an existing
//! recording is also held while the creation of its successor is deferred.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use jitlisten::log_line;
use jitlisten::plumbing::Run;
use jitlisten_files::{OwnDirectory, Replacement, open_existing as open_to_write, try_lock};
use wire::perf_data::{PERF_RECORD_AUXTRACE, PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2, PERF_RECORD_SAMPLE};
use wire::recording::{images, old};

use crate::system::descriptors::move_file_to_high_descriptor;
use crate::writer::file_names::is_own_file;
use crate::writer::held_file::Owner;
use crate::writer::origin::Origin;
use crate::writer::perf_data::{DATA_SIZE_OFFSET, MAGIC};

/// Header offset of the field that holds the file offset of the data.
const DATA_START_OFFSET: u64 = DATA_SIZE_OFFSET - 8;

/// Maximum number of records to search for a sample; a recording without a sample has fewer.
const MAX_RECORDS_BEFORE_SAMPLE: usize = 100_000;

/// Maximum number of names that are tried for a recording.
const MAX_NAMES: usize = 10;

/// Maximum number of attempts to lock a file that others rename meanwhile.
const MAX_CLAIM_ATTEMPTS: usize = 10;

/// Kind of the file that exists at the path of a new recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExistingFile {
    /// No file, an empty file, or a recording without a sample. May be overwritten.
    Replaceable,
    /// A recording that must be kept.
    Recording,
}

/// Checks that this user may create a recording at `path`.
///
/// # Errors
/// The reason why no recording may be created there.
pub fn check_output(path: &Path) -> io::Result<()> {
    inspect(path).map(drop)
}

/// Right to create a recording at a path. It ends when [`lock`](Claim::lock) is closed.
#[derive(Debug)]
pub(crate) struct Claim {
    existing: ExistingFile,
    /// The existing file, locked; `None` if it does not exist.
    pub(crate) lock: Option<File>,
}

impl Claim {
    /// Returns true if an existing recording will be renamed.
    pub(crate) fn has_recording(&self) -> bool {
        self.existing == ExistingFile::Recording
    }
}

/// Names for the recording of a process, in the order of preference.
pub(crate) fn names(path: &Path, pid: u32) -> impl Iterator<Item = PathBuf> {
    let with_suffix = move |suffix: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    (0..MAX_NAMES).map(move |attempt| match attempt {
        0 => path.to_owned(),
        1 => with_suffix(format!(".{pid}")),
        _ => with_suffix(format!(".{pid}.{attempt}")),
    })
}

/// Claims a path for a new recording.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if another recorder writes to the file at the path; otherwise, the reason why no
/// recording may be created there.
pub(crate) fn claim(path: &Path) -> io::Result<Claim> {
    check_directory(&images(path))?;
    for _ in 0..MAX_CLAIM_ATTEMPTS {
        let Some(file) = open_existing(path)? else {
            return Ok(Claim { existing: ExistingFile::Replaceable, lock: None });
        };
        if !try_lock(&file) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        if is_at(&file, path) {
            let existing = classify(&file)?;
            if existing == ExistingFile::Recording {
                check_old(path)?;
            }
            return Ok(Claim { existing, lock: Some(file) });
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// Returns true if the path still leads to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (file, path) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    file.is_ok_and(|file| path.is_ok_and(|path| path == file))
}

/// Checks that the recording at `path` can be renamed.
fn check_old(path: &Path) -> io::Result<()> {
    let old = old(path);
    if let Some(file) = open_existing(&old).map_err(|error| error_about(&old, &error))? {
        classify(&file).map_err(|error| error_about(&old, &error))?;
    }
    open_removable(&images(&old)).map(drop)
}

/// Classifies the existing file, and checks that it and its images can be renamed if necessary. Must not be called
/// while this process has locked the file.
pub(crate) fn inspect(path: &Path) -> io::Result<ExistingFile> {
    check_directory(&images(path))?;
    let Some(file) = open_existing(path)? else { return Ok(ExistingFile::Replaceable) };
    let existing = classify(&file)?;
    if existing == ExistingFile::Recording {
        check_old(path)?;
    }
    Ok(existing)
}

fn check_directory(path: &Path) -> io::Result<()> {
    match OwnDirectory::open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error_about(path, &error)),
        _ => Ok(()),
    }
}

/// Opens a file, for writing if that is permitted. `None` if it does not exist.
fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(link) if link.is_symlink() && !path.exists() => return Err(io::Error::other("it is a dangling link")),
        Ok(_) => {}
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    match open_to_write(path).or_else(|_| File::open(path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(move_file_to_high_descriptor).map(Some),
    }
}

fn classify(file: &File) -> io::Result<ExistingFile> {
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(ExistingFile::Replaceable);
    }
    let mut magic = [0; MAGIC.len()];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
        return Err(io::Error::other("it exists and is not a recording"));
    }
    Ok(if may_have_sample(file, metadata.len()) { ExistingFile::Recording } else { ExistingFile::Replaceable })
}

/// Returns true if a recording by jitlisten or perf may contain a sample.
fn may_have_sample(file: &File, length: u64) -> bool {
    let read_word = |offset: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).ok().map(|()| u64::from_le_bytes(bytes))
    };
    // In perf's pipe mode the header is shorter.
    let Some(_) = read_word(8).filter(|&header| header >= DATA_START_OFFSET) else { return true };
    let (Some(start), Some(size)) = (read_word(DATA_START_OFFSET), read_word(DATA_SIZE_OFFSET)) else { return true };
    // perf writes the size at the end of the recording.
    let end = if size == 0 { length } else { start.saturating_add(size).min(length) };
    let mut position = start;
    for _ in 0..MAX_RECORDS_BEFORE_SAMPLE {
        if position >= end {
            return false;
        }
        let Some(header) = read_word(position) else { return true };
        let (kind, size) = (header as u32, header >> 48);
        let kinds_with_samples =
            [PERF_RECORD_SAMPLE, PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2, PERF_RECORD_AUXTRACE];
        if kinds_with_samples.contains(&kind) || size < 8 {
            return true;
        }
        position += size;
    }
    true
}

/// Creates the file with `bytes` as its contents, and locks it. An existing recording is renamed. On error, nothing is
/// changed.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if the claim no longer holds, because the existing file was renamed or removed.
pub(crate) fn create(path: &Path, bytes: &[u8], claim: &Claim, owner: Owner) -> io::Result<File> {
    let mut file = Replacement::at_exact_path(path)?.map_file(move_file_to_high_descriptor);
    file.file().write_all_at(bytes, 0)?;
    owner.lock(file.file());
    let Some(lock) = &claim.lock else { return file.into_new_file() };
    if !is_at(lock, path) {
        return Err(ErrorKind::AlreadyExists.into());
    }
    if claim.has_recording() {
        set_aside(path, lock, owner.run)?;
        return file.into_new_file();
    }
    file.into_file()
}

/// Renames the recording of another process of the same command to FILE.PID, and any other recording to FILE.old. It is
/// read through the descriptor that has locked it: closing another one would release the lock.
fn set_aside(path: &Path, recording: &File, run: Option<Run>) -> io::Result<()> {
    let Some(sibling) = Origin::of(recording).filter(|origin| run.is_some() && origin.run == run) else {
        check_old(path)?;
        return move_to_old(path);
    };
    let is_free = |name: &PathBuf| !name.exists() && !images(name).exists();
    let name = names(path, sibling.pid).skip(1).find(is_free).ok_or(ErrorKind::ResourceBusy)?;
    rename_with_images(path, &name)
}

/// Renames a recording to FILE.old, together with its images.
///
/// # Errors
/// If an existing file or directory must not be replaced, or another recorder writes to it. In that case, nothing is
/// changed.
pub fn rename_existing(path: &Path) -> io::Result<()> {
    let claim = claim(path)?;
    if claim.has_recording() { move_to_old(path) } else { Ok(()) }
}

fn move_to_old(path: &Path) -> io::Result<()> {
    let old = old(path);
    remove_directory(&images(&old))?;
    rename_with_images(path, &old)
}

fn rename_with_images(path: &Path, name: &Path) -> io::Result<()> {
    let (images_path, new_images_path) = (images(path), images(name));
    let has_images = match fs::rename(&images_path, &new_images_path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error_about(&images_path, &error)),
        result => result.is_ok(),
    };
    fs::rename(path, name).inspect_err(|_| {
        if has_images {
            let _ = fs::rename(&new_images_path, &images_path);
        }
    })
}

/// Opens an image directory, checks that it may be removed, and lists its entries. `None` if it does not exist.
fn open_removable(path: &Path) -> io::Result<Option<(OwnDirectory, Vec<OsString>)>> {
    let directory = match OwnDirectory::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        result => result.map_err(|error| error_about(path, &error))?,
    };
    let names = directory.names()?;
    if names.iter().any(|name| !name.to_str().is_some_and(is_own_file)) {
        return Err(error_about(path, &io::Error::other("it has files that are not of a recording")));
    }
    Ok(Some((directory, names)))
}

fn remove_directory(path: &Path) -> io::Result<()> {
    let Some((directory, names)) = open_removable(path)? else { return Ok(()) };
    names.iter().try_for_each(|name| directory.remove_file(name))?;
    fs::remove_dir(path)
}

/// Prefixes an error message with the name of the file or directory next to the recording that it is about.
fn error_about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.file_name().unwrap_or_default().display()))
}

/// The image directory next to a recording. Images are kept there, because a process's own image directory is removed
/// some time after the process exits.
#[derive(Debug)]
pub(crate) struct PinnedImages {
    directory: PathBuf,
    /// Images to keep once the recording's file has been created; `None` afterwards.
    deferred: Option<Vec<PathBuf>>,
}

impl PinnedImages {
    pub(crate) fn for_recording(recording: &Path) -> PinnedImages {
        PinnedImages { directory: images(recording), deferred: Some(Vec::new()) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Links or copies the image into the directory, or defers that. Returns the new path; `None` if neither is
    /// possible.
    pub(crate) fn pin(&mut self, image: &Path) -> Option<PathBuf> {
        let pinned = self.directory.join(pinned_name(image)?);
        match &mut self.deferred {
            Some(waiting) => {
                waiting.push(image.to_owned());
                Some(pinned)
            }
            None => keep_image(&self.directory, image).then_some(pinned),
        }
    }

    /// Keeps the deferred images. Called when the recording's file exists, and an earlier recording has been renamed.
    pub(crate) fn pin_deferred(&mut self) {
        for image in self.deferred.take().into_iter().flatten() {
            keep_image(&self.directory, &image);
        }
    }
}

fn pinned_name(image: &Path) -> Option<String> {
    let parent = image.parent()?.file_name()?.to_str()?;
    Some(format!("{parent}-{}", image.file_name()?.to_str()?))
}

fn keep_image(directory: &Path, image: &Path) -> bool {
    let Some(name) = pinned_name(image) else { return false };
    let result = OwnDirectory::create(directory).and_then(|directory| {
        if directory.contains(&name) || directory.link(image, &name).is_ok() {
            return Ok(());
        }
        let (Some(parent), Some(file)) = (image.parent(), image.file_name()) else {
            return Err(ErrorKind::NotFound.into());
        };
        directory.copy(OwnDirectory::open(parent)?.open_file(file)?, &name).map(drop)
    });
    result
        .inspect_err(|error| log_line!(Warn, "cannot keep {} in {}: {error}", image.display(), directory.display()))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use wire::perf_data::RUN_TID;

    use super::*;
    use crate::recording::options::Options;
    use crate::writer::held_file::Role;
    use crate::writer::output::Output;
    use crate::writer::perf_data::{self, Attribute, Batch, DATA_OFFSET, Features, SampleId};

    /// A temporary directory, removed on drop, and the path of a recording in it.
    struct Fixture {
        directory: PathBuf,
        file: PathBuf,
    }

    impl Fixture {
        fn new(test: &str) -> Fixture {
            let directory = std::env::temp_dir().join(format!("jitlisten-place-{test}-{}", std::process::id()));
            fs::create_dir(&directory).unwrap();
            Fixture { file: directory.join("prof.data"), directory }
        }

        fn open(&self) -> io::Result<Output> {
            self.open_for(1)
        }

        fn open_for(&self, pid: u32) -> io::Result<Output> {
            self.open_in_run(pid, None)
        }

        fn open_in_run(&self, pid: u32, run: Option<Run>) -> io::Result<Output> {
            let owner = Owner { pid, role: Role::Program, run };
            Output::open(&self.file, owner, None, Attribute::new(&Options::new(&self.file), None))
        }

        /// Writes a complete recording by the process `pid`, with an image if it has a sample.
        fn record(&self, pid: u32, has_sample: bool) {
            self.record_in_run(pid, None, has_sample);
        }

        fn record_in_run(&self, pid: u32, run: Option<Run>, has_sample: bool) {
            let mut output = self.open_in_run(1, run).unwrap();
            let id = SampleId { pid, tid: pid, time: 1 };
            let mut batch = Batch::default();
            batch.comm(id, b"program", false);
            if let Some(run) = run {
                batch.process_fact(id, RUN_TID, &run.to_string());
            }
            if has_sample {
                batch.sample(id, 1, &[0x1000]);
            }
            if has_sample || !output.is_deferred() {
                output.append(&batch).unwrap();
                let images = OwnDirectory::create(&images(&self.file)).unwrap();
                images.write(format!("python-{pid}-1f-0.so"), b"x").unwrap();
            }
            output.finish(&Features::default()).unwrap();
        }

        /// Returns the PID of the recorded process, and the names of its images.
        fn describe(&self, file: &Path) -> (Option<u32>, Vec<OsString>) {
            let images = OwnDirectory::open(&images(file)).and_then(|directory| directory.names());
            (Origin::read(file).map(|origin| origin.pid), images.unwrap_or_default())
        }

        fn refusal(&self) -> String {
            self.open().unwrap_err().to_string()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    /// The expected result of `Fixture::describe` for a recording by `pid`.
    fn recording_by(pid: u32) -> (Option<u32>, Vec<OsString>) {
        (Some(pid), vec![OsString::from(format!("python-{pid}-1f-0.so"))])
    }

    #[test]
    fn a_recording_is_renamed_with_its_images() {
        let fixture = Fixture::new("old");
        fixture.record(1, true);
        fixture.record(2, true);
        assert_eq!(
            (fixture.describe(&fixture.file), fixture.describe(&old(&fixture.file))),
            (recording_by(2), recording_by(1))
        );
        fixture.record(3, true);
        assert_eq!(
            (fixture.describe(&fixture.file), fixture.describe(&old(&fixture.file))),
            (recording_by(3), recording_by(2))
        );
        let names = fs::read_dir(&fixture.directory).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(names.count(), 4, "nothing else is left");
    }

    #[test]
    fn programs_of_one_command_keep_their_recordings() {
        let fixture = Fixture::new("siblings");
        let [first, second] = ["run=10-5-1", "run=10-6-1"].map(Run::parse);
        fixture.record(1, true);
        for pid in 2..5 {
            fixture.record_in_run(pid, first, true);
        }
        let described = |suffix: &str| {
            let mut name = fixture.file.as_os_str().to_owned();
            name.push(suffix);
            fixture.describe(Path::new(&name))
        };
        let all = ["", ".old", ".2", ".3"];
        assert_eq!(all.map(&described), [4, 1, 2, 3].map(recording_by));
        assert_eq!(Origin::read(&fixture.file), Some(Origin { pid: 4, run: first }));
        fixture.record_in_run(2, second, true);
        fixture.record_in_run(6, second, true);
        assert_eq!(all.map(&described), [6, 4, 2, 3].map(recording_by), "the name with this PID is taken");
        assert_eq!(described(".2.2"), recording_by(2));
    }

    #[test]
    fn a_recording_without_a_sample_changes_nothing() {
        let fixture = Fixture::new("nothing");
        fixture.record(1, false);
        assert!(fixture.file.exists(), "nothing was there");
        fixture.record(2, true);
        assert!(!old(&fixture.file).exists(), "one without a sample is not kept");
        fs::remove_file(images(&fixture.file).join("python-1-1f-0.so")).unwrap();
        fixture.record(3, true);
        fixture.record(4, false);
        assert_eq!(
            (fixture.describe(&fixture.file), fixture.describe(&old(&fixture.file))),
            (recording_by(3), recording_by(2))
        );
    }

    #[test]
    fn files_are_private_to_this_user() {
        let fixture = Fixture::new("modes");
        fixture.record(1, true);
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let image = images(&fixture.file).join("python-1-1f-0.so");
        assert_eq!([mode(&fixture.file), mode(&images(&fixture.file)), mode(&image)], [0o600, 0o700, 0o600]);
    }

    #[test]
    fn paths_under_another_users_control_are_refused() {
        let fixture = Fixture::new("refused");
        let directory = images(&fixture.file);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(fixture.refusal(), "prof.data.images: other users may write to it");
        assert!(check_output(&fixture.file).is_err());
        fs::remove_dir(&directory).unwrap();
        symlink("/tmp", &directory).unwrap();
        assert_eq!(fixture.refusal(), "prof.data.images: not a directory");
        fs::remove_file(&directory).unwrap();
        symlink(fixture.directory.join("elsewhere"), &fixture.file).unwrap();
        assert_eq!(fixture.refusal(), "it is a dangling link");
        assert!(!fixture.directory.join("elsewhere").exists());
    }

    #[test]
    fn other_files_are_never_replaced() {
        let fixture = Fixture::new("others");
        fixture.record(1, true);
        fs::write(old(&fixture.file), "precious").unwrap();
        assert_eq!(fixture.refusal(), "prof.data.old: it exists and is not a recording");
        fs::remove_file(old(&fixture.file)).unwrap();
        fs::create_dir(images(&old(&fixture.file))).unwrap();
        let notes = images(&old(&fixture.file)).join("notes.txt");
        fs::write(&notes, "precious").unwrap();
        assert_eq!(fixture.refusal(), "prof.data.old.images: it has files that are not of a recording");
        // The file may also appear after the check.
        fs::rename(&notes, fixture.directory.join("notes.txt")).unwrap();
        let mut output = fixture.open().unwrap();
        fs::rename(fixture.directory.join("notes.txt"), &notes).unwrap();
        let mut batch = Batch::default();
        batch.sample(SampleId { pid: 1, tid: 1, time: 1 }, 1, &[]);
        let error = output.append(&batch).unwrap_err().to_string();
        assert_eq!(error, "prof.data.old.images: it has files that are not of a recording");
        drop(output);
        assert_eq!(
            (fixture.describe(&fixture.file), fs::read(notes).unwrap()),
            (recording_by(1), b"precious".to_vec())
        );
        assert_eq!(fs::read_dir(&fixture.directory).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn perf_recordings_count_as_recordings_with_samples() {
        let fixture = Fixture::new("perf");
        let mut header = perf_data::header(&Attribute::new(&Options::new("x"), None), 0, &[]);
        header.resize(DATA_OFFSET as usize, 0);
        for (records, expected) in [
            (&[][..], ExistingFile::Replaceable),
            // perf writes the size of the data at the end of the recording.
            (&(u64::from(PERF_RECORD_SAMPLE) | 8 << 48).to_le_bytes(), ExistingFile::Recording),
            (&(u64::from(PERF_RECORD_COMPRESSED2) | 8 << 48).to_le_bytes(), ExistingFile::Recording),
            (&(3_u64 | 8 << 48).to_le_bytes(), ExistingFile::Replaceable),
            (&[0; 8], ExistingFile::Recording),
        ] {
            fs::write(&fixture.file, [&header, records].concat()).unwrap();
            assert_eq!(inspect(&fixture.file).unwrap(), expected, "{records:x?}");
        }
        fs::write(&fixture.file, [&MAGIC[..], &16_u64.to_le_bytes(), &[0; 100]].concat()).unwrap();
        assert_eq!(inspect(&fixture.file).unwrap(), ExistingFile::Recording, "of a pipe");
    }

    #[test]
    fn images_are_kept_once_the_recording_exists() {
        let fixture = Fixture::new("pins");
        let process = fixture.directory.join("image-4711-9");
        let image = OwnDirectory::create_new(&process).unwrap();
        image.write("object-0.so", b"x").unwrap();
        let mut pins = PinnedImages::for_recording(&fixture.file);
        let pinned = pins.pin(&process.join("object-0.so")).unwrap();
        assert!(!pinned.exists() && !pins.directory().exists());
        pins.pin_deferred();
        assert_eq!(fs::metadata(&pinned).unwrap().nlink(), 2);
        assert_eq!(pins.pin(&process.join("object-0.so")), Some(pinned));
        assert_eq!(pins.pin(&process.join("object-1.so")), None, "it is gone");
    }
}
