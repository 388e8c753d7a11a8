//! Interned locations and stacks.

use std::hash::Hasher;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
use wire::perf_data::{PERF_CONTEXT_KERNEL, PERF_CONTEXT_MAX, PERF_CONTEXT_USER};

use super::Recording;
use super::address_space::{KERNEL, Space};
use super::chains::{Chains, KnownChain};
use super::sample::RawSample;
use super::tasks::MappedFile;
use super::thread::Thread;
use super::unwind::MappedAddress;

const NO_ENTRY: u32 = u32::MAX;
/// Maximum number of earlier entries of an address to search. If more files were mapped there, a position may have
/// several locations.
const MAX_ENTRIES_PER_ADDRESS: usize = 256;

/// Code address in a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Origin of the process, as an index into [`Recording::origins`].
    pub origin: u32,
    /// Process; `None` for the kernel.
    pub pid: Option<u32>,
    /// Address of the instruction; for a caller, the address of the last byte of its call.
    pub address: u64,
    /// Position in the file that was mapped at the address when the sample was taken.
    pub position: Option<FilePosition>,
    /// True if only the function is known, not the instruction.
    pub is_function: bool,
    /// Name by which compiled code calls the function, if it has no symbol.
    pub callee: Option<Arc<str>>,
}

/// Position in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilePosition {
    /// Index into [`Recording::files`].
    pub file: u32,
    /// Offset in the file.
    pub offset: u64,
}

/// All distinct stacks, innermost location first.
#[derive(Debug, Default)]
pub struct Stacks {
    locations: Vec<u32>,
    ends: Vec<u32>,
    pub(super) spaces: FxHashMap<u32, Space>,
    pub(super) names: FxHashMap<u32, String>,
}

impl Stacks {
    /// Returns the number of stacks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the index of a stack, which is added if it is not in `numbers`.
    pub(super) fn number(&mut self, locations: &[u32], numbers: &mut StackNumbers) -> u32 {
        let mut hasher = FxHasher::default();
        for location in locations {
            hasher.write_u32(*location);
        }
        let mut hash = hasher.finish();
        loop {
            match numbers.0.get(&hash) {
                Some(stack) if self.get(*stack) == locations => return *stack,
                Some(_) => hash = hash.wrapping_mul(31).wrapping_add(1),
                None => break,
            }
        }
        let stack = self.ends.len() as u32;
        self.locations.extend_from_slice(locations);
        self.ends.push(self.locations.len() as u32);
        numbers.0.insert(hash, stack);
        stack
    }

    /// Inserts a location after the innermost one outside of the kernel, in the given stacks.
    pub(crate) fn insert_callers(&mut self, all: &[Location], callers: &FxHashMap<u32, u32>) {
        if callers.is_empty() {
            return;
        }
        let (mut locations, mut ends) = (Vec::with_capacity(self.locations.len() + callers.len()), Vec::new());
        for stack in 0..self.len() as u32 {
            let stack_locations = self.get(stack);
            let is_user = |location: &u32| all[*location as usize].pid.is_some();
            let kernel_count = stack_locations.iter().position(is_user).unwrap_or(stack_locations.len());
            let (inner, outer) = stack_locations.split_at((kernel_count + 1).min(stack_locations.len()));
            locations.extend(inner);
            locations.extend(callers.get(&stack));
            locations.extend(outer);
            ends.push(locations.len() as u32);
        }
        (self.locations, self.ends) = (locations, ends);
    }

    /// Returns the location indices of one stack, innermost first.
    pub fn get(&self, stack: u32) -> &[u32] {
        let index = stack as usize;
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.locations[start as usize..self.ends[index] as usize]
    }
}

/// Indices of stacks, by hash.
#[derive(Debug, Default)]
pub(super) struct StackNumbers(FxHashMap<u64, u32>);

/// Time span of a location's validity, and the next entry of the same address.
#[derive(Clone, Copy, Debug)]
struct Validity {
    from: u64,
    to: u64,
    next: u32,
}

/// Returns true if the recorder unwound the user stack itself.
pub(super) fn has_user_part(sample: &RawSample<'_>) -> bool {
    let mut numbers = sample.chain.chunks_exact(8).filter_map(|number| number.try_into().map(u64::from_le_bytes).ok());
    numbers.by_ref().any(|number| number == PERF_CONTEXT_USER) && numbers.next().is_some()
}

/// Addresses of a call chain, innermost first, each with its address space.
struct ChainAddresses<'a> {
    numbers: std::slice::ChunksExact<'a, u8>,
    pid: u32,
    space: u32,
    /// True for the first address after a context marker, which is that of an instruction; later ones are return
    /// addresses.
    is_exact: bool,
}

impl<'a> ChainAddresses<'a> {
    fn new(sample: &RawSample<'a>, kernel: bool) -> ChainAddresses<'a> {
        let space = if kernel { KERNEL } else { sample.pid };
        ChainAddresses { numbers: sample.chain.chunks_exact(8), pid: sample.pid, space, is_exact: true }
    }
}

impl Iterator for ChainAddresses<'_> {
    type Item = (u32, u64);

