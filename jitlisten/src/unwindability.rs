//! Frame pointers and unwind entries of an object's code, and rules for functions without an `.eh_frame` entry.
//!
//! Code that LLVM compiled under jitlisten has a frame pointer and an entry in `.eh_frame`. Code cached or compiled
//! without jitlisten may lack either.

use crate::LoadedObject;
use crate::cfi::{self, FunctionRules};
use crate::code_snapshot::CodeSnapshot;
use crate::loaded_object::Function;

/// Counts of an object's functions that stack walkers cannot unwind, and derived rules for such functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unwindability {
    pub(crate) without_frame_pointer: u64,
    /// Number of functions without an entry in the `.eh_frame` in memory.
    pub(crate) without_unwind_table: u64,
    /// Unwind rules for the functions without an `.eh_frame` entry, where they can be derived from the code.
    pub(crate) derived_rules: Vec<FunctionRules>,
}

impl Unwindability {
    /// Examines the code and the `.eh_frame` in memory; call it at *finalized* or later. Unreadable functions are not
    /// counted.
    pub(crate) fn examine(object: &LoadedObject, snapshot: &CodeSnapshot) -> Unwindability {
        let table = object.eh_frame().and_then(|range| cfi::covered(snapshot.get(range)?, range.start()).ok());
        let covered = table.unwrap_or_default();
        let mut gaps = Unwindability::default();
        for text in object.text() {
            let Some(code) = snapshot.get(text.range) else { continue };
            // Functions are sorted, and each lies inside one text range.
            let first = object.functions().partition_point(|function| function.range.start() < text.range.start());
            let functions = object.functions()[first..].iter().take_while(|function| text.range.covers(function.range));
            for function in functions {
                let start = (function.range.start().0 - text.range.start().0) as usize;
                let Some(code) = code.get(start..start + function.range.size() as usize) else { continue };
                // Find the last range that starts at or before the function, because no other range can cover it.
                let next_index = covered.partition_point(|range| range.start() <= function.range.start());
                let is_described = covered[..next_index].last().is_some_and(|range| range.covers(function.range));
                gaps.add(object, function, code, is_described);
            }
        }
        gaps
    }

    fn add(&mut self, object: &LoadedObject, function: &Function, code: &[u8], is_described: bool) {
        let machine = object.machine();
        self.without_frame_pointer += u64::from(!cfi::sets_up_frame_pointer(code, machine));
        if is_described {
            return;
        }
        self.without_unwind_table += 1;
        if let Some(rows) = cfi::synthesise(code, function.range.start(), machine) {
            self.derived_rules.push(FunctionRules { range: function.range, rows });
        }
    }
}
