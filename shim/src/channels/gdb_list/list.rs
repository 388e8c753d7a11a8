//! State of one LLVM instance's GDB JIT list: the known entries, and the changes since the last reading.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use jitlisten::ObjectId;

use crate::channels::gdb_list::descriptor::{DescriptorAddress, ListedObject};

/// A list entry that has been read.
struct KnownEntry {
    listed: ListedObject,
    /// Id of the entry's object; `None` if the object was refused.
    id: Option<ObjectId>,
}

/// A GDB JIT list as of its last reading.
pub(crate) struct JitList {
    descriptor: DescriptorAddress,
    /// True if `__jit_debug_register_code` is hooked. Otherwise the list is read whenever memory becomes executable.
    pub(crate) detoured: bool,
    known_entries: BTreeMap<u64, KnownEntry>,
    /// True if the list ever had an entry.
    pub(crate) has_had_entries: bool,
}

/// Difference between two readings of a list.
#[derive(Default)]
pub(crate) struct ListChanges {
    /// New entries, oldest first.
    pub(crate) added: Vec<ListedObject>,
    /// Ids of the objects whose entries were removed.
    pub(crate) removed: Vec<ObjectId>,
    /// Head of the list; `None` if LLVM does not announce changes of the list.
    pub(crate) head: Option<u64>,
}

impl JitList {
    /// Creates a list that has not been read yet.
    pub(crate) fn new(descriptor: usize, detoured: bool) -> JitList {
        let (descriptor, known_entries) = (DescriptorAddress(descriptor), BTreeMap::new());
        JitList { descriptor, detoured, known_entries, has_had_entries: false }
    }

    /// Reads the list and returns the changes since the last reading.
    pub(crate) fn read(&mut self) -> io::Result<ListChanges> {
        let reading = self.descriptor.read()?;
        let head = Some(reading.first).filter(|_| self.detoured);
        let removed = reading.unregistered.and_then(|entry| self.known_entries.remove(&entry)?.id);
        let mut changes = ListChanges { removed: removed.into_iter().collect(), head, ..ListChanges::default() };
        if self.detoured {
            changes.added = reading.entries_until(|entry| self.known_entries.contains_key(&entry)).collect();
        } else {
            self.compare(reading.entries_until(|_| false).collect(), &mut changes);
        }
        changes.added.reverse();
        Ok(changes)
    }

    /// Compares the whole list with the known entries. Without the hook, removals are not announced, and the memory of
    /// a removed entry may already hold a new entry.
    fn compare(&mut self, listed_objects: Vec<ListedObject>, changes: &mut ListChanges) {
        let listed: BTreeMap<u64, ListedObject> = listed_objects.iter().map(|listed| (listed.entry, *listed)).collect();
        self.known_entries.retain(|entry, known_entry| {
            let is_unchanged = listed.get(entry) == Some(&known_entry.listed);
            if !is_unchanged {
                changes.removed.extend(known_entry.id);
            }
            is_unchanged
        });
        changes.added =
            listed_objects.into_iter().filter(|listed| !self.known_entries.contains_key(&listed.entry)).collect();
    }

    /// Stores the object id of a list entry; `None` if the object was refused.
    pub(crate) fn remember(&mut self, listed: ListedObject, id: Option<ObjectId>) {
        self.has_had_entries = true;
        self.known_entries.insert(listed.entry, KnownEntry { listed, id });
    }

    /// Number of known entries, including refused ones.
    pub(crate) fn len(&self) -> usize {
        self.known_entries.len()
    }

    /// Ids of all objects in the list.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        self.known_entries.values().filter_map(|known_entry| known_entry.id)
    }
}
