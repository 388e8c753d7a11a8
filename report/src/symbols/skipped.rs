//! Callers that are missing in stacks of `perf record -g`.
//!
//! perf follows frame pointers. If the innermost function keeps none, as in many builds of libm, the return address
//! that perf finds is that of its caller, which is then missing. The call before this return address shows it: the call
//! leads to a compiled function, and the sample is in a library. The missing function is inserted into the stack. Its
//! line is unknown.

use rustc_hash::FxHashMap;

use super::SymbolCache;
use crate::lookup::Lookup;
use crate::recording::{FilePosition, Location, Recording};
use crate::words::{file_name, group_digits, is_perf};

/// Inserts the missing callers into the stacks of perf. Returns a note if there are any.
pub(crate) fn insert_missing_callers(
    cache: &mut SymbolCache,
    recording: &mut Recording,
    lookup: &Lookup,
) -> Option<String> {
    if !recording.has_frame_pointer_stacks() {
        return None;
    }
    cache.prepare(recording, lookup);
    let mut callees: FxHashMap<u32, Option<u32>> = FxHashMap::default();
    let mut libraries: FxHashMap<u32, bool> = FxHashMap::default();
    let mut inserted: FxHashMap<u32, u32> = FxHashMap::default();
    for stack in 0..recording.stacks.len() as u32 {
        let locations = recording.stacks.get(stack).iter().copied();
        let mut user = locations.filter(|location| recording.locations[*location as usize].pid.is_some());
        let Some((innermost, caller)) = user.next().zip(user.next()) else { continue };
        let is_library = *libraries.entry(innermost).or_insert_with(|| {
            let position = recording.locations[innermost as usize].position;
            position.is_some_and(|position| cache.files.is_library(position.file))
        });
        if !is_library {
            continue;
        }
        let callee = match callees.get(&caller) {
            Some(callee) => *callee,
            None => {
                let location = recording.locations[caller as usize].clone();
                let function =
                    location.position.and_then(|position| cache.files.compiled_callee(position, location.address));
                let callee = function.map(|position: FilePosition| {
                    let position = Some(position);
                    recording.locations.push(Location { position, is_function: true, ..location });
                    recording.locations.len() as u32 - 1
                });
                callees.insert(caller, callee);
                callee
            }
        };
        inserted.extend(callee.map(|callee| (stack, callee)));
    }
    let samples = recording.samples.iter().filter(|sample| inserted.contains_key(&sample.stack));
    let (count, weight) = samples.fold((0, 0_u64), |(count, weight), sample| (count + 1, weight + sample.weight));
    recording.stacks.insert_callers(&recording.locations, &inserted);
    let all: u64 = recording.samples.iter().map(|sample| sample.weight).sum();
    let libraries = recording.stacks_libraries(&inserted);
    (count > 0).then(|| {
        format!(
            "perf's stacks lack the line that called code without a frame pointer ({libraries}), in {} samples \
             ({:.1} %): they count for the compiled function, without a line. perf record --call-graph dwarf and \
             jitlisten record know the line",
            group_digits(count),
            weight as f64 * 100.0 / all.max(1) as f64
        )
    })
}

impl Recording {
    /// Returns true if the stacks are perf's, from frame pointers.
    fn has_frame_pointer_stacks(&self) -> bool {
        let is_perf = self.facts.command.first().is_some_and(|program| is_perf(program));
        is_perf && self.events.get(self.event).is_some_and(|(event, _)| !event.has_stack_copies())
    }

    /// Returns the names of the libraries where these stacks end, most frequent first.
    fn stacks_libraries(&self, stacks: &FxHashMap<u32, u32>) -> String {
        let mut counts: FxHashMap<&str, usize> = FxHashMap::default();
        for stack in stacks.keys() {
            let innermost = self.stacks.get(*stack).iter().map(|location| &self.locations[*location as usize]);
            let position = innermost.filter(|location| location.pid.is_some()).find_map(|location| location.position);
            let file = position.and_then(|position| self.files.get(position.file as usize));
            *counts.entry(file.map_or("", |file| file_name(&file.path))).or_default() += 1;
        }
        let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
        names.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        names.iter().take(3).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}
