//! Tracker of objects that LLVM's linkers have reported. LLVM may also add them to its GDB JIT list.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::plumbing::LiveObjects;
use jitlisten::{AddressRange, ObjectId};

use crate::llvm::elf_copy;

/// Maximum number of linked objects that are compared with new list entries. ORC lists an object only once it is final,
/// so other objects may be linked before that.
const MAX_RECENTLY_LINKED: usize = 256;

/// Objects most recently reported by linkers, newest first, with their sizes in bytes.
#[derive(Default)]
pub(crate) struct LinkedObjects(VecDeque<(ObjectId, usize)>);

impl LinkedObjects {
    pub(crate) fn add(&mut self, id: ObjectId, size: usize) {
        self.0.push_front((id, size));
        self.0.truncate(MAX_RECENTLY_LINKED);
    }

    /// Removes and returns the object that equals `bytes`. LLVM's list entry gives the address range `listed_at` for
    /// that object.
    pub(crate) fn take_listed(
        &mut self,
        objects: &LiveObjects,
        bytes: &[u8],
        listed_at: Option<AddressRange>,
    ) -> Option<ObjectId> {
        self.take(|id, size| size == bytes.len() && objects.adopt_list_entry(id, bytes, listed_at))
    }

    /// Removes and returns a pending object that LLVM has moved since its linker reported it. `bytes` must be the same
    /// object at its new address.
    pub(crate) fn take_moved(&mut self, objects: &LiveObjects, bytes: &[u8]) -> Option<ObjectId> {
        let is_same_object = |original: Vec<u8>| elf_copy::differ_only_in_addresses(&original, bytes);
        self.take(|id, size| {
            size == bytes.len()
                && objects.ledger(|ledger| ledger.pending(id).is_some())
                && objects.debug_object(id).is_some_and(is_same_object)
        })
    }

    fn take(&mut self, is_wanted: impl Fn(ObjectId, usize) -> bool) -> Option<ObjectId> {
        let index = self.0.iter().position(|&(id, size)| is_wanted(id, size))?;
        self.0.remove(index).map(|(id, _)| id)
    }
}
