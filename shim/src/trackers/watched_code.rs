//! Tracker of objects that are freed once their code changes: objects in writable memory, and objects that are no
//! longer registered although their code is still mapped (a host may destroy its engine and keep the code).
//!
//! A host may free or reuse the memory with system calls that no hook sees, so each check compares a few of these
//! objects with memory. This is not a [`WaitingList`](super::waiting_list::WaitingList), because no object is dropped
//! by age or number, and objects are looked up by id.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Bound;

use jitlisten::plumbing::checked_read;
use jitlisten::{AddressRange, ObjectId};

/// Number of objects that each check compares with memory.
const OBJECTS_PER_CHECK: usize = 4;

/// Maximum number of code bytes remembered for each object.
const MAX_REMEMBERED_BYTES: u64 = 256;

/// Start of each object's text, with a copy of the bytes there.
#[derive(Default)]
pub(crate) struct WatchedCode {
    objects: BTreeMap<ObjectId, (AddressRange, Vec<u8>)>,
    last_compared: Option<ObjectId>,
}

impl WatchedCode {
    /// Starts to watch an object, whose first text bytes are copied. Returns false if these bytes cannot be read.
    pub(crate) fn add(&mut self, id: ObjectId, text: AddressRange) -> bool {
        let prefix = AddressRange::new(text.start(), text.size().min(MAX_REMEMBERED_BYTES)).unwrap_or_default();
        let Ok(bytes) = checked_read::copy(prefix) else { return false };
        self.objects.insert(id, (prefix, bytes));
        true
    }

    pub(crate) fn forget(&mut self, id: ObjectId) {
        self.objects.remove(&id);
    }

    /// Returns true if no objects are remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Compares the next few objects with memory. Removes and returns those whose code has changed.
    pub(crate) fn take_overwritten(&mut self) -> Vec<ObjectId> {
        let start = self.last_compared.map_or(Bound::Unbounded, Bound::Excluded);
        let batch: Vec<ObjectId> =
            self.objects.range((start, Bound::Unbounded)).take(OBJECTS_PER_CHECK).map(|(&id, _)| id).collect();
        self.last_compared = batch.last().copied().filter(|_| batch.len() == OBJECTS_PER_CHECK);
        let is_unchanged = |id: &ObjectId| {
            self.objects
                .get(id)
                .is_some_and(|(range, bytes)| checked_read::copy(*range).is_ok_and(|current| current == *bytes))
        };
        let overwritten: Vec<ObjectId> = batch.into_iter().filter(|id| !is_unchanged(id)).collect();
        overwritten.iter().for_each(|&id| self.forget(id));
        overwritten
    }
}

#[cfg(test)]
mod tests {
    use jitlisten::Address;

    use super::*;

    #[test]
    fn overwritten_code_is_removed() {
        let mut code = vec![0xc3_u8; 6400];
        let mut watched = WatchedCode::default();
        let range = |code: &[u8]| AddressRange::new(Address(code.as_ptr() as u64), code.len() as u64).unwrap();
        for (id, code) in code.chunks(640).enumerate() {
            assert!(watched.add(ObjectId(id as u64), range(code)));
        }
        let check_all = |watched: &mut WatchedCode| (0..4).flat_map(|_| watched.take_overwritten()).collect::<Vec<_>>();
        assert_eq!(check_all(&mut watched), []);
        code[645] = 0x90;
        watched.forget(ObjectId(7));
        code[7 * 640] = 0x90;
        assert_eq!(check_all(&mut watched), [ObjectId(1)]);
        assert!(!watched.add(ObjectId(20), AddressRange::new(Address(16), 16).unwrap()));
    }
}
