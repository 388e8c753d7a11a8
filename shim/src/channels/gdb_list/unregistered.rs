//! Objects that were deregistered while their code is still mapped: a host may destroy its engine and keep the code.
//!
//! They are freed when their memory is unmapped, no longer executable, or reused. A host may do that with system calls
//! that no hook sees, so a few of these objects are compared with memory on each occasion.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Bound;

use jitlisten::plumbing::checked_read;
use jitlisten::{AddressRange, ObjectId};

/// How many are looked at on an occasion.
const LOOKS: usize = 4;

/// How many bytes of the code are remembered.
const REMEMBERED: u64 = 256;

#[derive(Default)]
pub(crate) struct Unregistered {
    objects: BTreeMap<ObjectId, (AddressRange, Vec<u8>)>,
    /// The one that was looked at last.
    last: Option<ObjectId>,
}

impl Unregistered {
    /// Remembers an object by the first bytes of its text. Returns whether they could be read.
    pub(crate) fn add(&mut self, id: ObjectId, text: AddressRange) -> bool {
        let first = AddressRange::new(text.start(), text.size().min(REMEMBERED)).unwrap_or_default();
        let Ok(bytes) = checked_read::copy(first) else { return false };
        self.objects.insert(id, (first, bytes));
        true
    }

    /// The object's end has been seen.
    pub(crate) fn forget(&mut self, id: ObjectId) {
        self.objects.remove(&id);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Looks at the next few: those whose code is not there any more.
    pub(crate) fn gone(&mut self) -> Vec<ObjectId> {
        let from = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next: Vec<ObjectId> = self.objects.range((from, Bound::Unbounded)).take(LOOKS).map(|(&id, _)| id).collect();
        self.last = next.last().copied().filter(|_| next.len() == LOOKS);
        let is_there = |id: &ObjectId| {
            self.objects.get(id).is_some_and(|(range, bytes)| checked_read::copy(*range).is_ok_and(|now| now == *bytes))
        };
        let gone: Vec<ObjectId> = next.into_iter().filter(|id| !is_there(id)).collect();
        gone.iter().for_each(|&id| self.forget(id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use jitlisten::Address;

    use super::*;

    #[test]
    fn code_that_is_overwritten_is_gone() {
        let mut code = vec![0xc3_u8; 6400];
        let mut unregistered = Unregistered::default();
        let range = |code: &[u8]| AddressRange::new(Address(code.as_ptr() as u64), code.len() as u64).unwrap();
        for (id, code) in code.chunks(640).enumerate() {
            assert!(unregistered.add(ObjectId(id as u64), range(code)));
        }
        let all = |unregistered: &mut Unregistered| (0..4).flat_map(|_| unregistered.gone()).collect::<Vec<_>>();
        assert_eq!(all(&mut unregistered), []);
        code[645] = 0x90;
        unregistered.forget(ObjectId(7));
        code[7 * 640] = 0x90;
        assert_eq!(all(&mut unregistered), [ObjectId(1)]);
        assert!(!unregistered.add(ObjectId(20), AddressRange::new(Address(16), 16).unwrap()));
    }
}
