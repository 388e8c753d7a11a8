//! nongnu libunwind: one list of "dynamic" infos per copy of the library, searched before anything else.
//!
//! ```text
//!   libunwind.so.8            libunwind-7e4e9a3c.so.8 (memray's own)
//!     list -> info -> info      list -> info -> info            one info per leaf in each list,
//!               |       |                 |       |
//!               +-------|-----------------+       |             all pointing to the same tables
//!                       v                         v
//!                     table                     table
//! ```
//!
//! The format is `UNW_INFO_FORMAT_IP_OFFSET` (since 1.2): slots count from the info's `start_ip`, FDEs from its
//! `segbase`. So the code may be anywhere, and only our own copies of the FDEs have to lie within 2 GiB of one another.
//! `DYNAMIC`, which the manual recommends, is not implemented on these machines (libunwind #493).
//!
//! What is *not* done, and why:
//! * `_U_dyn_cancel`: it clears `next` of an info a reader may stand on, and the list ends there for that reader.
//! * Retiring an info by `end_ip = start_ip`: builds with assertions check the range a second time, and abort when it
//!   changed in between. Infos stay as they are; later ones hide earlier ones.
//! * Freeing anything.
//! * Covering the ranges of others: where someone else has registered with the same copy, a new leaf leaves that out.
//!
//! After a removal the copy's `unw_flush_cache` is called: rules are cached by address. Two things stay beyond reach:
//! the per-thread cache behind `unw_backtrace` (`tdep_trace`), which libunwind itself never flushes, and a leak of
//! libunwind's own: it does not give back the 80-odd bytes it takes for each uncached look-up of a registered function
//! (`put_unwind_info`).

mod layout;
mod probe;

pub(crate) use layout::{Info, Layout};

use crate::error::Error;
use crate::loader::{Exports, Pinned};
use crate::table::{LeafId, Publish};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Functions and variables of one copy, by the names this machine gives them.
pub(crate) struct Symbols {
    register: usize,
    proc_info_by_ip: usize,
    address_space: usize,
    flush_cache: usize,
    /// Returns the list's head. Not needed, so it may be missing.
    list: Option<usize>,
}

/// A copy as discovery saw it: addresses only, nothing called yet.
pub(crate) struct Found {
    pub(crate) base: usize,
    pub(crate) name: CString,
    symbols: Result<Symbols, &'static str>,
}

type Register = unsafe extern "C" fn(*const Info);
type ProcInfoByIp = unsafe extern "C" fn(usize, usize, *mut probe::ProcInfo, usize) -> i32;
type ListAddress = unsafe extern "C" fn() -> *const layout::List;
type FlushCache = unsafe extern "C" fn(usize, usize, usize);

/// A copy that passed the probe and stays loaded.
pub(crate) struct Libunwind {
    pub(crate) base: usize,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    register: Register,
    flush: FlushCache,
    address_space: usize,
    list: Option<&'static layout::List>,
    /// By leaf. Leaves that were hidden when the copy was found have none.
    infos: BTreeMap<LeafId, &'static Info>,
    /// The place FDE distances count from; set before the first leaf.
    segment: usize,
}

/// `_U` + machine, or `_UL` + machine for the local-only half of the library: `libunwind-x86_64.h`, `UNW_OBJ`.
macro_rules! name {
    ($prefix:literal, $rest:literal) => {
        if cfg!(target_arch = "aarch64") {
            const NAME: &str = concat!($prefix, "aarch64_", $rest, "\0");
            NAME
        } else {
            const NAME: &str = concat!($prefix, "x86_64_", $rest, "\0");
            NAME
        }
    };
}

