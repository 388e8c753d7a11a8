//! Set of small numbers that is emptied in constant time.

/// Set of small numbers.
#[derive(Debug)]
pub(super) struct Marks {
    /// Round of the last addition of each number.
    rounds: Vec<u32>,
    round: u32,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks::new(0)
    }
}

impl Marks {
    /// Returns an empty set with room for numbers below `capacity`.
    pub(super) fn new(capacity: usize) -> Marks {
        Marks { rounds: vec![0; capacity], round: 1 }
    }

    pub(super) fn clear(&mut self) {
        self.round += 1;
    }

    /// Adds a number. Returns true if it is new.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let index = number as usize;
        if index >= self.rounds.len() {
            self.rounds.resize(index + 1, 0);
        }
        std::mem::replace(&mut self.rounds[index], self.round) != self.round
    }
}
