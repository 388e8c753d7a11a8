//! What is registered with which frame registry, so that it is registered once and deregistered once. Why: see
//! `frame_registry`.

use super::{Live, State};
use crate::cfi;
use crate::frame_registry::{FrameRegistry, Kind};
use crate::plan::Origin;
use crate::section::ByHost;
use std::collections::BTreeMap;

/// Registered groups, by the registry's load address and their own first address.
pub(super) struct RegisteredGroups(BTreeMap<(usize, u64), Group>);

/// A group in our memory. It stays readable until it is deregistered.
struct Group {
    /// The registration it belongs to.
    id: u64,
    /// The address behind its last function.
    end: u64,
    offset: usize,
    length: usize,
}

impl RegisteredGroups {
    pub(super) const fn new() -> Self {
        RegisteredGroups(BTreeMap::new())
    }
}

/// Which registries need which functions (in address order), one bit each.
pub(crate) fn missing(registries: &[FrameRegistry], by_host: ByHost, functions: &[(u64, Origin)]) -> Vec<u32> {
    let mut masks = vec![0; functions.len()];
    for (bit, registry) in registries.iter().take(8).enumerate() {
        let knows = |&(start, origin): &(u64, Origin)| match by_host {
            ByHost::Nothing => false,
            ByHost::Everything => origin == Origin::Read,
            ByHost::Unknown => registry.knows(start as usize),
        };
        let known: Vec<bool> = functions.iter().map(knows).collect();
        let span = host_span(registry.kind, &known);
        for (index, mask) in masks.iter_mut().enumerate() {
            *mask |= u32::from(!known[index] && !span.contains(&index)) << bit;
        }
    }
    masks
}

/// From the first to the last function the host registered: a libgcc cannot take one in between.
fn host_span(kind: Kind, known: &[bool]) -> std::ops::Range<usize> {
    let first = known.iter().position(|&known| known);
    let last = known.iter().rposition(|&known| known);
    match (kind, first, last) {
        (Kind::Libgcc, Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}

impl State {
    /// Registers one group of the registration `id` with one frame registry.
    pub(crate) fn register_group(&mut self, registry: &FrameRegistry, id: u64, live: &mut Live, index: usize) {
        let group_end = live.groups.get(index + 1).map_or(live.length, |next| next.offset);
        let (offset, length) = (live.offset + live.groups[index].offset, group_end - live.groups[index].offset);
        let Some(bytes) = self.region.as_ref().map(|region| region.bytes(offset, length)) else { return };
        let range =
            cfi::entries(bytes).fold((u64::MAX, 0), |(low, high), (_, it)| (low.min(it.start), high.max(it.end)));
        self.deregister_overlapping(registry, range);
        let Some(bytes) = self.region.as_ref().map(|region| region.bytes(offset, length)) else { return };
        let fdes = cfi::entries(bytes).map(|(at, ..)| bytes[at..].as_ptr());
        // SAFETY: the encoder wrote the group, with a terminator; `untell` comes before its bytes are used again.
        unsafe { registry.add(bytes.as_ptr(), fdes) };
        self.registered.0.insert((registry.base, range.0), Group { id, end: range.1, offset, length });
        live.registered.push((registry.base, range.0));
    }

    /// Takes back everything that was registered for a registration.
    pub(super) fn deregister_groups(&mut self, live: &Live, id: u64) {
        for key in &live.registered {
            if self.registered.0.get(key).is_some_and(|group| group.id == id) {
                self.forget(*key);
            }
        }
    }

    /// Takes back groups of ours where a new one is: a caller that places code there knows that the old code is gone.
    fn deregister_overlapping(&mut self, registry: &FrameRegistry, (start, end): (u64, u64)) {
        loop {
            let below = self.registered.0.range((registry.base, 0)..(registry.base, end)).next_back();
            match below {
                Some((&key, group)) if group.end > start => self.forget(key),
                _ => return,
            }
        }
    }

    fn forget(&mut self, key: (usize, u64)) {
        let Some(group) = self.registered.0.remove(&key) else { return };
        let registries = self.frame_registries.clone();
        let registry = registries.iter().flat_map(|list| list.iter()).find(|registry| registry.base == key.0);
        if let (Some(registry), Some(region)) = (registry, self.region.as_ref()) {
            let bytes = region.bytes(group.offset, group.length);
            let fdes = cfi::entries(bytes).map(|(at, ..)| bytes[at..].as_ptr());
            // SAFETY: it was in the book, so it was added, and not removed since.
            unsafe { registry.remove(bytes.as_ptr(), fdes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_functions_of_the_host_is_its_span() {
        assert_eq!(host_span(Kind::Libgcc, &[false, true, false, true, false]), 1..4);
        assert_eq!(host_span(Kind::Libgcc, &[false, false]), 0..0);
        assert_eq!(host_span(Kind::Llvm, &[true, false, true]), 0..0);
    }
}
