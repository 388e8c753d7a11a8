//! The file of a recording: valid at every moment, whatever happens to the process.
//!
//! Records are appended, and then the size in the header is changed. The descriptor has a high number, away from those
//! that programs print or compare. If the program has closed it, or it has become another file, the file is opened
//! again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use perf_format::PERF_RECORD_COMM;

use crate::perf_data::{self, Attribute, Batch, DATA_OFFSET, DATA_SIZE_AT, Features};
use crate::place::{self, Present};

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
    /// Makes the file, or continues it if `append`. While another recording is there, the file is made with the first
    /// sample: see `place.rs`.
    pub(crate) fn open(path: &Path, append: bool, attribute: Attribute) -> io::Result<Output> {
        let present = place::look(path)?;
        if append
            && present == Present::Recording
            && let Some(output) = Output::continued(path, &attribute)?
        {
            return Ok(output);
        }
        match present {
            Present::Nothing => Output::create(path, attribute, &[]),
            Present::Recording => Ok(Output::later(path, append, attribute)),
        }
    }

    fn continued(path: &Path, attribute: &Attribute) -> io::Result<Option<Output>> {
        let file = jitlisten_files::open_existing(path)?;
        let mut header = [0; DATA_OFFSET as usize];
        let data = file.read_exact_at(&mut header, 0).ok().and_then(|()| perf_data::data_size(&header));
        let Some(data) = data.filter(|data| file.metadata().is_ok_and(|about| DATA_OFFSET + data <= about.len()))
        else {
            return Ok(None);
        };
        // The features of the time before are after the records.
        file.set_len(DATA_OFFSET + data)?;
        let output = Output::of(path, file, attribute.clone(), data)?;
        output.file()?.write_all_at(&perf_data::header(&output.attribute, data, &[]), 0)?;
        Ok(Some(output))
    }

    /// Makes the file with its first records.
    fn create(path: &Path, attribute: Attribute, records: &[u8]) -> io::Result<Output> {
        let mut bytes = perf_data::header(&attribute, records.len() as u64, &[]);
        bytes.resize(DATA_OFFSET as usize, 0);
        bytes.extend_from_slice(records);
        Output::of(path, place::create(path, &bytes)?, attribute, records.len() as u64)
    }

    fn of(path: &Path, file: File, attribute: Attribute, data: u64) -> io::Result<Output> {
        let file = out_of_the_way(file);
        let about = file.metadata()?;
        let identity = (about.dev(), about.ino());
        Ok(Output { path: path.to_owned(), file: Some(file), identity, attribute, data, later: None })
    }

    /// Makes the file with the first records.
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
            let file = out_of_the_way(jitlisten_files::open_existing(&self.path)?);
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
            let continued = if append { Output::continued(&self.path, &self.attribute)? } else { None };
            match continued {
                Some(output) => *self = output,
                None => {
                    *self = Output::create(&self.path, self.attribute.clone(), batch.as_bytes())?;
                    return Ok(());
                }
            }
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

/// The process in the first record of a recording of ours: it names the process.
pub(crate) fn first_process(path: &Path) -> Option<u32> {
    let mut record = [0; 16];
    File::open(path).ok()?.read_exact_at(&mut record, DATA_OFFSET).ok()?;
    let [kind, _, pid, _] = [0, 4, 8, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[at + byte])));
    (kind == PERF_RECORD_COMM).then_some(pid)
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

#[cfg(test)]
mod tests {
    use std::fs;

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
