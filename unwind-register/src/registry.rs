//! The registry of this process: registrations, and the unwinders that have them.

use crate::error::Error;
use crate::fork;
use crate::frame_registry::FrameRegistry;
use crate::plan::{Origin, Plan};
use crate::section::{Coverage, Section};
use crate::state;
use crate::statistics::Statistics;
use crate::table::Size;
use std::sync::Arc;

/// Registers generated code with the unwinders of this process. There is one, because there is one process:
/// [`Registry::process`].
pub struct Registry {
    _one: (),
}

static PROCESS: Registry = Registry { _one: () };

impl Registry {
    /// The registry of this process.
    pub fn process() -> &'static Registry {
        &PROCESS
    }

    /// Looks for unwinders that have come since the last time, and registers a section with every one. When this
    /// returns, stacks can be walked through its functions.
    ///
    /// Libraries that are opened later may bring more unwinders: the next registration finds them and gives them what
    /// was registered before, as does [`Registry::rescan`].
    ///
    /// Takes the loader's locks ([`Registry::rescan`] says what follows from that), and then our own one, which no code
    /// of the caller and nothing of the loader runs under. Costs a few microseconds, whatever the number of
    /// registrations.
    ///
    /// # Errors
    ///
    /// If the section cannot be read, or nothing in it can be registered. Functions that could not be covered are not
    /// an error: see [`Registration::coverage`].
    ///
    /// # Safety
    ///
    /// * The functions and the `.eh_frame` of the section are readable during the call, as are the LSDAs and
    ///   personality routines named there until the registration is dropped.
    /// * The rules are true: unwinders follow them with plain loads.
    /// * The registration is dropped before the code is freed.
    pub unsafe fn register(&'static self, section: &Section<'_>) -> Result<Registration, Error> {
        self.rescan();
        // SAFETY: the caller's promise.
        unsafe { self.register_with_known(section) }
    }

    /// The same without a look for new unwinders, for callers that hold a lock which a thread inside the loader may
    /// wait for: then [`Registry::rescan`] is to be called where that is not so. The two may be called in any order.
    ///
    /// Takes no lock of the loader's, with one exception: see [`ByHost`](crate::ByHost).
    ///
    /// # Errors
    ///
    /// As [`Registry::register`].
    ///
    /// # Safety
    ///
    /// As [`Registry::register`].
    pub unsafe fn register_with_known(&'static self, section: &Section<'_>) -> Result<Registration, Error> {
        fork::prepare();
        loop {
            let registries = state::lock().frame_registries.clone();
            let list: &[FrameRegistry] = registries.as_deref().map_or(&[], Vec::as_slice);
            let missing = |functions: &[(u64, Origin)]| state::missing(list, section.by_host, functions);
            // SAFETY: the caller's first promise.
            let plan = unsafe { Plan::new(section, &missing)? };
            let mut state = state::lock();
            // Another thread may have found an unwinder in the meantime, which was not asked yet.
            if state.frame_registries.as_ref().map(Arc::as_ptr) == registries.as_ref().map(Arc::as_ptr) {
                let id = state.add(&plan, list)?;
                return Ok(Registration { id, coverage: plan.coverage });
            }
        }
    }

    /// Deregisters what [`Registration::into_number`] has given that number. Returns whether there was such a
    /// registration.
    pub fn deregister(&self, number: u64) -> bool {
        let mut state = state::lock();
        let known = state.live.get(&number).is_some_and(|live| live.by_number);
        if known {
            state.remove(number);
        }
        known
    }

    /// Installs our handlers of `fork` now, and not at the first registration. A caller that takes its own lock across
    /// `fork` calls this before it registers its own handlers, so that its lock is taken before ours there as
    /// everywhere.
    pub fn follow_forks(&self) {
        fork::prepare();
    }

    /// Numbers about everything registered.
    pub fn statistics(&self) -> Statistics {
        let state = state::lock();
        let Size { infos, table_bytes, retired_table_bytes } = state.forest.size();
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

/// Code that unwinders know. Dropping it deregisters; do that before the code is freed.
#[derive(Debug)]
#[must_use = "dropping a registration deregisters the code"]
pub struct Registration {
    id: u64,
    coverage: Coverage,
}

impl Registration {
    /// How many functions are covered.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Keeps the code registered until [`Registry::deregister`] gets this number, for callers that cannot hold a value
    /// (C). No number is given twice.
    pub fn into_number(self) -> u64 {
        if let Some(live) = state::lock().live.get_mut(&self.id) {
            live.by_number = true;
        }
        std::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        state::lock().remove(self.id);
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
