//! Reads a recording: samples by thread and stack, without symbols.
//!
//! Two passes over the file: the first collects mappings and threads with their names; the second stores each distinct
//! address and each distinct stack of the samples once.

mod address_space;
mod beside;
mod bytes;
mod compressed;
mod event;
mod follower;
mod format;
mod interned;
mod merged;
mod origin;
mod record;
mod records;
mod sample;
mod tasks;

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

pub use event::Event;
pub use follower::Follower;
pub use format::Facts;
pub use interned::{Location, Place, Stacks};
pub use origin::Origin;
pub use tasks::{MappedFile, Thread};

use jitlisten_files::open_regular;
use perf_format::*;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::unwind::{Machine, Unwinder};

use event::ById;
use format::Container;
use interned::Interner;
use record::Record;
use records::End;
use tasks::Tasks;

/// Which part of a recording is wanted.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The name of the event; without it, the first that has samples.
    pub event: Option<String>,
    /// Only this process.
    pub process: Option<u32>,
    /// Only this thread.
    pub thread: Option<u32>,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index into [`Recording::threads`].
    pub thread: u32,
    /// Number of the stack in [`Recording::stacks`].
    pub stack: u32,
    /// When, in nanoseconds of the recorder's clock.
    pub time: u64,
    /// Its period: nanoseconds or events.
    pub weight: u64,
}

/// A recording in memory.
#[derive(Debug, Default)]
pub struct Recording {
    /// What the file says of itself.
    pub facts: Facts,
    /// The events, with the number of samples each has.
    pub events: Vec<(Event, u64)>,
    /// Which of them was read.
    pub event: usize,
    /// The threads that have samples.
    pub threads: Vec<Thread>,
    /// The machines and folders that it is from: one, of several recordings the different ones.
    pub origins: Vec<Origin>,
    /// The files that were mapped.
    pub files: Vec<MappedFile>,
    /// Every place that a sample or a stack names.
    pub locations: Vec<Location>,
    /// Every stack, once.
    pub stacks: Stacks,
    /// The samples, in the order of the file.
    pub samples: Vec<Sample>,
    /// Samples that the recorder could not keep.
    pub lost: u64,
    /// How many recordings were added up.
    pub parts: usize,
    /// What a reader of the report has to know about the recording.
    pub notes: Vec<String>,
}

impl Recording {
    /// Whether its samples are of wall-clock time, which passes while a thread waits.
    pub fn is_wall(&self) -> bool {
        self.events.get(self.event).is_some_and(|(event, _)| event.name.starts_with("wall-clock"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When nothing of it can be read. What is cut off or damaged behind its beginning is a note.
    pub fn open(path: &Path, selection: &Selection) -> Result<Recording, Error> {
        Recording::open_with(path, selection, &[])
    }

    /// As [`open`](Recording::open). The files whose rules are needed to walk copies of stacks (`perf record
    /// --call-graph dwarf`) are looked for in these directories first.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn open_with(path: &Path, selection: &Selection, roots: &[PathBuf]) -> Result<Recording, Error> {
        let mut file = open_regular(path).map_err(|error| Error::io("open", path, error))?;
        Recording::read_with(&mut file, selection, roots).map_err(|error| match error {
            Error::Io { verb, source, .. } => Error::io(verb, path, source),
            other => other,
        })
    }

    /// Reads from anything that can seek.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn read(file: &mut (impl Read + Seek), selection: &Selection) -> Result<Recording, Error> {
        Recording::read_with(file, selection, &[])
    }

    /// As [`open_with`](Recording::open_with), from anything that can seek.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn read_with(
        file: &mut (impl Read + Seek),
        selection: &Selection,
        roots: &[PathBuf],
    ) -> Result<Recording, Error> {
        let mut container = format::open(file)?;
        let mut tasks = Tasks::default();
        let mut counts = Vec::new();
        let range = container.data.clone();
        let read = |error| Error::io("read", "the recording", error);
        let end = records::for_each(file, range.clone(), |record| match record.kind {
            PERF_RECORD_HEADER_ATTR => container.pipe_attr(record.body),
            PERF_RECORD_HEADER_FEATURE => container.pipe_feature(record.body),
            PERF_RECORD_SAMPLE => count(&mut counts, event_of(&container.events, &container.by_id, record.body)),
            _ => tasks.record(record, &container.events),
        })
        .map_err(read)?;
        container.say_how_it_ended(end);
        let event = container.choose(&counts, selection)?;
        let mut recording = Recording::begin(container, counts, event, tasks);
        recording.read_samples(file, range, selection, roots).map_err(read)?;
        recording.parts = 1;
        for thread in &mut recording.threads {
            thread.host.clone_from(&recording.facts.host);
        }
        recording.origins = vec![Origin { host: recording.facts.host.clone(), root: None }];
        Ok(recording)
    }

    /// The folder with this recording's own files.
    pub(crate) fn set_root(&mut self, root: &Path) {
        for origin in &mut self.origins {
            origin.root = Some(root.to_owned());
        }
        for file in self.files.iter_mut().filter(|file| file.build_id.is_empty()) {
            file.root = Some(root.to_owned());
        }
    }

    fn begin(container: Container, counts: Vec<u64>, event: usize, tasks: Tasks) -> Recording {
        let Container { facts, events, notes, build_ids, .. } = container;
        let counts = counts.into_iter().chain(std::iter::repeat(0));
        let mut recording =
            Recording { facts, events: events.into_iter().zip(counts).collect(), event, notes, ..Default::default() };
        tasks.finish(&mut recording);
        let build_ids: FxHashMap<String, Vec<u8>> = build_ids.into_iter().collect();
        for file in recording.files.iter_mut().filter(|file| file.build_id.is_empty()) {
            file.build_id = build_ids.get(&file.path).cloned().unwrap_or_default();
        }
        recording
    }

