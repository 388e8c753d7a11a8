//! State of the shim, and the events that change this state:
//!
//! | event | file |
//! | --- | --- |
//! | libraries are opened and closed | `state/libraries.rs` |
//! | objects are loaded and freed, as LLVM's linkers and lists report them | `state/objects.rs` |
//! | objects are handed to JITLink or compiled to memory; code is located | `state/located.rs` |
//! | memory becomes executable, or stops being executable | `state/executable.rs` |
//! | a second has passed | `state/delayed_checks.rs` |

mod delayed_checks;
mod executable;
mod libraries;
mod located;
mod objects;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::options::SinkKind;
use jitlisten::plumbing::LiveObjects;
use jitlisten::{AddressRange, log_line};
use once_cell::race::OnceBox;
use wire::facts::{ObservedLlvm, UnobservedLlvm};

use crate::doctor::discovered::DiscoveredLlvm;
use crate::doctor::facts::FACTS;
use crate::doctor::unreported::UnreportedCode;
use crate::hook_table::HookTable;
use crate::llvm::unreported_libraries::UnreportedLibraries;
use crate::memory::allocated::AllocatedRanges;
use crate::memory::other_libraries::OtherLibraries;
use crate::modules::Imports;
use crate::process::detour::Callers;
use crate::process::forward;
use crate::process::known::KnownLibraries;
use crate::process::loader::LoaderDebug;
use crate::process::lookup::DlsymSlots;
use crate::process::mapped_proof::{Counts, Held, Identity, Mapped};
use crate::source::Source;
use crate::trackers::Trackers;

/// The shim. Each process has one.
pub(crate) struct Shim {
    pub(crate) objects: &'static LiveObjects,
    hooks: &'static HookTable,
    r_debug: Option<LoaderDebug>,
    state: Mutex<State>,
}

/// Mutable state of the shim, protected by its lock.
#[derive(Default)]
pub(crate) struct State {
    libraries: KnownLibraries,
    /// The loader's counts at the last read. Unused if `_r_debug.r_brk` is hooked.
    counts: Counts,
    /// Observed LLVM instances. The index is the slot, which selects the hooks.
    sources: Vec<Option<Source>>,
    /// Detected LLVM instances that are not observed.
    unobserved_llvms: Vec<(Identity, UnobservedLlvm)>,
    has_llvmlite: bool,
    pub(crate) allocated: AllocatedRanges,
    /// Libraries of other tools that contain the functions that our hooks forward to, indexed by `Function`.
    next_owners: [Option<Identity>; forward::FUNCTION_COUNT],
    dlsym_slots: DlsymSlots,
    imports: Imports,
    other_libraries: OtherLibraries,
    unreported_libraries: UnreportedLibraries,
    trackers: Trackers,
    unreported_code: UnreportedCode,
    /// Reserved address ranges of freed code, oldest first.
    reserved_ranges: VecDeque<AddressRange>,
}

static SHIM: OnceBox<Shim> = OnceBox::new();

pub(crate) fn shim() -> Option<&'static Shim> {
    SHIM.get()
}

/// Creates the shim of this process with these hooks. Returns false if the process already has one.
pub(crate) fn open(objects: &'static LiveObjects, hooks: &'static HookTable) -> bool {
    let shim = || Shim { objects, hooks, r_debug: LoaderDebug::find(), state: Mutex::default() };
    SHIM.get().is_none() && SHIM.set(Box::new(shim())).is_ok()
}

/// Every observed LLVM instance, in the order of detection.
pub fn discovered() -> Vec<DiscoveredLlvm> {
    shim().map(Shim::discovered).unwrap_or_default()
}

impl State {
    /// All observed LLVM instances.
    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().flatten()
    }

    /// Records that code became executable without a report from any of these LLVM instances.
    fn mark_silent(&mut self) {
        self.sources.iter_mut().flatten().for_each(Source::mark_silent);
    }
}

impl Shim {
    /// Returns true if the `modules` sink is enabled. That sink shows our images to tools inside the process.
    pub(crate) fn wants_modules(&self) -> bool {
        self.objects.is_enabled(SinkKind::Modules)
    }

    /// Hooks the loader, and examines all libraries that are already loaded.
    pub(crate) fn start(&self, held: Held<'_>) {
        self.watch_loader();
        let mut state = self.lock();
        let mapped = self.libraries_changed(held, &mut state, Callers::Any);
        if let Some(mapped) = mapped {
            self.observe_existing(&mut state, mapped);
        }
        self.publish(&state);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock disables all hooks (see `hooks::guarded`), so the state is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, unless another thread holds the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    /// Descriptions of all observed LLVM instances.
    pub(crate) fn discovered(&self) -> Vec<DiscoveredLlvm> {
        let state = self.lock();
        state.sources().map(Source::describe).collect()
    }

    /// Publishes the facts about each LLVM instance for other processes.
    fn publish(&self, state: &State) {
        let observed: Vec<ObservedLlvm> = state.sources().map(Source::facts).collect();
        let unobserved: Vec<UnobservedLlvm> = state.unobserved_llvms.iter().map(|(_, llvm)| llvm.clone()).collect();
        FACTS.publish(&observed, &unobserved);
    }

    /// Observes LLVM instances that were loaded before jitlisten. They are relocated, and may have compiled code
    /// already.
    fn observe_existing(&self, state: &mut State, mapped: Mapped<'_>) {
        if state.has_llvmlite {
            log_line!(
                Info,
                "llvmlite was loaded before jitlisten: callers that already looked up its functions compile without \
                 frame pointers"
            );
        }
        for slot in 0..state.sources.len() {
            self.observe_memory(state, slot, mapped);
            self.read_list(state, slot);
        }
    }
}
