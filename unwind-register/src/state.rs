//! All registrations, protected by the single lock of this crate.

mod registered_groups;

use crate::cfi::{self, Group};
use crate::clock::now;
use crate::error::Error;
use crate::frame_registry::FrameRegistry;
use crate::libunwind::Libunwind;
use crate::loader;
use crate::memory::{Region, RegionAllocator};
use crate::plan::Plan;
use crate::section::Coverage;
use crate::signals::BlockedSignals;
use crate::stale::{FlushPolicy, StaleRanges};
use crate::statistics::Statistics;
use crate::table::{Forest, LeafId, Publish};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use registered_groups::RegisteredGroups;
pub(crate) use registered_groups::missing_masks;

/// State protected by the crate's lock. It is a leaf lock: while holding it, we call neither the loader, nor an
/// unwinder's lookup, nor the caller's code.
pub(crate) struct State {
    pub(crate) region: Option<Region>,
    pub(crate) allocator: RegionAllocator,
    pub(crate) forest: Forest,
    pub(crate) libunwinds: Libunwinds,
    pub(crate) frame_registries: Option<Arc<Vec<FrameRegistry>>>,
    /// Load addresses of ignored unwinders, with the reasons.
    pub(crate) refused: Vec<(usize, Error)>,
    pub(crate) live: BTreeMap<u64, LiveRegistration>,
    /// Number of the newest registration.
    last_id: u64,
    pub(crate) totals: Statistics,
    stale: StaleRanges,
    registered_groups: RegisteredGroups,
    /// Progress of the search for unwinders in the loaded libraries.
    pub(crate) scanned: ScanProgress,
}

/// A registration that is not yet dropped.
pub(crate) struct LiveRegistration {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) groups: Vec<Group>,
    /// Keys into `RegisteredGroups`: the load address of the frame registry and the first address of the group.
    pub(crate) group_keys: Vec<(usize, u64)>,
    pub(crate) functions: usize,
    /// True if the owner holds only its number: [`Registration::into_number`](crate::Registration::into_number).
    pub(crate) owned_by_number: bool,
}

/// All copies of nongnu libunwind in this process.
pub(crate) struct Libunwinds(pub(crate) Vec<Libunwind>);

impl Publish for Libunwinds {
    fn leaf(&mut self, id: LeafId, info: &Range<u64>, cells: &'static [AtomicU64]) {
        self.0.iter_mut().for_each(|copy| copy.leaf(id, info, cells));
    }

    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]) {
        self.0.iter_mut().for_each(|copy| copy.table(id, cells));
    }

    fn clip(&self, range: Range<u64>, address: u64) -> Range<u64> {
        self.0.iter().fold(range, |range, copy| copy.clip(range, address))
    }
}

/// State of the loader's list at the last complete scan.
#[derive(Clone, Copy, Default)]
pub(crate) struct ScanProgress {
    pub(crate) counts: loader::Counts,
    pub(crate) libraries: usize,
}

impl ScanProgress {
    pub(crate) const NONE: ScanProgress =
        ScanProgress { counts: loader::Counts { loads: 0, unloads: 0 }, libraries: 0 };
}

static PROCESS: Mutex<State> = Mutex::new(State {
    region: None,
    allocator: RegionAllocator::new(),
    forest: Forest::new(),
    libunwinds: Libunwinds(Vec::new()),
    frame_registries: None,
    refused: Vec::new(),
    live: BTreeMap::new(),
    last_id: 0,
    totals: Statistics::ZERO,
    stale: StaleRanges::new(),
    registered_groups: RegisteredGroups::new(),
    scanned: ScanProgress::NONE,
});

