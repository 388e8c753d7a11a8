//! Container format of a `perf.data`: header, events, features, records. Layout:
//! `tools/perf/Documentation/perf.data-file-format.txt` and `include/uapi/linux/perf_event.h` in the kernel's source.
//!
//! ```text
//! file   "PERFILE2" size attr_size | attrs | data | types | 256 feature bits    pipe   "PERFILE2" 16
//!        attrs: (attr, section of ids)*                                                HEADER_ATTR*, HEADER_FEATURE*
//!        data:  records                                                                records
//!        after data: a section for each feature bit
//! ```
//!
//! The `linux-perf-data` crate is not used here, because a recording may be untrusted and large. The crate allocates
//! whatever sizes the file specifies, panics on some invalid input, and keeps all records in memory until
//! `PERF_RECORD_FINISHED_ROUND`, which some writers never write. The tests compare this reader with that crate.

use std::io::{self, Read, Seek, SeekFrom};

use wire::counters::{self, Counters};
use wire::perf_data::*;

use super::bytes::Bytes;
use super::event::{Event, EventIds};
use crate::error::Error;
use crate::path_text::text_of_path;
use crate::sanitize::sanitize;

/// Maximum size of a feature section; longer ones are not read.
const MAX_FEATURE_BYTES: u64 = 16 << 20;
/// Maximum size of the event descriptions or ids; longer sections are not read.
const MAX_EVENT_SECTION_BYTES: u64 = 4 << 20;
/// Maximum number of events; further events are not read.
const MAX_EVENTS: usize = 4096;
/// Size of the file header with the feature bits, in bytes.
const HEADER_BYTES: usize = 104;
const PIPE_HEADER_BYTES: u64 = 16;

/// Facts about the recording from its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Name of the machine.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture as printed by `uname -m`.
    pub architecture: String,
    /// Command line of the recorder.
    pub command: Vec<String>,
    /// Command lines of other recordings that were merged into this one, each once.
    pub other_commands: Vec<Vec<String>>,
    /// Rank of the recorded process, if a launcher such as `mpirun` started it.
    pub rank: Option<u32>,
    /// Name that the program gave to its process; empty if it gave none.
    pub process: String,
    /// The `jitlisten record` that the process belongs to; empty if it is unknown.
    pub run: String,
    /// True if threads that often wait, or are preempted, were sampled by perf's `cpu-clock`, the others by CPU timers.
    pub uses_cpu_clock: bool,
    /// Time in ns that threads were on the run queue: they wanted to run, but others ran. 0 if unknown.
    pub run_queue_ns: u64,
    /// Part of it of the thread with the most CPU time.
    pub busiest_run_queue_ns: u64,
    /// CPU time in ns of child processes that were not recorded. 0 if unknown.
    pub unrecorded_children_ns: u64,
}

/// Position of the records, and all information that precedes them.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) facts: Facts,
    pub(super) events: Vec<Event>,
    pub(super) by_id: EventIds,
    /// File offsets of the records.
    pub(super) data: std::ops::Range<u64>,
    /// Build ids by path, which perf writes at the end of the file.
    pub(super) build_ids: Vec<(String, Vec<u8>)>,
    pub(super) notes: Vec<String>,
}

/// Reads the header and, except for pipes, the features.
pub(super) fn open(file: &mut (impl Read + Seek)) -> Result<Container, Error> {
    let read_error = |error: io::Error| Error::io("read", "the recording", error);
    let length = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    let header = read_at(file, 0, HEADER_BYTES as u64).map_err(read_error)?;
    let mut cursor = Bytes(&header);
    match cursor.take(8) {
        Some(b"PERFILE2") => {}
        Some(b"2ELIFREP") => return Err(Error::OtherByteOrder),
        _ => return Err(Error::NotARecording { begins_with: header.get(..8).unwrap_or(&header).to_vec() }),
    }
    let size = cursor.u64().ok_or(Error::BadHeader("it ends before its size"))?;
    let mut container = Container {
        facts: Facts::default(),
        events: Vec::new(),
        by_id: EventIds::default(),
        data: PIPE_HEADER_BYTES..length,
        build_ids: Vec::new(),
        notes: Vec::new(),
    };
    if size == PIPE_HEADER_BYTES {
        return Ok(container);
    }
    container.read_file_header(file, cursor, length).ok_or(Error::BadHeader("it ends early"))?;
    Ok(container)
}

