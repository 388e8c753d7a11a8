//! Writable memory that LLVMs have allocated with `mmap(2)`: it becomes executable only with another call, so the
//! kernel need not be asked. Before Linux 6.11 that means reading all mappings of the process as text.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::AddressRange;

/// So many of the last.
const LAST: usize = 64;

/// The last of it.
#[derive(Default)]
pub(crate) struct Allocated {
    last: VecDeque<AddressRange>,
}

impl Allocated {
    /// `range` is new, may be written, and may not run.
    pub(crate) fn add(&mut self, range: AddressRange) {
        self.remove(range);
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(range);
    }

    /// A part of `range`, or all of it, is no longer what it was.
    pub(crate) fn remove(&mut self, range: AddressRange) {
        self.last.retain(|allocated| !allocated.overlaps(range));
    }

    /// What `part` was allocated with.
    pub(crate) fn around(&self, part: AddressRange) -> Option<AddressRange> {
        self.last.iter().rev().copied().find(|all| all.start() <= part.start() && part.end() <= all.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::range;

    #[test]
    fn the_last_are_known_until_they_go() {
        let mut allocated = Allocated::default();
        allocated.add(range(0x1000, 0x4000));
        assert_eq!(allocated.around(range(0x2000, 0x3000)), Some(range(0x1000, 0x4000)));
        assert_eq!(allocated.around(range(0x3000, 0x5000)), None);
        allocated.add(range(0x3000, 0x5000));
        assert_eq!(allocated.around(range(0x2000, 0x3000)), None, "something else is at its end");
        assert_eq!(allocated.around(range(0x3000, 0x5000)), Some(range(0x3000, 0x5000)));
        allocated.remove(range(0x4000, 0x4001));
        assert_eq!(allocated.around(range(0x3000, 0x4000)), None);
        for at in 1..=LAST as u64 + 1 {
            allocated.add(range(at << 20, (at << 20) + 0x1000));
        }
        assert_eq!(allocated.around(range(1 << 20, (1 << 20) + 1)), None);
        assert!(allocated.around(range(2 << 20, (2 << 20) + 1)).is_some());
    }
}
