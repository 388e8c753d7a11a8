//! Processes and threads: mappings, names, and lost samples.

use std::path::PathBuf;

use rustc_hash::FxHashMap;
use wire::perf_data::*;

use super::Recording;
use super::address_space::{Change, History, KERNEL, Mapping};
use super::bytes::Bytes;
use super::event::Event;
use super::record::Record;
use super::totals::{ThreadKey, Totals};
use crate::path_text::text_of_path;

/// Protection bit `PROT_EXEC`.
const EXECUTABLE: u32 = 4;

/// File that was mapped into a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Path, or a name in brackets. Private characters stand for bytes that are not UTF-8.
    pub path: String,
    /// Build id, if the recorder has stored it.
    pub build_id: Vec<u8>,
    /// For a file without a build id: the directory that holds its recording's files. In other directories, the same
    /// path may be a different file.
    pub root: Option<PathBuf>,
}

/// Mappings, thread names and lost samples, collected in the first pass.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    history: History,
    files: Vec<MappedFile>,
    file_indices: FxHashMap<MappedFile, u32>,
    /// Time, thread id, and the new name or the creating thread.
    names: Vec<(u64, u32, Naming)>,
    last_names: FxHashMap<u32, String>,
    /// Time or events of each thread.
    totals: FxHashMap<ThreadKey, u64>,
    lost: u64,
}

#[derive(Debug)]
enum Naming {
    Named(String),
    InheritedFrom(u32),
}

impl Tasks {
    pub(super) fn add_record(&mut self, record: Record<'_>, events: &[Event]) {
        let body = Bytes(record.body);
        let time = record_time(record.body, events);
        match record.kind {
            PERF_RECORD_MMAP => self.add_mmap(body, record, time),
            PERF_RECORD_MMAP2 => self.add_mmap2(body, record, time),
            PERF_RECORD_COMM => self.add_comm(body, record, time),
            PERF_RECORD_FORK => self.add_fork(body, time),
            PERF_RECORD_READ => self.add_total(body, events),
            PERF_RECORD_LOST => self.add_lost(record.body.get(8..16)),
            PERF_RECORD_LOST_SAMPLES => self.add_lost(record.body.get(..8)),
            _ => {}
        }
    }

    fn add_lost(&mut self, count: Option<&[u8]>) {
        self.lost = self.lost.saturating_add(count.map_or(0, parse_u64));
    }

    fn add_mmap(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let Some(range) = MappedRange::parse(&mut body) else { return };
        if record.misc & PERF_RECORD_MISC_MMAP_DATA == 0 {
            self.add_mapping(range, body.text(), &[], time);
        }
    }

    fn add_mmap2(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let Some(range) = MappedRange::parse(&mut body) else { return };
        // Identity field: device, inode and generation, or the build id preceded by its length.
        let Some(identity) = body.take(24) else { return };
        let (Some(protection), Some(_flags)) = (body.u32(), body.u32()) else { return };
        if protection & EXECUTABLE == 0 && range.pid != KERNEL {
            return;
        }
        let build_id = match identity {
            [length, _, _, _, id @ ..] if record.misc & PERF_RECORD_MISC_MMAP_BUILD_ID != 0 => {
                id.get(..usize::from(*length)).unwrap_or_default()
            }
            _ => &[],
        };
        self.add_mapping(range, body.text(), build_id, time);
    }

    fn add_mapping(&mut self, range: MappedRange, path: &[u8], build_id: &[u8], time: u64) {
        let Some(end) = range.start.checked_add(range.length).filter(|end| *end > range.start) else { return };
        let path = text_of_path(path);
        let file = MappedFile { path, build_id: build_id.to_vec(), root: None };
        let next = self.files.len() as u32;
        let index = *self.file_indices.entry(file).or_insert_with_key(|file| {
            self.files.push(file.clone());
            next
        });
        let mapping = Mapping { start: range.start, end, offset: range.offset, file: index };
        self.history.add(time, range.pid, Change::Mapped(mapping));
    }

