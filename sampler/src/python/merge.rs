//! One stack of two: the native frames, in which evaluators are marked, and the interpreter's frames.
//!
//! ```text
//!   native, the innermost first      frames                   one stack
//!   memcpy                                                    memcpy
//!   EvalFrameDefault  <- EVALUATOR   inner, outer (ENTRY)     inner, outer
//!   _PyFunction_Vectorcall           main (ENTRY)             list_sort
//!   list_sort                                                 main
//!   EvalFrameDefault  <- EVALUATOR                            Py_RunMain
//!   Py_RunMain
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::frames::{EVALUATOR, Word};
use crate::unwind::Outcome;

/// How the words of a sample become addresses.
pub(crate) trait Names {
    /// The address of a frame of the interpreter's.
    fn address(&self, word: u64) -> u64;
    /// Whether a native function does nothing but call an evaluator.
    fn is_glue(&self, address: u64) -> bool;
}

/// Puts the stack into `merged`, the innermost address first. Returns whether frames replace missing native ones.
pub(crate) fn merge(words: &[u64], outcome: Outcome, names: &impl Names, merged: &mut Vec<u64>) -> bool {
    merged.clear();
    let is_frame = |word: &u64| Word::decode(*word).is_some();
    let split = words.iter().position(|word| !is_frame(word)).unwrap_or(words.len());
    let (frames, native) = words.split_at(split);
    let mut groups: Vec<&[u64]> =
        frames.split_inclusive(|word| Word::decode(*word).is_some_and(|word| word.is_entry)).collect();
    groups.reverse();
    let evaluators = native.iter().filter(|&&word| word == EVALUATOR).count();
    // In the first and last instructions of an evaluator its frame is not there. More without a frame are the outermost
    // ones, of the interpreter or greenlet that called this one.
    let is_one_more = evaluators == groups.len() + 1;
    let mut without = usize::from(outcome == Outcome::Complete && is_one_more);
    let put = |group: Option<&[u64]>, merged: &mut Vec<u64>| {
        merged.extend(group.unwrap_or_default().iter().map(|&word| names.address(word)));
    };
    let mut is_behind_evaluator = false;
    for (at, &address) in native.iter().enumerate() {
        if address == EVALUATOR {
            if without != 0 {
                without -= 1;
                continue;
            }
            put(groups.pop(), merged);
            is_behind_evaluator = true;
        } else if native.get(at + 1) != Some(&EVALUATOR) {
            is_behind_evaluator &= names.is_glue(address);
            if !is_behind_evaluator {
                merged.push(address);
            }
        } else if without != 0 || groups.is_empty() {
            merged.push(address);
        }
    }
    let is_joined = !groups.is_empty();
    while let Some(group) = groups.pop() {
        put(Some(group), merged);
    }
    is_joined
}

/// Of each slot's last whole stack, the code object of the outermost frame and the native frames behind it.
#[derive(Debug, Default)]
pub(crate) struct Bases(BTreeMap<usize, (u64, Vec<u64>)>);

