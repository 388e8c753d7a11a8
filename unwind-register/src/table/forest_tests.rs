//! Tests of the forest from the perspective of libunwind: a list of infos, newest first, each with one pointer to a
//! table, which are read without a lock.

use super::{Forest, LeafId, Publish};
use crate::table::slots::search;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// List of one copy of libunwind, with indices instead of pointers.
struct List {
    infos: Vec<OnceLock<Info>>,
    count: AtomicUsize,
    tables: Vec<OnceLock<&'static [AtomicU64]>>,
    next_table: AtomicUsize,
}

struct Info {
    range: Range<u64>,
    table: AtomicUsize,
}

impl List {
    fn new() -> Self {
        let (infos, tables) = if cfg!(miri) { (64, 256) } else { (1024, 1 << 17) };
        List {
            infos: (0..infos).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            tables: (0..tables).map(|_| OnceLock::new()).collect(),
            next_table: AtomicUsize::new(0),
        }
    }

    fn add_table(&self, cells: &'static [AtomicU64]) -> usize {
        let index = self.next_table.fetch_add(1, Relaxed);
        self.tables[index].set(cells).expect("written once");
        index
    }

    /// Searches like `local_find_proc_info` and `dwarf_search_unwind_table`: the newest info that contains the address
    /// decides.
    fn find(&self, address: u64) -> u32 {
        let count = self.count.load(Acquire);
        for info in self.infos[..count].iter().rev().map(|info| info.get().expect("counted")) {
            if info.range.contains(&address) {
                let cells = self.tables[info.table.load(Acquire)].get().expect("published");
                return search(cells, (address - info.range.start) as u32);
            }
        }
        0
    }
}

impl Publish for &List {
    fn leaf(&mut self, id: LeafId, range: &Range<u64>, cells: &'static [AtomicU64]) {
        let table = AtomicUsize::new(self.add_table(cells));
        assert!(self.infos[id].set(Info { range: range.clone(), table }).is_ok());
        assert_eq!(self.count.swap(id + 1, Release), id);
    }

    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]) {
        let table = self.add_table(cells);
        self.infos[id].get().expect("a leaf").table.store(table, Release);
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

const COUNT: u64 = if cfg!(miri) { 100 } else { 30_000 };

/// Inserts functions at the given addresses, checks all lookups, and returns the number of leaves.
fn fill(addresses: impl Iterator<Item = u64>) -> usize {
    let list = List::new();
    let (mut forest, mut fde_by_start) = (Forest::new(), BTreeMap::new());
    for (index, start) in addresses.enumerate() {
        let (range, fde) = (start..start + 48, index as u32 + 1);
        assert_eq!(forest.insert(&range, fde, 1, index as u64 * 1_000_000, &mut &list), 0);
        fde_by_start.insert(start, fde);
    }
    for (&start, &fde) in &fde_by_start {
        assert_eq!((list.find(start), list.find(start + 47)), (fde, fde), "{start:#x}");
        assert_eq!(list.find(start + 48), 0);
    }
    let leaves = forest.leaves_by_id().len();
    for (&start, &fde) in &fde_by_start {
        forest.remove(&(start..start + 48), fde);
        assert_eq!(list.find(start), 0);
    }
    leaves
}

#[test]
fn upwards_downwards_and_anywhere() {
    let base = 0x7f00_0000_1000u64;
    assert!(fill((0..COUNT).map(|i| base + i * 64)) <= 12);
    assert!(fill((0..COUNT).rev().map(|i| base + i * 64)) <= 12);
    let mut state = 3;
    let mut used_addresses = BTreeSet::new();
    let random_addresses = (0..COUNT)
        .map(|_| base + random(&mut state) % 1_000_000 * 64)
        .filter(|address| used_addresses.insert(*address));
    assert!(fill(random_addresses) <= 24);
    assert!(fill((0..COUNT.min(5000)).map(|i| base + i * 0x4000)) <= 8, "16 KiB apart, as MCJIT places them");
}

#[test]
fn several_allocators_in_turn() {
    let base = 0x7f00_0000_0000u64;
    let address_of = |i: u64| match i % 3 {
        0 => base + i * 32,
        1 => base + 0x100_0000 - i * 32,
        _ => base + 0x200_0000 + (i * 7919) % 100_000 * 64,
    };
    assert!(fill((0..COUNT).map(address_of)) <= 24);
}

#[test]
fn a_function_across_two_windows_is_found_on_both_sides() {
    let list = List::new();
    let mut forest = Forest::new();
    let boundary = 0x7f00_0400_0000u64;
    let range = boundary - 16..boundary + 16;
    forest.insert(&range, 7, 1, 0, &mut &list);
    let find = |address| list.find(address);
    assert_eq!([find(boundary - 17), find(boundary - 1), find(boundary), find(boundary + 16)], [0, 7, 7, 0]);
    forest.remove(&range, 7);
    assert_eq!([find(boundary - 1), find(boundary)], [0, 0]);
}

#[test]
fn new_code_over_forgotten_code_wins() {
    let list = List::new();
    let mut forest = Forest::new();
    forest.insert(&(0x1000..0x1100), 1, 1, 0, &mut &list);
    forest.insert(&(0x1100..0x1200), 2, 1, 0, &mut &list);
    assert_eq!(forest.insert(&(0x1080..0x1180), 3, 1, 0, &mut &list), 2);
    assert_eq!([0x1000, 0x1080, 0x117f, 0x1180].map(|address| list.find(address)), [0, 3, 3, 0]);
    forest.remove(&(0x1000..0x1100), 1);
    assert_eq!(list.find(0x1080), 3, "the late removal of the old code changes nothing");
}

/// Checks the proof in the documentation of `table`: every search finds live code, regardless of concurrent changes.
/// The clock is frozen, so no table is reused. Otherwise the test could fail on a busy machine, which may suspend a
/// reader for longer than any quarantine.
#[test]
fn readers_never_miss_what_is_alive() {
    let list = List::new();
    let stop = AtomicBool::new(false);
    let completed_rounds = AtomicUsize::new(0);
    let base = 0x7f00_0000_0000u64;
    let count = if cfg!(miri) { 6 } else { 64 };
    let live_functions: Vec<(u64, u32)> = (0..count).map(|i| (base + i * 0x4000, 1 + i as u32)).collect();
    let mut forest = Forest::new();
    for &(start, fde) in &live_functions {
        forest.insert(&(start..start + 64), fde, 1, 0, &mut &list);
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    for &(start, fde) in &live_functions {
                        assert_eq!(list.find(start + 20), fde);
                    }
                    completed_rounds.fetch_add(1, Relaxed);
                }
            });
        }
        let (mut state, mut temporary_functions) = (5, Vec::new());
        for step in 0..COUNT * 3 {
            let start = base + random(&mut state) % 0x10_0000;
            let range = start..start + 1 + random(&mut state) % 100;
            let is_free =
                live_functions.iter().all(|&(live_start, _)| range.end <= live_start || live_start + 64 <= range.start);
            if is_free && (step % 3 != 0 || temporary_functions.is_empty()) {
                let fde = 1000 + step as u32;
                forest.insert(&range, fde, 1, 0, &mut &list);
                temporary_functions.push((range, fde));
            } else if !temporary_functions.is_empty() {
                let victim = random(&mut state) as usize % temporary_functions.len();
                let (range, fde) = temporary_functions.swap_remove(victim);
                forest.remove(&range, fde);
            }
        }
        while completed_rounds.load(Relaxed) < 2 {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
    });
}
