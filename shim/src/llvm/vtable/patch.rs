//! Replaces a vtable slot with a single store, while its page is temporarily writable.
//!
//! If the library is not relocated yet, the loader may be relocating it in another thread. If the loader has already
//! read the entry of the relocation table that we change, the slot keeps its old value. A packed relocation (`DT_RELR`)
//! is stored in the vtable itself, and the loader adds the bias to that word. Only the loader's own thread may write
//! there.

use std::io;

use crate::llvm::vtable::find::Vtable;
use crate::process::detour::Callers;
use crate::process::library::Library;
use crate::process::relocations::Addend;

/// A vtable slot that points to our hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PatchedSlot {
    /// Previous value of the slot.
    pub(crate) original: usize,
}

/// Returns the function in slot `index` of `vtable`. The loader may not have filled in the slot yet, because other
/// libraries may interpose the function. In that case, returns the library's own function.
pub(crate) fn original_function(library: &Library<'_>, vtable: &Vtable, index: usize) -> Option<usize> {
    match *vtable.slots.get(index)? as usize {
        0 => library.defined_by_symbol(address_of(vtable, index)).map(|(function, _)| function),
        function => Some(function),
    }
}

fn address_of(vtable: &Vtable, index: usize) -> usize {
    vtable.address_point as usize + index * size_of::<usize>()
}

/// Puts `hook` into slot `index` of `vtable`. If the library is not relocated yet, the loader will write the slot, so
/// we change the relocation's addend or the value of the relocation's symbol.
///
/// # Safety
/// `hook` must be valid for every caller through the slot, as long as the library is loaded. If `callers` is
/// [`Callers::NoneYet`], the calling thread must be the one that will relocate the library.
pub(crate) unsafe fn replace_slot(
    library: &Library<'_>,
    vtable: &Vtable,
    index: usize,
    hook: usize,
    callers: Callers,
) -> io::Result<PatchedSlot> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let original = *vtable.slots.get(index).ok_or_else(missing)? as usize;
    let address = address_of(vtable, index);
    if original == 0 {
        let symbol = library.defined_by_symbol(address);
        let (original, value) = symbol.ok_or_else(|| io::Error::other("the loader has not relocated it yet"))?;
        // The loader adds the bias to the symbol's value.
        let biased_hook = hook.wrapping_sub(library.identity.bias);
        // SAFETY: the loader derives the slot's content from this value, and the caller vouches for the hook.
        unsafe { value.write(biased_hook) }?;
        return Ok(PatchedSlot { original });
    }
    let slot = library.slot(address).ok_or_else(missing)?;
    if library.section.is_relocated() {
        if slot.value() != original {
            return Err(io::Error::other("the slot has changed meanwhile"));
        }
        // SAFETY: the caller vouches for the hook in this slot.
        unsafe { slot.write(hook) }?;
    } else {
        let addend = library.relative_addend(address).ok_or_else(|| io::Error::other("no plain relocation"))?;
        let biased_hook = hook.wrapping_sub(library.identity.bias);
        match addend {
            // SAFETY: the loader adds the bias to this addend and stores the sum in the slot. The caller vouches for
            // the hook.
            Addend::InTable(addend) => unsafe { addend.write(biased_hook) }?,
            Addend::InPlace(_) if callers != Callers::NoneYet => {
                return Err(io::Error::other("the loader may be at work in it"));
            }
            // The loader manages the page's protection, so it is not changed here.
            // SAFETY: the slot is in the mapped library. The loader will later add the bias to it in this same thread.
            Addend::InPlace(slot) => unsafe { slot.write_if_writable(biased_hook) }?,
        }
    }
    Ok(PatchedSlot { original })
}
