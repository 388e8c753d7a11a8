//! Tests of a table against an ordinary map, with functions in the allocation order of real memory managers.

use super::{Function, SLOTS, Slots, search};
use std::collections::BTreeMap;

/// A table and its expected contents. Like a leaf's table, it is refilled when it runs out of slots.
struct CheckedTable {
    slots: Slots,
    expected: BTreeMap<u32, Function>,
    refills: usize,
}

impl CheckedTable {
    fn new() -> Self {
        CheckedTable { slots: Slots::new(), expected: BTreeMap::new(), refills: 0 }
    }

    fn insert(&mut self, start: u32, end: u32) {
        let function = Function { start, end, fde: start / 8 + 1 };
        if self.slots.insert(function, 1).is_err() {
            let functions: Vec<Function> = self.slots.iter().collect();
            self.slots = Slots::new();
            self.slots.fill(&functions, start, 1);
            self.refills += 1;
            self.slots.insert(function, 1).expect("there is space after a refill");
        }
        self.expected.insert(start, function);
    }

    fn remove(&mut self, start: u32) {
        let function = self.expected.remove(&start).expect("it was inserted");
        assert!(self.slots.remove(start, function.fde));
    }

    fn check(&self) {
        let starts: Vec<u32> = (0..SLOTS).map(|slot| self.slots.start(slot)).collect();
        assert!(starts.is_sorted());
        assert!(self.slots.iter().eq(self.expected.values().copied()));
        for function in self.expected.values() {
            for offset in [function.start, function.end - 1] {
                assert_eq!(search(self.slots.cells(), offset), function.fde);
            }
            if !self.expected.contains_key(&function.end) {
                assert_eq!(search(self.slots.cells(), function.end), 0, "behind {function:?}");
            }
        }
    }
}

fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as u32
}

const COUNT: u32 = if cfg!(miri) { 40 } else { 1500 };

#[test]
fn upwards_needs_few_refills() {
    let mut table = CheckedTable::new();
    for i in 0..COUNT {
        table.insert(0x1000 + i * 64, 0x1000 + i * 64 + 50);
    }
    table.check();
    assert!(table.refills <= 20, "{}", table.refills);
}

#[test]
fn downwards_needs_no_refill() {
    let mut table = CheckedTable::new();
    for i in (0..COUNT).rev() {
        table.insert(i * 64, i * 64 + 64);
    }
    table.check();
    assert_eq!(table.refills, 0);
}

#[test]
fn anywhere_stays_right_and_refills_are_rare() {
    let mut table = CheckedTable::new();
    let mut state = 7;
    for _ in 0..COUNT {
        let start = random(&mut state) % 100_000 * 64;
        if table.slots.overlapping(start, start + 33).is_empty() {
            table.insert(start, start + 33);
        }
    }
    table.check();
    assert!(table.refills < COUNT as usize / 10 + 4, "{}", table.refills);
}

#[test]
fn removed_places_are_used_again() {
    let mut table = CheckedTable::new();
    for i in 0..COUNT {
        table.insert(i * 64, i * 64 + 64);
    }
    let mut state = 11;
    let refills = table.refills;
    for _ in 0..COUNT {
        let start = random(&mut state) % COUNT * 64;
        table.remove(start);
        assert_eq!(search(table.slots.cells(), start + 5), 0);
        table.insert(start, start + 40);
    }
    table.check();
    assert!(table.refills <= refills + 1, "{} after {refills}", table.refills);
}

#[test]
fn everything_removed_leaves_an_empty_table() {
    let mut table = CheckedTable::new();
    for i in 0..COUNT {
        table.insert(i * 64, i * 64 + 48);
    }
    for i in 0..COUNT {
        table.remove(i * 64);
    }
    assert_eq!((table.slots.functions(), table.slots.iter().count()), (0, 0));
    for i in (0..COUNT / 2).rev() {
        table.insert(i * 128 + 7, i * 128 + 100);
    }
    table.check();
}

#[test]
fn random_mixture() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        let (mut table, mut state) = (CheckedTable::new(), seed);
        for step in 0..COUNT {
            let start = random(&mut state) % 4000 * 16;
            let end = start + 1 + random(&mut state) % 200;
            let overlapping = table.slots.overlapping(start, end);
            let expected = table.expected.values().filter(|function| function.start < end && function.end > start);
            assert!(expected.eq(overlapping.iter()), "step {step}");
            match overlapping.first() {
                Some(function) => table.remove(function.start),
                None => table.insert(start, end),
            }
        }
        table.check();
    }
}

#[test]
fn another_fde_at_the_same_place_is_not_removed() {
    let mut slots = Slots::new();
    slots.insert(Function { start: 16, end: 32, fde: 5 }, 1).expect("empty");
    assert!(!slots.remove(16, 6) && !slots.remove(17, 5) && slots.remove(16, 5) && !slots.remove(16, 5));
}
