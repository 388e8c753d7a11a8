//! Relocation slots: the words through which a library calls its imports. Patching them hooks the calls of this library
//! only.
//!
//! Other tools patch the same slots: memray those of every library, again after each `dlopen`. Then we patch the slot
//! again, and our hook calls that tool's function instead of libc's.

use std::io;
use std::ops::Range;

use crate::hook_table::HookTable;
use crate::process::detour::write_pointer;
use crate::process::library::{Library, Slot};
use crate::process::next::Function;

/// The slots of a library that concern code memory, each with its hook.
pub(crate) struct MemorySlots {
    slots: Vec<(Slot, Function, usize)>,
    /// Where the library is: a slot that was never called through holds an address in there.
    library: Range<usize>,
}

impl MemorySlots {
    /// Finds them; nothing is changed yet.
    pub(crate) fn find(library: &Library, hooks: &'static HookTable) -> MemorySlots {
        let slots = IMPORTS.into_iter().flat_map(|(name, function)| {
            let hook = hooks.memory_of(library, function);
            library.import_slots(name).into_iter().map(move |slot| (slot, function, hook))
        });
        MemorySlots { slots: slots.collect(), library: library.range() }
    }

    /// Whether the loader is done with them.
    ///
    /// # Safety
    /// The library must be mapped.
    pub(crate) unsafe fn are_relocated(&self) -> bool {
        // SAFETY: the caller vouches for the mapping.
        self.slots.iter().all(|(slot, ..)| unsafe { slot.is_relocated() })
    }

    /// Sends the library's calls of `mprotect` and its relatives through our hooks, or says why not. Returns what
    /// others had put there.
    ///
    /// # Safety
    /// The library must be mapped and relocated: before that, the loader writes the slots itself.
    pub(crate) unsafe fn listen(&self) -> io::Result<Vec<(Function, usize)>> {
        let mut found = Vec::new();
        for &(slot, function, hook) in &self.slots {
            // SAFETY: the caller vouches for the mapping.
            let (value, is_relocated) = unsafe { (slot.value(), slot.is_relocated()) };
            // A function that is nowhere has no address: a host may ask for that.
            if value == hook || !is_relocated {
                continue;
            }
            // SAFETY: a relocation slot is an aligned word of the library's data; the caller vouches that it is
            // relocated.
            unsafe { write_pointer(slot.address, hook, slot.protection) }?;
            if !self.library.contains(&value) {
                found.push((function, value));
            }
        }
        Ok(found)
    }
}

/// Makes the loader itself put our hooks into the slots, when it relocates the library: the symbols of the imports get
/// their addresses, and become hidden, so that they are not looked for in other libraries (`elf/dl-reloc.c`,
/// `elf/dl-runtime.c`). Weak ones are left: a host may ask whether they have an address, and where they have one, they
/// are changed behind that.
///
/// # Safety
/// The library must be mapped, and not be relocated yet.
pub(crate) unsafe fn listen_from_the_start(library: &Library, hooks: &HookTable) -> io::Result<()> {
    for (name, function) in IMPORTS {
        // SAFETY: the caller's promise.
        unsafe { bind_from_the_start(library, name, hooks.memory_of(library, function), false) }?;
    }
    Ok(())
}

/// The same for one import, which is to lead to `function`; where it is weak, only if that is wanted.
///
/// # Safety
/// As for [`listen_from_the_start`].
pub(crate) unsafe fn bind_from_the_start(
    library: &Library,
    name: &str,
    function: usize,
    also_weak: bool,
) -> io::Result<()> {
    for (value, visibility) in library.import_symbols(name) {
        let ours = function.wrapping_sub(library.identity.bias);
        // SAFETY: aligned words of the library's symbol table.
        let before = unsafe { (visibility.address as *const usize).read() };
        // `st_info`, whose upper half is the binding.
        if !also_weak && before >> 36 & 0xf == usize::from(object::elf::STB_WEAK.0) {
            continue;
        }
        // SAFETY: as above.
        unsafe { write_pointer(value.address, ours, value.protection) }?;
        // `st_other`, the byte behind `st_name` and `st_info`.
        let hidden = before & !(0x3 << 40) | usize::from(object::elf::STV_HIDDEN.0) << 40;
        // SAFETY: as above.
        unsafe { write_pointer(visibility.address, hidden, visibility.protection) }?;
    }
    Ok(())
}

const IMPORTS: [(&str, Function); 7] = [
    ("mprotect", Function::Mprotect),
    ("munmap", Function::Munmap),
    ("mmap", Function::Mmap),
    ("mmap64", Function::Mmap),
    ("__register_frame", Function::RegisterFrame),
    ("pkey_mprotect", Function::PkeyMprotect),
    ("mremap", Function::Mremap),
];