    fn add_comm(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let (Some(pid), Some(tid)) = (body.u32(), body.u32()) else { return };
        self.names.push((time, tid, Naming::Named(String::from_utf8_lossy(body.text()).into_owned())));
        if record.misc & PERF_RECORD_MISC_COMM_EXEC != 0 {
            self.history.add(time, pid, Change::Executed);
        }
    }

    fn add_fork(&mut self, mut body: Bytes<'_>, time: u64) {
        let (Some(pid), Some(parent)) = (body.u32(), body.u32()) else { return };
        let (Some(tid), Some(parent_tid)) = (body.u32(), body.u32()) else { return };
        self.names.push((time, tid, Naming::InheritedFrom(parent_tid)));
        if pid != parent {
            self.history.add(time, pid, Change::ForkedFrom(parent));
        }
    }

    /// Adds to a thread's total. Recordings of several events do not tell which event the value counts, unless they
    /// have further fields.
    fn add_total(&mut self, mut body: Bytes<'_>, events: &[Event]) {
        if !matches!(events, [event] if event.read_format == 0) {
            return;
        }
        let (Some(pid), Some(tid), Some(value)) = (body.u32(), body.u32(), body.u64()) else { return };
        let total = self.totals.entry((pid, tid)).or_default();
        *total = total.saturating_add(value);
    }

    /// Returns the totals since the last call.
    pub(super) fn take_totals(&mut self) -> Totals {
        Totals::new(std::mem::take(&mut self.totals))
    }

    pub(super) fn finish(mut self, recording: &mut Recording) {
        self.fill_recording(recording);
    }

    /// Copies the tasks known so far into a recording; more may follow.
    pub(super) fn fill_recording(&mut self, recording: &mut Recording) {
        let (spaces, too_many) = self.history.build_spaces();
        if too_many {
            recording.notes.push("the recording has millions of mappings; the last of them are ignored".to_owned());
        }
        recording.files = self.files.clone();
        recording.lost = std::mem::take(&mut self.lost);
        recording.stacks.spaces = spaces;
        self.apply_names();
        recording.facts.rank = self.last_names.get(&RANK_TID).and_then(|rank| rank.parse().ok());
        recording.facts.process = self.last_names.get(&PROCESS_NAME_TID).cloned().unwrap_or_default();
        recording.facts.run = self.last_names.get(&RUN_TID).cloned().unwrap_or_default();
        recording.stacks.names = self.last_names.clone();
    }

    /// Applies the names sorted by time, because records of different processors are not in order.
    fn apply_names(&mut self) {
        self.names.sort_by_key(|(time, ..)| *time);
        for (_, tid, naming) in self.names.drain(..) {
            let name = match naming {
                Naming::Named(name) => Some(name),
                Naming::InheritedFrom(parent) => self.last_names.get(&parent).cloned(),
            };
            if let Some(name) = name {
                self.last_names.insert(tid, name);
            }
        }
    }
}

struct MappedRange {
    pid: u32,
    start: u64,
    length: u64,
    offset: u64,
}

impl MappedRange {
    fn parse(body: &mut Bytes<'_>) -> Option<MappedRange> {
        let (pid, _tid) = (body.u32()?, body.u32()?);
        Some(MappedRange { pid, start: body.u64()?, length: body.u64()?, offset: body.u64()? })
    }
}

fn parse_u64(bytes: &[u8]) -> u64 {
    Bytes(bytes).u64().unwrap_or_default()
}

/// Returns the timestamp of a record. In a recording from perf, all events have the timestamp at the same position, or
/// none has one.
fn record_time(body: &[u8], events: &[Event]) -> u64 {
    let time = || {
        let from_end = events.first()?.time_from_end()?;
        let start = body.len().checked_sub(from_end)?;
        body.get(start..start + 8).map(parse_u64)
    };
    time().unwrap_or_default()
}
