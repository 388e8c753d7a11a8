//! Memory layout of the GDB JIT interface in LLVM ("JIT Compilation Interface" in the GDB manual).
//!
//! ```text
//!   __jit_debug_descriptor { version, action_flag, relevant_entry, first_entry }
//!                                                                   |
//!            entry { next, prev, debug object's address, size }  <--'  newest first
//!   __jit_debug_register_code()   an empty function, called after the list has changed
//! ```
//!
//! The list is read from its head to the first known entry. `relevant_entry` would miss some entries, because ORC links
//! an entry, drops its lock and only then calls the function. Two threads may therefore call it for the same newest
//! entry.

use std::io;

use jitlisten::plumbing::checked_read;
use jitlisten::{Address, AddressRange};

/// `struct jit_descriptor` of the GDB manual.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    version: u32,
    action_flag: u32,
    relevant_entry: u64,
    first_entry: u64,
}

/// `struct jit_code_entry` of the GDB manual.
#[repr(C)]
#[derive(Clone, Copy)]
struct CodeEntry {
    next: u64,
    prev: u64,
    symfile_addr: u64,
    symfile_size: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24 && size_of::<CodeEntry>() == 32);

const JIT_UNREGISTER_FN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListedObject {
    /// Address of the list entry.
    pub(crate) entry: u64,
    pub(crate) debug_object: Option<AddressRange>,
}

pub(crate) struct DescriptorContents {
    /// Address of the entry that is being unregistered; `None` if the descriptor announces no removal.
    pub(crate) unregistered: Option<u64>,
    /// Head of the list; 0 if it is empty.
    pub(crate) first: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorAddress(pub(crate) usize);

impl DescriptorAddress {
    pub(crate) fn read(self) -> io::Result<DescriptorContents> {
        // SAFETY: `Descriptor` consists of integers, so every bit pattern is valid.
        let descriptor: Descriptor = unsafe { checked_read::copy_struct(Address(self.0 as u64)) }?;
        if descriptor.version != 1 {
            return Err(io::Error::other(format!("version {} of the JIT interface", descriptor.version)));
        }
        let is_unregistering = descriptor.action_flag == JIT_UNREGISTER_FN;
        Ok(DescriptorContents {
            unregistered: is_unregistering.then_some(descriptor.relevant_entry),
            first: descriptor.first_entry,
        })
    }
}

impl DescriptorContents {
    /// Returns the entries from the head of the list to the first known one. Stops at an unreadable entry, because
    /// another thread may have just freed that entry if LLVM's lock is not held.
    pub(crate) fn entries_until(&self, is_known: impl Fn(u64) -> bool) -> impl Iterator<Item = ListedObject> {
        let mut address = self.first;
        std::iter::from_fn(move || {
            if address == 0 || is_known(address) {
                return None;
            }
            // SAFETY: `CodeEntry` consists of integers, so every bit pattern is valid.
            let entry: CodeEntry = unsafe { checked_read::copy_struct(Address(address)) }.ok()?;
            let debug_object = AddressRange::new(Address(entry.symfile_addr), entry.symfile_size);
            let listed = ListedObject { entry: address, debug_object };
            address = entry.next;
            Some(listed)
        })
    }
}
