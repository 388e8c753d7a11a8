//! What code is where, for the handler: sorted tables behind atomic pointers.
//!
//! ```text
//!   LIBRARIES   one sorted table, exchanged whole when libraries have come or gone
//!   COMPILED    a sorted table and a list of the newest entries; full, the list is merged into a new table
//! ```
//!
//! A reader takes no lock and never waits. What is exchanged is freed when no handler can be reading it any more
//! ([`reclaim`]). Code that is freed is marked so, and caches of rules begin a new generation.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::unwind::{Code, CodeMap, FrameTable};
#[cfg(target_arch = "aarch64")]
use crate::vdso;
use crate::wake;

/// Code was met that nothing is known of: mappings have to be looked at.
pub(crate) static UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);

/// The newest entries, before they are merged.
const NEWEST: usize = 128;

/// What is known of a range of code.
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

impl Entry {
    fn holds(&self, address: u64) -> bool {
        self.range.start <= address && address < self.range.end && !self.freed.load(Ordering::Acquire)
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

#[derive(Debug)]
struct Table {
    sorted: Box<[Arc<Entry>]>,
    newest: [AtomicPtr<Entry>; NEWEST],
    count: AtomicUsize,
    /// What `newest` points to.
    kept: Mutex<Vec<Arc<Entry>>>,
}

impl Table {
    fn new(sorted: Box<[Arc<Entry>]>) -> Self {
        Table {
            sorted,
            newest: [const { AtomicPtr::new(ptr::null_mut()) }; NEWEST],
            count: AtomicUsize::new(0),
            kept: Mutex::new(Vec::new()),
        }
    }

    fn find(&self, address: u64) -> Option<&Entry> {
        let count = self.count.load(Ordering::Acquire).min(NEWEST);
        for slot in self.newest.get(..count)?.iter().rev() {
            // SAFETY: entries below `count` are set, and `kept` holds them for as long as the table lives.
            let entry = unsafe { slot.load(Ordering::Relaxed).as_ref() };
            if let Some(entry) = entry.filter(|entry| entry.holds(address)) {
                return Some(entry);
            }
        }
        let after = self.sorted.partition_point(|entry| entry.range.start <= address);
        self.sorted.get(after.checked_sub(1)?).map(|entry| &**entry).filter(|entry| entry.holds(address))
    }
}

/// One of the two tables.
#[derive(Debug)]
struct Published {
    table: AtomicPtr<Table>,
    /// Taken by the thread that changes it, never by a handler; see [`Published::change`].
    first: Mutex<Change>,
    /// What takes its place in the child of a fork that came while another thread had it. Never freed.
    later: AtomicPtr<Mutex<Change>>,
}

#[derive(Debug)]
struct Change {
    retired: Vec<Retired>,
    /// The living entries of each object.
    owned: BTreeMap<u64, Vec<Arc<Entry>>>,
}

/// A table that was exchanged.
#[derive(Debug)]
struct Retired(*mut Table);

// SAFETY: an owning pointer; `Table` is Send.
unsafe impl Send for Retired {}

static LIBRARIES: Published = Published::new();
static COMPILED: Published = Published::new();
/// Counts what has gone away.
static GENERATION: AtomicU64 = AtomicU64::new(1);

impl Published {
    const fn new() -> Self {
        Published {
            table: AtomicPtr::new(ptr::null_mut()),
            first: Mutex::new(Change { retired: Vec::new(), owned: BTreeMap::new() }),
            later: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn lock(&self) -> &Mutex<Change> {
        // SAFETY: null, or made by `clear_in_child` and never freed.
        unsafe { self.later.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.first)
    }

    fn change(&self) -> MutexGuard<'_, Change> {
        self.lock().lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self, change: &mut Change) {
        change.owned.clear();
        self.exchange(&mut change.retired, None);
    }

    /// Waits for no thread: those of the parent are not there, whatever they held. What one was changing is leaked.
    fn clear_in_child(&self) {
        match self.lock().try_lock() {
            Ok(mut change) => self.clear(&mut change),
            Err(TryLockError::Poisoned(poisoned)) => self.clear(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let fresh = Mutex::new(Change { retired: Vec::new(), owned: BTreeMap::new() });
                self.later.store(Box::into_raw(Box::new(fresh)), Ordering::Release);
                self.table.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }

    fn find(&self, address: u64) -> Option<Code<'_>> {
        // Sequentially consistent, as are the exchange, and what the handler says before it comes here and `reclaim` asks for: a
        // handler that has not been seen there reads the new table.
        // SAFETY: a table is freed only when no handler can be reading it, see `reclaim`; others hold `change`.
        let table = unsafe { self.table.load(Ordering::SeqCst).as_ref() }?;
        table.find(address).map(|entry| entry.code(address))
    }

    fn exchange(&self, retired: &mut Vec<Retired>, table: Option<Table>) {
        let new = table.map_or(ptr::null_mut(), |table| Box::into_raw(Box::new(table)));
        let old = self.table.swap(new, Ordering::SeqCst);
        if !old.is_null() {
            retired.push(Retired(old));
        }
    }

    fn replace(&self, ranges: Vec<Range>) {
        let mut entries: Vec<Arc<Entry>> =
            ranges.into_iter().map(|range| Arc::new(Entry { range, freed: AtomicBool::new(false) })).collect();
        entries.sort_by_key(|entry| entry.range.start);
        let mut change = self.change();
        self.exchange(&mut change.retired, Some(Table::new(entries.into_boxed_slice())));
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    fn add(&self, range: Range) {
        let mut change = self.change();
        // SAFETY: only the holder of `change` exchanges it.
        let mut table = unsafe { self.table.load(Ordering::Acquire).as_ref() };
        if table.is_none_or(|table| table.count.load(Ordering::Relaxed) >= NEWEST) {
            self.exchange(&mut change.retired, Some(Table::new(merged(table))));
            // SAFETY: as above.
            table = unsafe { self.table.load(Ordering::Acquire).as_ref() };
        }
        let Some(table) = table else { return };
        let entry = Arc::new(Entry { range, freed: AtomicBool::new(false) });
        let count = table.count.load(Ordering::Relaxed);
        if let Some(slot) = table.newest.get(count) {
            slot.store(Arc::as_ptr(&entry).cast_mut(), Ordering::Relaxed);
            change.owned.entry(entry.range.owner).or_default().push(Arc::clone(&entry));
            table.kept.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
            table.count.store(count + 1, Ordering::Release);
        }
    }

    fn free(&self, owner: u64) {
        let mut change = self.change();
        for entry in change.owned.remove(&owner).unwrap_or_default() {
            entry.freed.store(true, Ordering::Release);
        }
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }
}

/// What is left of a table, with its newest entries in their place.
fn merged(table: Option<&Table>) -> Box<[Arc<Entry>]> {
    let Some(table) = table else { return Box::default() };
    let kept = table.kept.lock().unwrap_or_else(PoisonError::into_inner);
    let alive = |entry: &&Arc<Entry>| !entry.freed.load(Ordering::Acquire);
    let mut all: Vec<Arc<Entry>> = table.sorted.iter().chain(kept.iter()).filter(alive).cloned().collect();
    all.sort_by_key(|entry| entry.range.start);
    all.into_boxed_slice()
}

/// Exchanges what is known of libraries and other mappings.
pub(crate) fn publish_libraries(ranges: Vec<Range>) {
    LIBRARIES.replace(ranges);
}

/// Adds compiled code.
pub(crate) fn publish_compiled(range: Range) {
    COMPILED.add(range);
}

/// The code of this object is about to go away.
pub(crate) fn free_compiled(owner: u64) {
    COMPILED.free(owner);
}

/// Forgets everything. What was published is freed by the next [`reclaim`].
pub(crate) fn clear() {
    for published in [&LIBRARIES, &COMPILED] {
        published.clear(&mut published.change());
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// The same in the child of a fork.
pub(crate) fn clear_in_child() {
    for published in [&LIBRARIES, &COMPILED] {
        published.clear_in_child();
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Frees what was exchanged, if `no_handler_runs`, which is asked after the exchange, says so.
pub(crate) fn reclaim(no_handler_runs: impl Fn() -> bool) {
    for published in [&LIBRARIES, &COMPILED] {
        let mut change = published.change();
        if change.retired.is_empty() || !no_handler_runs() {
            continue;
        }
        for Retired(table) in change.retired.drain(..) {
            // SAFETY: made by `Box::into_raw`, taken out of `table`, and a handler that begins now reads the new one.
            drop(unsafe { Box::from_raw(table) });
        }
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
        COMPILED.find(address).or_else(|| LIBRARIES.find(address))
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