impl Found {
    /// `None` for a library that is no libunwind.
    pub(crate) fn look(exports: &Exports, base: usize, name: &std::ffi::CStr) -> Option<Found> {
        let register = exports.find(c"_U_dyn_register")?;
        let find = |name: &'static str| {
            let c_name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
            exports.find(c_name).ok_or(name.trim_end_matches('\0'))
        };
        let symbols = || {
            Ok(Symbols {
                register,
                proc_info_by_ip: find(name!("_UL", "get_proc_info_by_ip"))?,
                address_space: find(name!("_UL", "local_addr_space"))?,
                flush_cache: find(name!("_U", "flush_cache")).or_else(|_| find(name!("_UL", "flush_cache")))?,
                list: exports.find(c"_U_dyn_info_list_addr"),
            })
        };
        Some(Found { base, name: name.to_owned(), symbols: symbols() })
    }

    /// Pins the copy and finds out its layout. Takes the loader's lock; none of ours may be held.
    pub(crate) fn probe(self) -> Result<Libunwind, Error> {
        let library = self.name.to_string_lossy().into_owned();
        let symbols = self.symbols.map_err(|missing| Error::LibunwindSymbols { library: library.clone(), missing })?;
        Pinned::pin(&self.name, self.base).ok_or_else(|| Error::NotPinned { library: library.clone() })?;
        // SAFETY: these are functions of the library, relocated (discovery and the pin saw to it), with the signatures
        // that `libunwind-dynamic.h` and `libunwind-common.h` have declared since 1.0.
        let register = unsafe { std::mem::transmute::<usize, Register>(symbols.register) };
        // SAFETY: a function of the pinned library with the signature that `libunwind-dynamic.h` declares.
        let proc_info = unsafe { std::mem::transmute::<usize, ProcInfoByIp>(symbols.proc_info_by_ip) };
        // SAFETY: a function of the pinned library with the signature that `libunwind-common.h` declares.
        let flush = unsafe { std::mem::transmute::<usize, FlushCache>(symbols.flush_cache) };
        // SAFETY: `unw_local_addr_space` is a variable that holds a pointer, initialised statically.
        let address_space = unsafe { (symbols.address_space as *const usize).read() };
        let list = symbols.list.and_then(|function| {
            // SAFETY: `unw_word_t _U_dyn_info_list_addr (void)` returns the address of a static variable.
            unsafe { std::mem::transmute::<usize, ListAddress>(function)().as_ref() }
        });
        let layout = probe::layout(register, proc_info, address_space);
        let layout = layout.map_err(|status| Error::LibunwindLayout { library: library.clone(), status })?;
        let (infos, segment) = (BTreeMap::new(), 0);
        let base = self.base;
        Ok(Libunwind { base, name: library, layout, register, flush, address_space, list, infos, segment })
    }
}

impl Libunwind {
    /// Sets where FDE distances count from: the arena. Before the first leaf.
    pub(crate) fn set_segment(&mut self, segment: usize) {
        self.segment = segment;
    }

    /// Makes the copy forget the rules it has cached by address.
    pub(crate) fn flush_cache(&self) {
        // SAFETY: the function takes an address space of its own library and ignores the range (`flush_cache.c`).
        unsafe { (self.flush)(self.address_space, 0, 0) };
    }
}

impl Publish for Libunwind {
    fn leaf(&mut self, id: LeafId, range: &Range<u64>, cells: &'static [AtomicU64]) {
        let info = Info::table(self.layout, range, self.segment, cells);
        // SAFETY: the info has the layout this copy was found to have, its table and segment stay mapped for good.
        unsafe { (self.register)(info) };
        self.infos.insert(id, info);
    }

    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]) {
        if let Some(info) = self.infos.get(&id) {
            info.set_table(self.layout, cells);
        }
    }

    /// Leaves out what others have registered with this copy (Julia does): a lookup that ends in our table is not
    /// continued in theirs. What they register later goes before ours in the list, and is found first.
    fn clip(&self, range: Range<u64>, address: u64) -> Range<u64> {
        let mut clipped = range;
        for other in self.list.into_iter().flat_map(layout::List::ranges) {
            if other.end <= address {
                clipped.start = clipped.start.max(other.end);
            } else if other.start > address {
                clipped.end = clipped.end.min(other.start);
            }
        }
        clipped
    }
}
