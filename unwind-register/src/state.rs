//! All registrations, behind the one lock of this crate.

mod registered_groups;

use crate::cfi::{self, Group};
use crate::clock::now;
use crate::error::Error;
use crate::frame_registry::FrameRegistry;
use crate::libunwind::Libunwind;
use crate::loader;
use crate::memory::{Places, Region};
use crate::plan::Plan;
use crate::section::Coverage;
use crate::signals::Masked;
use crate::stale::{Flush, Stale};
use crate::statistics::Statistics;
use crate::table::{Forest, LeafId, Publish};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use registered_groups::RegisteredGroups;
pub(crate) use registered_groups::missing;

/// Everything behind the lock. The lock is a leaf: under it no loader, no unwinder look-up and no caller's code is
/// called.
pub(crate) struct State {
    pub(crate) region: Option<Region>,
    pub(crate) places: Places,
    pub(crate) forest: Forest,
    pub(crate) libunwinds: Libunwinds,
    pub(crate) frame_registries: Option<Arc<Vec<FrameRegistry>>>,
    pub(crate) refused: Vec<(usize, Error)>,
    pub(crate) live: BTreeMap<u64, Live>,
    next: u64,
    pub(crate) counted: Statistics,
    stale: Stale,
    registered: RegisteredGroups,
    /// The libraries that have been looked at.
    pub(crate) seen: Seen,
}

/// A registration as the registry knows it.
pub(crate) struct Live {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) groups: Vec<Group>,
    /// (load address of the frame registry, first address of the group).
    pub(crate) registered: Vec<(usize, u64)>,
    pub(crate) functions: usize,
    /// Whether its owner knows it by number only: [`Registration::into_number`](crate::Registration::into_number).
    pub(crate) by_number: bool,
}

/// All copies of libunwind.
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

/// What has been looked at.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) counts: loader::Counts,
    pub(crate) libraries: usize,
}

impl Seen {
    pub(crate) const NOTHING: Seen = Seen { counts: loader::Counts { loads: 0, unloads: 0 }, libraries: 0 };
}

static PROCESS: Mutex<State> = Mutex::new(State {
    region: None,
    places: Places::new(),
    forest: Forest::new(),
    libunwinds: Libunwinds(Vec::new()),
    frame_registries: None,
    refused: Vec::new(),
    live: BTreeMap::new(),
    next: 0,
    counted: Statistics::ZERO,
    stale: Stale::new(),
    registered: RegisteredGroups::new(),
    seen: Seen::NOTHING,
});

/// The lock, held while signals wait: a handler that forks would wait in our own handler of `fork` for the lock that
/// its thread holds.
pub(crate) struct Locked {
    state: MutexGuard<'static, State>,
    // Dropped after the lock is released.
    _masked: Masked,
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

/// Takes the lock.
pub(crate) fn lock() -> Locked {
    let masked = Masked::begin();
    // A panic under the lock would be a defect of ours; the host must go on anyway.
    let state = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    Locked { state, _masked: masked }
}

impl State {
    /// The region, reserved when first needed.
    pub(crate) fn region(&mut self) -> Result<&mut Region, Error> {
        if self.region.is_none() {
            let mut region = Region::reserve()?;
            region.grow(1)?; // the FDE of length 0 that gaps point to
            self.places.set_limit(region.size());
            self.region = Some(region);
        }
        self.region.as_mut().ok_or(Error::OutOfMemory { wanted: 0 })
    }

    /// Enters and registers what was planned; returns its number.
    pub(crate) fn add(&mut self, plan: &Plan, registries: &[FrameRegistry]) -> Result<u64, Error> {
        let bytes = &plan.encoded.bytes;
        let offset = self.write(bytes)?;
        let functions = self.enter(bytes, offset);
        self.next += 1;
        let (id, groups) = (self.next, plan.encoded.groups.clone());
        let mut live =
            Live { offset, length: bytes.len(), groups, registered: Vec::new(), functions, by_number: false };
        for (bit, registry) in registries.iter().take(8).enumerate() {
            for index in 0..live.groups.len() {
                if live.groups[index].label >> bit & 1 != 0 {
                    self.register_group(registry, id, &mut live, index);
                }
            }
        }
        self.count(&plan.coverage);
        self.live.insert(id, live);
        Ok(id)
    }

    /// Copies a blob to where unwinders may look; none does yet.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.region()?;
        let full = Error::OutOfMemory { wanted: bytes.len() };
        let offset = self.places.take(bytes.len(), now()).ok_or(full)?;
        let written = self.region()?.write(offset, bytes);
        if written.is_err() {
            self.places.give_back(offset, bytes.len(), now());
        }
        written.map(|()| offset)
    }

    /// Enters the functions of a blob into the tables; returns how many there are.
    fn enter(&mut self, bytes: &[u8], offset: usize) -> usize {
        let (functions, now) = (cfi::entries(bytes).count(), now());
        for (index, (at, range)) in cfi::entries(bytes).enumerate() {
            let (fde, want) = ((offset + at) as u32, functions - index);
            self.counted.replaced += self.forest.insert(&range, fde, want, now, &mut self.libunwinds);
        }
        if Flush::HERE == Flush::AtReuse && cfi::entries(bytes).any(|(_, range)| self.stale.take(&range)) {
            self.libunwinds.0.iter().for_each(Libunwind::flush_cache);
        }
        functions
    }

    /// Undoes [`State::add`]: no unwinder finds the functions any more when this returns.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(live) = self.live.remove(&id) else { return };
        self.deregister_groups(&live, id);
        let Some(region) = self.region.as_mut() else { return };
        let entries: Vec<_> = cfi::entries(region.bytes(live.offset, live.length)).collect();
        for (at, range) in &entries {
            self.forest.remove(range, (live.offset + at) as u32);
            region.silence(live.offset + at);
            self.stale.add(range);
        }
        self.places.give_back(live.offset, live.length, now());
        if Flush::HERE == Flush::AtRemoval {
            self.stale = Stale::new();
            self.libunwinds.0.iter().for_each(Libunwind::flush_cache);
        }
    }

    fn count(&mut self, coverage: &Coverage) {
        self.counted.covered += coverage.covered;
        self.counted.synthesized += coverage.synthesized;
        self.counted.uncovered += coverage.uncovered;
        self.counted.refused += coverage.refused;
    }
}
