//! Set of small numbers that is emptied in constant time.

/// Set of numbers below a limit.
#[derive(Debug)]
pub(super) struct Marks {
    /// Round of the last addition of each number.
    rounds: Vec<u32>,
    round: u32,
}

impl Marks {
    /// Returns an empty set for numbers below `limit`.
    pub(super) fn new(limit: usize) -> Marks {
        Marks { rounds: vec![0; limit], round: 1 }
    }

    pub(super) fn clear(&mut self) {
        self.round += 1;
    }

    /// Adds a number. Returns true if it is new.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        std::mem::replace(&mut self.rounds[number as usize], self.round) != self.round
    }
}
