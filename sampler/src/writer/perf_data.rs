//! The binary format of `perf.data`.
//!
//! ```text
//!   0     header, 104 bytes: offsets of the attributes and the data, bits of the features
//!   104   the attribute: the contents of a sample
//!   216   records: HEADER_FEATURE, COMM, MMAP2, SAMPLE, ...    data.size is their size in bytes
//!   ...   feature table, and the features                        only when the recording has ended
//! ```
//! The table has to follow the records, so it cannot exist while they grow. The features known at the start are
//! therefore also records (`HEADER_FEATURE`, as in perf's pipes), so that a killed recording keeps them.
//!
//! A truncated file shows everything up to `data.size`, which is stored after each batch is written. If the size is too
//! large, or there are zeros among the records, perf 6.1 shows nothing.
//!
//! Format: `tools/perf/Documentation/perf.data-file-format.txt`, `linux/perf_event.h`. To inspect a file: `perf report
//! -D -i FILE`, `perf script -i FILE --header`.

#![forbid(unsafe_code)]

use wire::counters::{self, Counters};
use wire::perf_data::*;

use crate::recording::event_name::Counter;
use crate::recording::options::{Clock, Options};

const HEADER_SIZE: u64 = 104;
/// Size up to the field `clockid` (`PERF_ATTR_SIZE_VER3`, Linux 4.1). perf refuses a file whose attributes are larger
/// than its own.
const ATTR_SIZE: u32 = 96;
/// Attributes, and the file offset and size of their list of event ids.
const ATTR_ENTRY_SIZE: u64 = ATTR_SIZE as u64 + 16;
/// File offset of the first record.
pub(crate) const DATA_OFFSET: u64 = HEADER_SIZE + ATTR_ENTRY_SIZE;
/// Maximum number of addresses per sample: a record's size has 16 bits, and 56 bytes precede the addresses.
pub(crate) const MAX_ADDRESSES: usize = (u16::MAX as usize - 56) / 8;
/// Maximum size of the command line in a record, which has at most 65,535 bytes.
const MAX_COMMAND_LINE_BYTES: usize = 60 << 10;
pub(crate) const DATA_SIZE_OFFSET: u64 = 48;
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

const SAMPLE_TYPE: u64 =
    PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_PERIOD;
const ATTR_FLAGS: u64 = ATTR_EXCLUDE_KERNEL
    | ATTR_MMAP
    | ATTR_COMM
    | ATTR_TASK
    | ATTR_SAMPLE_ID_ALL
    | ATTR_MMAP2
    | ATTR_COMM_EXEC
    | ATTR_USE_CLOCKID;

/// The process, thread and time of a record (perf's `sample_id`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleId {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
}

/// The build id of a library: usually 20 bytes, 8 or 16 from some linkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuildId {
    bytes: [u8; 20],
    size: u8,
}

impl BuildId {
    /// Returns `None` if the id is empty or longer than the file format allows.
    pub(crate) fn new(id: &[u8]) -> Option<BuildId> {
        let mut bytes = [0; 20];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        (!id.is_empty()).then_some(BuildId { bytes, size: id.len() as u8 })
    }
}

/// A mapped range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) build_id: Option<BuildId>,
    pub(crate) path: Vec<u8>,
}

/// Features of a recording that are known at its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct InitialFeatures {
    pub(crate) hostname: String,
    pub(crate) release: String,
    pub(crate) version: String,
    pub(crate) command_line: Vec<Vec<u8>>,
}

/// All features of a recording, known at its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Features {
    pub(crate) initial: InitialFeatures,
    pub(crate) first_sample: u64,
    pub(crate) last_sample: u64,
    pub(crate) counters: Counters,
}

/// A sequence of encoded records.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
}

fn put_u16(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend(value.to_le_bytes());
}

