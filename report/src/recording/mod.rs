//! Reader for recordings: samples by thread and stack, without symbols.
//!
//! The reader makes two passes over the file. The first collects mappings, threads and their names; the second interns
//! the addresses and stacks of the samples.

mod address_space;
mod bytes;
mod chains;
pub(crate) mod compilations;
mod compressed;
mod event;
mod follower;
mod format;
mod interner;
mod interpreter;
mod merge;
mod moved_images;
mod origin;
mod record;
mod records;
mod sample;
mod tasks;
mod thread;
mod totals;
mod unwind;

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

pub use event::Event;
pub use follower::Follower;
pub use format::Facts;
pub use interner::{FilePosition, Location, Stacks};
pub use interpreter::Interpreter;
pub(crate) use merge::Merger;
pub use origin::Origin;
pub use tasks::MappedFile;
pub use thread::Thread;

use jitlisten_files::open_regular;
use rustc_hash::{FxHashMap, FxHashSet};
use wire::perf_data::*;

use crate::error::Error;
use crate::sanitize::sanitize;

use event::EventIds;
use format::Container;
use interner::Interner;
use record::Record;
use records::End;
use tasks::Tasks;
use totals::{ShortProcesses, Totals};
use unwind::{Machine, Unwinder};

/// Selected part of a recording.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Name of the event. By default, the first event that has samples.
    pub event: Option<String>,
    /// Select only samples of this process.
    pub process: Option<u32>,
    /// Select only samples of this thread.
    pub thread: Option<u32>,
}

/// Sample of a thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index into [`Recording::threads`].
    pub thread: u32,
    /// Index into [`Recording::stacks`].
    pub stack: u32,
    /// Time in ns of the recorder's clock.
    pub time: u64,
    /// Period in ns or events.
    pub weight: u64,
}

/// Recording in memory.
#[derive(Debug, Default)]
pub struct Recording {
    /// Facts from the file's header.
    pub facts: Facts,
    /// Events, with the number of samples of each.
    pub events: Vec<(Event, u64)>,
    /// Index of the event whose samples were read.
    pub event: usize,
    /// Threads that have samples.
    pub threads: Vec<Thread>,
    /// Machines and directories that the recording comes from; several for a merged recording.
    pub origins: Vec<Origin>,
    /// Processes that have samples, each with the index of its origin.
    pub(crate) processes: FxHashSet<(u32, u32)>,
    /// Mapped files.
    pub files: Vec<MappedFile>,
    /// Locations of samples and stacks.
    pub locations: Vec<Location>,
    /// Distinct stacks.
    pub stacks: Stacks,
    /// Samples in the order of the file.
    pub samples: Vec<Sample>,
    /// Facts of the recorded Python interpreters, if known.
    pub interpreters: Vec<Interpreter>,
    /// Samples that the recorder lost.
    pub lost: u64,
    /// Number of recordings that were merged.
    pub parts: usize,
    /// Notes about the recording for readers of the report.
    pub notes: Vec<String>,
    /// Processes whose samples are not scaled yet.
    short_processes: ShortProcesses,
}

impl Recording {
    /// Returns true if samples measure wall-clock time, which includes waiting.
    pub fn is_wall(&self) -> bool {
        self.has_clock(&["wall-clock"])
    }

    /// Returns true if samples measure CPU time.
    pub(crate) fn is_cpu_time(&self) -> bool {
        self.has_clock(&["cpu-clock", "task-clock"])
    }

    fn has_clock(&self, names: &[&str]) -> bool {
        let event = self.events.get(self.event);
        event.is_some_and(|(event, _)| names.iter().any(|name| event.name.starts_with(name)))
    }

    /// Reads a recording from a file.
    ///
    /// # Errors
    /// Returns an error if nothing can be read. If only later records are truncated or damaged, the recording has a
    /// note.
    pub fn open(path: &Path, selection: &Selection) -> Result<Recording, Error> {
        Recording::open_with(path, selection, &[])
    }

