//! Search for self-loaded objects in memory.

#![forbid(unsafe_code)]

use jitlisten::plumbing::LogEvent;
use jitlisten::{AddressRange, log_line};

use super::SelfLoadedObjects;
use crate::placement::{Piece, Placement, Surroundings, find_unambiguous};
use crate::process::this_thread;
use crate::trackers::emitted::EmittedObjects;
use crate::trackers::memory::{LocatedObject, Memory, max_reach, read_memory, read_piece};

/// Maximum number of bytes of writable memory searched in one pass.
pub(crate) const MAX_WRITABLE_BYTES: u64 = 16 << 20;
/// Maximum number of bytes searched in one pass, for all objects together.
const MAX_TOTAL_BYTES: u64 = 256 << 20;

impl SelfLoadedObjects {
    /// Searches `ranges` for self-loaded objects. Skips ranges that would raise the total size above `max_bytes`.
    /// Objects in `emitted` may be in the same memory.
    pub(crate) fn search(
        &mut self,
        memory: Memory<'_>,
        emitted: &EmittedObjects,
        ranges: &[AddressRange],
        max_bytes: u64,
    ) -> Vec<LocatedObject> {
        // Memory that a thread makes executable inside `emit` belongs to JITLink.
        if self.unlocated.is_empty() || emitted.is_in_emit(this_thread()) {
            return Vec::new();
        }
        self.begin_search();
        let max_reach = max_reach(self.unlocated.iter().map(|compiled| &compiled.pattern));
        let mut size = 0;
        let fits_limit = |range: &&AddressRange| {
            let fits = size + range.size() <= max_bytes;
            size += if fits { range.size() } else { 0 };
            fits
        };
        let region = |&range: &AddressRange| Some((read_piece(range)?, memory.surroundings_of(range, max_reach)));
        let regions: Vec<(Piece, Surroundings)> = ranges.iter().filter(fits_limit).filter_map(region).collect();
        let mut matches: Vec<(usize, Placement)> = Vec::new();
        // Search for the newest objects first, because the object compiled last is usually loaded next.
        let candidates = self.unlocated.iter().enumerate().rev().filter(|(_, compiled)| !compiled.is_doubtful);
        for (index, compiled) in candidates.take((MAX_TOTAL_BYTES / size.max(1)) as usize) {
            let is_free = |range| memory.is_free(range) && !self.doubtful_ranges.overlaps(range);
            let fits = |(code, surroundings): &(Piece, Surroundings)| {
                compiled.pattern.locate(code, surroundings, &read_memory, &is_free, false)
            };
            matches.extend(regions.iter().filter_map(fits).map(|placement| (index, placement)));
        }
        if matches.is_empty() { Vec::new() } else { self.take_located(emitted, &matches) }
    }

    /// Removes and returns the objects that match as a whole and at one address only. Other objects may match in part,
    /// or at several addresses.
    fn take_located(&mut self, emitted: &EmittedObjects, matches: &[(usize, Placement)]) -> Vec<LocatedObject> {
        let is_best_match = find_unambiguous(matches.iter().map(|(_, placement)| placement));
        let is_certain = |position: usize| {
            let (index, placement) = &matches[position];
            let is_single = matches.iter().filter(|(other, _)| other == index).count() == 1;
            // JITLink objects, and objects that were not searched for, may match there as well.
            let is_matched = |other: usize| matches.iter().any(|(index, _)| *index == other);
            let competitors = self.unlocated.iter().enumerate().filter(|&(other, _)| !is_matched(other));
            let mut competitors = competitors.map(|(_, compiled)| &compiled.pattern).chain(emitted.patterns());
            is_best_match[position]
                && is_single
                && !competitors.any(|other| other.may_match_placement(placement, &read_memory))
        };
        // All text sections must match, because the program has no reason to omit one.
        let is_whole = |position: usize| {
            matches[position].1.text.len() == self.unlocated[matches[position].0].pattern.text_count()
        };
        let (mut certain, doubtful): (Vec<usize>, Vec<usize>) =
            (0..matches.len()).filter(|&position| is_whole(position)).partition(|&position| is_certain(position));
        if !doubtful.is_empty() && !std::mem::replace(&mut self.logged_doubtful, true) {
            log_line!(Info, "{}", LogEvent::EqualCompiled { count: &doubtful.len().to_string() });
        }
        for position in doubtful {
            let (index, placement) = &matches[position];
            self.mark_doubtful(*index, &placement.text);
        }
        // Remove entries from the back, so that the remaining indices stay valid.
        certain.sort_by_key(|&position| std::cmp::Reverse(matches[position].0));
        let located = certain.into_iter().filter_map(|position| {
            let (index, placement) = &matches[position];
            let compiled = self.unlocated.remove(*index)?;
            let sections = placement.sections.iter().filter(|(_, range)| placement.text.contains(range));
            let sections: Vec<(usize, AddressRange)> = sections.copied().collect();
            let object = compiled.pattern.into_debug_object(&sections);
            Some(LocatedObject { object, slot: None, first_text: placement.text.first().copied().unwrap_or_default() })
        });
        located.collect()
    }
}
