//! Patches a slot of a vtable in one store, while its page is writable for a moment.
//!
//! If the library is not relocated yet, the loader may be relocating it in another thread. A change of its relocation
//! table comes before or after the loader reads it; if after, the slot keeps its old value. A packed relocation
//! (`DT_RELR`) is the word in the vtable itself, to which the loader adds: only the loader's own thread may write
//! there.

use std::io;

use crate::llvm::vtable::find::Vtable;
use crate::process::detour::Callers;
use crate::process::library::{Addend, Library};

/// A slot of a vtable that leads to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patched {
    /// What was there.
    pub(crate) original: usize,
}

/// The function in slot `index` of `vtable`. Where the loader has not filled it in, because other libraries may replace
/// the function, that of the library itself.
pub(crate) fn original(library: &Library<'_>, vtable: &Vtable, index: usize) -> Option<usize> {
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
/// `hook` must be fit for every caller through the slot, for as long as the library lives. Where `callers` are none
/// yet, this must be the thread that is to relocate the library.
pub(crate) unsafe fn exchange(
    library: &Library<'_>,
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
        let (original, value) = symbol.ok_or_else(|| io::Error::other("the loader has not relocated it yet"))?;
        // The loader adds the bias to what it finds there.
        let ours = hook.wrapping_sub(library.identity.bias);
        // SAFETY: by this value the loader fills the slot in, with what the caller vouches for.
        unsafe { value.write(ours) }?;
        return Ok(Patched { original });
    }
    let slot = library.slot(address).ok_or_else(missing)?;
    if library.is_relocated() {
        if slot.value() != original {
            return Err(io::Error::other("the slot has changed meanwhile"));
        }
        // SAFETY: the caller vouches for the hook in this slot.
        unsafe { slot.write(hook) }?;
    } else {
        let addend = library.relative_addend(address).ok_or_else(|| io::Error::other("no plain relocation"))?;
        let ours = hook.wrapping_sub(library.identity.bias);
        match addend {
            // SAFETY: the loader adds the bias to this, and fills the slot in with what the caller vouches for.
            Addend::InTable(addend) => unsafe { addend.write(ours) }?,
            Addend::InPlace(_) if callers != Callers::NoneYet => {
                return Err(io::Error::other("the loader may be at work in it"));
            }
            // The page is the loader's: where it may not be written, that stays so.
            // SAFETY: the slot is in the mapped library; the loader, in this thread, adds the bias to it afterwards.
            Addend::InPlace(slot) => unsafe { slot.write_if_writable(ours) }?,
        }
    }
    Ok(Patched { original })
}
