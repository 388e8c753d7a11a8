//! Finding the unwinders: now, and again after libraries were loaded.

#![forbid(unsafe_code)]

use crate::error::Error;
use crate::frame_registry::{self, FrameRegistry, Kind};
use crate::inside::Inside;
use crate::libunwind::{self, Layout, Libunwind};
use crate::loader;
use crate::registry::Registry;
use crate::signals::Masked;
use crate::state::{self, Seen, State};
use crate::statistics::{Unwinder, UnwinderKind};
use crate::table::Publish;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What [`Registry::rescan`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rescan {
    /// Unwinders that are new, and now know everything registered so far.
    pub added: usize,
    /// Unwinders in libraries the loader has not relocated yet: call again when `dlopen` has returned.
    pub pending: usize,
    /// Unwinders that are not used, and why.
    pub refused: Vec<Error>,
}

/// What one look at all libraries gave.
#[derive(Default)]
struct Harvest {
    libunwinds: Vec<libunwind::Found>,
    frame_registries: Vec<frame_registry::Found>,
    pending: usize,
    /// How many there are.
    libraries: usize,
}

impl Registry {
    /// Looks for unwinders in libraries loaded since the last call, and registers everything so far with them.
    ///
    /// Call it once at the start, and after every `dlopen`; without a new library it costs one `dl_iterate_phdr` that
    /// stops at the first entry (about 0.1 us). It takes the loader's locks and therefore must not be called under a
    /// lock that a thread which is inside the loader may wait for; our own lock is taken only after the loader's are
    /// released. Calling it from `_r_debug.r_brk`, inside the loader, is safe, but finds the new library unrelocated
    /// (`pending`) before glibc 2.41.
    ///
    /// Libraries with an unwinder in them are kept loaded for good.
    pub fn rescan(&'static self) -> Rescan {
        // Pinning a library asks the loader, which may announce a change, which may call this: the outer call finds it.
        static SCANNING: Inside = Inside::new();
        let Some(_entered) = SCANNING.enter() else { return Rescan::default() };
        // A signal's handler that unwinds waits for libunwind's lock; its holder may wait for the loader's, which is
        // held here.
        let _masked = Masked::begin();
        let counts = loader::counts();
        let seen = state::lock().seen;
        if seen.counts == counts {
            return Rescan::default();
        }
        // New libraries are at the end of the list, unless one was taken out.
        let first = if seen.counts.unloads == counts.unloads { seen.libraries } else { 0 };
        let known = state::lock().known();
        let harvest = harvest(&known, first);
        let libraries = harvest.libraries;
        let mut rescan = Rescan { pending: harvest.pending, ..Rescan::default() };
        let mut refused = Vec::new();
        for found in harvest.libunwinds {
            let base = found.base;
            match found.probe() {
                Ok(copy) => rescan.added += usize::from(state::lock().add_libunwind(copy)),
                Err(error) => refused.push((base, error)),
            }
        }
        let registries = harvest.frame_registries.into_iter().filter_map(frame_registry::Found::pin);
        for registry in registries {
            rescan.added += usize::from(self.add_frame_registry(registry));
        }
        rescan.refused = refused.iter().map(|(_, error)| error.clone()).collect();
        state::lock().refused.extend(refused);
        if rescan.pending == 0 {
            state::lock().seen = Seen { counts, libraries };
        }
        rescan
    }

    /// The unwinders that take registrations, used or not.
    pub fn unwinders(&self) -> Vec<Unwinder> {
        let state = state::lock();
        let copies = state.libunwinds.0.iter().map(|copy| {
            let kind = match copy.layout {
                Layout::Plain => UnwinderKind::LibunwindPlain,
                Layout::LoadOffset => UnwinderKind::LibunwindLoadOffset,
            };
            Unwinder { library: copy.name.clone(), kind, refused: None }
        });
        let registries = state.frame_registries.iter().flat_map(|list| list.iter()).map(|registry| {
            let kind = if registry.kind == Kind::Llvm { UnwinderKind::Llvm } else { UnwinderKind::Libgcc };
            Unwinder { library: registry.name.clone(), kind, refused: None }
        });
        let refused = state.refused.iter().map(|(_, error)| {
            let library = match error {
                Error::LibunwindLayout { library, .. }
                | Error::LibunwindSymbols { library, .. }
                | Error::NotPinned { library } => library.clone(),
                _ => String::new(),
            };
            Unwinder { library, kind: UnwinderKind::LibunwindUnknown, refused: Some(error.clone()) }
        });
        copies.chain(registries).chain(refused).collect()
    }

    /// Adds a frame registry, unless it is known, and registers what it does not know: looked up without our lock,
    /// registered under it.
    fn add_frame_registry(&'static self, registry: FrameRegistry) -> bool {
        let groups = state::lock().group_starts();
        let unknown: Vec<_> = groups.into_iter().filter(|group| !registry.knows(group.start)).collect();
        let mut state = state::lock();
        let mut list = state.frame_registries.as_deref().cloned().unwrap_or_default();
        if list.iter().any(|other| other.base == registry.base) {
            return false;
        }
        for GroupStart { id, index, .. } in unknown {
            if let Some(mut live) = state.live.remove(&id) {
                state.register_group(&registry, id, &mut live, index);
                state.live.insert(id, live);
            }
        }
        list.push(registry);
        state.frame_registries = Some(Arc::new(list));
        true
    }
}

/// Asks every library from number `first` on that is not `known`. Runs under the loader's write lock, so it only looks.
fn harvest(known: &[usize], first: usize) -> Harvest {
    let mut harvest = Harvest::default();
    loader::libraries(|library| {
        harvest.libraries += 1;
        if harvest.libraries <= first {
            return ControlFlow::Continue(());
        }
        let Some(exports) = library.exports().filter(|_| !known.contains(&library.base)) else {
            return ControlFlow::Continue(());
        };
        let copy = libunwind::Found::look(&exports, library.base, library.name);
        let registry = frame_registry::Found::look(&exports, library.base, library.name);
        if (copy.is_some() || registry.is_some()) && !exports.is_relocated() {
            harvest.pending += 1;
        } else {
            harvest.libunwinds.extend(copy);
            harvest.frame_registries.extend(registry);
        }
        ControlFlow::Continue(())
    });
    harvest
}

impl State {
    /// Load addresses of the libraries that need no second look.
    fn known(&self) -> Vec<usize> {
        let copies = self.libunwinds.0.iter().map(|copy| copy.base);
        let registries = self.frame_registries.iter().flat_map(|list| list.iter()).map(|registry| registry.base);
        copies.chain(registries).chain(self.refused.iter().map(|(base, _)| *base)).collect()
    }

    /// Adds a copy of libunwind, unless another thread was faster, and gives it all leaves.
    fn add_libunwind(&mut self, mut copy: Libunwind) -> bool {
        let known = self.libunwinds.0.iter().any(|other| other.base == copy.base);
        let segment = match self.region() {
            Ok(region) => region.base(),
            Err(_) => return false,
        };
        if !known {
            copy.set_segment(segment);
            for leaf in self.forest.leaves() {
                copy.leaf(leaf.id, &leaf.info, leaf.cells());
            }
            self.libunwinds.0.push(copy);
        }
        !known
    }

    fn group_starts(&self) -> Vec<GroupStart> {
        let Some(region) = self.region.as_ref() else { return Vec::new() };
        let groups = self.live.iter().flat_map(|(&id, live)| {
            live.groups.iter().enumerate().filter_map(move |(index, group)| {
                let bytes = region.bytes(live.offset + group.offset, live.length - group.offset);
                let start = crate::cfi::entries(bytes).next()?.1.start as usize;
                Some(GroupStart { id, index, start })
            })
        });
        groups.collect()
    }
}

/// The first address of a group.
struct GroupStart {
    /// The registration it is of.
    id: u64,
    index: usize,
    start: usize,
}
