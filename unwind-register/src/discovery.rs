//! Discovery of unwinders in the loaded libraries, at startup and after more libraries are loaded.

#![forbid(unsafe_code)]

use crate::error::Error;
use crate::frame_registry::{self, FrameRegistry, Kind};
use crate::libunwind::{self, Layout, Libunwind};
use crate::loader;
use crate::reentrancy::ReentrancyGuard;
use crate::registry::Registry;
use crate::signals::BlockedSignals;
use crate::state::{self, ScanProgress, State};
use crate::statistics::{Unwinder, UnwinderKind};
use crate::table::Publish;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Result of [`Registry::rescan`].
///
/// ```
/// use unwind_register::Registry;
///
/// let rescan = Registry::process().rescan();
/// println!("{} new unwinders", rescan.added);
/// for error in &rescan.ignored {
///     println!("ignored: {error}");
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rescan {
    /// New unwinders. Everything registered so far is now registered with them, too.
    pub added: usize,
    /// Unwinders in libraries that the loader has not relocated yet: call again after `dlopen` has returned.
    pub pending: usize,
    /// Reasons for ignoring new unwinders.
    pub ignored: Vec<Error>,
}

/// Unwinders found by one scan of the loaded libraries.
#[derive(Default)]
struct ScanResult {
    libunwinds: Vec<libunwind::Candidate>,
    frame_registries: Vec<frame_registry::Candidate>,
    pending: usize,
    library_count: usize,
}

impl Registry {
    /// Finds unwinders in libraries loaded since the last call, and registers all registered code with them.
    ///
    /// Call it at startup and after every `dlopen`. Without a new library, it costs one `dl_iterate_phdr` that stops at
    /// the first entry (about 0.1 us).
    ///
    /// It takes the loader's locks, so the caller must not hold a lock that a thread inside the loader may wait for.
    /// Our own lock is taken only after the loader's locks are released. A call from `_r_debug.r_brk`, inside the
    /// loader, is safe, but before glibc 2.41 it finds the new library unrelocated (`pending`).
    ///
    /// Libraries that contain an unwinder are pinned: they stay loaded.
    pub fn rescan(&'static self) -> Rescan {
        // Pinning a library calls the loader, which may announce a change and call us again. The outer call finds that
        // library.
        static SCANNING: ReentrancyGuard = ReentrancyGuard::new();
        let Some(_entered) = SCANNING.enter() else { return Rescan::default() };
        // Block signals: a handler that unwinds may wait for libunwind's lock, whose holder may wait for the loader's
        // lock, which this thread holds.
        let _signals = BlockedSignals::new();
        let counts = loader::counts();
        let scanned = state::lock().scanned;
        if scanned.counts == counts {
            return Rescan::default();
        }
        // New libraries are at the end of the list, unless a library was unloaded.
        let first_new = if scanned.counts.unloads == counts.unloads { scanned.libraries } else { 0 };
        let known_bases = state::lock().unwinder_bases();
        let result = scan_libraries(&known_bases, first_new);
        let library_count = result.library_count;
        let mut rescan = Rescan { pending: result.pending, ..Rescan::default() };
        let mut refused = Vec::new();
        for candidate in result.libunwinds {
            let base = candidate.base;
            match candidate.probe() {
                Ok(copy) => rescan.added += usize::from(state::lock().add_libunwind(copy)),
                Err(error) => refused.push((base, error)),
            }
        }
        let registries = result.frame_registries.into_iter().filter_map(frame_registry::Candidate::pin);
        for registry in registries {
            rescan.added += usize::from(self.add_frame_registry(registry));
        }
        rescan.ignored = refused.iter().map(|(_, error)| error.clone()).collect();
        state::lock().refused.extend(refused);
        if rescan.pending == 0 {
            state::lock().scanned = ScanProgress { counts, libraries: library_count };
        }
        rescan
    }

