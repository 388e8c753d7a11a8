//! A recording that is still being written: what came since the last look, as a recording of its own.
//!
//! The recorder appends whole records and then stores their size in the header (`data.size`), so everything up to there
//! can be read. A file of perf itself has its size only at the end, and cannot be followed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use perf_format::PERF_RECORD_SAMPLE;

use super::format::{self, Container};
use super::tasks::Tasks;
use super::{Recording, Selection, count, event_of, records};
use crate::Error;

/// Where in the header the offset and the size of the records stand.
const DATA_AT: u64 = 40;

/// See the module's head.
#[derive(Debug)]
pub struct Follower {
    file: File,
    container: Container,
    tasks: Tasks,
    at: u64,
}

impl Follower {
    /// Opens the file; nothing if the recorder has not made it yet.
    ///
    /// # Errors
    /// When it is no recording.
    pub fn open(path: &Path) -> Result<Option<Follower>, Error> {
        // A pipe in its place does not make anyone wait.
        let mut options = File::options();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let mut file = match options.read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", path, error)),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(Error::io("open", path, std::io::Error::other("not a regular file")));
        }
        match data_section(&mut file) {
            Ok((start, size)) if size != 0 => {
                let container = format::open(&mut file)?;
                Ok(Some(Follower { file, container, tasks: Tasks::default(), at: start }))
            }
            // The header is written in one piece, but not at the moment when the file is made.
            _ => Ok(None),
        }
    }

    /// What came since the last call.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_part(&mut self, selection: &Selection) -> Result<Recording, Error> {
        let read = |error| Error::io("read", "the recording", error);
        let (start, size) = data_section(&mut self.file).map_err(read)?;
        let range = self.at..start.saturating_add(size).max(self.at);
        self.at = range.end;
        let (tasks, events, by_id) = (&mut self.tasks, &self.container.events, &self.container.by_id);
        let mut counts = Vec::new();
        records::for_each(&mut self.file, range.clone(), |record| match record.kind {
            PERF_RECORD_SAMPLE => count(&mut counts, event_of(events, by_id, record.body)),
            _ => tasks.record(record, events),
        })
        .map_err(read)?;
        let event = self.container.choose(&counts, selection)?;
        let counts = counts.into_iter().chain(std::iter::repeat(0));
        let events = events.iter().cloned().zip(counts).collect();
        let mut recording = Recording { events, event, ..Recording::default() };
        self.tasks.fill(&mut recording);
        recording.read_samples(&mut self.file, range, selection, &[]).map_err(read)?;
        Ok(recording)
    }

    /// The file, and how far it has been read.
    pub fn progress(&self) -> (&File, u64) {
        (&self.file, self.at)
    }
}

fn data_section(file: &mut File) -> std::io::Result<(u64, u64)> {
    let mut bytes = [0; 16];
    file.seek(SeekFrom::Start(DATA_AT))?;
    file.read_exact(&mut bytes)?;
    let (start, size) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    Ok((number(start), number(size)))
}
