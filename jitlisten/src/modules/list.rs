//! List of modules: a [`Published`] table with a count of its readers.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Module;
use crate::process::published::{Changing, Published, Ranged};
use crate::{Address, AddressRange};

/// Number of withdrawn modules whose memory is kept.
pub(super) const MAX_WITHDRAWN: usize = 1024;

/// Number of modules added and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Same meaning as `dlpi_adds`.
    pub adds: u64,
    /// Same meaning as `dlpi_subs`.
    pub subs: u64,
}

impl Ranged for Module {
    fn start(&self) -> u64 {
        self.mapped().start().0
    }

    fn end(&self) -> u64 {
        self.mapped().end().0
    }

    fn is_alive(&self) -> bool {
        self.is_listed()
    }
}

/// Bookkeeping of the list's writers, protected by the table's lock.
struct WriterData {
    /// Most recently withdrawn modules, oldest first.
    withdrawn: VecDeque<Arc<Module>>,
    /// Listed modules by start address, for finding the modules that overlap a range.
    listed: BTreeMap<u64, Arc<Module>>,
}

pub(super) struct ModuleList {
    /// Changed only under the session's lock. That lock is held across a fork, so the child finds the table's lock
    /// free.
    published: Published<Module, WriterData>,
    readers: AtomicUsize,
    adds: AtomicU64,
    subs: AtomicU64,
}

/// A registered reader. If a thread leaves a read by `longjmp`, its reader stays registered forever, and no table is
/// freed from then on. The same applies in the child of a fork to the readers of other threads.
pub struct Reading<'a> {
    list: &'a ModuleList,
}

impl Reading<'_> {
    /// All listed modules.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        // SAFETY: this reader stays counted until it is dropped, and no table is freed while a reader is counted.
        unsafe { self.list.published.entries() }
    }

    /// Module that contains `address`.
    pub fn find(&self, address: Address) -> Option<&Module> {
        // SAFETY: this reader stays counted until it is dropped, and no table is freed while a reader is counted.
        unsafe { self.list.published.find(address.0) }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.list.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ModuleList {
    pub(super) const fn new() -> Self {
        ModuleList {
            published: Published::new(WriterData { withdrawn: VecDeque::new(), listed: BTreeMap::new() }),
            readers: AtomicUsize::new(0),
            adds: AtomicU64::new(0),
            subs: AtomicU64::new(0),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { adds: self.adds.load(Ordering::SeqCst), subs: self.subs.load(Ordering::SeqCst) }
    }

    pub(super) fn read(&self) -> Reading<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        Reading { list: self }
    }

    pub(super) fn publish(&self, module: Module) {
        let module = Arc::new(module);
        let mut change = self.published.change();
        change.writer_data().listed.insert(module.start(), Arc::clone(&module));
        change.add(module);
        self.reclaim(&mut change);
        self.adds.fetch_add(1, Ordering::SeqCst);
    }

    /// Withdraws every module that overlaps `range`.
    pub(super) fn withdraw(&self, range: AddressRange) {
        // Memory may change often, so skip the lock in processes that have never listed a module.
        if self.counts() == Counts::default() {
            return;
        }
        let mut change = self.published.change();
        let WriterData { withdrawn, listed } = change.writer_data();
        let candidates = listed.range(..range.end().0).rev();
        let overlapping = candidates.take_while(|(_, module)| module.end() > range.start().0);
        let starts: Vec<u64> = overlapping.map(|(&start, _)| start).collect();
        for module in starts.iter().filter_map(|start| listed.remove(start)) {
            if module.withdraw() {
                self.subs.fetch_add(1, Ordering::SeqCst);
            }
            withdrawn.push_back(module);
        }
        let surplus = withdrawn.len().saturating_sub(MAX_WITHDRAWN);
        withdrawn.drain(..surplus);
    }

    pub(super) fn clear(&self) {
        if let Some(everything) = AddressRange::new(Address(0), u64::MAX) {
            self.withdraw(everything);
        }
    }

    fn reclaim(&self, change: &mut Changing<'_, Module, WriterData>) {
        change.reclaim(|| self.readers.load(Ordering::SeqCst) == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::NewModule;
    use super::*;

    fn module(start: u64) -> Module {
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
        let all_starts: Vec<u64> = (1..=1000).map(|number| number * 0x2000).collect();
        // The publishing order is neither ascending nor descending.
        (0..1000).for_each(|number| list.publish(module(all_starts[number * 7 % 1000])));
        assert_eq!(starts(&list), all_starts);
        let find_start = |address| list.read().find(Address(address)).map(|module| module.mapped().start().0);
        assert_eq!(find_start(0x4fff - 0x1000 + 0x1000), Some(0x4000));
        assert_eq!((find_start(0x5000), find_start(0x1fff)), (None, None));
        list.withdraw(range(0x4800, 0x2000));
        assert_eq!((find_start(0x4000), find_start(0x6000), find_start(0x8000)), (None, None, Some(0x8000)));
        assert_eq!(list.counts(), Counts { adds: 1000, subs: 2 });
        list.publish(module(0x4000));
        assert_eq!(find_start(0x4000), Some(0x4000));
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
        let dropped = Arc::downgrade(list.published.change().writer_data().withdrawn.front().unwrap());
        for _ in 0..2 * MAX_WITHDRAWN {
            list.publish(module(0x2000));
            list.withdraw(range(0x2000, 1));
        }
        assert_eq!(list.published.change().writer_data().withdrawn.len(), MAX_WITHDRAWN);
        assert!(dropped.upgrade().is_none(), "in a table that is out of use");
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
                let mut module_count = 0;
                while list.counts().adds < 3000 {
                    module_count += list.read().modules().filter(|module| module.path() == c"/nowhere").count();
                }
                module_count
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
