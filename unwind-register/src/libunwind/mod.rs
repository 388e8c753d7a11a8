//! nongnu libunwind: each copy of the library has one list of "dynamic" infos, which it searches before anything else.
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
//! The format is `UNW_INFO_FORMAT_IP_OFFSET` (since 1.2): function starts are relative to the info's `start_ip`, FDEs
//! to its `segbase`. The code may therefore be anywhere; only our own copies of the FDEs must lie within 2 GiB of one
//! another. `DYNAMIC`, which the manual recommends, is not implemented on these architectures (libunwind #493).
//!
//! We deliberately avoid:
//! * `_U_dyn_cancel`: it clears `next` of an info that a concurrent reader may be visiting, and the list ends there for
//!   that reader.
//! * Emptying an info by `end_ip = start_ip`: builds with assertions check the range twice, and abort if it changed in
//!   between. Infos stay unchanged; later ones hide earlier ones.
//! * Freeing anything.
//! * Covering foreign ranges: a new leaf leaves out the ranges that other code has registered with the same copy.
//!
//! Rules are cached by address, so after a removal we call the copy's `unw_flush_cache`. Two problems remain in
//! libunwind itself. It never flushes the per-thread cache of `unw_backtrace` (`tdep_trace`). And it leaks about 80
//! bytes for each uncached lookup of a registered function (`put_unwind_info`).

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

/// Addresses of the functions and variables of one copy. Symbol names depend on the architecture.
pub(crate) struct Symbols {
    register: usize,
    proc_info_by_ip: usize,
    address_space: usize,
    flush_cache: usize,
    /// Function that returns the head of the list; optional.
    list: Option<usize>,
}

/// A copy found by discovery. None of its functions has been called yet.
pub(crate) struct Candidate {
    pub(crate) base: usize,
    pub(crate) name: CString,
    symbols: Result<Symbols, &'static str>,
}

type RegisterFn = unsafe extern "C" fn(*const Info);
type ProcInfoByIpFn = unsafe extern "C" fn(usize, usize, *mut probe::ProcInfo, usize) -> i32;
type ListAddressFn = unsafe extern "C" fn() -> *const layout::List;
type FlushCacheFn = unsafe extern "C" fn(usize, usize, usize);

/// A copy that passed the probe and is pinned.
pub(crate) struct Libunwind {
    pub(crate) base: usize,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    register: RegisterFn,
    flush: FlushCacheFn,
    address_space: usize,
    list: Option<&'static layout::List>,
    /// Infos by leaf. A leaf that was already hidden when the copy was found has no info.
    infos: BTreeMap<LeafId, &'static Info>,
    /// Base address of FDE offsets; set before the first leaf.
    segment: usize,
}

/// Expands to a symbol name: `_U` or, for local unwinding only, `_UL`, then the architecture (`UNW_OBJ` in
/// `libunwind-x86_64.h`).
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

impl Candidate {
    /// Finds the functions of a nongnu libunwind; returns `None` for other libraries.
    pub(crate) fn from_exports(exports: &Exports, base: usize, name: &std::ffi::CStr) -> Option<Candidate> {
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
        Some(Candidate { base, name: name.to_owned(), symbols: symbols() })
    }

    /// Pins the copy and detects its layout. Takes the loader's lock, so the caller must not hold ours.
    pub(crate) fn probe(self) -> Result<Libunwind, Error> {
        let library = self.name.to_string_lossy().into_owned();
        let symbols = self.symbols.map_err(|missing| Error::LibunwindSymbols { library: library.clone(), missing })?;
        Pinned::pin(&self.name, self.base).ok_or_else(|| Error::NotPinned { library: library.clone() })?;
        // SAFETY: the library is pinned, and discovery found it to be relocated. The function has had the signature in
        // `libunwind-dynamic.h` since 1.0.
        let register = unsafe { std::mem::transmute::<usize, RegisterFn>(symbols.register) };
        // SAFETY: the library is pinned, and the function has had the signature in `libunwind-common.h` since 1.0.
        let proc_info = unsafe { std::mem::transmute::<usize, ProcInfoByIpFn>(symbols.proc_info_by_ip) };
        // SAFETY: the library is pinned, and the function has had the signature in `libunwind-common.h` since 1.0.
        let flush = unsafe { std::mem::transmute::<usize, FlushCacheFn>(symbols.flush_cache) };
        // SAFETY: `unw_local_addr_space` is a statically initialised variable that holds a pointer.
        let address_space = unsafe { (symbols.address_space as *const usize).read() };
        let list = symbols.list.and_then(|function| {
            // SAFETY: `unw_word_t _U_dyn_info_list_addr (void)` returns the address of a static variable.
            unsafe { std::mem::transmute::<usize, ListAddressFn>(function)().as_ref() }
        });
        let layout = probe::layout(register, proc_info, address_space);
        let layout = layout.map_err(|status| Error::LibunwindLayout { library: library.clone(), status })?;
        let (infos, segment) = (BTreeMap::new(), 0);
        let base = self.base;
        Ok(Libunwind { base, name: library, layout, register, flush, address_space, list, infos, segment })
    }
}

impl Libunwind {
    /// Sets the base address of FDE offsets, which is the start of the region. Must be called before the first leaf is
    /// added.
    pub(crate) fn set_segment(&mut self, segment: usize) {
        self.segment = segment;
    }

    /// Discards the rules that this copy has cached.
    pub(crate) fn flush_cache(&self) {
        // SAFETY: the function takes an address space of its own library and ignores the range (`flush_cache.c`).
        unsafe { (self.flush)(self.address_space, 0, 0) };
    }
}

impl Publish for Libunwind {
    fn leaf(&mut self, id: LeafId, range: &Range<u64>, cells: &'static [AtomicU64]) {
        let info = Info::for_leaf(self.layout, range, self.segment, cells);
        // SAFETY: the info has the layout detected for this copy; its table and segment are never unmapped.
        unsafe { (self.register)(info) };
        self.infos.insert(id, info);
    }

    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]) {
        if let Some(info) = self.infos.get(&id) {
            info.set_table(self.layout, cells);
        }
    }

    /// Excludes ranges that other code, such as Julia, has registered with this copy: a lookup that ends in our table
    /// does not continue in another. Infos that are registered later precede ours in the list, so they are found first.
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
