//! Patches a slot of a vtable in one store, while its page is writable for a moment.
//!
//! If the library is not relocated yet, the loader may be relocating it in another thread. A change of its relocation
//! table comes before or after the loader reads it; if after, the slot keeps its old value. A packed relocation
//! (`DT_RELR`) is the word in the vtable itself, to which the loader adds: only the loader's own thread may write
//! there.

use std::io;

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

use crate::llvm::vtable::find::Vtable;
use crate::process::detour::{Callers, write_pointer};
use crate::process::library::{Addend, Library};

/// A slot of a vtable that leads to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patched {
    /// What was there.
    pub(crate) original: usize,
}

/// The function in slot `index` of `vtable`. Where the loader has not filled it in, because other libraries may replace
/// the function, that of the library itself.
pub(crate) fn original(library: &Library, vtable: &Vtable, index: usize) -> Option<usize> {
    match *vtable.slots.get(index)? as usize {
        0 => library.defined_by_symbol(address_of(vtable, index)).map(|(function, _)| function),
        function => Some(function),
    }
}

fn address_of(vtable: &Vtable, index: usize) -> usize {
    vtable.address_point as usize + index * size_of::<usize>()
}

/// Puts `hook` into slot `index` of `vtable`. Where the library is not relocated yet, it is the loader that writes it:
/// the relocation of the slot gets another addend, or the symbol that it names another value.
///
/// # Safety
/// `vtable` must have been found in `library` ([`mapped::vtables`]) while it has been mapped without a pause, and under
/// the same hold of the loader's lock, in the thread that is to relocate it where `callers` are none yet. `hook` must
/// be fit for every caller through the slot, for as long as the library lives.
pub(crate) unsafe fn exchange(
    library: &Library,
    vtable: &Vtable,
    index: usize,
    hook: usize,
    callers: Callers,
) -> io::Result<Patched> {
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
        match addend {
            // SAFETY: an aligned word of the relocation table, which is mapped.
            Addend::InTable(slot) => unsafe { write_pointer(slot.address, ours, slot.protection) }?,
            Addend::InPlace(_) if callers != Callers::NoneYet => {
                return Err(io::Error::other("the loader may be at work in it"));
            }
            // The page is the loader's: where it may not be written, that stays so.
            // SAFETY: an aligned word of the library's data, which the loader is about to look at, in this thread.
            Addend::InPlace(slot) => unsafe { checked_read::write_word(Address(slot.address as u64), ours) }?,
        }
    }
    Ok(Patched { original })
}
