//! The registry of this process: what is registered, and with whom.

use crate::cfi::Group;
use crate::discovery::Seen;
use crate::error::Error;
use crate::frame_registry::FrameRegistry;
use crate::libunwind::Libunwind;
use crate::memory::{Places, Region};
use crate::plan::{Origin, Plan};
use crate::section::{Coverage, Section};
use crate::signals::Masked;
use crate::stale::{Flush, Stale};
use crate::statistics::Statistics;
use crate::table::{Forest, LeafId, Publish};
use crate::told::{self, Told};
use crate::{cfi, fork};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tells the unwinders of this process about generated code. There is one, because there is one process: [`Registry::process`].
pub struct Registry {
    state: Mutex<State>,
}

/// Everything behind the lock. The lock is a leaf: under it no loader, no unwinder look-up and no caller's code is called.
pub(crate) struct State {
    pub(crate) region: Option<Region>,
    pub(crate) places: Places,
    pub(crate) forest: Forest,
    pub(crate) libunwinds: Libunwinds,
    pub(crate) frame_registries: Option<Arc<Vec<FrameRegistry>>>,
    pub(crate) refused: Vec<(usize, Error)>,
    pub(crate) live: BTreeMap<u64, Live>,
    next: u64,
    counted: Statistics,
    stale: Stale,
    pub(crate) told: Told,
    /// The libraries that have been looked at.
    pub(crate) seen: Seen,
}

/// A registration as the registry knows it.
pub(crate) struct Live {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) groups: Vec<Group>,
    /// (load address of the frame registry, first address of the group).
    pub(crate) told: Vec<(usize, u64)>,
    functions: usize,
    /// Whether somebody knows it by number only: [`Registration::into_number`].
    by_number: bool,
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

static PROCESS: Registry = Registry {
    state: Mutex::new(State {
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
        told: Told::new(),
        seen: Seen::NOTHING,
    }),
};

