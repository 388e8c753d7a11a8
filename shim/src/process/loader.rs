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

use crate::process::known::{Appeared, Changes, Extent, KnownLibraries};
use crate::process::link_map::{Entry, LinkMap};

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
// SAFETY: as above.
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
    ///
    /// # Safety
    /// As for [`LoaderDebug::libraries`].
    pub(crate) unsafe fn is_closing(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.records() }.any(|record| record.state == RT_DELETE)
    }

    /// Every library of every namespace, unless the list is being changed.
    ///
    /// # Safety
    /// The loader's lock must be held, or no other thread may run. The entries are good until it is released.
    pub(crate) unsafe fn libraries(self) -> Option<Vec<Entry>> {
        // SAFETY: the caller's promise.
        Some(unsafe { self.appeared() }?.into_iter().map(|appeared| appeared.entry).collect())
    }

    /// The same, with the namespaces.
    ///
    /// # Safety
    /// As for [`LoaderDebug::libraries`].
    pub(crate) unsafe fn appeared(self) -> Option<Vec<Appeared>> {
        // SAFETY: the caller's promise.
        Some(unsafe { self.changes(&mut KnownLibraries::default(), Extent::Whole) }?.appeared)
    }

    /// What has changed since `known`, unless the list is being changed.
    ///
    /// # Safety
    /// As for [`LoaderDebug::libraries`]; and see [`KnownLibraries::read`] for `extent`.
    pub(crate) unsafe fn changes(self, known: &mut KnownLibraries, extent: Extent) -> Option<Changes> {
        // SAFETY: the caller's promise.
        if unsafe { self.records() }.any(|record| record.state != RT_CONSISTENT) {
            return None;
        }
        let mut changes = Changes::default();
        // SAFETY: the caller's promise.
        for record in unsafe { self.records() } {
            // SAFETY: the caller's promise.
            unsafe { known.read(ptr::from_ref(record) as usize, record.map, extent, &mut changes) };
        }
        Some(changes)
    }

    /// The records of all namespaces.
    ///
    /// # Safety
    /// As for [`LoaderDebug::libraries`].
    unsafe fn records(self) -> impl Iterator<Item = &'static RDebug> {
        let mut next = self.0;
        std::iter::from_fn(move || {
            // SAFETY: null, the record, or one it is chained to, which live as long as the process.
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

/// How many libraries were ever loaded, and how many of them unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
}

/// Runs `work` while no library can come or go.
pub(crate) fn with_libraries_held<W: FnMut(Counts)>(mut work: W) {
    unsafe extern "C" fn once<W: FnMut(Counts)>(info: *mut libc::dl_phdr_info, _: usize, work: *mut c_void) -> i32 {
        // SAFETY: the loader hands a valid record.
        let info = unsafe { &*info };
        // SAFETY: the caller below passes the address of its closure, and waits.
        let work = unsafe { &mut *work.cast::<W>() };
        work(Counts { loads: info.dlpi_adds, unloads: info.dlpi_subs });
        1
    }
    // SAFETY: the callback gets the closure it was made for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(once::<W>), ptr::from_mut(&mut work).cast()) };
}
