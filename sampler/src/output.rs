//! The file of a recording: valid at every moment, whatever happens to the process.
//!
//! Records are appended, and then the size in the header is changed. The descriptor has a high number, away from those
//! that programs print or compare. If the program has closed it, or it has become another file, the file is opened
//! again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::perf_data::{self, Attribute, Batch, DATA_OFFSET, DATA_SIZE_AT, Features};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
    identity: (u64, u64),
    attribute: Attribute,
    /// Bytes of records that the file has.
    data: u64,
    /// It is not made yet; whether it is gone on with then.
    later: Option<bool>,
}

impl Output {
    /// Makes the file, or goes on with it.
    pub(crate) fn open(path: &Path, append: bool, attribute: Attribute) -> io::Result<Output> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_CLOEXEC);
        let mut header = [0; DATA_OFFSET as usize];
        let mut data = 0;
        match fs::metadata(path) {
            Ok(about) if !about.is_file() => return Err(io::Error::other("not a regular file")),
            Ok(about) => {
                let begun = append && File::open(path)?.read_exact_at(&mut header, 0).is_ok();
                let begun = if begun { perf_data::data_size(&header) } else { None };
                if about.len() > 0 && !is_recording(path)? {
                    return Err(io::Error::other("the file exists and is not a recording"));
                }
                match begun.filter(|begun| DATA_OFFSET + begun <= about.len()) {
                    Some(begun) => data = begun,
                    // Anew, and not the same file: another process may be writing to it still.
                    None => fs::remove_file(path)?,
                }
            }
            Err(_) => {}
        }
        let file = out_of_the_way(options.open(path)?);
        file.set_len(DATA_OFFSET + data)?;
        let about = file.metadata()?;
        let identity = (about.dev(), about.ino());
        let output = Output { path: path.to_owned(), file: Some(file), identity, attribute, data, later: None };
        output.file()?.write_all_at(&perf_data::header(&output.attribute, data, &[]), 0)?;
        Ok(output)
    }

    /// Does that with the first records.
    pub(crate) fn later(path: &Path, append: bool, attribute: Attribute) -> Output {
        Output { path: path.to_owned(), file: None, identity: (0, 0), attribute, data: 0, later: Some(append) }
    }

    /// Whether the file is not made yet.
    pub(crate) fn is_later(&self) -> bool {
        self.later.is_some()
    }

    /// How large the file is.
    pub(crate) fn size(&self) -> u64 {
        DATA_OFFSET + self.data
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn attribute(&self) -> &Attribute {
        &self.attribute
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// The file, if the descriptor still means it.
    fn checked(&mut self) -> io::Result<&File> {
        let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
        if self.file.as_ref().and_then(identity) != Some(self.identity) {
            // Not ours to close.
            std::mem::forget(self.file.take());
            let file = out_of_the_way(OpenOptions::new().read(true).write(true).open(&self.path)?);
            if identity(&file) != Some(self.identity) {
                return Err(io::Error::other("another file has taken its place"));
            }
            self.file = Some(file);
        }
        self.file()
    }

    /// Appends records, and lets readers see them.
    pub(crate) fn append(&mut self, batch: &Batch) -> io::Result<()> {
        if let Some(append) = self.later.take() {
            *self = Output::open(&self.path, append, self.attribute.clone())?;
        }
        let (bytes, end) = (batch.as_bytes(), self.size());
        let data = self.data + bytes.len() as u64;
        let file = self.checked()?;
        file.write_all_at(bytes, end)?;
        file.write_all_at(&data.to_le_bytes(), DATA_SIZE_AT)?;
        self.data = data;
        Ok(())
    }

    /// Appends the features, and closes the file.
    pub(crate) fn finish(mut self, features: &Features) -> io::Result<()> {
        if self.is_later() {
            return Ok(());
        }
        let end = self.size();
        let (bytes, numbers) = perf_data::features(features, &self.attribute, end);
        let header = perf_data::header(&self.attribute, self.data, &numbers);
        let file = self.checked()?;
        file.write_all_at(&bytes, end)?;
        file.write_all_at(&header, 0)
    }
}

impl Output {
    /// Removes the file, if it is still ours and this user may.
    pub(crate) fn discard(self) {
        let identity = fs::symlink_metadata(&self.path).map(|about| (about.dev(), about.ino()));
        if !self.is_later() && identity.is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the file begins as a recording does, ours or perf's. Only those are made anew.
fn is_recording(path: &Path) -> io::Result<bool> {
    let mut magic = [0; perf_data::MAGIC.len()];
    let read = File::open(path)?.read_exact_at(&mut magic, 0);
    Ok(read.is_ok() && magic == *perf_data::MAGIC)
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.is_some() && self.checked().is_err() {
            std::mem::forget(self.file.take());
        }
    }
}

/// Numbers of descriptors that we choose are below this.
pub(crate) const MOST_DESCRIPTORS: usize = 1 << 16;

/// The same file with a number that programs hardly reach. For a higher one the kernel would have a larger table, which
/// each fork copies.
fn out_of_the_way(file: File) -> File {
    // SAFETY: the number is the file's alone.
    unsafe { File::from_raw_fd(moved_out_of_the_way(file.into_raw_fd(), 1024)) }
}

/// The same for a descriptor, whose old number is free then; it stays what it is if there is no other. Above three
/// quarters of the limit, or of `most` if that is less.
pub(crate) fn moved_out_of_the_way(descriptor: libc::c_int, most: usize) -> libc::c_int {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: writable memory for it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let lowest = (limit.rlim_cur.min(most as u64) / 4 * 3) as libc::c_int;
    // SAFETY: a descriptor that is open.
    let number = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest) };
    if number < 0 {
        return descriptor;
    }
    // SAFETY: the caller's, who uses the new one from now on.
    unsafe { libc::close(descriptor) };
    number
}

