//! Exchanging a slot of a vtable, in one store, for a moment in which its page is writable.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::find::Vtable;
use super::mapped;
use crate::detour::write_pointer;
use crate::library::Library;

/// A slot of a vtable that leads to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patched {
    /// The slot's address.
    pub(crate) address: usize,
    /// The protection of its page.
    protection: i32,
    /// What was there.
    pub(crate) original: usize,
    hook: usize,
}

/// Puts `hook` into slot `index` of `vtable`. Where the library is not relocated yet, it is the loader that writes it: the
/// relocation of the slot gets another addend.
///
/// # Safety
/// `vtable` must have been found in `library` ([`mapped::vtables`]) while it has been mapped without a pause, and under the same
/// hold of the loader's lock. `hook` must be fit for whoever calls through the slot, for as long as the library lives.
pub(crate) unsafe fn exchange(library: &Library, vtable: &Vtable, index: usize, hook: usize) -> io::Result<Patched> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let original = *vtable.slots.get(index).ok_or_else(missing)? as usize;
    let address = vtable.address_point as usize + index * size_of::<usize>();
    let slot = library.data_slot(address).ok_or_else(missing)?;
    let patched = Patched { address, protection: slot.protection, original, hook };
    // SAFETY: the caller's promise.
    if unsafe { mapped::is_relocated(library) } {
        // SAFETY: as above: an aligned word.
        if unsafe { slot.value() } != original {
            return Err(io::Error::other("the slot has changed meanwhile"));
        }
        // SAFETY: as above.
        unsafe { write_pointer(address, hook, slot.protection) }?;
    } else {
        let addend = library.relative_addend(address).ok_or_else(|| io::Error::other("no plain relocation"))?;
        let ours = hook.wrapping_sub(library.identity.bias);
        // SAFETY: an aligned word of the relocation table, which is mapped.
        unsafe { write_pointer(addend.address, ours, addend.protection) }?;
    }
    Ok(patched)
}

impl Patched {
    /// Puts back what was there, unless others have changed it since.
    ///
    /// # Safety
    /// The library must still be mapped, and be relocated.
    pub(crate) unsafe fn restore(&self) -> io::Result<()> {
        // SAFETY: the caller's promise.
        let now = unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }.load(Ordering::Relaxed);
        if now != self.hook {
            return Err(io::Error::other("others have changed the slot"));
        }
        // SAFETY: as above.
        unsafe { write_pointer(self.address, self.original, self.protection) }
    }
}
