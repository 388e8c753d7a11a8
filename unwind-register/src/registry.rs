//! The process-wide registry: registrations, and the unwinders that receive them.

use crate::error::Error;
use crate::fork;
use crate::frame_registry::FrameRegistry;
use crate::plan::{Origin, Plan};
use crate::section::{Coverage, Section};
use crate::state;
use crate::statistics::Statistics;
use crate::table::Size;
use std::sync::Arc;

/// Registers generated code with the unwinders of this process. There is one instance, [`Registry::process`].
///
/// ```no_run
/// use unwind_register::{Registry, Section};
///
/// # let (eh_frame, address) = (&[][..], 0);
/// let registry = Registry::process();
/// // SAFETY: the code is complete, its rules are correct, and it outlives the registration.
/// let registration = unsafe { registry.register(&Section::new(eh_frame, address)) }?;
/// println!("{} functions covered", registration.coverage().covered);
/// # Ok::<(), unwind_register::Error>(())
/// ```
pub struct Registry {
    _private: (),
}

static PROCESS: Registry = Registry { _private: () };

impl Registry {
    /// Returns the registry of this process.
    pub fn process() -> &'static Registry {
        &PROCESS
    }

    /// Registers a section with every unwinder, including those loaded since the last call. When this returns,
    /// unwinders can walk through its functions.
    ///
    /// Libraries opened later may contain more unwinders. The next registration, or [`Registry::rescan`], finds them
    /// and registers all earlier sections with them.
    ///
    /// Takes the loader's locks, with the consequences described at [`Registry::rescan`]. It then takes our own lock,
    /// under which neither caller code nor the loader runs. A call costs a few microseconds, regardless of the number
    /// of registrations.
    ///
    /// # Errors
    ///
    /// Fails if the section is malformed, or if nothing in it can be registered. Uncovered functions are not an error:
    /// see [`Registration::coverage`].
    ///
    /// # Safety
    ///
    /// * The functions and the `.eh_frame` of the section are readable during the call. The LSDAs and personality
    ///   routines named there stay readable until the registration is dropped.
    /// * The rules are correct: unwinders follow them with plain loads.
    /// * The registration is dropped before the code is freed.
    pub unsafe fn register(&'static self, section: &Section<'_>) -> Result<Registration, Error> {
        self.rescan();
        // SAFETY: same contract as this function.
        unsafe { self.register_with_known_unwinders(section) }
    }

    /// Registers a section with the known unwinders, without a search for new ones. Intended for callers that hold a
    /// lock that a thread inside the loader may wait for. Such a caller calls [`Registry::rescan`] separately, without
    /// holding that lock.
    ///
    /// Takes none of the loader's locks, with one exception: see [`ByHost`](crate::ByHost).
    ///
    /// # Errors
    ///
    /// Same as [`Registry::register`].
    ///
    /// # Safety
    ///
    /// Same as [`Registry::register`].
    pub unsafe fn register_with_known_unwinders(&'static self, section: &Section<'_>) -> Result<Registration, Error> {
        fork::install_handlers();
        loop {
            let registries = state::lock().frame_registries.clone();
            let list: &[FrameRegistry] = registries.as_deref().map_or(&[], Vec::as_slice);
            let find_missing = |functions: &[(u64, Origin)]| state::missing_masks(list, section.by_host, functions);
            // SAFETY: the caller guarantees that the section and its functions are readable.
            let plan = unsafe { Plan::new(section, &find_missing)? };
            let mut state = state::lock();
            // Retry if another thread has added an unwinder meanwhile, because the plan does not account for it.
            if state.frame_registries.as_ref().map(Arc::as_ptr) == registries.as_ref().map(Arc::as_ptr) {
                let id = state.add(&plan, list)?;
                return Ok(Registration { id, coverage: plan.coverage });
            }
        }
    }

    /// Deregisters code by the number that [`Registration::into_number`] returned. Returns false if no such
    /// registration exists.
    pub fn deregister(&self, number: u64) -> bool {
        let mut state = state::lock();
        let is_live = state.live.get(&number).is_some_and(|live| live.owned_by_number);
        if is_live {
            state.remove(number);
        }
        is_live
    }

    /// Installs our `fork` handlers now instead of at the first registration. A caller that takes its own lock across
    /// `fork` calls this before it registers its own handlers, so that `fork`, too, takes the caller's lock before
    /// ours.
    pub fn install_fork_handlers(&self) {
        fork::install_handlers();
    }

    /// Returns counters of registered functions and of the memory they use.
    pub fn statistics(&self) -> Statistics {
        let state = state::lock();
        let Size { infos, table_bytes, retired_table_bytes } = state.forest.size();
        let (entry_bytes, free_entry_bytes) = state.allocator.usage();
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
            ..state.totals
        }
    }
}

/// A live registration. Dropping it deregisters the code; do that before the code is freed.
///
/// ```no_run
/// use unwind_register::{Registration, Registry, Section};
///
/// struct CompiledFunction {
///     registration: Registration, // declared first: dropped before the code
///     code: Box<[u8]>,
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a registration deregisters the code"]
pub struct Registration {
    id: u64,
    coverage: Coverage,
}

impl Registration {
    /// Returns the number of functions that are covered, by the origin of their rules.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Keeps the code registered until the returned number is passed to [`Registry::deregister`]. For callers that
    /// cannot hold a Rust value (C). Numbers are never reused.
    pub fn into_number(self) -> u64 {
        if let Some(live) = state::lock().live.get_mut(&self.id) {
            live.owned_by_number = true;
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
