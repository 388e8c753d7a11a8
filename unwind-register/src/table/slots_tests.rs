//! The table against a plain map, with the orders in which real memory managers hand out addresses.

use super::{Function, SLOTS, Slots, search};
use std::collections::BTreeMap;

/// A table beside the truth; grows by refilling, as a leaf does.
struct Pair {
    slots: Slots,
    truth: BTreeMap<u32, Function>,
    refills: usize,
}

impl Pair {
    fn new() -> Self {
        Pair { slots: Slots::new(), truth: BTreeMap::new(), refills: 0 }
    }

    fn insert(&mut self, start: u32, end: u32) {
        let function = Function { start, end, fde: start / 8 + 1 };
        if self.slots.insert(function, 1).is_err() {
            let all: Vec<Function> = self.slots.iter().collect();
            self.slots = Slots::new();
            self.slots.fill(&all, start, 1);
            self.refills += 1;
            self.slots.insert(function, 1).expect("there is space after a refill");
        }
        self.truth.insert(start, function);
    }

    fn remove(&mut self, start: u32) {
        let function = self.truth.remove(&start).expect("it was inserted");
        assert!(self.slots.remove(start, function.fde));
    }

    fn check(&self) {
        let starts: Vec<u32> = (0..SLOTS).map(|slot| self.slots.start(slot)).collect();
        assert!(starts.is_sorted());
        assert!(self.slots.iter().eq(self.truth.values().copied()));
        for function in self.truth.values() {
            for offset in [function.start, function.end - 1] {
                assert_eq!(search(self.slots.cells(), offset), function.fde);
            }
            if !self.truth.contains_key(&function.end) {
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
    let mut pair = Pair::new();
    for i in 0..COUNT {
        pair.insert(0x1000 + i * 64, 0x1000 + i * 64 + 50);
    }
    pair.check();
    assert!(pair.refills <= 20, "{}", pair.refills);
}

#[test]
fn downwards_needs_no_refill() {
    let mut pair = Pair::new();
    for i in (0..COUNT).rev() {
        pair.insert(i * 64, i * 64 + 64);
    }
    pair.check();
    assert_eq!(pair.refills, 0);
}

#[test]
fn anywhere_stays_right_and_refills_are_rare() {
    let mut pair = Pair::new();
    let mut state = 7;
    for _ in 0..COUNT {
        let start = random(&mut state) % 100_000 * 64;
        if pair.slots.overlapping(start, start + 33).is_empty() {
            pair.insert(start, start + 33);
        }
    }
    pair.check();
    assert!(pair.refills < COUNT as usize / 10 + 4, "{}", pair.refills);
}

#[test]
fn removed_places_are_used_again() {
    let mut pair = Pair::new();
    for i in 0..COUNT {
        pair.insert(i * 64, i * 64 + 64);
    }
    let mut state = 11;
    let refills = pair.refills;
    for _ in 0..COUNT {
        let victim = random(&mut state) % COUNT * 64;
        pair.remove(victim);
        assert_eq!(search(pair.slots.cells(), victim + 5), 0);
        pair.insert(victim, victim + 40);
    }
    pair.check();
    assert!(pair.refills <= refills + 1, "{} after {refills}", pair.refills);
}

#[test]
fn everything_removed_leaves_an_empty_table() {
    let mut pair = Pair::new();
    for i in 0..COUNT {
        pair.insert(i * 64, i * 64 + 48);
    }
    for i in 0..COUNT {
        pair.remove(i * 64);
    }
    assert_eq!((pair.slots.functions(), pair.slots.iter().count()), (0, 0));
    for i in (0..COUNT / 2).rev() {
        pair.insert(i * 128 + 7, i * 128 + 100);
    }
    pair.check();
}

#[test]
fn random_mixture() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        let (mut pair, mut state) = (Pair::new(), seed);
        for step in 0..COUNT {
            let start = random(&mut state) % 4000 * 16;
            let end = start + 1 + random(&mut state) % 200;
            let hit = pair.slots.overlapping(start, end);
            let truth = pair.truth.values().filter(|f| f.start < end && f.end > start);
            assert!(truth.eq(hit.iter()), "step {step}");
            match hit.first() {
                Some(function) => pair.remove(function.start),
                None => pair.insert(start, end),
            }
        }
        pair.check();
    }
}

#[test]
fn another_fde_at_the_same_place_is_not_removed() {
    let mut slots = Slots::new();
    slots.insert(Function { start: 16, end: 32, fde: 5 }, 1).expect("empty");
    assert!(!slots.remove(16, 6) && !slots.remove(17, 5) && slots.remove(16, 5) && !slots.remove(16, 5));
}
