//! The list: a sorted table behind an atomic pointer, and the newest entries beside it.
//!
//! A full table is merged into a new one. What is out of use is freed when no reader is at work, which is asked after the
//! exchange: a reader that begins then finds the new table.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Module;
use crate::{Address, AddressRange};

/// The newest entries, before they are merged.
const NEWEST: usize = 128;

/// So many withdrawn modules keep their memory.
pub(super) const KEPT: usize = 1024;

/// How many modules have come and gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// As `dlpi_adds`.
    pub adds: u64,
    /// As `dlpi_subs`.
    pub subs: u64,
}

struct Table {
    /// By address.
    sorted: Vec<*const Module>,
    newest: [AtomicPtr<Module>; NEWEST],
    count: AtomicUsize,
}

impl Table {
    fn all(&self) -> impl Iterator<Item = &Module> {
        let newest = self.newest.iter().take(self.count.load(Ordering::Acquire));
        let newest = newest.map(|slot| slot.load(Ordering::Relaxed).cast_const());
        // SAFETY: what a table points to lives as long as the table; see the module's head.
        self.sorted.iter().copied().chain(newest).filter_map(|module| unsafe { module.as_ref() })
    }

    fn find(&self, address: Address) -> Option<&Module> {
        let count = self.count.load(Ordering::Acquire).min(NEWEST);
        for slot in self.newest.get(..count)?.iter().rev() {
            // SAFETY: as in `all`.
            let module = unsafe { slot.load(Ordering::Relaxed).as_ref() };
            if let Some(module) = module.filter(|module| module.mapped().contains(address) && module.is_listed()) {
                return Some(module);
            }
        }
        // SAFETY: as in `all`.
        let start = |module: &*const Module| unsafe { &**module }.mapped().start();
        let after = self.sorted.partition_point(|module| start(module) <= address);
        // SAFETY: as in `all`.
        let module = unsafe { self.sorted.get(after.checked_sub(1)?)?.as_ref() };
        module.filter(|module| module.mapped().contains(address) && module.is_listed())
    }
}

/// What belongs to the thread that changes the list.
struct Change {
    /// Out of use.
    tables: Vec<*mut Table>,
    /// Withdrawn, and in no table that is in use.
    modules: VecDeque<*mut Module>,
    /// Listed, by address: to find what a range meets.
    listed: std::collections::BTreeMap<u64, *const Module>,
}

// SAFETY: the pointers own what they lead to, or borrow from what the list owns.
unsafe impl Send for Change {}

pub(super) struct ModuleList {
    table: AtomicPtr<Table>,
    readers: AtomicUsize,
    adds: AtomicU64,
    subs: AtomicU64,
    /// Taken under the session's lock only, which is held across a fork: the child finds it free.
    change: Mutex<Change>,
}

/// A reader at work. One that is left by `longjmp` stays at work for ever, as does one of another thread in the child of a fork:
/// then nothing is freed any more.
pub struct Reading<'a> {
    list: &'a ModuleList,
    table: Option<&'a Table>,
}

