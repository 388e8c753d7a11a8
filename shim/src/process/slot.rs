//! Words of a library that hold addresses: relocation slots, vtable slots and symbol values.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

use super::detour::write_pointer;
use super::mapped_proof::{Identity, Mapped};

/// An aligned word in a segment of a library that stays mapped for `'l`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot<'l> {
    library: Identity,
    address: usize,
    /// Protection of the word's page after relocation.
    protection: i32,
    /// Lowest value that counts as an address in memory. A lower value is zero, or an address without the load bias.
    min_address: usize,
    mapped: PhantomData<&'l ()>,
}

impl<'l> Slot<'l> {
    /// Creates a slot; `None` if `address` is not aligned.
    ///
    /// # Safety
    /// `address` must be in a segment of `library`, which must stay mapped for `'l`. The page must have the protection
    /// `protection` after relocation.
    pub(crate) unsafe fn new(
        library: Identity,
        address: usize,
        protection: i32,
        min_address: usize,
    ) -> Option<Slot<'l>> {
        let slot = Slot { library, address, protection, min_address, mapped: PhantomData };
        address.is_multiple_of(size_of::<usize>()).then_some(slot)
    }

    /// Current value of the word.
    pub(crate) fn value(self) -> usize {
        // SAFETY: the word is aligned and stays mapped. Other threads may write an address to it, but with a single
        // store.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }.load(Ordering::Relaxed)
    }

    /// Returns true if the loader has stored an address in the word. Before that, the word is zero, or an address to
    /// which the load bias has not been added.
    pub(crate) fn is_relocated(self) -> bool {
        self.value() >= self.min_address
    }

    /// Replaces the value with a single store, even if the page is read-only.
    ///
    /// # Safety
    /// `value` must be valid for every reader of the word while the library is mapped. If it is a function, it must be
    /// callable in place of the previous one.
    pub(crate) unsafe fn write(self, value: usize) -> io::Result<()> {
        // SAFETY: the word is aligned and mapped, and its page has this protection after relocation.
        unsafe { write_pointer(self.address, value, self.protection) }
    }

    /// Replaces the value only if the page is writable; otherwise fails and changes nothing.
    ///
    /// # Safety
    /// Same contract as [`Slot::write`].
    pub(crate) unsafe fn write_if_writable(self, value: usize) -> io::Result<()> {
        // SAFETY: the word is aligned and mapped, and the kernel checks whether it is writable.
        unsafe { checked_read::write_word(Address(self.address as u64), value) }
    }

    /// Converts to a slot that may outlive the library's mapping.
    pub(crate) fn keep(self) -> KeptSlot {
        KeptSlot(Slot { mapped: PhantomData, ..self })
    }
}

/// A slot that is kept in the shim's state, and removed there when its library is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptSlot(Slot<'static>);

impl KeptSlot {
    /// Identity of the library that contains the slot.
    pub(crate) fn library(self) -> Identity {
        self.0.library
    }

    /// Returns the slot, provided that `mapped` covers its library.
    pub(crate) fn resolve<'l>(self, mapped: Mapped<'l>) -> Option<Slot<'l>> {
        mapped.covers(self.0.library).then_some(self.0)
    }
}
