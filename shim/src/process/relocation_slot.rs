//! Relocation slots: the words through which a library calls its imports. Patching them hooks the calls of this library
//! only.
//!
//! Other tools patch the same slots: memray those of every library, again after each `dlopen`. Then we patch the slot
//! again, and our hook calls that tool's function instead of libc's.

use std::io;
use std::ops::Range;

use crate::hook_table::HookTable;
use crate::process::held::Mapped;
use crate::process::library::Library;
use crate::process::next::Function;
use crate::process::slot::KeptSlot;

/// The slots of a library that concern code memory, each with its hook.
pub(crate) struct MemorySlots {
    slots: Vec<(KeptSlot, Function, usize)>,
    /// Where the library is: a slot that was never called through holds an address in there.
    library: Range<usize>,
}

impl MemorySlots {
    /// Finds them; nothing is changed yet.
    pub(crate) fn find(library: &Library<'_>, hooks: &'static HookTable) -> MemorySlots {
        let slots = IMPORTS.into_iter().flat_map(|(name, function)| {
            let hook = hooks.memory_of(library, function);
            library.import_slots(name).into_iter().map(move |slot| (slot.keep(), function, hook))
        });
        MemorySlots { slots: slots.collect(), library: library.range() }
    }

    /// Whether the loader is done with them.
    pub(crate) fn are_relocated(&self, mapped: Mapped<'_>) -> bool {
        self.slots.iter().all(|(kept, ..)| kept.of(mapped).is_some_and(|slot| slot.is_relocated()))
    }

    /// Sends the library's calls of `mprotect` and its relatives through our hooks, or says why not. Returns what
    /// others had put there. The library must be relocated: before that, the loader writes the slots itself.
    pub(crate) fn listen(&self, mapped: Mapped<'_>) -> io::Result<Vec<(Function, usize)>> {
        let mut found = Vec::new();
        for &(kept, function, hook) in &self.slots {
            let Some((slot, value)) = kept.of(mapped).map(|slot| (slot, slot.value())) else { continue };
            // A function that is nowhere has no address: a host may ask for that.
            if value == hook || !slot.is_relocated() {
                continue;
            }
            // SAFETY: a slot of this function, and our hook of the same.
            unsafe { slot.write(hook) }?;
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
/// are changed behind that. The library must not be relocated yet.
pub(crate) fn listen_from_the_start(library: &Library<'_>, hooks: &HookTable) -> io::Result<()> {
    for (name, function) in IMPORTS {
        // SAFETY: our hook of the function of this name.
        unsafe { bind_from_the_start(library, name, hooks.memory_of(library, function), false) }?;
    }
    Ok(())
}

/// The same for one import, which is to lead to `function`; where it is weak, only if that is wanted.
///
/// # Safety
/// `function` must be fit to be called as the one of this name, as long as the library is mapped.
pub(crate) unsafe fn bind_from_the_start(
    library: &Library<'_>,
    name: &str,
    function: usize,
    also_weak: bool,
) -> io::Result<()> {
    for (value, visibility) in library.import_symbols(name) {
        let ours = function.wrapping_sub(library.identity.bias);
        let before = visibility.value();
        // `st_info`, whose upper half is the binding.
        if !also_weak && before >> 36 & 0xf == usize::from(object::elf::STB_WEAK.0) {
            continue;
        }
        // SAFETY: the loader reads the value of an import, to bind calls of that name to what the caller vouches for.
        unsafe { value.write(ours) }?;
        // `st_other`, the byte behind `st_name` and `st_info`.
        let hidden = before & !(0x3 << 40) | usize::from(object::elf::STV_HIDDEN.0) << 40;
        // SAFETY: only the visibility changes: the loader binds the import to the value written above.
        unsafe { visibility.write(hidden) }?;
    }
    Ok(())
}

/// The functions that concern code memory, by the names of imports.
pub(crate) const IMPORTS: [(&str, Function); 7] = [
    ("mprotect", Function::Mprotect),
    ("munmap", Function::Munmap),
    ("mmap", Function::Mmap),
    ("mmap64", Function::Mmap),
    ("__register_frame", Function::RegisterFrame),
    ("pkey_mprotect", Function::PkeyMprotect),
    ("mremap", Function::Mremap),
];
