//! `perf.data`: the bytes.
//!
//! ```text
//!   0     header, 104 bytes: where attributes and data are, which features there are
//!   104   the attribute: what a sample consists of
//!   248   records: HEADER_FEATURE, COMM, MMAP2, SAMPLE, ...    data.size says how many bytes of them
//!   ...   the table of the features, and the features            only when the recording has ended
//! ```
//! The table has to follow the records, so it cannot exist while they grow. The features that are known at the start
//! are therefore records as well (`HEADER_FEATURE`, as in perf's pipes): a killed recording is read as it was recorded.
//!
//! A truncated file shows everything up to `data.size`, which is stored after each batch is written. With a larger
//! size, or zeros among the records, perf 6.1 shows nothing.
//!
//! Format: `tools/perf/Documentation/perf.data-file-format.txt`, `linux/perf_event.h`. To see it: `perf report -D -i
//! FILE`, `perf script -i FILE --header`.

#![forbid(unsafe_code)]

use perf_format::*;

use crate::event_name::Counter;
use crate::options::{Clock, Options};

/// Where records begin.
pub(crate) const DATA_OFFSET: u64 = 248;
const HEADER_SIZE: u64 = 104;
const ATTR_SIZE: u32 = 128;
/// Of one sample, at most: a record's size has sixteen bits, and there are 56 bytes before its addresses.
pub(crate) const MOST_ADDRESSES: usize = (u16::MAX as usize - 56) / 8;
/// Limit for the command line in a record, which has at most 65,535 bytes.
const MAX_COMMAND_LINE_BYTES: usize = 60 << 10;
/// Where in the header the size of the data stands.
pub(crate) const DATA_SIZE_AT: u64 = 48;
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

const SAMPLE_TYPE: u64 =
    PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_PERIOD;
const FLAGS: u64 = ATTR_EXCLUDE_KERNEL
    | ATTR_MMAP
    | ATTR_COMM
    | ATTR_TASK
    | ATTR_SAMPLE_ID_ALL
    | ATTR_MMAP2
    | ATTR_COMM_EXEC
    | ATTR_USE_CLOCKID;

/// Whose record it is and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
}

/// What says which build of a library it is: of 20 bytes usually, of 8 or 16 by some linkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuildId {
    bytes: [u8; 20],
    size: u8,
}

impl BuildId {
    /// `None` if it is longer than a recording has space for.
    pub(crate) fn new(id: &[u8]) -> Option<BuildId> {
        let mut bytes = [0; 20];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        (!id.is_empty()).then_some(BuildId { bytes, size: id.len() as u8 })
    }
}

/// A range of addresses and its mapping.
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

/// The features of a recording that are known at its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) hostname: String,
    pub(crate) release: String,
    /// The library's version; at the end of the recording with its counters.
    pub(crate) version: String,
    pub(crate) command_line: Vec<Vec<u8>>,
}

/// All features, known at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Features {
    pub(crate) facts: Facts,
    pub(crate) first_sample: u64,
    pub(crate) last_sample: u64,
}