impl Container {
    fn read_file_header(&mut self, file: &mut (impl Read + Seek), mut cursor: Bytes<'_>, length: u64) -> Option<()> {
        let attr_size = cursor.u64()?;
        let (attrs, attrs_size) = (cursor.u64()?, cursor.u64()?);
        let (data, data_size) = (cursor.u64()?, cursor.u64()?);
        let _event_types = (cursor.u64()?, cursor.u64()?);
        let features = [cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?];
        self.data = self.data_section(data, data_size, length);
        self.read_attrs(file, attr_size, attrs, attrs_size.min(MAX_EVENT_SECTION_BYTES), length);
        if self.data.end == data.saturating_add(data_size) && data_size != 0 {
            self.read_features(file, features);
        }
        Some(())
    }

    /// Returns the range of the records. A recorder that was killed leaves the size field at 0, or at the size that it
    /// planned to write.
    fn data_section(&mut self, start: u64, size: u64, length: u64) -> std::ops::Range<u64> {
        let end = start.saturating_add(size);
        if start > length {
            self.notes.push("the recording was cut off before its first record".to_owned());
            return length..length;
        }
        if size == 0 && length > start {
            self.notes
                .push("the recorder did not finish its file; everything up to the end of the file is read".to_owned());
            return start..length;
        }
        if end > length {
            let missing = end - length;
            self.notes.push(format!("the recording was cut off: {missing} bytes of records are missing at its end"));
            return start..length;
        }
        start..end
    }

    fn read_attrs(&mut self, file: &mut (impl Read + Seek), attr_size: u64, start: u64, size: u64, length: u64) {
        // `attr_size` includes the attribute and the file section of its ids.
        let Ok(attr_size) = usize::try_from(attr_size) else { return };
        if !(64 + 16..=4096).contains(&attr_size) {
            return;
        }
        let Ok(bytes) = read_at(file, start, size) else { return };
        // The id sections of a valid file do not overlap, so their total size is at most the file's length.
        let mut unread = length;
        for entry in bytes.chunks_exact(attr_size).take(MAX_EVENTS) {
            let (attr, ids) = entry.split_at(attr_size - 16);
            let Some(mut event) = Event::parse(attr) else { continue };
            let mut section = Bytes(ids);
            if let (Some(offset), Some(size)) = (section.u64(), section.u64())
                && let Ok(ids) = read_at(file, offset, size.min(MAX_EVENT_SECTION_BYTES).min(unread))
            {
                unread -= ids.len() as u64;
                event.add_ids(&ids);
            }
            self.add_event(event);
        }
    }

