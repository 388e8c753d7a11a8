//! The file of a recording, readable at any time, whatever happens to the process.
//!
//! Records are appended, and then the size in the header is updated. If the program has closed the descriptor or reused
//! its number, the file is opened again.
//!
//! The file is locked, so that no other recorder writes to it or renames it (`existing_file.rs`).

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::system::descriptors::move_file_to_high_descriptor;
use crate::writer::existing_file;
use crate::writer::held_file::{HeldFile, Owner, identity};
use crate::writer::origin::Origin;
use crate::writer::perf_data::{self, Attribute, Batch, DATA_OFFSET, DATA_SIZE_OFFSET, Features};

/// File of a recording, open or still to be created.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    owner: Owner,
    file: Option<HeldFile>,
    attribute: Attribute,
    /// Bytes of records in the file.
    data_size: u64,
    deferral: Option<Deferral>,
}

/// State of a file that has not been created.
#[derive(Debug)]
struct Deferral {
    /// True if an existing recording will be continued.
    append: bool,
    /// An existing recording that will be renamed, locked.
    lock: Option<HeldFile>,
}

impl Output {
    /// Continues the file `continued`, or creates one. If another recording is there, creation is deferred until the
    /// first sample: see `existing_file.rs`. If another recorder writes to the file, another name is used.
    pub(crate) fn open(
        path: &Path,
        owner: Owner,
        continued: Option<&Path>,
        attribute: Attribute,
    ) -> io::Result<Output> {
        if let Some(path) = continued {
            return match Output::continue_existing(path, owner, &attribute)? {
                Some(output) => Ok(output),
                None => Output::create(path, owner, attribute, &[]),
            };
        }
        for path in existing_file::names(path, owner.pid) {
            match existing_file::claim(&path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Ok(claim) if claim.has_recording() => {
                    let held = claim.lock.map(HeldFile::new).transpose()?;
                    let deferral = Deferral { append: false, lock: held.filter(|_| !owner.role.hands_over()) };
                    return Ok(Output { deferral: Some(deferral), ..Output::deferred(&path, owner, false, attribute) });
                }
                Ok(_) => return Output::create(&path, owner, attribute, &[]),
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Opens an existing recording to append to it. `Ok(None)` if the file is not a recording of ours.
    fn continue_existing(path: &Path, owner: Owner, attribute: &Attribute) -> io::Result<Option<Output>> {
        let file = move_file_to_high_descriptor(jitlisten_files::open_existing(path)?);
        owner.lock(&file);
        let mut header = [0; DATA_OFFSET as usize];
        let data = file.read_exact_at(&mut header, 0).ok().and_then(|()| perf_data::data_size(&header));
        let Some(data) = data.filter(|data| file.metadata().is_ok_and(|metadata| DATA_OFFSET + data <= metadata.len()))
        else {
            return Ok(None);
        };
        // The features of the earlier part follow its records, so truncate the file before them.
        file.set_len(DATA_OFFSET + data)?;
        let mut output = Output::from_file(path, owner, file, attribute.clone(), data)?;
        let header = perf_data::header(&output.attribute, data, &[]);
        output.verified_file()?.write_all_at(&header, 0)?;
        Ok(Some(output))
    }

    /// Creates the file with its first records, under the first free name.
    fn create(path: &Path, owner: Owner, attribute: Attribute, records: &[u8]) -> io::Result<Output> {
        let mut bytes = perf_data::header(&attribute, records.len() as u64, &[]);
        bytes.resize(DATA_OFFSET as usize, 0);
        bytes.extend_from_slice(records);
        for path in existing_file::names(path, owner.pid) {
            let create = || existing_file::create(&path, &bytes, &existing_file::claim(&path)?, owner);
            // Another recorder may create or rename the file between the two calls.
            let mut attempts = (0..MAX_CREATE_ATTEMPTS).map(|_| create());
            let result = attempts.find(|result| !has_kind(result, io::ErrorKind::AlreadyExists));
            match result {
                Some(result) if has_kind(&result, io::ErrorKind::ResourceBusy) => {}
                Some(result) => return Output::from_file(&path, owner, result?, attribute, records.len() as u64),
                None => {}
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn from_file(path: &Path, owner: Owner, file: File, attribute: Attribute, data: u64) -> io::Result<Output> {
        let file = Some(HeldFile::new(file)?);
        Ok(Output { path: path.to_owned(), owner, file, attribute, data_size: data, deferral: None })
    }

    /// Returns an output whose file is created with its first records.
    pub(crate) fn deferred(path: &Path, owner: Owner, append: bool, attribute: Attribute) -> Output {
        let deferral = Some(Deferral { append, lock: None });
        Output { path: path.to_owned(), owner, file: None, attribute, data_size: 0, deferral }
    }

    /// True if the file has not been created yet.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferral.is_some()
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        DATA_OFFSET + self.data_size
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn attribute(&self) -> &Attribute {
        &self.attribute
    }

    /// Returns the file. Opens it again if the program has closed or replaced the descriptor.
    fn verified_file(&mut self) -> io::Result<&File> {
        let owner = self.owner;
        let held = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        if held.verified().is_none() {
            let file = move_file_to_high_descriptor(jitlisten_files::open_existing(&self.path)?);
            if identity(&file.metadata()?) != held.identity {
                return Err(io::Error::other("another file has taken its place"));
            }
            owner.lock(&file);
            *held = HeldFile::new(file)?;
        }
        held.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Appends records and makes them visible to readers.
    pub(crate) fn append(&mut self, batch: &Batch) -> io::Result<()> {
        if let Some(Deferral { append, lock }) = self.deferral.take() {
            // The lock of an existing recording ends here: `create` claims the name again.
            drop(lock);
            // The program that this tool has started may have written its own recording there.
            let is_of_program = |origin: &Origin| !append && origin.run.is_some() && origin.run == self.owner.run;
            if self.owner.role.hands_over() && Origin::read(&self.path).as_ref().is_some_and(is_of_program) {
                let other_name = existing_file::names(&self.path, self.owner.pid).nth(1);
                self.path = other_name.ok_or(io::ErrorKind::ResourceBusy)?;
            }
            let continued =
                if append { Output::continue_existing(&self.path, self.owner, &self.attribute)? } else { None };
            match continued {
                Some(output) => *self = output,
                None => {
                    *self = Output::create(&self.path, self.owner, self.attribute.clone(), batch.as_bytes())?;
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
        let existing = fs::symlink_metadata(&self.path).map(|metadata| identity(&metadata));
        if self.file.as_ref().is_some_and(|held| existing.is_ok_and(|existing| existing == held.identity)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn has_kind<T>(result: &io::Result<T>, kind: io::ErrorKind) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == kind)
}

/// Maximum number of attempts to create a file whose name others use meanwhile.
const MAX_CREATE_ATTEMPTS: usize = 10;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::recording::options::Options;
    use crate::writer::held_file::Role;
    use crate::writer::perf_data::SampleId;

    const OWNER: Owner = Owner { pid: 1, role: Role::Program, run: None };

    /// Fork children, and the programs that they execute, create their file late.
    #[test]
    fn a_file_may_be_created_late() {
        let path = std::env::temp_dir().join(format!("jitlisten-later-{}", std::process::id()));
        let deferred = |append| Output::deferred(&path, OWNER, append, Attribute::new(&Options::new(&path), None));
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
            assert!(Output::open(&path, OWNER, None, attribute()).is_err(), "{text}");
            assert!(Output::open(&path, OWNER, Some(&path), attribute()).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        for text in ["", "PERFILE2 of another program"] {
            fs::write(&path, text).unwrap();
            drop(Output::open(&path, OWNER, None, attribute()).expect("made anew"));
            assert!(fs::read(&path).unwrap().starts_with(perf_data::MAGIC));
        }
        fs::remove_file(path).unwrap();
    }
}
