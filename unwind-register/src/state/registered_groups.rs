//! Groups registered with each frame registry, recorded so that each group is registered and deregistered exactly once.
//! The `frame_registry` module explains why.

use super::{LiveRegistration, State};
use crate::cfi;
use crate::frame_registry::{FrameRegistry, Kind};
use crate::plan::Origin;
use crate::section::ByHost;
use std::collections::BTreeMap;

/// Registered groups, keyed by the load address of the frame registry and the first address of the group.
pub(super) struct RegisteredGroups(BTreeMap<(usize, u64), RegisteredGroup>);

/// A registered group of entries. Its bytes stay readable until it is deregistered.
struct RegisteredGroup {
    /// Number of the registration that the group belongs to.
    id: u64,
    /// End address of the group's last function.
    end: u64,
    offset: usize,
    length: usize,
}

impl RegisteredGroups {
    pub(super) const fn new() -> Self {
        RegisteredGroups(BTreeMap::new())
    }
}

/// Computes a bit mask for each function, in address order, of the frame registries that lack it.
pub(crate) fn missing_masks(registries: &[FrameRegistry], by_host: ByHost, functions: &[(u64, Origin)]) -> Vec<u32> {
    let mut masks = vec![0; functions.len()];
    for (bit, registry) in registries.iter().take(8).enumerate() {
        let is_registered = |&(start, origin): &(u64, Origin)| match by_host {
            ByHost::Nothing => false,
            ByHost::Everything => origin == Origin::Parsed,
            ByHost::Unknown => registry.knows(start as usize),
        };
        let registered: Vec<bool> = functions.iter().map(is_registered).collect();
        let span = host_span(registry.kind, &registered);
        for (index, mask) in masks.iter_mut().enumerate() {
            *mask |= u32::from(!registered[index] && !span.contains(&index)) << bit;
        }
    }
    masks
}

/// Returns the index range from the first to the last function that the host registered. libgcc cannot accept functions
/// in between.
fn host_span(kind: Kind, registered: &[bool]) -> std::ops::Range<usize> {
    let first = registered.iter().position(|&registered| registered);
    let last = registered.iter().rposition(|&registered| registered);
    match (kind, first, last) {
        (Kind::Libgcc, Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}

impl State {
    /// Registers one group of the registration `id` with one frame registry.
    pub(crate) fn register_group(
        &mut self,
        registry: &FrameRegistry,
        id: u64,
        live: &mut LiveRegistration,
        index: usize,
    ) {
        let group_end = live.groups.get(index + 1).map_or(live.length, |next| next.offset);
        let (offset, length) = (live.offset + live.groups[index].offset, group_end - live.groups[index].offset);
        let Some(bytes) = self.region.as_ref().map(|region| region.bytes(offset, length)) else { return };
        let range = cfi::entries(bytes)
            .fold((u64::MAX, 0), |(low, high), (_, range)| (low.min(range.start), high.max(range.end)));
        self.deregister_overlapping(registry, range);
        let Some(bytes) = self.region.as_ref().map(|region| region.bytes(offset, length)) else { return };
        let fdes = cfi::entries(bytes).map(|(fde_offset, ..)| bytes[fde_offset..].as_ptr());
        // SAFETY: the encoder wrote the group with a terminator; `deregister_group` runs before its bytes are reused.
        unsafe { registry.add(bytes.as_ptr(), fdes) };
        self.registered_groups.0.insert((registry.base, range.0), RegisteredGroup { id, end: range.1, offset, length });
        live.group_keys.push((registry.base, range.0));
    }

    pub(super) fn deregister_groups(&mut self, live: &LiveRegistration, id: u64) {
        for key in &live.group_keys {
            if self.registered_groups.0.get(key).is_some_and(|group| group.id == id) {
                self.deregister_group(*key);
            }
        }
    }

    /// Deregisters our groups that overlap a new group. A caller that places new code there knows that the old code is
    /// gone.
    fn deregister_overlapping(&mut self, registry: &FrameRegistry, (start, end): (u64, u64)) {
        loop {
            let previous = self.registered_groups.0.range((registry.base, 0)..(registry.base, end)).next_back();
            match previous {
                Some((&key, group)) if group.end > start => self.deregister_group(key),
                _ => return,
            }
        }
    }

    fn deregister_group(&mut self, key: (usize, u64)) {
        let Some(group) = self.registered_groups.0.remove(&key) else { return };
        let registries = self.frame_registries.clone();
        let registry = registries.iter().flat_map(|list| list.iter()).find(|registry| registry.base == key.0);
        if let (Some(registry), Some(region)) = (registry, self.region.as_ref()) {
            let bytes = region.bytes(group.offset, group.length);
            let fdes = cfi::entries(bytes).map(|(fde_offset, ..)| bytes[fde_offset..].as_ptr());
            // SAFETY: the group was recorded, so it was added and has not been removed since.
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
