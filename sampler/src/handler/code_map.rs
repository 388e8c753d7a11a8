//! Maps addresses to code for the handler: sorted tables behind atomic pointers.
//!
//! ```text
//!   libraries   replaced as a whole when libraries are loaded or unloaded
//!   compiled    grows by one entry for each code range
//! ```
//!
//! Entries of freed code are only marked as dead; a new generation number invalidates the rule caches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jitlisten::plumbing::{Published, Ranged};

use crate::recording::current;
#[cfg(target_arch = "aarch64")]
use crate::system::vdso;
use crate::unwind::{Code, CodeMap, FrameTable};

/// The unwind information of a code range.
#[derive(Debug)]
pub(crate) enum Tables {
    /// Unwind tables; the first one with an entry for an address applies.
    Frames(Vec<FrameTable>),
    /// A perf trampoline: see [`Code::Trampoline`].
    Trampoline,
    /// Code without unwind information.
    Bare,
}

/// A range of code, with its unwind information.
#[derive(Clone, Debug)]
pub(crate) struct CodeRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The session's object that owns the code; 0 for libraries.
    pub(crate) owner: u64,
    pub(crate) tables: Arc<Tables>,
}

#[derive(Debug)]
struct Entry {
    range: CodeRange,
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
    fn new(range: CodeRange) -> Arc<Entry> {
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
                    let matching = tables.iter().find(|table| table.find(address).is_some());
                    Code::Table(matching.unwrap_or_else(|| rest.first().unwrap_or(first)))
                }
            },
        }
    }
}

/// A published table, and the live entries of each object.
type Entries = Published<Entry, BTreeMap<u64, Vec<Arc<Entry>>>>;

struct KnownCode {
    libraries: Entries,
    compiled: Entries,
    /// Generation of the code; incremented by each change that makes cached rules stale.
    generation: AtomicU64,
    /// Set when a sample hits unknown code; the writer then reads the mappings again.
    has_unknown: AtomicBool,
}

/// Static because a fork child that is recorded keeps the libraries, and late signals read it.
static CODE: KnownCode = KnownCode {
    libraries: Published::new(BTreeMap::new()),
    compiled: Published::new(BTreeMap::new()),
    generation: AtomicU64::new(1),
    has_unknown: AtomicBool::new(false),
};

/// Replaces the known libraries and other mappings.
pub(crate) fn publish_libraries(ranges: Vec<CodeRange>) {
    CODE.libraries.change().replace(ranges.into_iter().map(Entry::new).collect());
    CODE.generation.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn publish_compiled(range: CodeRange) {
    let entry = Entry::new(range);
    let mut change = CODE.compiled.change();
    change.writer_data().entry(entry.range.owner).or_default().push(Arc::clone(&entry));
    change.add(entry);
}

/// Marks an object's code as dead, before the object is freed.
pub(crate) fn free_compiled(owner: u64) {
    for entry in CODE.compiled.change().writer_data().remove(&owner).unwrap_or_default() {
        entry.freed.store(true, Ordering::Release);
    }
    CODE.generation.fetch_add(1, Ordering::AcqRel);
}

/// Forgets all code. The next [`reclaim`] frees the tables.
pub(crate) fn clear() {
    for published in [&CODE.libraries, &CODE.compiled] {
        let mut change = published.change();
        change.writer_data().clear();
        change.clear();
    }
    CODE.generation.fetch_add(1, Ordering::AcqRel);
}

/// Like [`clear`], in a fork child. With `keep_libraries`, keeps the parent's libraries, because the child has the same
/// mappings.
pub(crate) fn clear_in_child(keep_libraries: bool) {
    for (published, is_kept) in [(&CODE.libraries, keep_libraries), (&CODE.compiled, false)] {
        let mut change = published.change_in_child(BTreeMap::new());
        if !is_kept {
            change.writer_data().clear();
            change.clear();
        }
    }
    CODE.generation.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn has_libraries() -> bool {
    // SAFETY: only the calling thread changes the table.
    unsafe { CODE.libraries.entries() }.next().is_some()
}

/// Frees replaced tables if `no_handler_is_running`, which is checked after the new tables have been published.
pub(crate) fn reclaim(no_handler_is_running: impl Fn() -> bool) {
    for published in [&CODE.libraries, &CODE.compiled] {
        published.change().reclaim(&no_handler_is_running);
    }
}

/// Current generation of the code. Rule caches are valid for one generation.
pub(crate) fn generation() -> u64 {
    CODE.generation.load(Ordering::Acquire)
}

/// True if a sample has hit unknown code since [`forget_unknown_code`].
pub(crate) fn has_unknown_code() -> bool {
    CODE.has_unknown.load(Ordering::Relaxed)
}

pub(crate) fn forget_unknown_code() {
    CODE.has_unknown.store(false, Ordering::Relaxed);
}

pub(crate) struct ProcessCode;

impl CodeMap for ProcessCode {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        // SAFETY: running handlers are counted, and the writer does not walk stacks while it frees tables: see
        // `slots::no_handler_is_running`.
        let find = |published: &'static Entries| unsafe { published.find(address) };
        find(&CODE.compiled).or_else(|| find(&CODE.libraries)).map(|entry| entry.code(address))
    }

    fn report_unknown_code(&self) {
        if !CODE.has_unknown.swap(true, Ordering::Relaxed)
            && let Some(recording) = current::last()
        {
            recording.wake.notify();
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_signal_return(&self, address: u64) -> bool {
        address == vdso::signal_return()
    }
}