    /// Adds an event, unless there are too many.
    pub(super) fn add_event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.by_id.add(self.events.len(), &event);
            self.events.push(event);
        }
    }

    fn read_features(&mut self, file: &mut (impl Read + Seek), bits: [u64; 4]) {
        let mut offset = self.data.end;
        for feature in (0_u32..256).filter(|bit| bits[(bit / 64) as usize] >> (bit % 64) & 1 == 1) {
            let Ok(section) = read_at(file, offset, 16) else { break };
            let mut section = Bytes(&section);
            let (Some(start), Some(size)) = (section.u64(), section.u64()) else {
                self.notes.push("the recording was cut off before its last features".to_owned());
                break;
            };
            offset += 16;
            if is_used_feature(feature)
                && size <= MAX_FEATURE_BYTES
                && let Ok(bytes) = read_at(file, start, size)
            {
                self.add_feature(feature, &bytes);
            }
        }
    }

    /// Adds one header feature, from a section of a file or a record of a pipe.
    pub(super) fn add_feature(&mut self, feature: u32, bytes: &[u8]) {
        let bytes = Bytes(bytes);
        match feature {
            HEADER_BUILD_ID => self.add_build_ids(bytes),
            HEADER_HOSTNAME => self.facts.host = sanitize(&string(bytes)),
            HEADER_OSRELEASE => self.facts.kernel = sanitize(&string(bytes)),
            HEADER_ARCH => self.facts.architecture = sanitize(&string(bytes)),
            HEADER_CMDLINE => self.facts.command = strings(bytes).unwrap_or_default(),
            HEADER_EVENT_DESC => self.add_event_names(bytes),
            counters::FEATURE => {
                if let Some(counters) = Counters::decode(bytes.0) {
                    self.facts.uses_cpu_clock = counters.by_user_clock > 0;
                    self.facts.run_queue_ns = counters.run_queue_ns;
                    self.facts.busiest_run_queue_ns = counters.busiest_run_queue_ns;
                    self.facts.unrecorded_children_ns = counters.unrecorded_children_ns;
                    self.notes.extend(recorder_notes(&counters));
                }
            }
            _ => {}
        }
    }

    /// Parses `HEADER_BUILD_ID`: records of a pid, a 20-byte build id in 24 bytes, and a path.
    fn add_build_ids(&mut self, mut bytes: Bytes<'_>) {
        let mut next_entry = || {
            let (_kind, misc, size) = (bytes.u32()?, bytes.u16()?, usize::from(bytes.u16()?));
            let mut body = Bytes(bytes.take(size.checked_sub(8)?)?);
            let (_pid, id) = (body.u32()?, body.take(24)?);
            let length = if misc & PERF_RECORD_MISC_BUILD_ID_SIZE != 0 { usize::from(id[20]).min(20) } else { 20 };
            Some((text_of_path(body.text()), id[..length].to_vec()))
        };
        while let Some(entry) = next_entry() {
            self.build_ids.push(entry);
        }
    }

    /// Parses `HEADER_EVENT_DESC`, which repeats the events with their names.
    fn add_event_names(&mut self, mut bytes: Bytes<'_>) {
        let (Some(count), Some(attr_size)) = (bytes.u32(), bytes.u32()) else { return };
        for _ in 0..count.min(4096) {
            let Some(event) = described_event(&mut bytes, attr_size as usize) else { return };
            match self.events.iter_mut().find(|existing| existing.is_same_event(&event)) {
                Some(existing) => existing.name = event.name,
                None => self.add_event(event),
            }
        }
    }
}

fn is_used_feature(feature: u32) -> bool {
    [
        HEADER_BUILD_ID,
        HEADER_HOSTNAME,
        HEADER_OSRELEASE,
        HEADER_ARCH,
        HEADER_CMDLINE,
        HEADER_EVENT_DESC,
        counters::FEATURE,
    ]
    .contains(&feature)
}

/// Number of inexact samples from which on a note mentions them.
const MIN_INEXACT_SAMPLES: u64 = 100;

/// Returns notes from the counters of our own recorder: if more than one stack in a hundred is incomplete, a thread was
/// not sampled, more than one sample in a hundred was skipped, or more than one in four is inexact; one in two where
/// `cpu-clock` was used, because a single wait in 40 ms of CPU time counts as often. In a short recording, chance is
/// larger than that error. Lost samples have records of their own.
fn recorder_notes(counters: &Counters) -> Vec<String> {
    let Counters { samples, incomplete, truncated, skipped, threads_without_timer, inexact, by_user_clock, .. } =
        *counters;
    let mut notes = Vec::new();
    let partial = incomplete.saturating_add(truncated);
    if partial > samples / 100 {
        notes.push(format!(
            "{partial} of {samples} stacks are incomplete ({truncated} of them too deep): totals of their outermost \
             callers are too low"
        ));
    }
    if threads_without_timer > 0 {
        notes.push(format!("threads without a timer, which are not in the recording: {threads_without_timer}"));
    }
    if skipped > samples / 100 {
        let were_skipped = if skipped == 1 { "sample was" } else { "samples were" };
        notes.push(format!(
            "{skipped} {were_skipped} skipped beside {samples}: taking a stack needed more than 5 % of the interval. \
             Their time counts for the thread's next sample: totals are right, short functions less certain. \
             Record longer, or with a lower rate (-r)"
        ));
    }
    let (min_inexact, reason) = match by_user_clock {
        0 => (samples / 4, "not permitted (perf_event_paranoid above 2, or seccomp), or too slow for so many waits"),
        _ => (samples / 2, "too slow where a thread waits or is interrupted so often, or has so many page faults"),
    };
    if inexact > min_inexact.max(MIN_INEXACT_SAMPLES) {
        notes.push(format!(
            "{inexact} of {samples} samples are of threads that often wait, or are short and preempted, taken at the kernel's \
             clock tick: the first milliseconds after each wait or start may have up to a third of that time too much or too little. perf's \
             cpu-clock is exact, but {reason}"
        ));
    }
    notes
}