impl Reading<'_> {
    /// The listed modules.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.table.into_iter().flat_map(Table::all).filter(|module| module.is_listed())
    }

    /// The module that `address` is in.
    pub fn find(&self, address: Address) -> Option<&Module> {
        self.table?.find(address)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.list.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ModuleList {
    pub(super) const fn new() -> Self {
        let change = Change { tables: Vec::new(), modules: VecDeque::new(), listed: std::collections::BTreeMap::new() };
        ModuleList {
            table: AtomicPtr::new(ptr::null_mut()),
            readers: AtomicUsize::new(0),
            adds: AtomicU64::new(0),
            subs: AtomicU64::new(0),
            change: Mutex::new(change),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { adds: self.adds.load(Ordering::SeqCst), subs: self.subs.load(Ordering::SeqCst) }
    }

    pub(super) fn read(&self) -> Reading<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or a table that is not freed while a reader is at work.
        let table = unsafe { self.table.load(Ordering::SeqCst).as_ref() };
        Reading { list: self, table }
    }

    fn change(&self) -> MutexGuard<'_, Change> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, module: Box<Module>) {
        let mut change = self.change();
        let module = Box::into_raw(module);
        // SAFETY: made just now; only the holder of `change` frees.
        let start = unsafe { &*module }.mapped().start().0;
        change.listed.insert(start, module);
        // SAFETY: only the holder of `change` exchanges or frees it.
        let table = match unsafe { self.table.load(Ordering::Acquire).as_ref() } {
            Some(table) if table.count.load(Ordering::Relaxed) < NEWEST => table,
            full => self.exchange(&mut change, full),
        };
        let count = table.count.load(Ordering::Relaxed);
        if let Some(slot) = table.newest.get(count) {
            slot.store(module, Ordering::Relaxed);
            table.count.store(count + 1, Ordering::Release);
        }
        self.adds.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes out what has a byte in `range`.
    pub(super) fn withdraw(&self, range: AddressRange) {
        // Most memory that changes is of no module.
        if self.counts() == Counts::default() {
            return;
        }
        let mut change = self.change();
        let below = change.listed.range(..range.end().0).rev();
        // SAFETY: what is listed is alive.
        let met = below.take_while(|(_, module)| unsafe { &***module }.mapped().end() > range.start());
        let starts: Vec<u64> = met.map(|(&start, _)| start).collect();
        for start in starts {
            // SAFETY: as above.
            let module = change.listed.remove(&start).and_then(|module| unsafe { module.as_ref() });
            if module.is_some_and(Module::withdraw) {
                self.subs.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn clear(&self) {
        if let Some(everything) = AddressRange::new(Address(0), u64::MAX) {
            self.withdraw(everything);
        }
    }

    /// A new table of what is listed in `old`, which goes out of use.
    fn exchange(&self, change: &mut Change, old: Option<&Table>) -> &Table {
        let (listed, gone): (Vec<&Module>, Vec<&Module>) =
            old.into_iter().flat_map(Table::all).partition(|module| module.is_listed());
        change.modules.extend(gone.into_iter().map(|module| ptr::from_ref(module).cast_mut()));
        let mut sorted: Vec<*const Module> = listed.into_iter().map(ptr::from_ref).collect();
        // SAFETY: what is listed is alive.
        sorted.sort_by_key(|module| unsafe { &**module }.mapped().start());
        let newest = [const { AtomicPtr::new(ptr::null_mut()) }; NEWEST];
        let new = Box::into_raw(Box::new(Table { sorted, newest, count: AtomicUsize::new(0) }));
        let before = self.table.swap(new, Ordering::SeqCst);
        if !before.is_null() {
            change.tables.push(before);
        }
        self.reclaim(change);
        // SAFETY: made above, and freed only when it was exchanged.
        unsafe { &*new }
    }

    fn reclaim(&self, change: &mut Change) {
        if self.readers.load(Ordering::SeqCst) > 0 {
            return;
        }
        for table in change.tables.drain(..) {
            // SAFETY: made by `Box::into_raw`, exchanged, and readers find the new one from now on.
            drop(unsafe { Box::from_raw(table) });
        }
        while change.modules.len() > KEPT {
            let Some(module) = change.modules.pop_front() else { return };
            // SAFETY: made by `Box::into_raw`, and in no table that is in use.
            drop(unsafe { Box::from_raw(module) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NewModule;
    use super::*;

    fn module(start: u64) -> Box<Module> {
        let mapped = AddressRange::new(Address(start), 0x1000).unwrap();
        let function = AddressRange::new(Address(start + 0x10), 0x20).unwrap();
        Module::new(NewModule {
            mapped,
            bias: start,
            path: c"/nowhere".into(),
            headers: Vec::new(),
            eh_frame_hdr: None,
            functions: vec![(function, c"f".into())],
        })
    }

    fn range(start: u64, size: u64) -> AddressRange {
        AddressRange::new(Address(start), size).unwrap()
    }

    fn starts(list: &ModuleList) -> Vec<u64> {
        let mut starts: Vec<u64> = list.read().modules().map(|module| module.mapped().start().0).collect();
        starts.sort_unstable();
        starts
    }

    #[test]
    fn what_is_listed_is_found_and_what_is_withdrawn_is_not() {
        let list = ModuleList::new();
        let all: Vec<u64> = (1..=1000).map(|number| number * 0x2000).collect();
        // Neither ascending nor descending.
        (0..1000).for_each(|number| list.publish(module(all[number * 7 % 1000])));
        assert_eq!(starts(&list), all);
        let found = |address| list.read().find(Address(address)).map(|module| module.mapped().start().0);
        assert_eq!(found(0x4fff - 0x1000 + 0x1000), Some(0x4000));
        assert_eq!((found(0x5000), found(0x1fff)), (None, None));
        list.withdraw(range(0x4800, 0x2000));
        assert_eq!((found(0x4000), found(0x6000), found(0x8000)), (None, None, Some(0x8000)));
        assert_eq!(list.counts(), Counts { adds: 1000, subs: 2 });
        list.publish(module(0x4000));
        assert_eq!(found(0x4000), Some(0x4000));
        list.clear();
        assert_eq!(starts(&list), Vec::<u64>::new());
        assert_eq!(list.counts(), Counts { adds: 1001, subs: 1001 });
    }

    #[test]
    fn memory_of_what_is_withdrawn_is_bounded_and_outlives_its_reader() {
        let list = ModuleList::new();
        list.publish(module(0x1000));
        let reading = list.read();
        let first = reading.find(Address(0x1000)).unwrap();
        for _ in 0..5000 {
            list.publish(module(0x2000));
            list.withdraw(range(0x2000, 1));
        }
        list.withdraw(range(0x1000, 1));
        assert_eq!(first.path(), c"/nowhere");
        drop(reading);
        for _ in 0..NEWEST + 1 {
            list.publish(module(0x2000));
            list.withdraw(range(0x2000, 1));
        }
        let change = list.change();
        assert!(change.modules.len() <= KEPT && change.tables.is_empty());
    }

    #[test]
    fn a_symbol_is_that_of_the_function() {
        let module = module(0x1000);
        let name = |address| module.symbol(Address(address)).map(|symbol| symbol.name);
        assert_eq!([name(0x100f), name(0x1010), name(0x102f), name(0x1030)], [None, Some(c"f"), Some(c"f"), None]);
        assert_eq!(module.symbol(Address(0x1010)).unwrap().entry.st_value, 0x10);
    }

    #[test]
    fn readers_and_a_writer_at_once() {
        let list = ModuleList::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while list.counts().adds < 3000 {
                    seen += list.read().modules().filter(|module| module.path() == c"/nowhere").count();
                }
                seen
            });
            for number in 1..=3000 {
                list.publish(module(number * 0x1000));
                if number > 10 {
                    list.withdraw(range((number - 10) * 0x1000, 1));
                }
            }
            let _ = reader.join().unwrap();
        });
        assert_eq!(starts(&list).len(), 10);
    }
}