impl Bases {
    /// Remembers those of a whole stack, and puts them behind one whose native frames end early. `merged` is what
    /// [`merge`] has made of `words`; `is_frame` tells which of its addresses are frames of the interpreter's.
    pub(crate) fn complete(
        &mut self,
        slot: usize,
        words: &[u64],
        outcome: Outcome,
        is_frame: impl Fn(u64) -> bool,
        merged: &mut Vec<u64>,
    ) {
        let Some(outermost) = words.iter().map_while(|word| Word::decode(*word)).last() else { return };
        let behind = merged.iter().rposition(|&address| is_frame(address)).map_or(0, |at| at + 1);
        let known = self.0.get(&slot).filter(|(number, _)| *number == outermost.number);
        // Evaluators without a frame call a greenlet, at times from elsewhere.
        let of_frames = words.iter().filter(|&&word| Word::decode(word).is_some_and(|word| word.is_entry)).count();
        let is_thread = words.iter().filter(|&&word| word == EVALUATOR).count() <= of_frames;
        match (outcome, merged.get(behind..)) {
            (Outcome::Complete, Some(base @ [_, ..])) if is_thread && known.is_none_or(|(_, known)| known != base) => {
                self.0.insert(slot, (outermost.number, base.to_vec()));
            }
            (Outcome::Broken | Outcome::UnknownCode, Some([])) => {
                merged.extend(known.iter().flat_map(|(_, base)| base))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers;

    impl Names for Numbers {
        fn address(&self, word: u64) -> u64 {
            Word::decode(word).map_or(0, |word| 1000 + word.number)
        }

        fn is_glue(&self, address: u64) -> bool {
            address == 7
        }
    }

    fn frame(number: u64, is_entry: bool) -> u64 {
        Word { number, instruction: 3, is_entry }.encode()
    }

    fn merged(words: &[u64], outcome: Outcome) -> (Vec<u64>, bool) {
        let mut merged = vec![1];
        let is_joined = merge(words, outcome, &Numbers, &mut merged);
        (merged, is_joined)
    }

    #[test]
    fn evaluators_are_replaced_by_what_they_run() {
        let words = [frame(11, false), frame(12, true), frame(13, true), 5, 8, EVALUATOR, 7, 7, 6, 9, EVALUATOR, 7, 10];
        assert_eq!(merged(&words, Outcome::Complete), (vec![5, 1011, 1012, 6, 1013, 10], false));
        // What is called in the same way without an evaluator is what C calls.
        assert_eq!(merged(&[5, 7, 6], Outcome::Complete), (vec![5, 7, 6], false));
    }

    #[test]
    fn a_broken_stack_goes_on_with_the_frames_that_are_known() {
        let words = [frame(11, true), frame(12, true), frame(13, false), 5, 8, EVALUATOR, 6];
        assert_eq!(merged(&words, Outcome::Broken), (vec![5, 1011, 6, 1012, 1013], true));
        assert_eq!(merged(&words[..3], Outcome::UnknownCode), (vec![1011, 1012, 1013], true));
    }

    #[test]
    fn a_broken_stack_ends_as_the_whole_one_of_its_thread() {
        let mut bases = Bases::default();
        let mut completed = |slot, outermost, native: &[u64], outcome| {
            let words = [&[frame(11, true), frame(outermost, true)], native].concat();
            let (mut merged, _) = merged(&words, outcome);
            bases.complete(slot, &words, outcome, |address| address >= 1000, &mut merged);
            merged
        };
        let whole = [5, 8, EVALUATOR, 6, 8, EVALUATOR, 7, 9, 10];
        assert_eq!(completed(0, 12, &whole, Outcome::Complete), [5, 1011, 6, 1012, 9, 10]);
        assert_eq!(completed(0, 12, &whole[..3], Outcome::Broken), [5, 1011, 1012, 9, 10]);
        // Of another greenlet, and of another thread.
        assert_eq!(completed(0, 13, &whole[..3], Outcome::Broken), [5, 1011, 1013]);
        assert_eq!(completed(1, 12, &whole[..3], Outcome::Broken), [5, 1011, 1012]);
        // A greenlet, which is called from elsewhere the next time.
        let called = [5, 8, EVALUATOR, 6, 8, EVALUATOR, 7, 9, 8, EVALUATOR, 10];
        completed(1, 12, &called, Outcome::Complete);
        assert_eq!(completed(1, 12, &whole[..3], Outcome::Broken), [5, 1011, 1012]);
    }

    #[test]
    fn an_evaluator_that_begins_has_no_frame_yet() {
        let words = [frame(11, true), 8, EVALUATOR, 7, 9, EVALUATOR, 10];
        assert_eq!(merged(&words, Outcome::Complete), (vec![8, 7, 1011, 10], false));
    }

    #[test]
    fn evaluators_of_another_interpreter_are_the_outermost() {
        let words = [frame(11, true), 8, EVALUATOR, 7, 6, 9, EVALUATOR, 7, 8, EVALUATOR, 10];
        assert_eq!(merged(&words, Outcome::Complete), (vec![1011, 6, 9, 8, 10], false));
    }
}