/// Keeps images of a recording beside it: the directory of a process's images is removed some time after its end.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
}

impl Pins {
    pub(crate) fn beside(recording: &Path) -> Pins {
        let mut directory = recording.as_os_str().to_owned();
        directory.push(".images");
        Pins { directory: directory.into() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory, if it is there or can be made.
    pub(crate) fn made(&self) -> Option<&Path> {
        match fs::create_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
            _ => Some(&self.directory),
        }
    }

    /// Another name for the file, or a copy of it; `None` where neither can be made.
    pub(crate) fn pin(&self, image: &Path) -> Option<PathBuf> {
        let parent = image.parent()?.file_name()?.to_str()?;
        let name = format!("{parent}-{}", image.file_name()?.to_str()?);
        let pinned = self.directory.join(name);
        if fs::symlink_metadata(&pinned).is_ok() {
            return Some(pinned);
        }
        self.made()?;
        if fs::hard_link(image, &pinned).is_err() && fs::copy(image, &pinned).is_err() {
            let _ = fs::remove_file(&pinned);
            return None;
        }
        Some(pinned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::perf_data::Moment;

    /// As by the child of a fork, and by what that executes.
    #[test]
    fn a_file_that_is_made_later() {
        let path = std::env::temp_dir().join(format!("jitlisten-later-{}", std::process::id()));
        let later = |append| Output::later(&path, append, Attribute::new(&Options::new(&path), None));
        later(false).finish(&Features::default()).unwrap();
        assert!(!path.exists(), "without records there is none");
        let mut batch = Batch::default();
        batch.comm(Moment { pid: 1, tid: 1, time: 1 }, b"program", false);
        let mut size = DATA_OFFSET;
        for append in [false, true] {
            let mut output = later(append);
            output.append(&batch).unwrap();
            size += batch.as_bytes().len() as u64;
            assert_eq!(fs::metadata(&path).unwrap().len(), size);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_recording_is_not_written_over() {
        let path = std::env::temp_dir().join(format!("jitlisten-output-{}", std::process::id()));
        let attribute = || Attribute::new(&Options::new(&path), None);
        for text in ["precious", "import numba\n", "PERFILE"] {
            fs::write(&path, text).unwrap();
            assert!(Output::open(&path, false, attribute()).is_err(), "{text}");
            assert!(Output::open(&path, true, attribute()).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        for text in ["", "PERFILE2 of another program"] {
            fs::write(&path, text).unwrap();
            drop(Output::open(&path, false, attribute()).expect("made anew"));
            assert!(fs::read(&path).unwrap().starts_with(perf_data::MAGIC));
        }
        fs::remove_file(path).unwrap();
    }
}
