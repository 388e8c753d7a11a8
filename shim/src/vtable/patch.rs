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

/// The function in slot `index` of `vtable`. Where the loader has not filled it in, because other libraries may replace the function, that
/// of the library itself.
pub(crate) fn original(library: &Library, vtable: &Vtable, index: usize) -> Option<usize> {
    match *vtable.slots.get(index)? as usize {
        0 => library.defined_by_symbol(address_of(vtable, index)).map(|(function, _)| function),
        function => Some(function),
    }
}

fn address_of(vtable: &Vtable, index: usize) -> usize {
    vtable.address_point as usize + index * size_of::<usize>()
}

/// Puts `hook` into slot `index` of `vtable`. Where the library is not relocated yet, it is the loader that writes it: the
/// relocation of the slot gets another addend, or the symbol that it names another value.
///
/// # Safety
/// `vtable` must have been found in `library` ([`mapped::vtables`]) while it has been mapped without a pause, and under the same
/// hold of the loader's lock. `hook` must be fit for every caller through the slot, for as long as the library lives.
pub(crate) unsafe fn exchange(library: &Library, vtable: &Vtable, index: usize, hook: usize) -> io::Result<Patched> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let original = *vtable.slots.get(index).ok_or_else(missing)? as usize;
    let address = address_of(vtable, index);
    if original == 0 {
        let symbol = library.defined_by_symbol(address);
        let (original, value) = symbol.ok_or_else(|| io::Error::other("the loader is not done with it"))?;
        // The loader adds the bias to what it finds there.
        let ours = hook.wrapping_sub(library.identity.bias);
        // SAFETY: an aligned word of the symbol table, which is mapped.
        unsafe { write_pointer(value.address, ours, value.protection) }?;
        return Ok(Patched { original });
    }
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
