//! Addresses of code, for the handler: sorted tables behind atomic pointers.
//!
//! ```text
//!   LIBRARIES   replaced as a whole when libraries were opened or closed
//!   COMPILED    one entry more for each object
//! ```
//!
//! Freed code is marked, and caches of rules begin a new generation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jitlisten::plumbing::{Published, Ranged};

use crate::unwind::{Code, CodeMap, FrameTable};
#[cfg(target_arch = "aarch64")]
use crate::vdso;
use crate::wake;

/// Code was met that nothing is known of: mappings have to be looked at.
pub(crate) static UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);

/// A range of code.
#[derive(Debug)]
pub(crate) enum Tables {
    /// Unwind tables; in the first one that has an entry it is looked for.
    Frames(Vec<FrameTable>),
    /// See [`Code::Trampoline`].
    Trampoline,
    /// Nothing but that it is code.
    Bare,
}

/// A range of code.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whose it is; an object of the session, or 0 for libraries.
    pub(crate) owner: u64,
    pub(crate) tables: Arc<Tables>,
}

#[derive(Debug)]
struct Entry {
    range: Range,
    freed: AtomicBool,
}

impl Ranged for Entry {
    fn start(&self) -> u64 {
        self.range.start
    }

    fn end(&self) -> u64 {
        self.range.end
    }

    fn is_alive(&self) -> bool {
        !self.freed.load(Ordering::Acquire)
    }
}

impl Entry {
    fn new(range: Range) -> Arc<Entry> {
        Arc::new(Entry { range, freed: AtomicBool::new(false) })
    }

    fn code(&self, address: u64) -> Code<'_> {
        match &*self.range.tables {
            Tables::Trampoline => Code::Trampoline,
            Tables::Bare => Code::Bare,
            Tables::Frames(tables) => match tables.as_slice() {
                [] => Code::Bare,
                [only] => Code::Table(only),
                [first, rest @ ..] => {
                    let found = tables.iter().find(|table| table.find(address).is_some());
                    Code::Table(found.unwrap_or_else(|| rest.first().unwrap_or(first)))
                }
            },
        }
    }
}

/// With the living entries of each object.
type Entries = Published<Entry, BTreeMap<u64, Vec<Arc<Entry>>>>;

static LIBRARIES: Entries = Published::new(BTreeMap::new());
static COMPILED: Entries = Published::new(BTreeMap::new());
/// Counts what was freed.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Replaces the known libraries and other mappings.
pub(crate) fn publish_libraries(ranges: Vec<Range>) {
    LIBRARIES.change().replace(ranges.into_iter().map(Entry::new).collect());
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Adds compiled code.
pub(crate) fn publish_compiled(range: Range) {
    let entry = Entry::new(range);
    let mut change = COMPILED.change();
    change.own().entry(entry.range.owner).or_default().push(Arc::clone(&entry));
    change.add(entry);
}

/// The code of this object is about to be freed.
pub(crate) fn free_compiled(owner: u64) {
    for entry in COMPILED.change().own().remove(&owner).unwrap_or_default() {
        entry.freed.store(true, Ordering::Release);
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Forgets everything. What was published is freed by the next [`reclaim`].
pub(crate) fn clear() {
    for published in [&LIBRARIES, &COMPILED] {
        let mut change = published.change();
        change.own().clear();
        change.clear();
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// The same in the child of a fork; its libraries are its parent's, and stay if they are asked for.
pub(crate) fn clear_in_child(keep_libraries: bool) {
    for (published, is_kept) in [(&LIBRARIES, keep_libraries), (&COMPILED, false)] {
        let mut change = published.change_in_child(BTreeMap::new());
        if !is_kept {
            change.own().clear();
            change.clear();
        }
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Whether libraries are known.
pub(crate) fn has_libraries() -> bool {
    // SAFETY: asked by the one thread that may change them.
    unsafe { LIBRARIES.all() }.next().is_some()
}

/// Frees what was replaced, if `no_handler_runs`, which is asked after the exchange, says so.
pub(crate) fn reclaim(no_handler_runs: impl Fn() -> bool) {
    for published in [&LIBRARIES, &COMPILED] {
        published.change().reclaim(&no_handler_runs);
    }
}

/// Counts what has gone away; caches of rules are for one generation.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The code of this process as it was published.
pub(crate) struct ProcessCode;

impl CodeMap for ProcessCode {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        // SAFETY: handlers are counted while they run, and writers walk nothing while they reclaim: see
        // `threads::no_handler_runs`.
        let find = |published: &'static Entries| unsafe { published.find(address) };
        find(&COMPILED).or_else(|| find(&LIBRARIES)).map(|entry| entry.code(address))
    }

    fn missed(&self) {
        if !UNKNOWN_CODE.swap(true, Ordering::Relaxed) {
            wake::writer();
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_signal_return(&self, address: u64) -> bool {
        address == vdso::signal_return()
    }
}
