//! The place of a recording: which files may be there already, and what becomes of them.
//!
//! ```text
//!   FILE             a recording that was there becomes FILE.old, as with perf; any other file is refused
//!   FILE.images/     becomes FILE.old.images/; refused if it belongs to another user or others may write to it
//! ```
//!
//! A recording without a sample neither displaces another one nor is kept itself.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use jitlisten::log_line;
use jitlisten_files::{OwnDirectory, Replacement};
use perf_format::recording::{images, is_beside, old};
use perf_format::{PERF_RECORD_AUXTRACE, PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2, PERF_RECORD_SAMPLE};

use crate::perf_data::{DATA_SIZE_AT, MAGIC};

/// Offset in the header of the data's offset.
const DATA_OFFSET_AT: u64 = DATA_SIZE_AT - 8;

/// A recording without a sample has fewer records.
const MAX_RECORDS_BEFORE_SAMPLE: usize = 100_000;

/// File that already has the name of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Present {
    /// No file, an empty file, or a recording without a sample.
    Nothing,
    /// A recording to keep.
    Recording,
}

/// Returns whether this user may make a recording at `path`.
///
/// # Errors
/// The reason why not.
pub fn check_place(path: &Path) -> io::Result<()> {
    look(path).map(drop)
}

pub(crate) fn look(path: &Path) -> io::Result<Present> {
    let present = present(path)?;
    check_directory(&images(path))?;
    if present == Present::Recording {
        let old = old(path);
        self::present(&old).map_err(|error| about(&old, &error))?;
        removable(&images(&old))?;
    }
    Ok(present)
}

fn check_directory(path: &Path) -> io::Result<()> {
    match OwnDirectory::open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(about(path, &error)),
        _ => Ok(()),
    }
}

fn present(path: &Path) -> io::Result<Present> {
    let refuse = |reason| Err(io::Error::other(reason));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Present::Nothing),
        Err(error) => return Err(error),
        Ok(link) if link.is_symlink() && !path.exists() => return refuse("it is a dangling link"),
        Ok(_) => {}
    }
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return refuse("it is not a regular file");
    }
    if found.len() == 0 {
        return Ok(Present::Nothing);
    }
    let file = File::open(path)?;
    let mut magic = [0; MAGIC.len()];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
        return refuse("it exists and is not a recording");
    }
    Ok(if may_have_sample(&file, found.len()) { Present::Recording } else { Present::Nothing })
}

/// Returns whether a recording, ours or perf's, has a sample, as far as can be told.
fn may_have_sample(file: &File, length: u64) -> bool {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok().map(|()| u64::from_le_bytes(bytes))
    };
    // Of a pipe it has a shorter header.
    let Some(_) = word(8).filter(|&header| header >= DATA_OFFSET_AT) else { return true };
    let (Some(start), Some(size)) = (word(DATA_OFFSET_AT), word(DATA_SIZE_AT)) else { return true };
    // perf writes the size at the end.
    let end = if size == 0 { length } else { start.saturating_add(size).min(length) };
    let mut at = start;
    for _ in 0..MAX_RECORDS_BEFORE_SAMPLE {
        if at >= end {
            return false;
        }
        let Some(header) = word(at) else { return true };
        let (kind, size) = (header as u32, header >> 48);
        let holds_samples = [PERF_RECORD_SAMPLE, PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2, PERF_RECORD_AUXTRACE];
        if holds_samples.contains(&kind) || size < 8 {
            return true;
        }
        at += size;
    }
    true
}

/// Makes the file with these bytes. A recording that is there becomes FILE.old; when anything fails, nothing has
/// changed.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = Replacement::private(path)?;
    file.file().write_all_at(bytes, 0)?;
    set_aside(path)?;
    file.into_file()
}

/// Renames a recording to FILE.old, with its images.
///
/// # Errors
/// When a file is in the way; then nothing has changed.
pub fn set_aside(path: &Path) -> io::Result<()> {
    if look(path)? == Present::Nothing {
        return Ok(());
    }
    let old = old(path);
    let (beside, beside_old) = (images(path), images(&old));
    remove_directory(&beside_old)?;
    let has_images = match fs::rename(&beside, &beside_old) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(about(&beside, &error)),
        renamed => renamed.is_ok(),
    };
    fs::rename(path, &old).inspect_err(|_| {
        if has_images {
            let _ = fs::rename(&beside_old, &beside);
        }
    })
}

/// A directory of images and the names in it, if there is one.
fn removable(path: &Path) -> io::Result<Option<(OwnDirectory, Vec<OsString>)>> {
    let directory = match OwnDirectory::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| about(path, &error))?,
    };
    let names = directory.names()?;
    if names.iter().any(|name| !name.to_str().is_some_and(is_beside)) {
        return Err(about(path, &io::Error::other("it has files that are not of a recording")));
    }
    Ok(Some((directory, names)))
}