    /// Returns the unwinders that accept registrations, including ignored ones.
    pub fn unwinders(&self) -> Vec<Unwinder> {
        let state = state::lock();
        let copies = state.libunwinds.0.iter().map(|copy| {
            let kind = match copy.layout {
                Layout::Plain => UnwinderKind::LibunwindPlain,
                Layout::LoadOffset => UnwinderKind::LibunwindLoadOffset,
            };
            Unwinder { library: copy.name.clone(), kind, ignored: None }
        });
        let registries = state.frame_registries.iter().flat_map(|list| list.iter()).map(|registry| {
            let kind = if registry.kind == Kind::Llvm { UnwinderKind::Llvm } else { UnwinderKind::Libgcc };
            Unwinder { library: registry.name.clone(), kind, ignored: None }
        });
        let refused = state.refused.iter().map(|(_, error)| {
            let library = match error {
                Error::LibunwindLayout { library, .. }
                | Error::LibunwindSymbols { library, .. }
                | Error::NotPinned { library } => library.clone(),
                _ => String::new(),
            };
            Unwinder { library, kind: UnwinderKind::LibunwindUnknown, ignored: Some(error.clone()) }
        });
        copies.chain(registries).chain(refused).collect()
    }

    /// Adds a frame registry that is not yet known, and registers the groups that it lacks. Lookups run without our
    /// lock, but registrations run with it.
    fn add_frame_registry(&'static self, registry: FrameRegistry) -> bool {
        let groups = state::lock().group_starts();
        let missing: Vec<_> = groups.into_iter().filter(|group| !registry.knows(group.start)).collect();
        let mut state = state::lock();
        let mut list = state.frame_registries.as_deref().cloned().unwrap_or_default();
        if list.iter().any(|other| other.base == registry.base) {
            return false;
        }
        for GroupStart { id, index, .. } in missing {
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

/// Scans the libraries from position `first`, except those at `known_bases`. Runs under the loader's write lock, so it
/// only reads.
fn scan_libraries(known_bases: &[usize], first: usize) -> ScanResult {
    let mut result = ScanResult::default();
    loader::for_each_library(|library| {
        result.library_count += 1;
        if result.library_count <= first {
            return ControlFlow::Continue(());
        }
        let Some(exports) = library.exports().filter(|_| !known_bases.contains(&library.base)) else {
            return ControlFlow::Continue(());
        };
        let copy = libunwind::Candidate::from_exports(&exports, library.base, library.name);
        let registry = frame_registry::Candidate::from_exports(&exports, library.base, library.name);
        if (copy.is_some() || registry.is_some()) && !exports.is_relocated() {
            result.pending += 1;
        } else {
            result.libunwinds.extend(copy);
            result.frame_registries.extend(registry);
        }
        ControlFlow::Continue(())
    });
    result
}

impl State {
    /// Load addresses of libraries whose unwinders are known, whether used or ignored.
    fn unwinder_bases(&self) -> Vec<usize> {
        let copies = self.libunwinds.0.iter().map(|copy| copy.base);
        let registries = self.frame_registries.iter().flat_map(|list| list.iter()).map(|registry| registry.base);
        copies.chain(registries).chain(self.refused.iter().map(|(base, _)| *base)).collect()
    }

    /// Adds a copy of libunwind with infos for all leaves. Returns false if another thread has already added it, or if
    /// memory is exhausted.
    fn add_libunwind(&mut self, mut copy: Libunwind) -> bool {
        let is_known = self.libunwinds.0.iter().any(|other| other.base == copy.base);
        let segment = match self.region() {
            Ok(region) => region.base(),
            Err(_) => return false,
        };
        if !is_known {
            copy.set_segment(segment);
            for leaf in self.forest.leaves_by_id() {
                copy.leaf(leaf.id, &leaf.info, leaf.cells());
            }
            self.libunwinds.0.push(copy);
        }
        !is_known
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

/// Start address of a registered group.
struct GroupStart {
    /// Number of the registration that the group belongs to.
    id: u64,
    index: usize,
    start: usize,
}
