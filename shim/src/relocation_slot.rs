//! Relocation slots: the words through which a library calls what it imports. Changing them for one library catches that
//! library's calls and no others.

use std::ffi::{c_int, c_void};
use std::io;

use crate::detour::write_pointer;
use crate::hooks;
use crate::library::{Library, Slot};

/// Sends the library's calls of `mprotect` and its relatives through our hooks, or says why not.
///
/// # Safety
/// The library must be mapped and relocated: before that, the loader writes the slots itself.
pub(crate) unsafe fn listen(slots: &MemorySlots) -> io::Result<()> {
    for (slot, hook) in &slots.0 {
        // SAFETY: a relocation slot is an aligned word of the library's data; the caller vouches that it is relocated.
        unsafe { write_pointer(slot.address, *hook, slot.protection) }?;
    }
    Ok(())
}

/// The slots of a library that concern code memory, each with its hook.
pub(crate) struct MemorySlots(Vec<(Slot, usize)>);

impl MemorySlots {
    /// Whether the loader is done with them.
    ///
    /// # Safety
    /// The library must be mapped.
    pub(crate) unsafe fn are_relocated(&self) -> bool {
        // SAFETY: the caller vouches for the mapping.
        self.0.iter().all(|(slot, _)| unsafe { slot.is_relocated() })
    }

    /// Finds them; nothing is changed yet.
    pub(crate) fn find(library: &Library) -> MemorySlots {
        type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
        let mprotect: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int = hooks::mprotect;
        let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int = hooks::munmap;
        let mmap: Mmap = hooks::mmap;
        let register_frame: unsafe extern "C" fn(*const c_void) = hooks::register_frame;
        let hooks = [
            ("mprotect", mprotect as usize),
            ("munmap", munmap as usize),
            ("mmap", mmap as usize),
            ("mmap64", mmap as usize),
            ("__register_frame", register_frame as usize),
        ];
        let slots = hooks
            .into_iter()
            .flat_map(|(name, hook)| library.import_slots(name).into_iter().map(move |slot| (slot, hook)));
        MemorySlots(slots.collect())
    }
}