fn put_u32(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend(value.to_le_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend(value.to_le_bytes());
}

impl Batch {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends a record, padded to eight bytes.
    fn record(&mut self, kind: u32, misc: u16, content: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        put_u32(&mut self.bytes, kind);
        put_u16(&mut self.bytes, misc);
        put_u16(&mut self.bytes, 0);
        content(&mut self.bytes);
        while !(self.bytes.len() - start).is_multiple_of(8) {
            self.bytes.push(0);
        }
        match u16::try_from(self.bytes.len() - start) {
            Ok(size) => self.bytes[start + 6..start + 8].copy_from_slice(&size.to_le_bytes()),
            // Too long for the format, such as a path of 64 KiB: drop the record.
            Err(_) => self.bytes.truncate(start),
        }
    }

    /// Appends a record with the trailer that all records except samples have (`sample_id_all`).
    fn record_with_id(&mut self, kind: u32, misc: u16, id: SampleId, content: impl FnOnce(&mut Vec<u8>)) {
        self.record(kind, misc, |bytes| {
            content(bytes);
            put_u32(bytes, id.pid);
            put_u32(bytes, id.tid);
            put_u64(bytes, id.time);
        });
    }

    /// Appends a COMM record: a thread's name. `after_exec` discards all earlier mappings.
    pub(crate) fn comm(&mut self, id: SampleId, name: &[u8], after_exec: bool) {
        let misc = if after_exec { PERF_RECORD_MISC_COMM_EXEC } else { 0 };
        self.record_with_id(PERF_RECORD_COMM, misc, id, |bytes| {
            put_u32(bytes, id.pid);
            put_u32(bytes, id.tid);
            put_text(bytes, name);
        });
    }

    /// Appends a FORK record: the start of a thread.
    pub(crate) fn thread_started(&mut self, id: SampleId) {
        self.task(PERF_RECORD_FORK, id);
    }

    /// Appends an EXIT record: the end of a thread.
    pub(crate) fn thread_ended(&mut self, id: SampleId) {
        self.task(PERF_RECORD_EXIT, id);
    }

    /// Appends a COMM record for a thread id that stands for a fact about the process.
    pub(crate) fn process_fact(&mut self, id: SampleId, tid: u32, text: &str) {
        self.comm(SampleId { tid, ..id }, text.as_bytes(), false);
    }

    fn task(&mut self, kind: u32, id: SampleId) {
        self.record_with_id(kind, 0, id, |bytes| {
            // pid, ppid, tid, ptid: the process itself is the parent of a thread.
            for number in [id.pid, id.pid, id.tid, id.pid] {
                put_u32(bytes, number);
            }
            put_u64(bytes, id.time);
        });
    }

    /// Appends records of the features that are known at the start.
    pub(crate) fn initial_features(&mut self, initial: &InitialFeatures, attribute: &Attribute) {
        let command_line = truncate_words(&initial.command_line, MAX_COMMAND_LINE_BYTES);
        for (number, section) in sections(&InitialFeatures { command_line, ..initial.clone() }, attribute) {
            self.record(PERF_RECORD_HEADER_FEATURE, 0, |bytes| {
                put_u64(bytes, number.into());
                bytes.extend(section);
            });
        }
    }

    /// Appends an MMAP2 record: a new mapping.
    pub(crate) fn mapping(&mut self, id: SampleId, mapping: &Mapping) {
        let misc = if mapping.build_id.is_some() { PERF_RECORD_MISC_MMAP_BUILD_ID } else { 0 };
        self.record_with_id(PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER | misc, id, |bytes| {
            put_u32(bytes, id.pid);
            put_u32(bytes, id.tid);
            for number in [mapping.start, mapping.end - mapping.start, mapping.offset] {
                put_u64(bytes, number);
            }
            match mapping.build_id {
                Some(build_id) => {
                    bytes.extend([build_id.size, 0, 0, 0]);
                    bytes.extend(build_id.bytes);
                }
                None => {
                    put_u32(bytes, mapping.device.0);
                    put_u32(bytes, mapping.device.1);
                    put_u64(bytes, mapping.inode);
                    put_u64(bytes, 0);
                }
            }
            // PROT_READ | PROT_EXEC, MAP_PRIVATE
            put_u32(bytes, 5);
            put_u32(bytes, 2);
            put_text(bytes, &mapping.path);
        });
    }

    /// Appends a SAMPLE record: a stack, innermost address first, and its period in nanoseconds or events.
    pub(crate) fn sample(&mut self, id: SampleId, period: u64, stack: &[u64]) {
        self.record(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, |bytes| {
            put_u64(bytes, stack.first().copied().unwrap_or(0));
            put_u32(bytes, id.pid);
            put_u32(bytes, id.tid);
            put_u64(bytes, id.time);
            put_u64(bytes, period);
            put_u64(bytes, stack.len() as u64 + 1);
            put_u64(bytes, PERF_CONTEXT_USER);
            stack.iter().for_each(|&address| put_u64(bytes, address));
        });
    }

    /// Appends a READ record: a thread's time in ns, or its counted events, since its previous record. perf writes such
    /// records at the end of threads (`perf record -s`), and adds them up.
    pub(crate) fn thread_total(&mut self, id: SampleId, value: u64) {
        self.record_with_id(PERF_RECORD_READ, 0, id, |bytes| {
            put_u32(bytes, id.pid);
            put_u32(bytes, id.tid);
            put_u64(bytes, value);
        });
    }

    /// Appends a LOST_SAMPLES record: the number of samples dropped for lack of space.
    pub(crate) fn lost_samples(&mut self, id: SampleId, samples: u64) {
        self.record_with_id(PERF_RECORD_LOST_SAMPLES, 0, id, |bytes| put_u64(bytes, samples));
    }

    /// Appends a FINISHED_ROUND record: later records are not earlier than the latest record of the previous round.
    pub(crate) fn finished_round(&mut self) {
        self.record(PERF_RECORD_FINISHED_ROUND, 0, |_| {});
    }
}

/// Appends a NUL-terminated string, padded to eight bytes.
fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    let start = bytes.len();
    bytes.extend(text.iter().copied().take_while(|&byte| byte != 0));
    bytes.push(0);
    while !(bytes.len() - start).is_multiple_of(8) {
        bytes.push(0);
    }
}

