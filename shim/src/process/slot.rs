//! Words of a library that hold addresses: relocation slots, slots of vtables, values of symbols.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

use super::detour::write_pointer;
use super::held::{Identity, Mapped};

/// An aligned word in a mapped segment of a library that stays mapped during `'l`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot<'l> {
    library: Identity,
    address: usize,
    /// The protection its page has once the library is relocated.
    protection: i32,
    /// What is less is not an address in memory, but zero or one in the library's file.
    first_address: usize,
    mapped: PhantomData<&'l ()>,
}

impl<'l> Slot<'l> {
    /// # Safety
    /// `address` must be in a segment of `library`, which stays mapped during `'l`, and whose page there has
    /// `protection` once it is relocated.
    pub(crate) unsafe fn new(
        library: Identity,
        address: usize,
        protection: i32,
        first_address: usize,
    ) -> Option<Slot<'l>> {
        let slot = Slot { library, address, protection, first_address, mapped: PhantomData };
        address.is_multiple_of(size_of::<usize>()).then_some(slot)
    }

    /// What it holds.
    pub(crate) fn value(self) -> usize {
        // SAFETY: an aligned word that stays mapped; other threads may be writing an address there, in one store.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }.load(Ordering::Relaxed)
    }

    /// Whether the loader has put an address there: before that, the word is zero or an address in the file.
    pub(crate) fn is_relocated(self) -> bool {
        self.value() >= self.first_address
    }

    /// Replaces what it holds, in one store, also where the page is read-only.
    ///
    /// # Safety
    /// `value` must be fit for whoever reads the word, as long as the library is mapped: for a function, to be called
    /// as the one before.
    pub(crate) unsafe fn write(self, value: usize) -> io::Result<()> {
        // SAFETY: an aligned, mapped word whose page has this protection.
        unsafe { write_pointer(self.address, value, self.protection) }
    }

    /// The same where the page may be written anyway; otherwise nothing is changed.
    ///
    /// # Safety
    /// As for [`Slot::write`].
    pub(crate) unsafe fn write_if_writable(self, value: usize) -> io::Result<()> {
        // SAFETY: an aligned, mapped word; the kernel looks whether it may be written.
        unsafe { checked_read::write_word(Address(self.address as u64), value) }
    }

    /// To be remembered longer than the library may be mapped.
    pub(crate) fn keep(self) -> KeptSlot {
        KeptSlot(Slot { mapped: PhantomData, ..self })
    }
}

/// A slot that is remembered in the shim's state, where it is forgotten when its library is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptSlot(Slot<'static>);

impl KeptSlot {
    /// The library that it is of.
    pub(crate) fn library(self) -> Identity {
        self.0.library
    }

    /// The slot, if its library is known to be mapped.
    pub(crate) fn of<'l>(self, mapped: Mapped<'l>) -> Option<Slot<'l>> {
        mapped.covers(self.0.library).then_some(self.0)
    }
}