    /// Same as [`open`](Recording::open), with additional directories. Files whose unwind rules are needed for stack
    /// copies (`perf record --call-graph dwarf`) are searched there first.
    ///
    /// # Errors
    /// Same as [`open`](Recording::open).
    pub fn open_with(path: &Path, selection: &Selection, roots: &[PathBuf]) -> Result<Recording, Error> {
        let mut file = open_regular(path).map_err(|error| Error::io("open", path, error))?;
        Recording::read_with(&mut file, selection, roots).map_err(|error| match error {
            Error::Io { verb, source, .. } => Error::io(verb, path, source),
            other => other,
        })
    }

    /// Reads a recording from any seekable source.
    ///
    /// # Errors
    /// Same as [`open`](Recording::open).
    pub fn read(file: &mut (impl Read + Seek), selection: &Selection) -> Result<Recording, Error> {
        Recording::read_with(file, selection, &[])
    }

    /// Same as [`open_with`](Recording::open_with), for any seekable source.
    ///
    /// # Errors
    /// Same as [`open`](Recording::open).
    pub fn read_with(
        file: &mut (impl Read + Seek),
        selection: &Selection,
        roots: &[PathBuf],
    ) -> Result<Recording, Error> {
        let mut container = format::open(file)?;
        let mut tasks = Tasks::default();
        let mut counts = Vec::new();
        let range = container.data.clone();
        let read_error = |error| Error::io("read", "the recording", error);
        let end = records::for_each(file, range.clone(), |record| match record.kind {
            PERF_RECORD_HEADER_ATTR => container.pipe_attr(record.body),
            PERF_RECORD_HEADER_FEATURE => container.pipe_feature(record.body),
            PERF_RECORD_SAMPLE => {
                count_sample(&mut counts, event_index(&container.events, &container.by_id, record.body))
            }
            _ => tasks.add_record(record, &container.events),
        })
        .map_err(read_error)?;
        container.note_end(end);
        let event = container.choose(&counts, selection)?;
        let totals = tasks.take_totals();
        let mut recording = Recording::from_container(container, counts, event, tasks);
        recording.read_samples(file, range, selection, roots, totals).map_err(read_error)?;
        recording.parts = 1;
        // The recorder does not tell whose it is.
        if selection.thread.is_some() || recording.samples.is_empty() {
            (recording.facts.run_queue_ns, recording.facts.busiest_run_queue_ns) = (0, 0);
            recording.facts.unrecorded_children_ns = 0;
        }
        for thread in &mut recording.threads {
            thread.host.clone_from(&recording.facts.host);
            thread.rank = recording.facts.rank;
            thread.process = sanitize(&recording.facts.process);
            thread.run.clone_from(&recording.facts.run);
        }
        recording.processes = recording.threads.iter().map(|thread| (0, thread.pid)).collect();
        recording.origins = vec![Origin { host: recording.facts.host.clone(), root: None }];
        Ok(recording)
    }

    /// Sets the directory that holds this recording's own files.
    pub(crate) fn set_root(&mut self, root: &Path) {
        for origin in &mut self.origins {
            origin.root = Some(root.to_owned());
        }
        for file in self.files.iter_mut().filter(|file| file.build_id.is_empty()) {
            file.root = Some(root.to_owned());
        }
    }