/// Guard of the locked state, which also blocks signals. A signal handler that forks would otherwise deadlock, because
/// our `fork` handler would wait for the lock that its own thread holds.
pub(crate) struct Locked {
    state: MutexGuard<'static, State>,
    // Declared last, so that signals are unblocked only after the lock is released.
    _signals: BlockedSignals,
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Blocks signals and takes the lock.
pub(crate) fn lock() -> Locked {
    let signals = BlockedSignals::new();
    // Ignore poisoning: a panic under the lock would be our own bug, and the host must continue regardless.
    let state = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    Locked { state, _signals: signals }
}

impl State {
    /// Returns the region, and reserves it on the first use.
    pub(crate) fn region(&mut self) -> Result<&mut Region, Error> {
        if self.region.is_none() {
            let mut region = Region::reserve()?;
            region.grow(1)?; // the zero-length FDE that gap slots point to
            self.allocator.set_limit(region.size());
            self.region = Some(region);
        }
        self.region.as_mut().ok_or(Error::OutOfMemory { wanted: 0 })
    }

    /// Writes and registers the planned entries; returns the number of the registration.
    pub(crate) fn add(&mut self, plan: &Plan, registries: &[FrameRegistry]) -> Result<u64, Error> {
        let bytes = &plan.encoded.bytes;
        let offset = self.write_blob(bytes)?;
        let functions = self.insert_functions(bytes, offset);
        self.last_id += 1;
        let (id, groups) = (self.last_id, plan.encoded.groups.clone());
        let mut live = LiveRegistration {
            offset,
            length: bytes.len(),
            groups,
            group_keys: Vec::new(),
            functions,
            owned_by_number: false,
        };
        for (bit, registry) in registries.iter().take(8).enumerate() {
            for index in 0..live.groups.len() {
                if live.groups[index].label >> bit & 1 != 0 {
                    self.register_group(registry, id, &mut live, index);
                }
            }
        }
        self.count_functions(&plan.coverage);
        self.live.insert(id, live);
        Ok(id)
    }

    /// Copies a blob into the region. No table points to it yet.
    fn write_blob(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.region()?;
        let out_of_memory = Error::OutOfMemory { wanted: bytes.len() };
        let offset = self.allocator.allocate(bytes.len(), now()).ok_or(out_of_memory)?;
        let result = self.region()?.write(offset, bytes);
        if result.is_err() {
            self.allocator.free(offset, bytes.len(), now());
        }
        result.map(|()| offset)
    }

    /// Inserts the functions of a blob into the tables; returns their number.
    fn insert_functions(&mut self, bytes: &[u8], offset: usize) -> usize {
        let (functions, now) = (cfi::entries(bytes).count(), now());
        for (index, (entry_offset, range)) in cfi::entries(bytes).enumerate() {
            let (fde, remaining) = ((offset + entry_offset) as u32, functions - index);
            self.totals.replaced += self.forest.insert(&range, fde, remaining, now, &mut self.libunwinds);
        }
        if FlushPolicy::CURRENT == FlushPolicy::AtReuse
            && cfi::entries(bytes).any(|(_, range)| self.stale.take_overlapping(&range))
        {
            self.libunwinds.0.iter().for_each(Libunwind::flush_cache);
        }
        functions
    }

    /// Undoes [`State::add`]. Once this returns, no unwinder finds the functions.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(live) = self.live.remove(&id) else { return };
        self.deregister_groups(&live, id);
        let Some(region) = self.region.as_mut() else { return };
        let entries: Vec<_> = cfi::entries(region.bytes(live.offset, live.length)).collect();
        for (entry_offset, range) in &entries {
            self.forest.remove(range, (live.offset + entry_offset) as u32);
            region.clear_length(live.offset + entry_offset);
            self.stale.add(range);
        }
        self.allocator.free(live.offset, live.length, now());
        if FlushPolicy::CURRENT == FlushPolicy::AtRemoval {
            self.stale = StaleRanges::new();
            self.libunwinds.0.iter().for_each(Libunwind::flush_cache);
        }
    }

    fn count_functions(&mut self, coverage: &Coverage) {
        self.totals.covered += coverage.covered;
        self.totals.synthesized += coverage.synthesized;
        self.totals.uncovered += coverage.uncovered;
        self.totals.refused += coverage.refused;
    }
}
