//! The file of a recording, readable at any time, whatever happens to the process.
//!
//! Records are appended, and then the size in the header is updated. The descriptor has a high number, away from those
//! that programs print or compare. If the program has closed it or reused its number, the file is opened again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use wire::perf_data::PERF_RECORD_COMM;

use crate::writer::existing_file::{self, ExistingFile};
use crate::writer::perf_data::{self, Attribute, Batch, DATA_OFFSET, DATA_SIZE_OFFSET, Features};

/// The open file of a recording, or one that is still to be created.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
    /// Device and inode.
    identity: (u64, u64),
    attribute: Attribute,
    /// Bytes of records in the file.
    data_size: u64,
    /// Set while the file has not been created. True if an existing recording will be continued.
    deferred: Option<bool>,
}

impl Output {
    /// Creates the file, or continues it if `append`. If another recording is there, creation is deferred until the
    /// first sample: see `existing_file.rs`.
    pub(crate) fn open(path: &Path, append: bool, attribute: Attribute) -> io::Result<Output> {
        let existing = existing_file::inspect(path)?;
        if append
            && existing == ExistingFile::Recording
            && let Some(output) = Output::continue_existing(path, &attribute)?
        {
            return Ok(output);
        }
        match existing {
            ExistingFile::Replaceable => Output::create(path, attribute, &[]),
            ExistingFile::Recording => Ok(Output::deferred(path, append, attribute)),
        }
    }

    /// Opens an existing recording to append to it. `Ok(None)` if the file is not a recording of ours.
    fn continue_existing(path: &Path, attribute: &Attribute) -> io::Result<Option<Output>> {
        let file = jitlisten_files::open_existing(path)?;
        let mut header = [0; DATA_OFFSET as usize];
        let data = file.read_exact_at(&mut header, 0).ok().and_then(|()| perf_data::data_size(&header));
        let Some(data) = data.filter(|data| file.metadata().is_ok_and(|metadata| DATA_OFFSET + data <= metadata.len()))
        else {
            return Ok(None);
        };
        // The features of the earlier part follow its records, so truncate the file before them.
        file.set_len(DATA_OFFSET + data)?;
        let output = Output::from_file(path, file, attribute.clone(), data)?;
        output.file()?.write_all_at(&perf_data::header(&output.attribute, data, &[]), 0)?;
        Ok(Some(output))
    }

    /// Creates the file with its first records.
    fn create(path: &Path, attribute: Attribute, records: &[u8]) -> io::Result<Output> {
        let mut bytes = perf_data::header(&attribute, records.len() as u64, &[]);
        bytes.resize(DATA_OFFSET as usize, 0);
        bytes.extend_from_slice(records);
        Output::from_file(path, existing_file::create(path, &bytes)?, attribute, records.len() as u64)
    }

    fn from_file(path: &Path, file: File, attribute: Attribute, data: u64) -> io::Result<Output> {
        let file = move_file_to_high_descriptor(file);
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Output { path: path.to_owned(), file: Some(file), identity, attribute, data_size: data, deferred: None })
    }

    /// Returns an output whose file is created with its first records.
    pub(crate) fn deferred(path: &Path, append: bool, attribute: Attribute) -> Output {
        Output { path: path.to_owned(), file: None, identity: (0, 0), attribute, data_size: 0, deferred: Some(append) }
    }

    /// True if the file has not been created yet.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        DATA_OFFSET + self.data_size
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

    /// Returns the file. Opens it again if the program has closed or replaced the descriptor.
    fn verified_file(&mut self) -> io::Result<&File> {
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if self.file.as_ref().and_then(identity) != Some(self.identity) {
            // The program now owns the descriptor, so do not close it.
            std::mem::forget(self.file.take());
            let file = move_file_to_high_descriptor(jitlisten_files::open_existing(&self.path)?);
            if identity(&file) != Some(self.identity) {
                return Err(io::Error::other("another file has taken its place"));
            }
            self.file = Some(file);
        }
        self.file()
    }

    /// Appends records and makes them visible to readers.
    pub(crate) fn append(&mut self, batch: &Batch) -> io::Result<()> {
        if let Some(append) = self.deferred.take() {
            let continued = if append { Output::continue_existing(&self.path, &self.attribute)? } else { None };
            match continued {
                Some(output) => *self = output,
                None => {
                    *self = Output::create(&self.path, self.attribute.clone(), batch.as_bytes())?;
                    return Ok(());
                }
            }
        }
        let (bytes, end) = (batch.as_bytes(), self.size());
        let data = self.data_size + bytes.len() as u64;
        let file = self.verified_file()?;
        file.write_all_at(bytes, end)?;
        file.write_all_at(&data.to_le_bytes(), DATA_SIZE_OFFSET)?;
        self.data_size = data;
        Ok(())
    }

    /// Appends the features and closes the file.
    pub(crate) fn finish(mut self, features: &Features) -> io::Result<()> {
        if self.is_deferred() {
            return Ok(());
        }
        let end = self.size();
        let (bytes, numbers) = perf_data::features(features, &self.attribute, end);
        let header = perf_data::header(&self.attribute, self.data_size, &numbers);
        let file = self.verified_file()?;
        file.write_all_at(&bytes, end)?;
        file.write_all_at(&header, 0)
    }
}