/// The lock, held while signals wait: a handler that forks would wait in our own handler of `fork` for the lock that its thread
/// holds.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    // Dropped after the lock is released.
    _masked: Masked,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Registry {
    /// The registry of this process.
    pub fn process() -> &'static Registry {
        &PROCESS
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let masked = Masked::begin();
        // A panic under the lock would be a defect of ours; the host must go on anyway.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, _masked: masked }
    }

    /// Registers a section with every unwinder known. When this returns, stacks can be walked through its functions.
    ///
    /// Unwinders are known after [`Registry::rescan`], and get what was registered before; so the two may be called in any order.
    ///
    /// Takes our own lock, which no code of the caller and nothing of the loader runs under; see [`ByHost`](crate::ByHost) for the one case in
    /// which the loader's lock is taken. Costs a few microseconds, whatever the number of registrations.
    ///
    /// # Errors
    ///
    /// If the section cannot be read, or nothing in it can be registered. Functions that could not be covered are not an error:
    /// see [`Registration::coverage`].
    ///
    /// # Safety
    ///
    /// * The functions and the `.eh_frame` of the section are readable during the call, as are the LSDAs and personality routines
    ///   named there until the registration is dropped.
    /// * The rules are true: unwinders follow them with plain loads.
    /// * The registration is dropped before the code goes away.
    pub unsafe fn register(&'static self, section: &Section<'_>) -> Result<Registration, Error> {
        fork::prepare();
        loop {
            let registries = self.lock().frame_registries.clone();
            let list: &[FrameRegistry] = registries.as_deref().map_or(&[], Vec::as_slice);
            let missing = |functions: &[(u64, Origin)]| told::missing(list, section.by_host, functions);
            // SAFETY: the caller's first promise.
            let plan = unsafe { Plan::new(section, &missing)? };
            let mut state = self.lock();
            // Another thread may have found an unwinder in the meantime, which nobody has asked yet.
            if state.frame_registries.as_ref().map(Arc::as_ptr) == registries.as_ref().map(Arc::as_ptr) {
                let id = state.add(&plan, list)?;
                return Ok(Registration { registry: self, id, coverage: plan.coverage });
            }
        }
    }

    /// Deregisters what [`Registration::into_number`] has given that number. Answers whether there was such a registration.
    pub fn deregister(&self, number: u64) -> bool {
        let mut state = self.lock();
        let known = state.live.get(&number).is_some_and(|live| live.by_number);
        if known {
            state.remove(number);
        }
        known
    }

    /// Installs our handlers of `fork` now, and not at the first registration. A caller who takes his own lock across `fork`
    /// calls this before he registers his own handlers, so that his lock is taken before ours there as everywhere.
    pub fn follow_forks(&self) {
        fork::prepare();
    }

    /// Numbers about everything registered.
    pub fn statistics(&self) -> Statistics {
        let state = self.lock();
        let (infos, table_bytes, retired_table_bytes) = state.forest.size();
        let (entry_bytes, free_entry_bytes) = state.places.used();
        let functions = state.live.values().map(|live| live.functions).sum();
        let registrations = state.live.len();
        Statistics {
            registrations,
            functions,
            infos,
            table_bytes,
            retired_table_bytes,
            entry_bytes,
            free_entry_bytes,
            ..state.counted
        }
    }
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

    fn add(&mut self, plan: &Plan, registries: &[FrameRegistry]) -> Result<u64, Error> {
        let bytes = &plan.encoded.bytes;
        let offset = self.write(bytes)?;
        let functions = self.enter(bytes, offset);
        self.next += 1;
        let (id, groups) = (self.next, plan.encoded.groups.clone());
        let mut live = Live { offset, length: bytes.len(), groups, told: Vec::new(), functions, by_number: false };
        for (bit, registry) in registries.iter().take(8).enumerate() {
            for index in 0..live.groups.len() {
                if live.groups[index].label >> bit & 1 != 0 {
                    self.tell(registry, id, &mut live, index);
                }
            }
        }
        self.count(&plan.coverage);
        self.live.insert(id, live);
        Ok(id)
    }

    /// Copies a blob to where unwinders may look; nobody does yet.
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
        for (index, (at, start, end)) in cfi::entries(bytes).enumerate() {
            let (fde, want) = ((offset + at) as u32, functions - index);
            self.counted.replaced += self.forest.insert(&(start..end), fde, want, now, &mut self.libunwinds);
        }
        let mut ranges = cfi::entries(bytes).map(|(_, start, end)| start..end);
        if Flush::HERE == Flush::AtReuse && ranges.any(|range| self.stale.take(&range)) {
            self.libunwinds.0.iter().for_each(Libunwind::flush_cache);
        }
        functions
    }

    /// Undoes [`State::add`]: nobody finds the functions any more when this returns.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(live) = self.live.remove(&id) else { return };
        self.untell(&live, id);
        let Some(region) = self.region.as_mut() else { return };
        let entries: Vec<_> = cfi::entries(region.bytes(live.offset, live.length)).collect();
        for &(at, start, end) in &entries {
            self.forest.remove(&(start..end), (live.offset + at) as u32);
            region.silence(live.offset + at);
            self.stale.add(&(start..end));
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

/// Code that unwinders know. Dropping it deregisters; do that before the code goes away.
#[derive(Debug)]
#[must_use = "dropping a registration deregisters the code"]
pub struct Registration {
    registry: &'static Registry,
    id: u64,
    coverage: Coverage,
}

impl Registration {
    /// How many functions are covered.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Keeps the code registered until [`Registry::deregister`] gets this number, for callers who cannot hold a value (C). No
    /// number is given twice.
    pub fn into_number(self) -> u64 {
        if let Some(live) = self.registry.lock().live.get_mut(&self.id) {
            live.by_number = true;
        }
        std::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.lock().remove(self.id);
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// Nanoseconds of a clock that only goes forwards; coarse (a few milliseconds), which is fine for quarantines. The kernel's: libc's
/// may be libfaketime's, and stand still, and nothing would ever leave its quarantine.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists since Linux 2.6.32, and the pointer is to a timespec.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
