//! Processes and threads: mappings, names, and lost samples.

use std::path::PathBuf;

use perf_format::*;
use rustc_hash::FxHashMap;

use super::Recording;
use super::address_space::{Change, History, KERNEL, Mapping};
use super::bytes::Bytes;
use super::event::Event;
use super::record::Record;
/// `PROT_EXEC`
const EXECUTABLE: u32 = 4;

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its number.
    pub tid: u32,
    /// What it was last called.
    pub name: String,
    /// The machine it ran on.
    pub host: String,
}

/// A file that was mapped into a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Its path, or a name in brackets.
    pub path: String,
    /// Its build id, where the recorder has written it down.
    pub build_id: Vec<u8>,
    /// Of a file without build id, the folder with its recording's files: elsewhere may be another one.
    pub root: Option<PathBuf>,
}

/// What the first pass collects.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    history: History,
    files: Vec<MappedFile>,
    file_numbers: FxHashMap<MappedFile, u32>,
    /// Time, thread, and its name or the thread that made it.
    names: Vec<(u64, u32, Naming)>,
    last_names: FxHashMap<u32, String>,
    lost: u64,
}

#[derive(Debug)]
enum Naming {
    Named(String),
    LikeItsMaker(u32),
}

impl Tasks {
    pub(super) fn record(&mut self, record: Record<'_>, events: &[Event]) {
        let body = Bytes(record.body);
        let time = time_of(record.body, events);
        match record.kind {
            PERF_RECORD_MMAP => self.mapped(body, record, time),
            PERF_RECORD_MMAP2 => self.mapped2(body, record, time),
            PERF_RECORD_COMM => self.named(body, record, time),
            PERF_RECORD_FORK => self.forked(body, time),
            PERF_RECORD_LOST => self.add_lost(record.body.get(8..16)),
            PERF_RECORD_LOST_SAMPLES => self.add_lost(record.body.get(..8)),
            _ => {}
        }
    }

    fn add_lost(&mut self, count: Option<&[u8]>) {
        self.lost = self.lost.saturating_add(count.map_or(0, number));
    }

    fn mapped(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let Some(range) = MappedRange::parse(&mut body) else { return };
        if record.misc & PERF_RECORD_MISC_MMAP_DATA == 0 {
            self.add(range, body.text(), &[], time);
        }
    }

    fn mapped2(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let Some(range) = MappedRange::parse(&mut body) else { return };
        // Device, inode and generation, or the build id with its length in front.
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
        self.add(range, body.text(), build_id, time);
    }

    fn add(&mut self, range: MappedRange, path: &[u8], build_id: &[u8], time: u64) {
        let Some(end) = range.start.checked_add(range.length).filter(|end| *end > range.start) else { return };
        let path = String::from_utf8_lossy(path).into_owned();
        let file = MappedFile { path, build_id: build_id.to_vec(), root: None };
        let next = self.files.len() as u32;
        let number = *self.file_numbers.entry(file).or_insert_with_key(|file| {
            self.files.push(file.clone());
            next
        });
        let mapping = Mapping { start: range.start, end, offset: range.offset, file: number };
        self.history.add(time, range.pid, Change::Mapped(mapping));
    }

    fn named(&mut self, mut body: Bytes<'_>, record: Record<'_>, time: u64) {
        let (Some(pid), Some(tid)) = (body.u32(), body.u32()) else { return };
        self.names.push((time, tid, Naming::Named(String::from_utf8_lossy(body.text()).into_owned())));
        if record.misc & PERF_RECORD_MISC_COMM_EXEC != 0 {
            self.history.add(time, pid, Change::Executed);
        }
    }

    fn forked(&mut self, mut body: Bytes<'_>, time: u64) {
        let (Some(pid), Some(parent)) = (body.u32(), body.u32()) else { return };
        let (Some(tid), Some(parent_tid)) = (body.u32(), body.u32()) else { return };
        self.names.push((time, tid, Naming::LikeItsMaker(parent_tid)));
        if pid != parent {
            self.history.add(time, pid, Change::ForkedFrom(parent));
        }
    }

    pub(super) fn finish(mut self, recording: &mut Recording) {
        self.fill(recording);
    }

    /// Writes the known tasks into a recording; more may follow.
    pub(super) fn fill(&mut self, recording: &mut Recording) {
        let (spaces, too_many) = self.history.spaces();
        if too_many {
            recording.notes.push("the recording has millions of mappings; the last of them are ignored".to_owned());
        }
        recording.files = self.files.clone();
        recording.lost = std::mem::take(&mut self.lost);
        recording.stacks.spaces = spaces;
        self.take_last_names();
        recording.stacks.names = self.last_names.clone();
    }

    /// Records of different processors do not come in order.
    fn take_last_names(&mut self) {
        self.names.sort_by_key(|(time, ..)| *time);
        for (_, tid, naming) in self.names.drain(..) {
            let name = match naming {
                Naming::Named(name) => Some(name),
                Naming::LikeItsMaker(maker) => self.last_names.get(&maker).cloned(),
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

fn number(bytes: &[u8]) -> u64 {
    Bytes(bytes).u64().unwrap_or_default()
}

/// All events of a recording that perf makes have their time at one place, or none has.
fn time_of(body: &[u8], events: &[Event]) -> u64 {
    let time = || {
        let from_end = events.first()?.time_from_end()?;
        let at = body.len().checked_sub(from_end)?;
        body.get(at..at + 8).map(number)
    };
    time().unwrap_or_default()
}
