//! `_r_debug` of `<link.h>`, the interface between the dynamic loader and debuggers.
//!
//! ```text
//!   r_map    the link map: one list entry per library
//!   r_brk    an empty function, called before and after each change of the list
//!   r_state  RT_CONSISTENT while the list may be read, RT_ADD or RT_DELETE while it changes
//! ```
//!
//! The loader calls `r_brk` under its lock, before the constructors of a new library run. Before glibc 2.41, it does so
//! even before the library is relocated, so the library's relocation slots must not be changed at that time.

use std::ffi::c_void;
use std::ptr;

use jitlisten::plumbing::DynamicSection;

use crate::process::known::{Changes, KnownLibraries, LinkMap, NewLibrary};
use crate::process::mapped_proof::Held;

/// `struct r_debug` of `<link.h>`. `next` exists from version 2 on (glibc 2.35).
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
const RT_DELETE: i32 = 2;

const _: () = assert!(std::mem::offset_of!(RDebug, brk) == 16 && std::mem::offset_of!(RDebug, next) == 40);

#[derive(Clone, Copy)]
pub(crate) struct LoaderDebug(*const RDebug);

// SAFETY: the record lives as long as the process and is read only under the loader's lock.
unsafe impl Send for LoaderDebug {}
// SAFETY: the record lives as long as the process and is read only under the loader's lock.
unsafe impl Sync for LoaderDebug {}

impl LoaderDebug {
    /// Finds the record through the program's `DT_DEBUG` entry. A static program has none.
    ///
    /// Must not be called while the libraries are held: this calls `dlsym`, which waits for the lock of a thread in
    /// `dlopen`, and that thread then waits for the lock that holds the libraries.
    pub(crate) fn find() -> Option<LoaderDebug> {
        let mut record = 0_usize;
        // SAFETY: the callback receives the address of `record`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(read_debug_entry), ptr::from_mut(&mut record).cast()) };
        (record != 0).then(|| LoaderDebug(maintained_record(record as *const RDebug)))
    }

    /// Address of `r_brk`, the empty function that the loader calls.
    pub(crate) fn function(self) -> usize {
        // SAFETY: the record lives as long as the process.
        unsafe { (*self.0).brk }
    }

    /// Returns true while the loader is removing libraries from one of its lists.
    pub(crate) fn is_closing(self, held: Held<'_>) -> bool {
        self.records(held).any(|record| record.state == RT_DELETE)
    }

    /// All libraries of all namespaces; empty while the loader is changing a list.
    pub(crate) fn libraries(self, held: Held<'_>) -> Vec<NewLibrary<'_>> {
        self.changes(held, &mut KnownLibraries::default()).unwrap_or_default().opened
    }

    /// Changes since `known` was last updated; `None` while the loader is changing a list.
    pub(crate) fn changes<'l>(self, held: Held<'l>, known: &mut KnownLibraries) -> Option<Changes<'l>> {
        if self.records(held).any(|record| record.state != RT_CONSISTENT) {
            return None;
        }
        let mut changes = Changes::default();
        for record in self.records(held) {
            // SAFETY: `record` is a namespace's record, which belongs to the loader.
            unsafe { known.read(held, ptr::from_ref(record) as usize, record.map, &mut changes) };
        }
        Some(changes)
    }

    fn records(self, _: Held<'_>) -> impl Iterator<Item = &'static RDebug> {
        let mut next = self.0;
        std::iter::from_fn(move || {
            // SAFETY: `next` is null, or a record in the loader's chain. Records live as long as the process, and do
            // not change while the libraries are held.
            let record = unsafe { next.as_ref() }?;
            next = if record.version >= 2 { record.next } else { ptr::null() };
            Some(record)
        })
    }
}

/// Selects the record that the loader keeps up to date. If a program references `_r_debug`, it contains a copy of the
/// record (copy relocation). Before glibc 2.35, the loader updates only that copy, and the original stays in state
/// `RT_ADD`.
fn maintained_record(record: *const RDebug) -> *const RDebug {
    // SAFETY: the name is null-terminated.
    let copy = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) }.cast::<RDebug>().cast_const();
    if copy.is_null() || copy == record {
        return record;
    }
    // SAFETY: both records belong to the loader and live as long as the process.
    let (original, copied) = unsafe { (&*record, &*copy) };
    let copy_is_maintained =
        original.state != RT_CONSISTENT && copied.state == RT_CONSISTENT && original.brk == copied.brk;
    if copy_is_maintained { copy } else { record }
}

/// Callback of `dl_iterate_phdr`, which reports the program first. Stores the program's `DT_DEBUG` in `*record` and
/// ends the iteration.
unsafe extern "C" fn read_debug_entry(info: *mut libc::dl_phdr_info, _size: usize, record: *mut c_void) -> i32 {
    // SAFETY: the loader passes a valid record.
    let info = unsafe { &*info };
    for index in 0..info.dlpi_phnum {
        // SAFETY: `index` is less than the number of headers that the loader reports.
        let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
        if header.p_type == libc::PT_DYNAMIC {
            let (bias, dynamic) = (info.dlpi_addr as usize, info.dlpi_addr.wrapping_add(header.p_vaddr) as usize);
            // SAFETY: the program is mapped and never unmapped.
            let section = unsafe { DynamicSection::read(bias, dynamic) };
            // SAFETY: `LoaderDebug::find` passes the address of a `usize`.
            unsafe { *record.cast::<usize>() = section.debug };
        }
    }
    1
}
