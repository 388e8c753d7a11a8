//! Types that prove that libraries are mapped. Data read from a library borrows from such a proof.
//!
//! | type | guarantee | created by |
//! | --- | --- | --- |
//! | [`Held`] | no library comes or goes: the loader's lists may be read | [`with_libraries_held`], `loader_event` |
//! | [`Mapped`] | the known libraries, or one of them, stay mapped; others may come and go | see its functions |
//! | [`Library`](super::library::Library) | this library stays mapped | an entry of the loader's lists, or `Mapped` |

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// Identity of one mapping of a library. If a library is closed and opened again, it gets a new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `l_addr`: load bias, added to addresses in the file.
    pub(crate) bias: usize,
    /// `l_ld`: address of the mapped dynamic section.
    pub(crate) dynamic: usize,
}

/// Proof that no library is loaded or unloaded for `'l`.
#[derive(Clone, Copy)]
pub(crate) struct Held<'l>(PhantomData<&'l ()>);

impl Held<'_> {
    /// Asserts that the loader's lists are stable.
    ///
    /// # Safety
    /// The loader must not change its lists for `'l`. This holds if this thread owns the loader's lock and does nothing
    /// that makes the loader change its lists.
    pub(crate) unsafe fn new() -> Self {
        Held(PhantomData)
    }
}

/// Proof that all known libraries, or a single one, stay mapped for `'l`.
///
/// Other libraries may be loaded meanwhile, so the loader's lists may change.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'l> {
    /// The only library that the proof covers; `None` if it covers all known libraries.
    only: Option<Identity>,
    mapped: PhantomData<&'l ()>,
}

impl Mapped<'_> {
    /// Asserts that all known libraries are mapped.
    ///
    /// # Safety
    /// Every closed library must have been removed from `State::libraries`, and no known library may be unmapped for
    /// `'l`.
    pub(crate) unsafe fn all() -> Self {
        Mapped { only: None, mapped: PhantomData }
    }

    /// Asserts that one library is mapped.
    ///
    /// # Safety
    /// This library must stay mapped for `'l`, either because its code is running or because another proof covers it.
    pub(crate) unsafe fn single(library: Identity) -> Self {
        Mapped { only: Some(library), mapped: PhantomData }
    }

    /// Returns true if this proof covers `library`, which must be a known library.
    pub(crate) fn covers(self, library: Identity) -> bool {
        self.only.is_none_or(|only| only == library)
    }
}

/// The loader's counts of libraries loaded and unloaded since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
}

/// Runs `work` under the lock of `dl_iterate_phdr`, so that no library can be loaded or unloaded meanwhile. `work` must
/// not call `dlopen`, `dlsym` or `dladdr`: a thread in `dlopen` holds the lock of these functions, and waits for this
/// one.
pub(crate) fn with_libraries_held<W: FnMut(Held<'_>, Counts)>(mut work: W) {
    unsafe extern "C" fn callback<W>(info: *mut libc::dl_phdr_info, _: usize, work: *mut c_void) -> i32
    where
        W: FnMut(Held<'_>, Counts),
    {
        // SAFETY: the loader passes a valid record. `work` is the address of the closure in `with_libraries_held`
        // below, which waits for this call. The loader holds its lock until this function returns.
        let (info, work, held) = unsafe { (&*info, &mut *work.cast::<W>(), Held::new()) };
        work(held, Counts { loads: info.dlpi_adds, unloads: info.dlpi_subs });
        1
    }
    // SAFETY: the callback receives the closure for which it was instantiated, and the closure outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback::<W>), ptr::from_mut(&mut work).cast()) };
}
