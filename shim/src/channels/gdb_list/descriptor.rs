//! The GDB JIT interface in LLVM ("JIT Compilation Interface" in the GDB manual).
//!
//! ```text
//!   __jit_debug_descriptor { version, action_flag, relevant_entry, first_entry }
//!                                                                   |
//!            entry { next, prev, debug object's address, size }  <--'  newest first
//!   __jit_debug_register_code()   an empty function, called after the list has changed
//! ```
//!
//! The list is read from its head to the first known entry. `relevant_entry` would miss some: ORC links an entry, drops
//! its lock and then calls, so two threads may call for the same newest entry.

use std::io;

use jitlisten::plumbing::checked_read;
use jitlisten::{Address, AddressRange};

/// `struct jit_descriptor`
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    version: u32,
    action_flag: u32,
    relevant_entry: u64,
    first_entry: u64,
}

/// `struct jit_code_entry`
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

/// One debug object in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListedObject {
    /// The entry's own address.
    pub(crate) entry: u64,
    /// The debug object.
    pub(crate) debug_object: Option<AddressRange>,
}

/// What the descriptor says now.
pub(crate) struct Reading {
    /// The entry that is being taken out, at a call for that purpose.
    pub(crate) unregistered: Option<u64>,
    pub(crate) first: u64,
}

/// Where a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorAddress(pub(crate) usize);

impl DescriptorAddress {
    /// Reads the descriptor.
    pub(crate) fn read(self) -> io::Result<Reading> {
        // SAFETY: the structure is integers.
        let descriptor: Descriptor = unsafe { checked_read::copy_struct(Address(self.0 as u64)) }?;
        if descriptor.version != 1 {
            return Err(io::Error::other(format!("version {} of the JIT interface", descriptor.version)));
        }
        let leaving = descriptor.action_flag == JIT_UNREGISTER_FN;
        Ok(Reading { unregistered: leaving.then_some(descriptor.relevant_entry), first: descriptor.first_entry })
    }
}

impl Reading {
    /// The entries from the head of the list up to a known one. Ends at one that cannot be read: without LLVM's lock,
    /// another thread may just have freed it.
    pub(crate) fn entries_until(&self, is_known: impl Fn(u64) -> bool) -> impl Iterator<Item = ListedObject> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            if at == 0 || is_known(at) {
                return None;
            }
            // SAFETY: the structure is integers.
            let entry: CodeEntry = unsafe { checked_read::copy_struct(Address(at)) }.ok()?;
            let debug_object = AddressRange::new(Address(entry.symfile_addr), entry.symfile_size);
            let listed = ListedObject { entry: at, debug_object };
            at = entry.next;
            Some(listed)
        })
    }
}
