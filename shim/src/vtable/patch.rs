//! Exchanging a slot of a vtable, in one store, for a moment in which its page is writable.

use std::io;

use super::find::Vtable;
use crate::detour::write_pointer;
use crate::library::Library;

/// A slot of a vtable that leads to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patched {
    /// What was there.
    pub(crate) original: usize,
}

/// Puts `hook` into slot `index` of `vtable`. Where the library is not relocated yet, it is the loader that writes it: the
/// relocation of the slot gets another addend.
///
/// # Safety
/// `vtable` must have been found in `library` ([`mapped::vtables`]) while it has been mapped without a pause, and under the same
/// hold of the loader's lock. `hook` must be fit for every caller through the slot, for as long as the library lives.
pub(crate) unsafe fn exchange(library: &Library, vtable: &Vtable, index: usize, hook: usize) -> io::Result<Patched> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let original = *vtable.slots.get(index).ok_or_else(missing)? as usize;
    if original == 0 {
        return Err(io::Error::other("the loader is not done with it"));
    }
    let address = vtable.address_point as usize + index * size_of::<usize>();
    let slot = library.data_slot(address).ok_or_else(missing)?;
    // SAFETY: the caller's promise.
    if unsafe { library.is_relocated() } {
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
    Ok(Patched { original })
}
