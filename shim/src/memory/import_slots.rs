//! Import slots of a library with LLVM for the functions that manage code memory. Patching these slots hooks only the
//! calls made by this library.
//!
//! Other tools patch the same slots. memray, for example, patches the slots of every library after each `dlopen`. We
//! then patch the slot again, and our hook forwards to that tool's function instead of libc's.

use std::io;
use std::ops::Range;

use crate::hook_table::HookTable;
use crate::process::forward::Function;
use crate::process::library::Library;
use crate::process::mapped_proof::Mapped;
use crate::process::slot::KeptSlot;

/// Import slots of a library for functions that manage code memory, each with the hook to store there.
pub(crate) struct MemorySlots {
    slots: Vec<(KeptSlot, Function, usize)>,
    /// Address range of the library. A lazy slot that has never been called through holds an address in this range.
    library: Range<usize>,
}

impl MemorySlots {
    /// Collects the slots of a library without changing them.
    pub(crate) fn find(library: &Library<'_>, hooks: &'static HookTable) -> MemorySlots {
        let slots = MEMORY_IMPORTS.into_iter().flat_map(|(name, function)| {
            let hook = hooks.memory_hook_for(library, function);
            library.import_slots(name).into_iter().map(move |slot| (slot.keep(), function, hook))
        });
        MemorySlots { slots: slots.collect(), library: library.range() }
    }

    /// Returns true if the loader has relocated all slots.
    pub(crate) fn are_relocated(&self, mapped: Mapped<'_>) -> bool {
        self.slots.iter().all(|(kept, ..)| kept.resolve(mapped).is_some_and(|slot| slot.is_relocated()))
    }

    /// Hooks the library's calls of `mprotect` and related functions. Returns any functions of other tools that the
    /// slots held. The library must be relocated, because the loader itself writes the slots before that.
    pub(crate) fn hook(&self, mapped: Mapped<'_>) -> io::Result<Vec<(Function, usize)>> {
        let mut foreign = Vec::new();
        for &(kept, function, hook) in &self.slots {
            let Some((slot, value)) = kept.resolve(mapped).map(|slot| (slot, slot.value())) else { continue };
            // An undefined weak function has a null address, and a host may test for that, so keep such a slot.
            if value == hook || !slot.is_relocated() {
                continue;
            }
            // SAFETY: the slot and our hook are for the same function.
            unsafe { slot.write(hook) }?;
            if !self.library.contains(&value) {
                foreign.push((function, value));
            }
        }
        Ok(foreign)
    }
}

/// Makes the loader store our hooks when it relocates the library. Weak imports keep their symbols, because a host may
/// test whether the function exists. If it does, the slot is patched after relocation. The library must not be
/// relocated yet.
pub(crate) fn bind_memory_hooks_before_relocation(library: &Library<'_>, hooks: &HookTable) -> io::Result<()> {
    for (name, function) in MEMORY_IMPORTS {
        // SAFETY: our hook is designed to be called in place of the function with this name.
        unsafe { library.bind_before_relocation(name, hooks.memory_hook_for(library, function), false) }?;
    }
    Ok(())
}

/// Imported functions that manage code memory, by name.
pub(crate) const MEMORY_IMPORTS: [(&str, Function); 7] = [
    ("mprotect", Function::Mprotect),
    ("munmap", Function::Munmap),
    ("mmap", Function::Mmap),
    ("mmap64", Function::Mmap),
    ("__register_frame", Function::RegisterFrame),
    ("pkey_mprotect", Function::PkeyMprotect),
    ("mremap", Function::Mremap),
];
