//! Merges the native frames of a stack (evaluators are marked) with the Python frames.
//!
//! ```text
//!   native, innermost first          Python frames            merged stack
//!   memcpy                                                    memcpy
//!   EvalFrameDefault  <- mark        inner, outer (entry)     inner, outer
//!   _PyFunction_Vectorcall           main (entry)             list_sort
//!   list_sort                                                 main
//!   EvalFrameDefault  <- mark                                 Py_RunMain
//!   Py_RunMain
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::frames::{EVALUATOR_MARK, FrameWord};
use crate::unwind::Outcome;

/// Converts the words of a sample to addresses.
pub(crate) trait FrameAddresses {
    /// Returns the address of a Python frame.
    fn address(&self, word: u64) -> u64;
    /// True if the native function only passes arguments to an evaluator.
    fn is_glue(&self, address: u64) -> bool;
}

/// Stores the merged stack in `merged`, innermost address first. Returns true if Python frames replace missing native
/// ones.
pub(crate) fn merge(words: &[u64], outcome: Outcome, names: &impl FrameAddresses, merged: &mut Vec<u64>) -> bool {
    merged.clear();
    let is_frame = |word: &u64| FrameWord::decode(*word).is_some();
    let native_start = words.iter().position(|word| !is_frame(word)).unwrap_or(words.len());
    let (frames, native) = words.split_at(native_start);
    let mut groups: Vec<&[u64]> =
        frames.split_inclusive(|word| FrameWord::decode(*word).is_some_and(|word| word.is_entry)).collect();
    groups.reverse();
    let evaluators = native.iter().filter(|&&word| word == EVALUATOR_MARK).count();
    // An evaluator lacks a Python frame during its first and last instructions, so a single surplus evaluator is the
    // innermost one. If there are more, the outermost evaluators are those without frames: they belong to the
    // interpreter or greenlet that called the innermost one.
    let is_one_more = evaluators == groups.len() + 1;
    let mut frameless_evaluators = usize::from(outcome == Outcome::Complete && is_one_more);
    let push_group = |group: Option<&[u64]>, merged: &mut Vec<u64>| {
        merged.extend(group.unwrap_or_default().iter().map(|&word| names.address(word)));
    };
    let mut is_after_evaluator = false;
    for (index, &address) in native.iter().enumerate() {
        if address == EVALUATOR_MARK {
            if frameless_evaluators != 0 {
                frameless_evaluators -= 1;
                continue;
            }
            push_group(groups.pop(), merged);
            is_after_evaluator = true;
        } else if native.get(index + 1) != Some(&EVALUATOR_MARK) {
            is_after_evaluator &= names.is_glue(address);
            if !is_after_evaluator {
                merged.push(address);
            }
        } else if frameless_evaluators != 0 || groups.is_empty() {
            merged.push(address);
        }
    }
    let is_joined = !groups.is_empty();
    while let Some(group) = groups.pop() {
        push_group(Some(group), merged);
    }
    is_joined
}

/// For each slot, the outermost part of its last complete stack: the number of the outermost code object, and the
/// native frames that called it.
#[derive(Debug, Default)]
pub(crate) struct StackBases(BTreeMap<usize, (u64, Vec<u64>)>);

