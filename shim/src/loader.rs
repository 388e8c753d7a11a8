//! The loader's rendezvous: `_r_debug` of `<link.h>`, the protocol between the dynamic loader and debuggers.
//!
//! ```text
//!   r_map    the link map: one entry per library, in a list
//!   r_brk    an empty function, called when the list has changed
//!   r_state  RT_CONSISTENT when it may be read, RT_ADD or RT_DELETE while it changes
//! ```
//!
//! It is called under the loader's lock, before the constructors of a new library, and, before glibc 2.41, before the
//! library is relocated: its relocation slots must not be touched there.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use object::elf;

use crate::library::{Identity, Library};

/// `struct r_debug` of `<link.h>`; from version 2 on (glibc 2.35) `next` is there too.
#[repr(C)]
struct RDebug {
    version: i32,
    map: *const LinkMap,
    brk: usize,
    state: i32,
    ldbase: usize,
    next: *const RDebug,
}

const RT_CONSISTENT: i32 = 0;

/// The public part of `struct link_map` of `<link.h>`.
#[repr(C)]
struct LinkMap {
    addr: usize,
    name: *const c_char,
    ld: usize,
    next: *const LinkMap,
    prev: *const LinkMap,
}

const _: () = assert!(std::mem::offset_of!(RDebug, brk) == 16 && std::mem::offset_of!(RDebug, next) == 40);
const _: () = assert!(std::mem::offset_of!(LinkMap, ld) == 16 && size_of::<LinkMap>() == 40);

/// The loader's record for debuggers.
#[derive(Clone, Copy)]
pub(crate) struct Rendezvous(*const RDebug);

// SAFETY: the record lives as long as the process; it is read under the loader's lock.
unsafe impl Send for Rendezvous {}
// SAFETY: as above.
unsafe impl Sync for Rendezvous {}

/// A link map entry: the name borrows from it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    name: *const c_char,
}

impl Rendezvous {
    /// Finds the record through `DT_DEBUG` of the program; a static program has none.
    pub(crate) fn find() -> Option<Rendezvous> {
        let mut found: *const [usize; 2] = ptr::null();
        // SAFETY: the callback gets the address of `found`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(first_program_header), ptr::from_mut(&mut found).cast()) };
        let mut at = found;
        while !at.is_null() {
            // SAFETY: `at` is in the program's dynamic section, before its DT_NULL.
            let [tag, value] = unsafe { at.read() };
            match elf::DynamicTag(tag as _) {
                elf::DT_NULL => return None,
                elf::DT_DEBUG if value != 0 => return Some(Rendezvous(value as *const RDebug)),
                // SAFETY: this was not the last entry.
                _ => at = unsafe { at.add(1) },
            }
        }
        None
    }

    /// The empty function the loader calls.
    pub(crate) fn function(self) -> usize {
        // SAFETY: the record lives as long as the process.
        unsafe { (*self.0).brk }
    }

    /// Every library of every namespace, unless the list is being changed.
    ///
    /// # Safety
    /// The loader's lock must be held, or no other thread may run. The entries are good until it is released.
    pub(crate) unsafe fn libraries(self) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut namespace = self.0;
        while !namespace.is_null() {
            // SAFETY: the record, or one it is chained to, which live as long as the process.
            let record = unsafe { &*namespace };
            if record.state != RT_CONSISTENT {
                return None;
            }
            let mut map = record.map;
            while !map.is_null() {
                // SAFETY: the caller vouches that the list does not change.
                let entry = unsafe { &*map };
                let identity = Identity { bias: entry.addr, dynamic: entry.ld };
                entries.push(Entry { identity, name: entry.name });
                map = entry.next;
            }
            namespace = if record.version >= 2 { record.next } else { ptr::null() };
        }
        Some(entries)
    }
}

impl Entry {
    /// Reads the library's tables.
    ///
    /// # Safety
    /// As for [`Rendezvous::libraries`], and the lock has not been released since.
    pub(crate) unsafe fn library(self) -> Option<Library> {
        if self.name.is_null() || self.identity.dynamic == 0 {
            return None;
        }
        // SAFETY: the caller vouches that the link map entry, which owns the name, is there.
        let name = unsafe { CStr::from_ptr(self.name) };
        // SAFETY: and so is the library.
        unsafe { Library::read(self.identity, name) }
    }
}

/// `dl_iterate_phdr` reports the program first: finds its dynamic section, and stops.
unsafe extern "C" fn first_program_header(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> i32 {
    // SAFETY: the loader hands a valid record.
    let info = unsafe { &*info };
    for index in 0..info.dlpi_phnum {
        // SAFETY: the loader says how many headers there are.
        let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
        if header.p_type == libc::PT_DYNAMIC {
            let dynamic = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
            // SAFETY: `Rendezvous::find` passes the address of a pointer.
            unsafe { *found.cast::<*const [usize; 2]>() = dynamic as *const _ };
        }
    }
    1
}

/// Runs `work` while no library can come or go.
pub(crate) fn with_libraries_held<W: FnMut()>(mut work: W) {
    unsafe extern "C" fn once<W: FnMut()>(_: *mut libc::dl_phdr_info, _: usize, work: *mut c_void) -> i32 {
        // SAFETY: the caller below passes the address of its closure, and waits.
        let work = unsafe { &mut *work.cast::<W>() };
        work();
        1
    }
    // SAFETY: the callback gets the closure it was made for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(once::<W>), ptr::from_mut(&mut work).cast()) };
}