/// The attribute of the file's only event, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    kind: u32,
    config: u64,
    /// Period in ns, or samples per second with `ATTR_FREQ`.
    rate: u64,
    flags: u64,
    name: String,
}

impl Attribute {
    pub(crate) fn new(options: &Options, counter: Option<&Counter>) -> Attribute {
        let hz = u64::from(options.hz.max(1));
        if let Some(counter) = counter {
            let excluded = if counter.user_only { ATTR_EXCLUDE_KERNEL } else { 0 };
            let flags = ATTR_FLAGS & !ATTR_EXCLUDE_KERNEL | ATTR_FREQ | excluded;
            return Attribute { kind: counter.kind, config: counter.config, rate: hz, flags, name: counter.name() };
        }
        // PERF_TYPE_SOFTWARE; PERF_COUNT_SW_TASK_CLOCK or PERF_COUNT_SW_CPU_CLOCK
        let (config, name) = match options.clock {
            Clock::Cpu => (1, "task-clock:u"),
            Clock::Wall => (0, "wall-clock"),
        };
        Attribute { kind: 1, config, rate: 1_000_000_000 / hz, flags: ATTR_FLAGS, name: name.to_owned() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ATTR_SIZE as usize);
        put_u32(&mut bytes, self.kind);
        put_u32(&mut bytes, ATTR_SIZE);
        for number in [self.config, self.rate, SAMPLE_TYPE, 0, self.flags] {
            put_u64(&mut bytes, number);
        }
        // The `clockid` field is at offset 92; 1 is CLOCK_MONOTONIC.
        bytes.resize(92, 0);
        put_u32(&mut bytes, 1);
        bytes
    }
}