impl StackBases {
    /// Remembers the base of a complete stack, or appends the remembered base to a stack whose native frames end early.
    /// `merged` is the result of [`merge`] for `words`; `is_frame` returns true for the address of a Python frame.
    pub(crate) fn complete(
        &mut self,
        slot: usize,
        words: &[u64],
        outcome: Outcome,
        is_frame: impl Fn(u64) -> bool,
        merged: &mut Vec<u64>,
    ) {
        let Some(outermost) = words.iter().map_while(|word| FrameWord::decode(*word)).last() else { return };
        let base_start = merged.iter().rposition(|&address| is_frame(address)).map_or(0, |index| index + 1);
        let known_base = self.0.get(&slot).filter(|(number, _)| *number == outermost.number);
        // With more evaluators than entry frames, the outermost ones belong to the caller of a greenlet, which may be
        // another one at the next sample.
        let entry_frames =
            words.iter().filter(|&&word| FrameWord::decode(word).is_some_and(|word| word.is_entry)).count();
        let is_thread = words.iter().filter(|&&word| word == EVALUATOR_MARK).count() <= entry_frames;
        match (outcome, merged.get(base_start..)) {
            (Outcome::Complete, Some(base @ [_, ..]))
                if is_thread && known_base.is_none_or(|(_, known_base)| known_base != base) =>
            {
                self.0.insert(slot, (outermost.number, base.to_vec()));
            }
            (Outcome::Broken | Outcome::UnknownCode, Some([])) => {
                merged.extend(known_base.iter().flat_map(|(_, base)| base))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers;

    impl FrameAddresses for Numbers {
        fn address(&self, word: u64) -> u64 {
            FrameWord::decode(word).map_or(0, |word| 1000 + word.number)
        }

        fn is_glue(&self, address: u64) -> bool {
            address == 7
        }
    }

    fn frame(number: u64, is_entry: bool) -> u64 {
        FrameWord { number, instruction: 3, is_entry }.encode()
    }

    fn merged(words: &[u64], outcome: Outcome) -> (Vec<u64>, bool) {
        let mut merged = vec![1];
        let is_joined = merge(words, outcome, &Numbers, &mut merged);
        (merged, is_joined)
    }

    #[test]
    fn evaluators_are_replaced_by_what_they_run() {
        let words = [
            frame(11, false),
            frame(12, true),
            frame(13, true),
            5,
            8,
            EVALUATOR_MARK,
            7,
            7,
            6,
            9,
            EVALUATOR_MARK,
            7,
            10,
        ];
        assert_eq!(merged(&words, Outcome::Complete), (vec![5, 1011, 1012, 6, 1013, 10], false));
        // The same functions without an evaluator belong to a call from C.
        assert_eq!(merged(&[5, 7, 6], Outcome::Complete), (vec![5, 7, 6], false));
    }

    #[test]
    fn a_broken_stack_continues_with_the_known_frames() {
        let words = [frame(11, true), frame(12, true), frame(13, false), 5, 8, EVALUATOR_MARK, 6];
        assert_eq!(merged(&words, Outcome::Broken), (vec![5, 1011, 6, 1012, 1013], true));
        assert_eq!(merged(&words[..3], Outcome::UnknownCode), (vec![1011, 1012, 1013], true));
    }

    #[test]
    fn a_broken_stack_gets_the_base_of_its_threads_complete_stack() {
        let mut bases = StackBases::default();
        let mut complete = |slot, outermost, native: &[u64], outcome| {
            let words = [&[frame(11, true), frame(outermost, true)], native].concat();
            let (mut merged, _) = merged(&words, outcome);
            bases.complete(slot, &words, outcome, |address| address >= 1000, &mut merged);
            merged
        };
        let complete_words = [5, 8, EVALUATOR_MARK, 6, 8, EVALUATOR_MARK, 7, 9, 10];
        assert_eq!(complete(0, 12, &complete_words, Outcome::Complete), [5, 1011, 6, 1012, 9, 10]);
        assert_eq!(complete(0, 12, &complete_words[..3], Outcome::Broken), [5, 1011, 1012, 9, 10]);
        // Stacks of a different greenlet, and of a different thread.
        assert_eq!(complete(0, 13, &complete_words[..3], Outcome::Broken), [5, 1011, 1013]);
        assert_eq!(complete(1, 12, &complete_words[..3], Outcome::Broken), [5, 1011, 1012]);
        // A greenlet that may have a different caller at the next sample.
        let greenlet_words = [5, 8, EVALUATOR_MARK, 6, 8, EVALUATOR_MARK, 7, 9, 8, EVALUATOR_MARK, 10];
        complete(1, 12, &greenlet_words, Outcome::Complete);
        assert_eq!(complete(1, 12, &complete_words[..3], Outcome::Broken), [5, 1011, 1012]);
    }

    #[test]
    fn a_starting_evaluator_has_no_frame_yet() {
        let words = [frame(11, true), 8, EVALUATOR_MARK, 7, 9, EVALUATOR_MARK, 10];
        assert_eq!(merged(&words, Outcome::Complete), (vec![8, 7, 1011, 10], false));
    }

    #[test]
    fn evaluators_of_another_interpreter_are_outermost() {
        let words = [frame(11, true), 8, EVALUATOR_MARK, 7, 6, 9, EVALUATOR_MARK, 7, 8, EVALUATOR_MARK, 10];
        assert_eq!(merged(&words, Outcome::Complete), (vec![1011, 6, 9, 8, 10], false));
    }
}