fn described_event(bytes: &mut Bytes<'_>, attr_size: usize) -> Option<Event> {
    let attr = bytes.take(attr_size)?;
    let ids = bytes.u32()?;
    let length = bytes.u32()?;
    let name = bytes.take(length as usize)?;
    let ids = bytes.u64s(u64::from(ids))?;
    let mut event = Event::parse(attr)?;
    event.name = sanitize(&String::from_utf8_lossy(Bytes(name).text()));
    event.add_ids(ids);
    Some(event)
}

/// Parses `perf_header_string`: a length, and text padded with zeros.
fn header_string(bytes: &mut Bytes<'_>) -> Option<String> {
    let length = bytes.u32()?;
    let text = bytes.take(length as usize)?;
    Some(String::from_utf8_lossy(Bytes(text).text()).into_owned())
}

fn string(mut bytes: Bytes<'_>) -> String {
    header_string(&mut bytes).unwrap_or_default()
}

fn strings(mut bytes: Bytes<'_>) -> Option<Vec<String>> {
    let count = bytes.u32()?;
    Some((0..count).map_while(|_| header_string(&mut bytes)).collect())
}

/// Reads at most `size` bytes at `offset`; fewer at the end of the file.
fn read_at(file: &mut (impl Read + Seek), offset: u64, size: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountingReader(io::Cursor<Vec<u8>>, u64);

    impl Read for CountingReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = self.0.read(buffer)?;
            self.1 += size as u64;
            Ok(size)
        }
    }

    impl Seek for CountingReader {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// The id section of each event claims the whole file.
    #[test]
    fn overlapping_id_sections_cost_no_more_than_the_file() {
        const EVENT_COUNT: u64 = 4000;
        let length = HEADER_BYTES as u64 + EVENT_COUNT * 80;
        let numbers = [104, 80, HEADER_BYTES as u64, EVENT_COUNT * 80, length, 0, 0, 0, 0, 0, 0, 0];
        let mut bytes = [b"PERFILE2", &numbers.map(u64::to_le_bytes).concat()[..]].concat();
        for _ in 0..EVENT_COUNT {
            // Attributes have the size PERF_ATTR_SIZE_VER0.
            let attr = [0, 64 << 32, 0, 0, 0, 0, 0, 0, 0, length];
            bytes.extend(attr.map(u64::to_le_bytes).concat());
        }
        assert_eq!(bytes.len() as u64, length);
        let mut file = CountingReader(io::Cursor::new(bytes), 0);
        let container = open(&mut file).expect("a recording");
        assert_eq!(container.events.len() as u64, EVENT_COUNT);
        assert!(file.1 < 4 * length, "{} of {length} bytes were read", file.1);
    }

    #[test]
    fn relevant_counters_of_the_recorder_become_notes() {
        let counters = |incomplete, skipped, threads_without_timer| {
            let (samples, truncated) = (1000, 2);
            Counters { samples, incomplete, truncated, skipped, threads_without_timer, ..Counters::default() }
        };
        assert!(recorder_notes(&counters(8, 10, 0)).is_empty());
        for (counters, note) in [
            (counters(9, 0, 0), "11 of 1000 stacks are incomplete (2 of them too deep)"),
            (counters(0, 0, 1), "not in the recording: 1"),
            (counters(0, 11, 0), "11 samples were skipped beside 1000"),
            (Counters { inexact: 251, ..counters(0, 0, 0) }, "251 of 1000 samples are of threads that often wait"),
            (Counters { inexact: 251, ..counters(0, 0, 0) }, "but not permitted (perf_event_paranoid"),
            (Counters { inexact: 501, by_user_clock: 1, ..counters(0, 0, 0) }, "but too slow where a thread waits"),
        ] {
            let notes = recorder_notes(&counters);
            assert!(notes.len() == 1 && notes[0].contains(note), "{notes:?}");
        }
        assert_eq!(recorder_notes(&counters(9, 11, 0)).len(), 2);
        let mostly_exact = Counters { inexact: 500, by_user_clock: 1, ..counters(0, 0, 0) };
        assert!(recorder_notes(&mostly_exact).is_empty(), "cpu-clock was used");
        let short = Counters { samples: 100, inexact: 90, ..Counters::default() };
        assert!(recorder_notes(&short).is_empty());
    }
}
