//! `_r_debug` of `<link.h>`, the protocol between the dynamic loader and debuggers.
//!
//! ```text
//!   r_map    the link map: one entry per library, in a list
//!   r_brk    an empty function, called when the list has changed
//!   r_state  RT_CONSISTENT when it may be read, RT_ADD or RT_DELETE while it changes
//! ```
//!
//! The loader calls `r_brk` under its lock, before the constructors of a new library and, before glibc 2.41, before the
//! library is relocated: its relocation slots must not be touched then.

use std::ffi::c_void;
use std::ptr;

use jitlisten::plumbing::DynamicSection;

use crate::process::held::Held;
use crate::process::known::{Appeared, Changes, Extent, KnownLibraries, LinkMap};

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
const RT_DELETE: i32 = 2;

const _: () = assert!(std::mem::offset_of!(RDebug, brk) == 16 && std::mem::offset_of!(RDebug, next) == 40);

/// The loader's record for debuggers.
#[derive(Clone, Copy)]
pub(crate) struct LoaderDebug(*const RDebug);

// SAFETY: the record lives as long as the process; it is read under the loader's lock.
unsafe impl Send for LoaderDebug {}
// SAFETY: the record lives as long as the process; it is read under the loader's lock.
unsafe impl Sync for LoaderDebug {}

impl LoaderDebug {
    /// Finds the record through `DT_DEBUG` of the program; a static program has none.
    pub(crate) fn find() -> Option<LoaderDebug> {
        let mut found = 0_usize;
        // SAFETY: the callback gets the address of `found`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(first_program_header), ptr::from_mut(&mut found).cast()) };
        (found != 0).then(|| LoaderDebug(kept_up(found as *const RDebug)))
    }

    /// The empty function the loader calls.
    pub(crate) fn function(self) -> usize {
        // SAFETY: the record lives as long as the process.
        unsafe { (*self.0).brk }
    }

    /// Whether a list is being changed, and libraries taken out of it.
    pub(crate) fn is_closing(self, held: Held<'_>) -> bool {
        self.records(held).any(|record| record.state == RT_DELETE)
    }

    /// Every library of every namespace, unless the list is being changed.
    pub(crate) fn libraries(self, held: Held<'_>) -> Vec<Appeared<'_>> {
        // SAFETY: the whole list is read.
        let changes = unsafe { self.changes(held, &mut KnownLibraries::default(), Extent::Whole) };
        changes.unwrap_or_default().appeared
    }

    /// What has changed since `known`, unless the list is being changed.
    ///
    /// # Safety
    /// With [`Extent::New`], no library must have been closed since the last call for `known`.
    pub(crate) unsafe fn changes<'l>(
        self,
        held: Held<'l>,
        known: &mut KnownLibraries,
        extent: Extent,
    ) -> Option<Changes<'l>> {
        if self.records(held).any(|record| record.state != RT_CONSISTENT) {
            return None;
        }
        let mut changes = Changes::default();
        for record in self.records(held) {
            // SAFETY: the loader's record of a namespace; the caller vouches for the extent.
            unsafe { known.read(held, ptr::from_ref(record) as usize, record.map, extent, &mut changes) };
        }
        Some(changes)
    }

    /// The records of all namespaces.
    fn records(self, _: Held<'_>) -> impl Iterator<Item = &'static RDebug> {
        let mut next = self.0;
        std::iter::from_fn(move || {
            // SAFETY: null, the record, or one it is chained to, which live as long as the process, and do not change
            // as long as the libraries are held.
            let record = unsafe { next.as_ref() }?;
            next = if record.version >= 2 { record.next } else { ptr::null() };
            Some(record)
        })
    }
}

/// The record itself, or the copy that a program has that names `_r_debug` (a copy relocation): before glibc 2.35 the
/// loader goes on with the copy, and the record says for ever that libraries are being added.
fn kept_up(record: *const RDebug) -> *const RDebug {
    // SAFETY: a name.
    let copy = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) }.cast::<RDebug>().cast_const();
    if copy.is_null() || copy == record {
        return record;
    }
    // SAFETY: both are the loader's, and live as long as the process.
    let (first, second) = unsafe { (&*record, &*copy) };
    let is_kept_up = first.state != RT_CONSISTENT && second.state == RT_CONSISTENT && first.brk == second.brk;
    if is_kept_up { copy } else { record }
}

/// `dl_iterate_phdr` reports the program first: finds its `DT_DEBUG`, and stops.
unsafe extern "C" fn first_program_header(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> i32 {
    // SAFETY: the loader hands a valid record.
    let info = unsafe { &*info };
    for index in 0..info.dlpi_phnum {
        // SAFETY: the loader says how many headers there are.
        let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
        if header.p_type == libc::PT_DYNAMIC {
            let (bias, at) = (info.dlpi_addr as usize, info.dlpi_addr.wrapping_add(header.p_vaddr) as usize);
            // SAFETY: the program is mapped, and stays so.
            let section = unsafe { DynamicSection::read(bias, at) };
            // SAFETY: `LoaderDebug::find` passes the address of a number.
            unsafe { *found.cast::<usize>() = section.debug };
        }
    }
    1
}
