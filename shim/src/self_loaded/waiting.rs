//! Objects that wait to be found.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::placement::Pattern;

/// So many are looked for at a time, and so many bytes of them. The oldest are forgotten.
const MOST: usize = 128;
const MOST_BYTES: usize = 16 << 20;
/// So often each: what is not loaded by then was compiled for something else.
const TRIES: u32 = 256;
pub(super) struct Compiled {
    pub(super) pattern: Pattern,
    tries: u32,
}

/// Those that wait, the oldest first.
#[derive(Default)]
pub(crate) struct SelfLoaded {
    pub(super) waiting: VecDeque<Compiled>,
    /// Whether the log has said that there are such objects, and that there are equal ones.
    pub(super) said: [bool; 2],
}

impl SelfLoaded {
    pub(super) fn push(&mut self, pattern: Pattern) {
        let mut bytes = pattern.size() + self.waiting.iter().map(|compiled| compiled.pattern.size()).sum::<usize>();
        while self.waiting.len() >= MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { return };
            bytes -= oldest.pattern.size();
        }
        self.waiting.push_back(Compiled { pattern, tries: 0 });
    }

    /// One of LLVM's linkers has got this object.
    pub(crate) fn linked(&mut self, object: &[u8]) {
        let is_it = |compiled: &Compiled| compiled.pattern.is_object(object);
        if let Some(index) = self.waiting.iter().position(is_it) {
            self.waiting.remove(index);
        }
    }

    /// Memory is about to be looked at.
    pub(super) fn begin(&mut self) {
        self.waiting.retain_mut(|compiled| {
            compiled.tries += 1;
            compiled.tries <= TRIES
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(byte: u8) -> Pattern {
        Pattern::of_texts(&[(&[byte; 16], 0..0)])
    }

    #[test]
    fn no_more_wait_than_are_remembered_and_none_for_ever() {
        let mut waiting = SelfLoaded::default();
        for byte in 0..2 * MOST {
            waiting.push(pattern(byte as u8));
        }
        assert_eq!(waiting.waiting.len(), MOST);
        (0..TRIES).for_each(|_| waiting.begin());
        assert_eq!(waiting.waiting.len(), MOST);
        waiting.begin();
        assert!(waiting.waiting.is_empty());
    }
}