fn remove_directory(path: &Path) -> io::Result<()> {
    let Some((directory, names)) = removable(path)? else { return Ok(()) };
    names.iter().try_for_each(|name| directory.remove_file(name))?;
    fs::remove_dir(path)
}

/// An error about a file beside the recording.
fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.file_name().unwrap_or_default().display()))
}

/// The directory beside a recording. It keeps images, because the directory of a process's images is removed some time
/// after the process ends.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    /// Images to keep once the recording has its place; `None` since then.
    waiting: Option<Vec<PathBuf>>,
}

impl Pins {
    pub(crate) fn beside(recording: &Path) -> Pins {
        Pins { directory: images(recording), waiting: Some(Vec::new()) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Gives the image another name there, or copies it. Returns its path; `None` where neither is possible.
    pub(crate) fn pin(&mut self, image: &Path) -> Option<PathBuf> {
        let pinned = self.directory.join(pinned_name(image)?);
        match &mut self.waiting {
            Some(waiting) => {
                waiting.push(image.to_owned());
                Some(pinned)
            }
            None => keep(&self.directory, image).then_some(pinned),
        }
    }

    /// The recording has its place: no earlier one has these names.
    pub(crate) fn has_place(&mut self) {
        for image in self.waiting.take().into_iter().flatten() {
            keep(&self.directory, &image);
        }
    }
}

fn pinned_name(image: &Path) -> Option<String> {
    let parent = image.parent()?.file_name()?.to_str()?;
    Some(format!("{parent}-{}", image.file_name()?.to_str()?))
}

fn keep(directory: &Path, image: &Path) -> bool {
    let Some(name) = pinned_name(image) else { return false };
    let kept = OwnDirectory::create(directory).and_then(|directory| {
        if directory.contains(&name) || directory.link(image, &name).is_ok() {
            return Ok(());
        }
        let (Some(parent), Some(file)) = (image.parent(), image.file_name()) else {
            return Err(ErrorKind::NotFound.into());
        };
        directory.copy(OwnDirectory::open(parent)?.open_file(file)?, &name).map(drop)
    });
    kept.inspect_err(|error| log_line!(Warn, "cannot keep {} in {}: {error}", image.display(), directory.display()))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;
    use crate::options::Options;
    use crate::output::Output;
    use crate::perf_data::{self, Attribute, Batch, DATA_OFFSET, Features, Moment};

    /// A directory removed at the end, with the name of a recording in it.
    struct Scene {
        directory: PathBuf,
        file: PathBuf,
    }

    impl Scene {
        fn new(test: &str) -> Scene {
            let directory = std::env::temp_dir().join(format!("jitlisten-place-{test}-{}", std::process::id()));
            fs::create_dir(&directory).unwrap();
            Scene { file: directory.join("prof.data"), directory }
        }

        fn open(&self) -> io::Result<Output> {
            Output::open(&self.file, false, Attribute::new(&Options::new(&self.file), None))
        }

        /// A whole recording by the process `pid`, with an image if it has a sample.
        fn record(&self, pid: u32, has_sample: bool) {
            let mut output = self.open().unwrap();
            let at = Moment { pid, tid: pid, time: 1 };
            let mut batch = Batch::default();
            batch.comm(at, b"program", false);
            if has_sample {
                batch.sample(at, 1, &[0x1000]);
            }
            if has_sample || !output.is_later() {
                output.append(&batch).unwrap();
                let images = OwnDirectory::create(&images(&self.file)).unwrap();
                images.write(format!("python-{pid}-1f-0.so"), b"x").unwrap();
            }
            output.finish(&Features::default()).unwrap();
        }

        /// The process of a recording and its images.
        fn has(&self, file: &Path) -> (Option<u32>, Vec<OsString>) {
            let images = OwnDirectory::open(&images(file)).and_then(|directory| directory.names());
            (crate::output::first_process(file), images.unwrap_or_default())
        }

        fn refusal(&self) -> String {
            self.open().unwrap_err().to_string()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    fn of(pid: u32) -> (Option<u32>, Vec<OsString>) {
        (Some(pid), vec![OsString::from(format!("python-{pid}-1f-0.so"))])
    }

    #[test]
    fn a_recording_gets_another_name_with_its_images() {
        let scene = Scene::new("old");
        scene.record(1, true);
        scene.record(2, true);
        assert_eq!((scene.has(&scene.file), scene.has(&old(&scene.file))), (of(2), of(1)));
        scene.record(3, true);
        assert_eq!((scene.has(&scene.file), scene.has(&old(&scene.file))), (of(3), of(2)));
        let names = fs::read_dir(&scene.directory).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(names.count(), 4, "nothing else is left");
    }

    #[test]
    fn a_recording_without_a_sample_changes_nothing() {
        let scene = Scene::new("nothing");
        scene.record(1, false);
        assert!(scene.file.exists(), "nothing was there");
        scene.record(2, true);
        assert!(!old(&scene.file).exists(), "one without a sample is not kept");
        fs::remove_file(images(&scene.file).join("python-1-1f-0.so")).unwrap();
        scene.record(3, true);
        scene.record(4, false);
        assert_eq!((scene.has(&scene.file), scene.has(&old(&scene.file))), (of(3), of(2)));
    }

    #[test]
    fn modes_are_of_this_user_alone() {
        let scene = Scene::new("modes");
        scene.record(1, true);
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let image = images(&scene.file).join("python-1-1f-0.so");
        assert_eq!([mode(&scene.file), mode(&images(&scene.file)), mode(&image)], [0o600, 0o700, 0o600]);
    }

    #[test]
    fn what_another_user_controls_is_refused() {
        let scene = Scene::new("refused");
        let directory = images(&scene.file);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(scene.refusal(), "prof.data.images: other users may write to it");
        assert!(check_place(&scene.file).is_err());
        fs::remove_dir(&directory).unwrap();
        symlink("/tmp", &directory).unwrap();
        assert_eq!(scene.refusal(), "prof.data.images: not a directory");
        fs::remove_file(&directory).unwrap();
        symlink(scene.directory.join("elsewhere"), &scene.file).unwrap();
        assert_eq!(scene.refusal(), "it is a dangling link");
        assert!(!scene.directory.join("elsewhere").exists());
    }

    #[test]
    fn the_old_name_is_not_taken_from_other_files() {
        let scene = Scene::new("others");
        scene.record(1, true);
        fs::write(old(&scene.file), "precious").unwrap();
        assert_eq!(scene.refusal(), "prof.data.old: it exists and is not a recording");
        fs::remove_file(old(&scene.file)).unwrap();
        fs::create_dir(images(&old(&scene.file))).unwrap();
        let notes = images(&old(&scene.file)).join("notes.txt");
        fs::write(&notes, "precious").unwrap();
        assert_eq!(scene.refusal(), "prof.data.old.images: it has files that are not of a recording");
        // A file may come there later.
        fs::rename(&notes, scene.directory.join("notes.txt")).unwrap();
        let mut output = scene.open().unwrap();
        fs::rename(scene.directory.join("notes.txt"), &notes).unwrap();
        let mut batch = Batch::default();
        batch.sample(Moment { pid: 1, tid: 1, time: 1 }, 1, &[]);
        let error = output.append(&batch).unwrap_err().to_string();
        assert_eq!(error, "prof.data.old.images: it has files that are not of a recording");
        drop(output);
        assert_eq!((scene.has(&scene.file), fs::read(notes).unwrap()), (of(1), b"precious".to_vec()));
        assert_eq!(fs::read_dir(&scene.directory).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn perf_recordings_count_as_recordings_with_samples() {
        let scene = Scene::new("perf");
        let mut header = perf_data::header(&Attribute::new(&Options::new("x"), None), 0, &[]);
        header.resize(DATA_OFFSET as usize, 0);
        for (records, expected) in [
            (&[][..], Present::Nothing),
            // perf writes the size of the data at the end.
            (&(u64::from(PERF_RECORD_SAMPLE) | 8 << 48).to_le_bytes(), Present::Recording),
            (&(u64::from(PERF_RECORD_COMPRESSED2) | 8 << 48).to_le_bytes(), Present::Recording),
            (&(3_u64 | 8 << 48).to_le_bytes(), Present::Nothing),
            (&[0; 8], Present::Recording),
        ] {
            fs::write(&scene.file, [&header, records].concat()).unwrap();
            assert_eq!(look(&scene.file).unwrap(), expected, "{records:x?}");
        }
        fs::write(&scene.file, [&MAGIC[..], &16_u64.to_le_bytes(), &[0; 100]].concat()).unwrap();
        assert_eq!(look(&scene.file).unwrap(), Present::Recording, "of a pipe");
    }

    #[test]
    fn images_are_kept_once_the_recording_has_its_place() {
        let scene = Scene::new("pins");
        let process = scene.directory.join("image-4711-9");
        let image = OwnDirectory::create_new(&process).unwrap();
        image.write("object-0.so", b"x").unwrap();
        let mut pins = Pins::beside(&scene.file);
        let pinned = pins.pin(&process.join("object-0.so")).unwrap();
        assert!(!pinned.exists() && !pins.directory().exists());
        pins.has_place();
        assert_eq!(fs::metadata(&pinned).unwrap().nlink(), 2);
        assert_eq!(pins.pin(&process.join("object-0.so")), Some(pinned));
        assert_eq!(pins.pin(&process.join("object-1.so")), None, "it is gone");
    }
}