/// Records, one after the other.
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
            // Too long for the format, as a path of 64 KiB is: better not there at all.
            Err(_) => self.bytes.truncate(start),
        }
    }

    /// What every record but a sample ends with (`sample_id_all`).
    fn identified(&mut self, kind: u32, misc: u16, at: Moment, content: impl FnOnce(&mut Vec<u8>)) {
        self.record(kind, misc, |bytes| {
            content(bytes);
            put_u32(bytes, at.pid);
            put_u32(bytes, at.tid);
            put_u64(bytes, at.time);
        });
    }

    /// A thread has this name. `after_exec`: and everything that was mapped is gone.
    pub(crate) fn comm(&mut self, at: Moment, name: &[u8], after_exec: bool) {
        let misc = if after_exec { PERF_RECORD_MISC_COMM_EXEC } else { 0 };
        self.identified(PERF_RECORD_COMM, misc, at, |bytes| {
            put_u32(bytes, at.pid);
            put_u32(bytes, at.tid);
            put_text(bytes, name);
        });
    }

    /// A thread of the process began.
    pub(crate) fn thread_started(&mut self, at: Moment) {
        self.task(PERF_RECORD_FORK, at);
    }

    /// A thread of the process ended.
    pub(crate) fn thread_ended(&mut self, at: Moment) {
        self.task(PERF_RECORD_EXIT, at);
    }

    fn task(&mut self, kind: u32, at: Moment) {
        self.identified(kind, 0, at, |bytes| {
            // pid, ppid, tid, ptid: the process itself is what a thread comes from.
            for number in [at.pid, at.pid, at.tid, at.pid] {
                put_u32(bytes, number);
            }
            put_u64(bytes, at.time);
        });
    }

    /// The features that are known at the start.
    pub(crate) fn facts(&mut self, facts: &Facts, attribute: &Attribute) {
        let command_line = shortened(&facts.command_line, MAX_COMMAND_LINE_BYTES);
        for (number, section) in sections(&Facts { command_line, ..facts.clone() }, attribute) {
            self.record(PERF_RECORD_HEADER_FEATURE, 0, |bytes| {
                put_u64(bytes, number.into());
                bytes.extend(section);
            });
        }
    }

    /// Something was mapped.
    pub(crate) fn mapping(&mut self, at: Moment, mapping: &Mapping) {
        let misc = if mapping.build_id.is_some() { PERF_RECORD_MISC_MMAP_BUILD_ID } else { 0 };
        self.identified(PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER | misc, at, |bytes| {
            put_u32(bytes, at.pid);
            put_u32(bytes, at.tid);
            for number in [mapping.start, mapping.end - mapping.start, mapping.offset] {
                put_u64(bytes, number);
            }
            match mapping.build_id {
                Some(id) => {
                    bytes.extend([id.size, 0, 0, 0]);
                    bytes.extend(id.bytes);
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

    /// A stack, the innermost address first, with its period in nanoseconds or events.
    pub(crate) fn sample(&mut self, at: Moment, period: u64, stack: &[u64]) {
        self.record(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, |bytes| {
            put_u64(bytes, stack.first().copied().unwrap_or(0));
            put_u32(bytes, at.pid);
            put_u32(bytes, at.tid);
            put_u64(bytes, at.time);
            put_u64(bytes, period);
            put_u64(bytes, stack.len() as u64 + 1);
            put_u64(bytes, PERF_CONTEXT_USER);
            stack.iter().for_each(|&address| put_u64(bytes, address));
        });
    }

    /// So many samples had no place.
    pub(crate) fn lost(&mut self, at: Moment, samples: u64) {
        self.identified(PERF_RECORD_LOST_SAMPLES, 0, at, |bytes| put_u64(bytes, samples));
    }

    /// What comes is not earlier than the latest record of the round before.
    pub(crate) fn round(&mut self) {
        self.record(PERF_RECORD_FINISHED_ROUND, 0, |_| {});
    }
}

/// A text with its terminator, up to a multiple of eight bytes.
fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    let start = bytes.len();
    bytes.extend(text.iter().copied().take_while(|&byte| byte != 0));
    bytes.push(0);
    while !(bytes.len() - start).is_multiple_of(8) {
        bytes.push(0);
    }
}

/// What is sampled: the attribute of the file's one event, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    kind: u32,
    config: u64,
    /// Nanoseconds, or samples a second.
    rate: u64,
    flags: u64,
    name: String,
}

impl Attribute {
    pub(crate) fn new(options: &Options, counter: Option<&Counter>) -> Attribute {
        let hz = u64::from(options.hz.max(1));
        if let Some(counter) = counter {
            let excluded = if counter.user_only { ATTR_EXCLUDE_KERNEL } else { 0 };
            let flags = FLAGS & !ATTR_EXCLUDE_KERNEL | ATTR_FREQ | excluded;
            return Attribute { kind: counter.kind, config: counter.config, rate: hz, flags, name: counter.name() };
        }
        // PERF_TYPE_SOFTWARE; PERF_COUNT_SW_TASK_CLOCK or PERF_COUNT_SW_CPU_CLOCK
        let (config, name) = match options.clock {
            Clock::Cpu => (1, "task-clock:u"),
            Clock::Wall => (0, "wall-clock"),
        };
        Attribute { kind: 1, config, rate: 1_000_000_000 / hz, flags: FLAGS, name: name.to_owned() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ATTR_SIZE as usize);
        put_u32(&mut bytes, self.kind);
        put_u32(&mut bytes, ATTR_SIZE);
        for number in [self.config, self.rate, SAMPLE_TYPE, 0, self.flags] {
            put_u64(&mut bytes, number);
        }
        // clockid is at 92: CLOCK_MONOTONIC.
        bytes.resize(92, 0);
        put_u32(&mut bytes, 1);
        bytes.resize(ATTR_SIZE as usize, 0);
        bytes
    }
}

/// Everything before the first record.
pub(crate) fn header(attribute: &Attribute, data_size: u64, features: &[u32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_u64(&mut bytes, HEADER_SIZE);
    let entry = u64::from(ATTR_SIZE) + 16;
    put_u64(&mut bytes, entry);
    for (offset, size) in [(HEADER_SIZE, entry), (DATA_OFFSET, data_size), (0, 0)] {
        put_u64(&mut bytes, offset);
        put_u64(&mut bytes, size);
    }
    let bits = features.iter().fold(0_u64, |bits, &feature| bits | 1 << feature);
    put_u64(&mut bytes, bits);
    bytes.resize(HEADER_SIZE as usize, 0);
    bytes.extend(attribute.bytes());
    // No ids: there is one event.
    put_u64(&mut bytes, HEADER_SIZE);
    put_u64(&mut bytes, 0);
    bytes
}

/// What the header of a file says of its records; `None` if the file is not one of ours.
pub(crate) fn data_size(header: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let ours = header.starts_with(MAGIC) && word(8)? == HEADER_SIZE && word(DATA_SIZE_AT as usize - 8)? == DATA_OFFSET;
    ours.then(|| word(DATA_SIZE_AT as usize)).flatten()
}

/// The features as they stand behind the records, and their numbers for the header.
pub(crate) fn features(features: &Features, attribute: &Attribute, data_end: u64) -> (Vec<u8>, Vec<u32>) {
    let mut sections = sections(&features.facts, attribute);
    let mut times = features.first_sample.to_le_bytes().to_vec();
    put_u64(&mut times, features.last_sample);
    sections.push((HEADER_SAMPLE_TIME, times));
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

fn sections(facts: &Facts, attribute: &Attribute) -> Vec<(u32, Vec<u8>)> {
    let mut command_line = (facts.command_line.len() as u32).to_le_bytes().to_vec();
    facts.command_line.iter().for_each(|word| put_string(&mut command_line, word));
    vec![
        (HEADER_HOSTNAME, string(facts.hostname.as_bytes())),
        (HEADER_OSRELEASE, string(facts.release.as_bytes())),
        (HEADER_VERSION, string(facts.version.as_bytes())),
        (HEADER_ARCH, string(std::env::consts::ARCH.as_bytes())),
        (HEADER_CMDLINE, command_line),
        (HEADER_EVENT_DESC, event_description(attribute)),
    ]
}

/// The first words, as many as have space in a record.
fn shortened(words: &[Vec<u8>], most: usize) -> Vec<Vec<u8>> {
    let mut space = most;
    let fits = |word: &&Vec<u8>| {
        let left = space.checked_sub(4 + (word.len() + 1).next_multiple_of(64));
        space = left.unwrap_or(0);
        left.is_some()
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

/// `perf_header_string`: a length, then the text up to a multiple of 64 bytes.
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
            batch.sample(Moment { pid: 1, tid: 1, time: 1 }, 1, &vec![1; addresses]);
            batch.as_bytes().len()
        };
        assert_eq!(size(MOST_ADDRESSES), 56 + 8 * MOST_ADDRESSES);
        assert_eq!(size(MOST_ADDRESSES + 1), 0);
    }

    #[test]
    fn the_longest_command_line_is_cut_off_at_a_word() {
        let words = [vec![b'a'; 50 << 10], vec![b'b'; 100], vec![b'c'; 20 << 10], vec![b'd']];
        let facts = Facts { command_line: words.to_vec(), ..Facts::default() };
        let attribute = Attribute::new(&Options::new("f"), None);
        let mut batch = Batch::default();
        batch.facts(&facts, &attribute);
        let (mut rest, mut numbers) = (batch.as_bytes(), Vec::new());
        while let Some(size) = rest.get(6..8).map(|size| u16::from_le_bytes([size[0], size[1]]).into()) {
            assert_eq!(u32::from(rest[0]), PERF_RECORD_HEADER_FEATURE);
            numbers.push(u32::from(rest[8]));
            if rest[8] == HEADER_CMDLINE as u8 {
                assert_eq!(rest[16], 2, "words");
            }
            rest = &rest[size..];
        }
        assert_eq!(numbers, sections(&facts, &attribute).iter().map(|(number, _)| *number).collect::<Vec<_>>());
    }
}