/// Encodes everything before the first record.
pub(crate) fn header(attribute: &Attribute, data_size: u64, features: &[u32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_u64(&mut bytes, HEADER_SIZE);
    put_u64(&mut bytes, ATTR_ENTRY_SIZE);
    for (offset, size) in [(HEADER_SIZE, ATTR_ENTRY_SIZE), (DATA_OFFSET, data_size), (0, 0)] {
        put_u64(&mut bytes, offset);
        put_u64(&mut bytes, size);
    }
    let mut bits = [0_u64; 4];
    features.iter().for_each(|&feature| bits[feature as usize / 64] |= 1 << (feature % 64));
    bits.iter().for_each(|&word| put_u64(&mut bytes, word));
    bytes.extend(attribute.bytes());
    // The file needs no ids, because it has a single event.
    put_u64(&mut bytes, HEADER_SIZE);
    put_u64(&mut bytes, 0);
    bytes
}

/// Returns the size of the records according to a header; `None` if jitlisten did not write the file.
pub(crate) fn data_size(header: &[u8]) -> Option<u64> {
    let word = |offset: usize| Some(u64::from_le_bytes(header.get(offset..offset + 8)?.try_into().ok()?));
    let is_ours =
        header.starts_with(MAGIC) && word(8)? == HEADER_SIZE && word(DATA_SIZE_OFFSET as usize - 8)? == DATA_OFFSET;
    is_ours.then(|| word(DATA_SIZE_OFFSET as usize)).flatten()
}

/// Encodes the features that follow the records, and returns their numbers for the header.
pub(crate) fn features(features: &Features, attribute: &Attribute, data_end: u64) -> (Vec<u8>, Vec<u32>) {
    let mut sections = sections(&features.initial, attribute);
    let mut sample_times = features.first_sample.to_le_bytes().to_vec();
    put_u64(&mut sample_times, features.last_sample);
    sections.push((HEADER_SAMPLE_TIME, sample_times));
    sections.push((counters::FEATURE, features.counters.encode()));
    let mut offset = data_end + sections.len() as u64 * 16;
    let (mut table, mut content) = (Vec::new(), Vec::<u8>::new());
    for (_, section) in &sections {
        put_u64(&mut table, offset);
        put_u64(&mut table, section.len() as u64);
        offset += section.len() as u64;
        content.extend(section);
    }
    table.extend(content);
    (table, sections.iter().map(|(number, _)| *number).collect())
}

fn sections(initial: &InitialFeatures, attribute: &Attribute) -> Vec<(u32, Vec<u8>)> {
    let mut command_line = (initial.command_line.len() as u32).to_le_bytes().to_vec();
    initial.command_line.iter().for_each(|word| put_string(&mut command_line, word));
    vec![
        (HEADER_HOSTNAME, string(initial.hostname.as_bytes())),
        (HEADER_OSRELEASE, string(initial.release.as_bytes())),
        (HEADER_VERSION, string(initial.version.as_bytes())),
        (HEADER_ARCH, string(std::env::consts::ARCH.as_bytes())),
        (HEADER_CMDLINE, command_line),
        (HEADER_EVENT_DESC, event_description(attribute)),
    ]
}

/// Returns the leading arguments that fit into `max_bytes` of a record.
fn truncate_words(words: &[Vec<u8>], max_bytes: usize) -> Vec<Vec<u8>> {
    let mut free_bytes = max_bytes;
    let fits = |word: &&Vec<u8>| {
        let remaining = free_bytes.checked_sub(4 + (word.len() + 1).next_multiple_of(64));
        free_bytes = remaining.unwrap_or(0);
        remaining.is_some()
    };
    words.iter().take_while(fits).cloned().collect()
}

fn event_description(attribute: &Attribute) -> Vec<u8> {
    let mut bytes = 1_u32.to_le_bytes().to_vec();
    put_u32(&mut bytes, ATTR_SIZE);
    bytes.extend(attribute.bytes());
    put_u32(&mut bytes, 0);
    put_string(&mut bytes, attribute.name.as_bytes());
    bytes
}

fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_string(&mut bytes, text);
    bytes
}

/// Appends a `perf_header_string`: the length, then the string padded to a multiple of 64 bytes.
fn put_string(bytes: &mut Vec<u8>, text: &[u8]) {
    let length = (text.len() + 1).next_multiple_of(64);
    put_u32(bytes, length as u32);
    let start = bytes.len();
    bytes.extend(text);
    bytes.resize(start + length, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stack_fits_into_a_record() {
        let size = |addresses: usize| {
            let mut batch = Batch::default();
            batch.sample(SampleId { pid: 1, tid: 1, time: 1 }, 1, &vec![1; addresses]);
            batch.as_bytes().len()
        };
        assert_eq!(size(MAX_ADDRESSES), 56 + 8 * MAX_ADDRESSES);
        assert_eq!(size(MAX_ADDRESSES + 1), 0);
    }

    #[test]
    fn a_long_command_line_is_truncated_at_a_word() {
        let words = [vec![b'a'; 50 << 10], vec![b'b'; 100], vec![b'c'; 20 << 10], vec![b'd']];
        let initial = InitialFeatures { command_line: words.to_vec(), ..InitialFeatures::default() };
        let attribute = Attribute::new(&Options::new("f"), None);
        let mut batch = Batch::default();
        batch.initial_features(&initial, &attribute);
        let (mut rest, mut numbers) = (batch.as_bytes(), Vec::new());
        while let Some(size) = rest.get(6..8).map(|size| u16::from_le_bytes([size[0], size[1]]).into()) {
            assert_eq!(u32::from(rest[0]), PERF_RECORD_HEADER_FEATURE);
            numbers.push(u32::from(rest[8]));
            if rest[8] == HEADER_CMDLINE as u8 {
                assert_eq!(rest[16], 2, "words");
            }
            rest = &rest[size..];
        }
        assert_eq!(numbers, sections(&initial, &attribute).iter().map(|(number, _)| *number).collect::<Vec<_>>());
    }
}