impl Output {
    /// Removes the file, if it is still ours and this user may do so.
    pub(crate) fn discard(self) {
        let identity = fs::symlink_metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if !self.is_deferred() && identity.is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the PID from the first record of a recording by jitlisten, which is a COMM record.
pub(crate) fn first_process(path: &Path) -> Option<u32> {
    let mut record = [0; 16];
    File::open(path).ok()?.read_exact_at(&mut record, DATA_OFFSET).ok()?;
    let [kind, _, pid, _] =
        [0, 4, 8, 12].map(|offset| u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[offset + byte])));
    (kind == PERF_RECORD_COMM).then_some(pid)
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.is_some() && self.verified_file().is_err() {
            std::mem::forget(self.file.take());
        }
    }
}

/// Maximum descriptor number that we choose.
pub(crate) const MAX_DESCRIPTORS: usize = 1 << 16;

/// Moves a file to a descriptor number that programs rarely reach. A larger number would enlarge the kernel's
/// descriptor table, which each fork copies.
fn move_file_to_high_descriptor(file: File) -> File {
    // SAFETY: only `file` owned this number.
    unsafe { File::from_raw_fd(move_to_high_descriptor(file.into_raw_fd(), 1024)) }
}

/// Moves a descriptor above three quarters of the descriptor limit (or of `max_descriptors`, if that is less), and
/// closes the old number. Returns the old one if none is free.
pub(crate) fn move_to_high_descriptor(descriptor: libc::c_int, max_descriptors: usize) -> libc::c_int {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the call writes to `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let lowest = (limit.rlim_cur.min(max_descriptors as u64) / 4 * 3) as libc::c_int;
    // SAFETY: the descriptor is open.
    let number = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest) };
    if number < 0 {
        return descriptor;
    }
    // SAFETY: the caller no longer uses this descriptor. libc's `close` would be a cancellation point.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
    number
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::recording::options::Options;
    use crate::writer::perf_data::SampleId;

    /// Fork children, and the programs that they execute, create their file late.
    #[test]
    fn a_file_may_be_created_late() {
        let path = std::env::temp_dir().join(format!("jitlisten-later-{}", std::process::id()));
        let deferred = |append| Output::deferred(&path, append, Attribute::new(&Options::new(&path), None));
        deferred(false).finish(&Features::default()).unwrap();
        assert!(!path.exists(), "without records there is none");
        let mut batch = Batch::default();
        batch.comm(SampleId { pid: 1, tid: 1, time: 1 }, b"program", false);
        let mut size = DATA_OFFSET;
        for append in [false, true] {
            let mut output = deferred(append);
            output.append(&batch).unwrap();
            size += batch.as_bytes().len() as u64;
            assert_eq!(fs::metadata(&path).unwrap().len(), size);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_recording_is_not_overwritten() {
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
