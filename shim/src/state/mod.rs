//! The state of the shim, and its events:
//!
//! | event | file |
//! | --- | --- |
//! | libraries are opened and closed | `state/libraries.rs` |
//! | objects are reported by LLVM's linkers and lists, or removed | `state/objects.rs` |
//! | memory becomes executable, or not executable | `state/executable.rs` |

mod executable;
mod libraries;
mod objects;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::options::SinkKind;
use jitlisten::{AddressRange, ObjectId, Session, log_line};
use once_cell::race::OnceBox;

use crate::channels::gdb_list::unregistered::Unregistered;
use crate::channels::jitlink::emitted::EmittedObjects;
use crate::channels::moved_code::self_loaded::waiting::SelfLoaded;
use crate::doctor::discovered::{DiscoveredLlvm, UnheardLlvm};
use crate::doctor::facts;
use crate::doctor::unheard::Unheard;
use crate::hook_table::HookTable;
use crate::llvm::source::Source;
use crate::llvm::unnamed::Unnamed;
use crate::memory::allocated::Allocated;
use crate::memory::other_libraries::OtherLibraries;
use crate::memory::overdue::Overdue;
use crate::modules::Imports;
use crate::process::detour::Callers;
use crate::process::held::{Counts, Held, Identity, Mapped};
use crate::process::known::{Extent, KnownLibraries};
use crate::process::loader::LoaderDebug;
use crate::process::lookup::Lookups;
use crate::process::next;

/// The shim of this process.
pub(crate) struct Shim {
    pub(crate) session: &'static Session,
    hooks: &'static HookTable,
    r_debug: Option<LoaderDebug>,
    state: Mutex<State>,
}

/// The facts about the process, behind the shim's lock.
#[derive(Default)]
pub(crate) struct State {
    /// Every library that was looked at.
    libraries: KnownLibraries,
    /// The loader's counts when last read; not read where `_r_debug.r_brk` is hooked.
    counts: Counts,
    sources: Vec<Option<Source>>,
    /// LLVMs that are not observed.
    unheard_llvms: Vec<(Identity, UnheardLlvm)>,
    /// Whether one of the libraries is an llvmlite.
    has_llvmlite: bool,
    pub(crate) allocated: Allocated,
    /// Objects whose code outlives their place in LLVM's list.
    unregistered: Unregistered,
    /// The libraries with functions of others that our hooks call.
    next_owners: [Option<Identity>; next::FUNCTIONS],
    lookups: Lookups,
    imports: Imports,
    others: OtherLibraries,
    pub(crate) unnamed: Unnamed,
    pub(crate) overdue: Overdue,
    pub(crate) emitted: EmittedObjects,
    pub(crate) self_loaded: SelfLoaded,
    pub(crate) unheard: Unheard,
    /// Objects that linkers have reported last, with their sizes: LLVM may put them into its list.
    linked: VecDeque<(ObjectId, usize)>,
    reserved: VecDeque<AddressRange>,
}

static SHIM: OnceBox<Shim> = OnceBox::new();

pub(crate) fn shim() -> Option<&'static Shim> {
    SHIM.get()
}

/// Makes the shim of this process, with these hooks. Returns whether there was none yet.
pub(crate) fn open(session: &'static Session, hooks: &'static HookTable) -> bool {
    let shim = || Shim { session, hooks, r_debug: LoaderDebug::find(), state: Mutex::default() };
    SHIM.get().is_none() && SHIM.set(Box::new(shim())).is_ok()
}

/// Every observed LLVM, in the order of discovery.
pub fn discovered() -> Vec<DiscoveredLlvm> {
    shim().map(Shim::discovered).unwrap_or_default()
}

impl State {
    /// Every observed LLVM.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().flatten()
    }

    /// Code became executable, and these LLVMs reported nothing.
    pub(crate) fn note_silent(&mut self) {
        self.sources.iter_mut().flatten().for_each(Source::note_silent);
    }
}

impl Shim {
    /// Whether modules are to be shown to tools inside the process.
    pub(crate) fn wants_modules(&self) -> bool {
        self.session.is_enabled(SinkKind::Modules)
    }

    /// The first look.
    pub(crate) fn begin(&self, held: Held<'_>) {
        self.watch_loader();
        let mut state = self.lock();
        // SAFETY: the whole list is read.
        let mapped = unsafe { self.libraries_changed(held, &mut state, Extent::Whole, Callers::Any) };
        if let Some(mapped) = mapped {
            self.look_around(&mut state, mapped);
        }
        self.publish(&state);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends all listening, see `hooks::guarded`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if no other thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    pub(crate) fn discovered(&self) -> Vec<DiscoveredLlvm> {
        let state = self.lock();
        state.sources.iter().flatten().map(Source::describe).collect()
    }

    /// Publishes the facts about each LLVM for other processes.
    pub(crate) fn publish(&self, state: &State) {
        let llvms =
            state.sources.iter().enumerate().filter_map(|(slot, source)| Some((slot, source.as_ref()?.describe())));
        let unheard: Vec<UnheardLlvm> = state.unheard_llvms.iter().map(|(_, llvm)| llvm.clone()).collect();
        facts::publish(&llvms.collect::<Vec<_>>(), &unheard);
    }

    /// At the start: every library that is there has been relocated, and may have compiled code already.
    fn look_around(&self, state: &mut State, mapped: Mapped<'_>) {
        if state.has_llvmlite {
            log_line!(
                Info,
                "llvmlite was loaded before jitlisten: callers that already looked up its functions compile without \
                 frame pointers"
            );
        }
        for slot in 0..state.sources.len() {
            self.catch_up(state, slot, mapped);
            self.read_list(state, slot);
        }
    }
}