    fn read_samples(
        &mut self,
        file: &mut (impl Read + Seek),
        range: std::ops::Range<u64>,
        selection: &Selection,
        roots: &[PathBuf],
    ) -> std::io::Result<()> {
        let mut interner = Interner::new(std::mem::take(&mut self.stacks.spaces));
        let events: Vec<Event> = self.events.iter().map(|(event, _)| event.clone()).collect();
        let by_id = ById::of(&events);
        let Some(event) = events.get(self.event) else { return Ok(()) };
        let mut unreadable = 0_u64;
        let mut unwinder = Unwinder::new(roots, self.machine());
        let files = &self.files;
        let samples = &mut self.samples;
        records::for_each(file, range, |record| {
            if record.kind != PERF_RECORD_SAMPLE || event_of(&events, &by_id, record.body) != self.event {
                return;
            }
            let Some(sample) = sample::parse(event, record.body) else {
                unreadable += 1;
                return;
            };
            if !selection.takes(sample.pid, sample.tid) {
                return;
            }
            let walked = sample.copied.filter(|_| !interned::has_user_part(&sample)).map(|copied| {
                unwinder.walk(&copied, |address| interner.mapped(files, sample.pid, address, sample.time))
            });
            let stack = interner.stack(&sample, is_kernel(record), &walked.unwrap_or_default());
            samples.push(Sample {
                thread: interner.thread(sample.pid, sample.tid),
                stack,
                time: sample.time,
                weight: sample.period,
            });
        })?;
        if unreadable != 0 {
            self.notes.push(format!("{unreadable} samples are damaged and not counted"));
        }
        if unwinder.cut != 0 {
            self.notes.push(format!(
                "{} stacks are longer than their copies: record with --call-graph dwarf,65528",
                unwinder.cut
            ));
        }
        if unwinder.broken != 0 {
            self.notes.push(format!("{} stacks end early: no unwind information for the last frame", unwinder.broken));
        }
        interner.finish(self);
        Ok(())
    }

    fn machine(&self) -> Machine {
        match self.facts.architecture.as_str() {
            "aarch64" | "arm64" => Machine::Aarch64,
            _ => Machine::X86_64,
        }
    }
}

impl Selection {
    fn takes(&self, pid: u32, tid: u32) -> bool {
        self.process.is_none_or(|wanted| wanted == pid) && self.thread.is_none_or(|wanted| wanted == tid)
    }
}

impl Container {
    fn pipe_attr(&mut self, body: &[u8]) {
        let size = body.get(4..8).and_then(|size| bytes::Bytes(size).u32()).unwrap_or_default() as usize;
        let (attr, ids) = body.split_at_checked(size.max(64)).unwrap_or((body, &[]));
        if let Some(mut event) = Event::parse(attr) {
            event.add_ids(ids);
            self.add_event(event);
        }
    }

    fn pipe_feature(&mut self, body: &[u8]) {
        let mut cursor = bytes::Bytes(body);
        if let Some(feature) = cursor.u64().and_then(|feature| u32::try_from(feature).ok()) {
            self.feature(feature, cursor.0);
        }
    }

    fn say_how_it_ended(&mut self, end: End) {
        match end {
            End::Whole => {}
            End::CutOff(at) => {
                self.notes.push(format!(
                    "the recording was cut off at byte {at}, inside a record; all records before it are read"
                ));
            }
            End::Damaged(at) => {
                self.notes.push(format!("the recording is damaged at byte {at}; all records before it are read"));
            }
            End::CompressedDamaged => {
                self.notes.push(
                    "a compressed record is damaged, or expands too much; it and the compressed records after it are not \
                     read"
                        .to_owned(),
                );
            }
        }
    }

    /// The index of the event to read.
    fn choose(&self, counts: &[u64], selection: &Selection) -> Result<usize, Error> {
        let known = ["", "x86_64", "aarch64", "amd64", "arm64"];
        if !known.contains(&self.facts.architecture.as_str()) {
            return Err(Error::OtherArchitecture(self.facts.architecture.clone()));
        }
        if self.events.is_empty() {
            return Err(Error::NoEvent);
        }
        let Some(wanted) = &selection.event else {
            return Ok(counts.iter().position(|count| *count != 0).unwrap_or_default());
        };
        // `cycles` is also found as `cycles:u`.
        let plain = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        let named = |event: &Event| event.name == *wanted || plain(&event.name) == *wanted;
        self.events.iter().position(named).ok_or_else(|| Error::UnknownEvent {
            wanted: wanted.clone(),
            present: self.events.iter().map(|event| event.name.clone()).collect(),
        })
    }
}

fn count(counts: &mut Vec<u64>, event: usize) {
    if counts.len() <= event {
        counts.resize(event + 1, 0);
    }
    counts[event] += 1;
}

/// The index of the event that a sample is of.
fn event_of(events: &[Event], by_id: &ById, body: &[u8]) -> usize {
    let [first, _, ..] = events else { return 0 };
    sample::id(first, body).and_then(|id| by_id.find(id)).unwrap_or_default()
}

fn is_kernel(record: Record<'_>) -> bool {
    record.misc & PERF_RECORD_MISC_CPUMODE_MASK == PERF_RECORD_MISC_KERNEL
}
