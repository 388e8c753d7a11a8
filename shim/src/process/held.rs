//! Evidence that libraries are mapped, as types: what is read of a library borrows from it.
//!
//! | type | says | who makes it |
//! | --- | --- | --- |
//! | [`Held`] | no library comes or goes: the loader's lists may be read | [`with_libraries_held`], `loader_event` |
//! | [`Mapped`] | the remembered libraries, or one of them, stay mapped; others may come and go | see its functions |
//! | [`Library`](super::library::Library) | this library stays mapped | an entry of the loader's lists, or `Mapped` |

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// What distinguishes one mapping of a library from every other: a library that was closed and opened again is another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `l_addr`: what is added to addresses in the file.
    pub(crate) bias: usize,
    /// `l_ld`: where the dynamic section is mapped.
    pub(crate) dynamic: usize,
}

/// Evidence that during `'l` no library comes or goes.
#[derive(Clone, Copy)]
pub(crate) struct Held<'l>(PhantomData<&'l ()>);

impl Held<'_> {
    /// # Safety
    /// During `'l`, the loader must not change its lists: this thread has the loader's lock, and does not make the
    /// loader change them.
    pub(crate) unsafe fn new() -> Self {
        Held(PhantomData)
    }
}

/// Evidence that during `'l` these libraries are mapped: all that the shim remembers, or one of them.
///
/// It does not say that no library comes: the loader's lists may change.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'l> {
    only: Option<Identity>,
    mapped: PhantomData<&'l ()>,
}

impl Mapped<'_> {
    /// # Safety
    /// Each library that was closed must have been forgotten (`State::libraries`), and none may be unmapped during
    /// `'l`.
    pub(crate) unsafe fn all() -> Self {
        Mapped { only: None, mapped: PhantomData }
    }

    /// # Safety
    /// This library must stay mapped during `'l`: its code is running, or it is held.
    pub(crate) unsafe fn one(library: Identity) -> Self {
        Mapped { only: Some(library), mapped: PhantomData }
    }

    /// Whether `library`, which is remembered, is mapped.
    pub(crate) fn covers(self, library: Identity) -> bool {
        self.only.is_none_or(|only| only == library)
    }
}

/// How many libraries were ever loaded, and how many of them unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
}

/// Runs `work` while no library can come or go.
pub(crate) fn with_libraries_held<W: FnMut(Held<'_>, Counts)>(mut work: W) {
    unsafe extern "C" fn once<W>(info: *mut libc::dl_phdr_info, _: usize, work: *mut c_void) -> i32
    where
        W: FnMut(Held<'_>, Counts),
    {
        // SAFETY: the loader hands a valid record; the caller below passes the address of its closure, and waits. The
        // loader has its lock until this returns.
        let (info, work, held) = unsafe { (&*info, &mut *work.cast::<W>(), Held::new()) };
        work(held, Counts { loads: info.dlpi_adds, unloads: info.dlpi_subs });
        1
    }
    // SAFETY: the callback gets the closure it was made for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(once::<W>), ptr::from_mut(&mut work).cast()) };
}