    fn next(&mut self) -> Option<(u32, u64)> {
        loop {
            let number = u64::from_le_bytes(self.numbers.next()?.try_into().ok()?);
            match number {
                PERF_CONTEXT_USER => (self.space, self.is_exact) = (self.pid, true),
                PERF_CONTEXT_KERNEL => (self.space, self.is_exact) = (KERNEL, true),
                PERF_CONTEXT_MAX.. => self.is_exact = true,
                _ => {
                    let address = if self.is_exact { number } else { number.wrapping_sub(1) };
                    self.is_exact = false;
                    return Some((self.space, address));
                }
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Interner {
    spaces: FxHashMap<u32, Space>,
    empty_space: Space,
    locations: Vec<Location>,
    validity: Vec<Validity>,
    by_address: FxHashMap<(u32, u64), u32>,
    stacks: Stacks,
    numbers: StackNumbers,
    threads: Vec<Thread>,
    by_tid: FxHashMap<(u32, u32), u32>,
    chain: Vec<u32>,
    known_chains: Chains,
}

impl Interner {
    pub(super) fn new(spaces: FxHashMap<u32, Space>) -> Interner {
        Interner { spaces, ..Interner::default() }
    }

    pub(super) fn intern_thread(&mut self, pid: u32, tid: u32) -> u32 {
        let next = self.threads.len() as u32;
        let threads = &mut self.threads;
        *self.by_tid.entry((pid, tid)).or_insert_with(|| {
            threads.push(Thread { pid, tid, ..Thread::default() });
            next
        })
    }

    /// Returns the file mapped at an address.
    pub(super) fn find_file<'f>(
        &self,
        files: &'f [MappedFile],
        pid: u32,
        address: u64,
        time: u64,
    ) -> Option<MappedAddress<'f>> {
        let mapping = self.spaces.get(&pid)?.find(address, time).mapping?;
        let file = files.get(mapping.file as usize)?;
        let offset = mapping.offset.wrapping_add(address.checked_sub(mapping.start)?);
        Some(MappedAddress { file: mapping.file, offset, path: &file.path, build_id: &file.build_id })
    }

    /// Interns the sample's stack. `walked` holds the addresses unwound from its stack copy, innermost first.
    pub(super) fn intern_stack(&mut self, sample: &RawSample<'_>, kernel: bool, walked: &[u64]) -> u32 {
        if sample.chain.is_empty() || !walked.is_empty() {
            return self.intern_new_stack(sample, kernel, walked);
        }
        let hash = Chains::hash(sample, kernel);
        if let Some(stack) = self.known_chains.find(hash, sample.time) {
            return stack;
        }
        let stack = self.intern_new_stack(sample, kernel, walked);
        let validity = self.stacks.get(stack).iter().map(|location| self.validity[*location as usize]);
        let (from, to) = validity.fold((0, u64::MAX), |(from, to), span| (from.max(span.from), to.min(span.to)));
        self.known_chains.insert(hash, KnownChain { stack, from, to });
        stack
    }

    fn intern_new_stack(&mut self, sample: &RawSample<'_>, kernel: bool, walked: &[u64]) -> u32 {
        self.chain.clear();
        let mut addresses = ChainAddresses::new(sample, kernel);
        for (space, address) in addresses.by_ref() {
            let location = self.intern_location(space, address, sample.time);
            self.chain.push(location);
        }
        for address in walked {
            let location = self.intern_location(sample.pid, *address, sample.time);
            self.chain.push(location);
        }
        if self.chain.is_empty() {
            let location = self.intern_location(addresses.space, sample.ip, sample.time);
            self.chain.push(location);
        }
        self.stacks.number(&self.chain, &mut self.numbers)
    }

    fn intern_location(&mut self, space: u32, address: u64, time: u64) -> u32 {
        let first = self.by_address.get(&(space, address)).copied().unwrap_or(NO_ENTRY);
        let mut entry = first;
        for _ in 0..MAX_ENTRIES_PER_ADDRESS {
            let Some(validity) = self.validity.get(entry as usize) else { break };
            if validity.from <= time && time < validity.to {
                return entry;
            }
            entry = validity.next;
        }
        let mapping_at = self.spaces.get(&space).unwrap_or(&self.empty_space).find(address, time);
        let position = mapping_at.mapping.map(|mapping| FilePosition {
            file: mapping.file,
            offset: mapping.offset.wrapping_add(address - mapping.start),
        });
        let location = self.locations.len() as u32;
        let pid = (space != KERNEL).then_some(space);
        self.locations.push(Location { origin: 0, pid, address, position, is_function: false, callee: None });
        self.validity.push(Validity { from: mapping_at.from, to: mapping_at.to, next: first });
        self.by_address.insert((space, address), location);
        location
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
