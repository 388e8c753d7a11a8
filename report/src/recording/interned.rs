//! Interned places and stacks.

use std::hash::Hasher;

use perf_format::{PERF_CONTEXT_KERNEL, PERF_CONTEXT_MAX, PERF_CONTEXT_USER};
use rustc_hash::{FxHashMap, FxHasher};

use super::Recording;
use super::address_space::{KERNEL, Space};
use super::sample::RawSample;
use super::tasks::{MappedFile, Thread};
use crate::unwind::Mapped;

const NONE: u32 = u32::MAX;
/// So many earlier findings of an address are looked at. Where more has been mapped than that, a place has several
/// locations.
const LONGEST_SEARCH: usize = 256;

/// An address in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Whose process: index into [`Recording::origins`].
    pub origin: u32,
    /// The process; none for the kernel.
    pub pid: Option<u32>,
    /// The instruction: of a caller the last byte of its call.
    pub address: u64,
    /// The file that was mapped there then.
    pub place: Option<Place>,
}

/// An offset in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`Recording::files`].
    pub file: u32,
    /// Offset in the file.
    pub offset: u64,
}

/// All stacks, the innermost place first.
#[derive(Debug, Default)]
pub struct Stacks {
    places: Vec<u32>,
    ends: Vec<u32>,
    pub(super) spaces: FxHashMap<u32, Space>,
    pub(super) names: FxHashMap<u32, String>,
}

impl Stacks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Puts the stacks of another recording behind these; its locations begin at `first_location`.
    pub(super) fn append(&mut self, other: &Stacks, first_location: u32) {
        let first = self.places.len() as u32;
        self.places.extend(other.places.iter().map(|place| place + first_location));
        self.ends.extend(other.ends.iter().map(|end| end + first));
    }

    /// The indexes of one stack's locations, the innermost first.
    pub fn get(&self, stack: u32) -> &[u32] {
        let at = stack as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.places[begin as usize..self.ends[at] as usize]
    }
}

/// How long the finding of a location holds, and the next one of the same address.
#[derive(Clone, Copy, Debug)]
struct Validity {
    from: u64,
    to: u64,
    next: u32,
}

/// Whether the recorder itself has walked the stack of the program.
pub(super) fn has_user_part(sample: &RawSample<'_>) -> bool {
    let mut numbers = sample.chain.chunks_exact(8).filter_map(|number| number.try_into().map(u64::from_le_bytes).ok());
    numbers.by_ref().any(|number| number == PERF_CONTEXT_USER) && numbers.next().is_some()
}

#[derive(Debug, Default)]
pub(super) struct Interner {
    spaces: FxHashMap<u32, Space>,
    nowhere: Space,
    locations: Vec<Location>,
    validity: Vec<Validity>,
    by_address: FxHashMap<(u32, u64), u32>,
    stacks: Stacks,
    by_hash: FxHashMap<u64, u32>,
    threads: Vec<Thread>,
    by_tid: FxHashMap<(u32, u32), u32>,
    chain: Vec<u32>,
}

impl Interner {
    pub(super) fn new(spaces: FxHashMap<u32, Space>) -> Interner {
        Interner { spaces, ..Interner::default() }
    }

    pub(super) fn thread(&mut self, pid: u32, tid: u32) -> u32 {
        let next = self.threads.len() as u32;
        let threads = &mut self.threads;
        *self.by_tid.entry((pid, tid)).or_insert_with(|| {
            threads.push(Thread { pid, tid, ..Thread::default() });
            next
        })
    }

    /// The file at an address.
    pub(super) fn mapped<'f>(&self, files: &'f [MappedFile], pid: u32, address: u64, time: u64) -> Option<Mapped<'f>> {
        let mapping = self.spaces.get(&pid)?.find(address, time).mapping?;
        let file = files.get(mapping.file as usize)?;
        let offset = mapping.offset.wrapping_add(address.checked_sub(mapping.start)?);
        Some(Mapped { file: mapping.file, offset, path: &file.path, build_id: &file.build_id })
    }

    /// The number of the sample's stack. `walked` is what was found in a copy of it: instructions, the innermost first.
    pub(super) fn stack(&mut self, sample: &RawSample<'_>, kernel: bool, walked: &[u64]) -> u32 {
        self.chain.clear();
        let mut space = if kernel { KERNEL } else { sample.pid };
        // The first number behind a mark is an instruction, the others are return addresses.
        let mut exact = true;
        for number in sample.chain.chunks_exact(8) {
            let Ok(number) = number.try_into().map(u64::from_le_bytes) else { continue };
            match number {
                PERF_CONTEXT_USER => (space, exact) = (sample.pid, true),
                PERF_CONTEXT_KERNEL => (space, exact) = (KERNEL, true),
                PERF_CONTEXT_MAX.. => exact = true,
                _ => {
                    let address = if exact { number } else { number.wrapping_sub(1) };
                    exact = false;
                    let place = self.location(space, address, sample.time);
                    self.chain.push(place);
                }
            }
        }
        for address in walked {
            let place = self.location(sample.pid, *address, sample.time);
            self.chain.push(place);
        }
        if self.chain.is_empty() {
            let place = self.location(space, sample.ip, sample.time);
            self.chain.push(place);
        }
        self.stack_of_chain()
    }

    fn stack_of_chain(&mut self) -> u32 {
        let mut hasher = FxHasher::default();
        for place in &self.chain {
            hasher.write_u32(*place);
        }
        let mut hash = hasher.finish();
        loop {
            match self.by_hash.get(&hash) {
                Some(stack) if self.stacks.get(*stack) == self.chain => return *stack,
                Some(_) => hash = hash.wrapping_mul(31).wrapping_add(1),
                None => break,
            }
        }
        let number = self.stacks.ends.len() as u32;
        self.stacks.places.extend_from_slice(&self.chain);
        self.stacks.ends.push(self.stacks.places.len() as u32);
        self.by_hash.insert(hash, number);
        number
    }

    fn location(&mut self, space: u32, address: u64, time: u64) -> u32 {
        let first = self.by_address.get(&(space, address)).copied().unwrap_or(NONE);
        let mut at = first;
        for _ in 0..LONGEST_SEARCH {
            let Some(validity) = self.validity.get(at as usize) else { break };
            if validity.from <= time && time < validity.to {
                return at;
            }
            at = validity.next;
        }
        let found = self.spaces.get(&space).unwrap_or(&self.nowhere).find(address, time);
        let place = found
            .mapping
            .map(|mapping| Place { file: mapping.file, offset: mapping.offset.wrapping_add(address - mapping.start) });
        let number = self.locations.len() as u32;
        self.locations.push(Location { origin: 0, pid: (space != KERNEL).then_some(space), address, place });
        self.validity.push(Validity { from: found.from, to: found.to, next: first });
        self.by_address.insert((space, address), number);
        number
    }

    pub(super) fn finish(self, recording: &mut Recording) {
        let names = std::mem::take(&mut recording.stacks.names);
        recording.locations = self.locations;
        recording.stacks = self.stacks;
        recording.threads = self.threads;
        for thread in &mut recording.threads {
            thread.name = names.get(&thread.tid).or_else(|| names.get(&thread.pid)).cloned().unwrap_or_default();
        }
    }
}
