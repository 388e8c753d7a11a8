//! Relocation slots: the words through which a library calls what it imports. Changing them for one library catches that
//! library's calls and no others.

//! Other tools change the same slots: memray those of every library, again after each `dlopen`. What is found there by then
//! is called by our hook in place of libc's function, and the slot is ours again.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;

use crate::detour::write_pointer;
use crate::hooks;
use crate::library::{Library, Slot};
use crate::next::Function;
use crate::other_libraries;

/// The slots of a library that concern code memory, each with its hook.
pub(crate) struct MemorySlots {
    slots: Vec<(Slot, Function)>,
    /// Where the library is: a slot that was never called through holds an address in there.
    library: Range<usize>,
}

impl MemorySlots {
    /// Finds them; nothing is changed yet.
    pub(crate) fn find(library: &Library) -> MemorySlots {
        let slots = IMPORTS
            .into_iter()
            .flat_map(|(name, function)| library.import_slots(name).into_iter().map(move |slot| (slot, function)));
        MemorySlots { slots: slots.collect(), library: library.range() }
    }

    /// Whether the loader is done with them.
    ///
    /// # Safety
    /// The library must be mapped.
    pub(crate) unsafe fn are_relocated(&self) -> bool {
        // SAFETY: the caller vouches for the mapping.
        self.slots.iter().all(|(slot, _)| unsafe { slot.is_relocated() })
    }

    /// Sends the library's calls of `mprotect` and its relatives through our hooks, or says why not. Returns what others had
    /// put there.
    ///
    /// # Safety
    /// The library must be mapped and relocated: before that, the loader writes the slots itself.
    pub(crate) unsafe fn listen(&self) -> io::Result<Vec<(Function, usize)>> {
        let mut found = Vec::new();
        for &(slot, function) in &self.slots {
            // SAFETY: the caller vouches for the mapping.
            let value = unsafe { slot.value() };
            if value == hook(function) {
                continue;
            }
            // SAFETY: a relocation slot is an aligned word of the library's data; the caller vouches that it is relocated.
            unsafe { write_pointer(slot.address, hook(function), slot.protection) }?;
            if !self.library.contains(&value) {
                found.push((function, value));
            }
        }
        Ok(found)
    }
}

/// Makes the loader itself put our hooks into the slots, when it relocates the library: the symbols of the imports get their
/// addresses, and become hidden, so that they are not looked for in other libraries (`elf/dl-reloc.c`, `elf/dl-runtime.c`).
///
/// # Safety
/// The library must be mapped, and not be relocated yet.
pub(crate) unsafe fn listen_from_the_start(library: &Library) -> io::Result<()> {
    for (name, function) in IMPORTS {
        for (value, visibility) in library.import_symbols(name) {
            let ours = hook(function).wrapping_sub(library.identity.bias);
            // SAFETY: aligned words of the library's symbol table.
            unsafe { write_pointer(value.address, ours, value.protection) }?;
            // SAFETY: as above.
            let before = unsafe { (visibility.address as *const usize).read() };
            // `st_other`, the byte behind `st_name` and `st_info`.
            let hidden = before & !(0x3 << 40) | usize::from(object::elf::STV_HIDDEN.0) << 40;
            // SAFETY: as above.
            unsafe { write_pointer(visibility.address, hidden, visibility.protection) }?;
        }
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

/// The hook for a library with an LLVM.
pub(crate) fn hook(function: Function) -> usize {
    type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    let mprotect: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int = hooks::mprotect;
    let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int = hooks::munmap;
    let mmap: Mmap = hooks::mmap;
    let register_frame: unsafe extern "C" fn(*const c_void) = hooks::register_frame;
    match function {
        Function::Mprotect => mprotect as usize,
        Function::Munmap => munmap as usize,
        Function::Mmap => mmap as usize,
        Function::RegisterFrame => register_frame as usize,
        Function::PkeyMprotect => other_libraries::pkey_mprotect as *const () as usize,
        Function::Mremap => other_libraries::mremap as *const () as usize,
    }
}
