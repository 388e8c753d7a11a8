//! Distinct values, numbered in the order of their first occurrence.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Distinct values by number.
#[derive(Clone, Debug)]
pub(crate) struct Distinct<T> {
    pub(crate) values: Vec<T>,
    numbers: FxHashMap<T, u32>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Distinct<T> {
        Distinct { values: Vec::new(), numbers: FxHashMap::default() }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// Returns the number of a value. A new value gets the next number.
    pub(crate) fn number(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        let values = &mut self.values;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            values.push(value.clone());
            next
        })
    }
}