    fn from_container(container: Container, counts: Vec<u64>, event: usize, tasks: Tasks) -> Recording {
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
        mut totals: Totals,
    ) -> std::io::Result<()> {
        let mut interner = Interner::new(std::mem::take(&mut self.stacks.spaces));
        let events: Vec<Event> = self.events.iter().map(|(event, _)| event.clone()).collect();
        let by_id = EventIds::new(&events);
        let Some(event) = events.get(self.event) else { return Ok(()) };
        let mut unreadable = 0_u64;
        let mut unwinder = Unwinder::new(roots, self.machine());
        let files = &self.files;
        let samples = &mut self.samples;
        records::for_each(file, range, |record| {
            if record.kind != PERF_RECORD_SAMPLE || event_index(&events, &by_id, record.body) != self.event {
                return;
            }
            let Some(sample) = sample::parse(event, record.body) else {
                unreadable += 1;
                return;
            };
            totals.add_sample((sample.pid, sample.tid), sample.period);
            if !selection.matches(sample.pid, sample.tid) {
                return;
            }
            let walked = sample.stack_copy.filter(|_| !interner::has_user_part(&sample)).map(|stack_copy| {
                unwinder.walk(&stack_copy, |address| interner.find_file(files, sample.pid, address, sample.time))
            });
            let stack = interner.intern_stack(&sample, is_kernel(record), &walked.unwrap_or_default());
            samples.push(Sample {
                thread: interner.intern_thread(sample.pid, sample.tid),
                stack,
                time: sample.time,
                weight: sample.period,
            });
        })?;
        if unreadable != 0 {
            self.notes.push(format!("{unreadable} samples are damaged and not counted"));
        }
        if unwinder.truncated_walks != 0 {
            self.notes.push(format!(
                "{} stacks are longer than their copies: record with --call-graph dwarf,65528",
                unwinder.truncated_walks
            ));
        }
        if unwinder.failed_walks != 0 {
            self.notes
                .push(format!("{} stacks end early: no unwind information for the last frame", unwinder.failed_walks));
        }
        interner.finish(self);
        self.short_processes = totals.apply(&self.threads, &mut self.samples);
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
    fn matches(&self, pid: u32, tid: u32) -> bool {
        self.process.is_none_or(|selected| selected == pid) && self.thread.is_none_or(|selected| selected == tid)
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
            self.add_feature(feature, cursor.0);
        }
    }

    fn note_end(&mut self, end: End) {
        match end {
            End::Whole => {}
            End::CutOff(offset) => {
                self.notes.push(format!(
                    "the recording was cut off at byte {offset}, inside a record; all records before it are read"
                ));
            }
            End::Damaged(offset) => {
                self.notes.push(format!("the recording is damaged at byte {offset}; all records before it are read"));
            }
            End::CompressedDamaged => {
                self.notes.push(
                    "a compressed record is damaged, or expands too much; it and the compressed records after it are \
                     not read"
                        .to_owned(),
                );
            }
        }
    }

    /// Returns the index of the selected event.
    fn choose(&self, counts: &[u64], selection: &Selection) -> Result<usize, Error> {
        let supported = ["", "x86_64", "aarch64", "amd64", "arm64"];
        if !supported.contains(&self.facts.architecture.as_str()) {
            return Err(Error::OtherArchitecture(self.facts.architecture.clone()));
        }
        if self.events.is_empty() {
            return Err(Error::NoEvent);
        }
        let Some(name) = &selection.event else {
            return Ok(counts.iter().position(|count| *count != 0).unwrap_or_default());
        };
        // The selection `cycles` also matches `cycles:u`.
        let without_modifiers = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        let has_name = |event: &Event| event.name == *name || without_modifiers(&event.name) == *name;
        self.events.iter().position(has_name).ok_or_else(|| Error::UnknownEvent {
            wanted: name.clone(),
            present: self.events.iter().map(|event| event.name.clone()).collect(),
        })
    }
}

fn count_sample(counts: &mut Vec<u64>, event: usize) {
    if counts.len() <= event {
        counts.resize(event + 1, 0);
    }
    counts[event] += 1;
}

/// Returns the index of a sample's event.
fn event_index(events: &[Event], by_id: &EventIds, body: &[u8]) -> usize {
    let [first, _, ..] = events else { return 0 };
    sample::event_id(first, body).and_then(|id| by_id.find(id)).unwrap_or_default()
}

fn is_kernel(record: Record<'_>) -> bool {
    record.misc & PERF_RECORD_MISC_CPUMODE_MASK == PERF_RECORD_MISC_KERNEL
}
