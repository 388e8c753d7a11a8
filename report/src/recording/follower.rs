//! Reader for a recording that is still being written. Each call returns the new part as a recording of its own.
//!
//! The recorder appends whole records and then stores their size in the header (`data.size`), so everything up to that
//! point can be read. perf itself stores the size only at the end, so its recordings cannot be followed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use wire::perf_data::PERF_RECORD_SAMPLE;

use super::format::{self, Container};
use super::tasks::Tasks;
use super::{Recording, Selection, count_sample, event_index, records};
use crate::error::Error;

/// Header offset of the position and size of the records (`data`).
const DATA_SECTION_OFFSET: u64 = 40;

/// Reader for a growing recording.
#[derive(Debug)]
pub struct Follower {
    file: File,
    container: Container,
    tasks: Tasks,
    offset: u64,
}

impl Follower {
    /// Opens the recording. Returns `None` if the recorder has not created it yet.
    ///
    /// # Errors
    /// Returns an error if the file is not a recording.
    pub fn open(path: &Path) -> Result<Option<Follower>, Error> {
        // Opening a pipe at this path must not block.
        let mut options = File::options();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let mut file = match options.read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", path, error)),
        };
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(Error::io("open", path, std::io::Error::other("not a regular file")));
        }
        match data_section(&mut file) {
            Ok((start, size)) if size != 0 => {
                let container = format::open(&mut file)?;
                Ok(Some(Follower { file, container, tasks: Tasks::default(), offset: start }))
            }
            // The recorder has created the file, but not yet written the header, which it writes in one piece.
            _ => Ok(None),
        }
    }

    /// Returns the part that was written since the last call.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn next_part(&mut self, selection: &Selection) -> Result<Recording, Error> {
        let read_error = |error| Error::io("read", "the recording", error);
        let (start, size) = data_section(&mut self.file).map_err(read_error)?;
        let range = self.offset..start.saturating_add(size).max(self.offset);
        self.offset = range.end;
        let (tasks, events, by_id) = (&mut self.tasks, &self.container.events, &self.container.by_id);
        let mut counts = Vec::new();
        records::for_each(&mut self.file, range.clone(), |record| match record.kind {
            PERF_RECORD_SAMPLE => count_sample(&mut counts, event_index(events, by_id, record.body)),
            _ => tasks.add_record(record, events),
        })
        .map_err(read_error)?;
        let event = self.container.choose(&counts, selection)?;
        let counts = counts.into_iter().chain(std::iter::repeat(0));
        let events = events.iter().cloned().zip(counts).collect();
        let mut recording = Recording { events, event, ..Recording::default() };
        let totals = self.tasks.take_totals();
        self.tasks.fill_recording(&mut recording);
        recording.read_samples(&mut self.file, range, selection, &[], totals).map_err(read_error)?;
        Ok(recording)
    }

    /// Returns the file, and the offset up to which it has been read.
    pub fn progress(&self) -> (&File, u64) {
        (&self.file, self.offset)
    }
}

fn data_section(file: &mut File) -> std::io::Result<(u64, u64)> {
    let mut bytes = [0; 16];
    file.seek(SeekFrom::Start(DATA_SECTION_OFFSET))?;
    file.read_exact(&mut bytes)?;
    let (start, size) = bytes.split_at(8);
    let parse_u64 = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    Ok((parse_u64(start), parse_u64(size)))
}
