//! `unw_dyn_info_t`, a struct with two layouts under one SONAME.
//!
//! ```text
//!   byte   v1.0 .. v1.5, and again from 1.9 on     v1.6 .. v1.8.3
//!      0   next                                    next
//!      8   prev                                    prev
//!     16   start_ip                                start_ip
//!     24   end_ip                                  end_ip
//!     32   gp                                      gp
//!     40   i32 format, i32 pad                     i32 format, i32 pad
//!     48   rti.name_ptr                            load_offset
//!     56   rti.segbase     (pi.handler)            rti.name_ptr
//!     64   rti.table_len   (pi.flags)              rti.segbase     (pi.handler)
//!     72   rti.table_data                          rti.table_len
//!     80                                           rti.table_data
//! ```
//! Source: `include/libunwind-dynamic.h`. Commit a4014f33 (2020-09) added `load_offset`, 62dfb323 (2025-06) removed it.
//! `table_len` counts 8-byte words; a table entry is one word.

use crate::table::SLOTS;
use std::ops::Range;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

/// Layout of `unw_dyn_info_t` in a copy of libunwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Layout without `load_offset`: up to 1.5, and 1.9 or later.
    Plain,
    /// Layout with `load_offset`: 1.6 to 1.8.3.
    LoadOffset,
}

impl Layout {
    /// Returns the word index of the union `u`.
    const fn union(self) -> usize {
        match self {
            Layout::Plain => 6,
            Layout::LoadOffset => 7,
        }
    }
}

const START_IP: usize = 2;
const END_IP: usize = 3;
const FORMAT: usize = 5;
const UNW_INFO_FORMAT_DYNAMIC: u64 = 0;
const UNW_INFO_FORMAT_IP_OFFSET: u64 = 4;

/// `unw_dyn_info_list_t`, identical in both layouts.
#[repr(C)]
pub(super) struct List {
    version: u32,
    generation: AtomicU32,
    first: AtomicPtr<Info>,
}

impl List {
    /// Iterates over the ranges of all infos, including foreign ones, without a lock, as libunwind does.
    ///
    /// Our own infos never overlap a new leaf, and those of the probe are empty. If the owner of an info frees it
    /// during a walk, libunwind crashes, with or without this crate.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next_address = self.first.load(Acquire) as u64;
        std::iter::from_fn(move || {
            // Read only the first four words: a foreign info may be shorter than ours.
            let words = std::ptr::NonNull::new(next_address as usize as *mut [AtomicU64; 4])?;
            // SAFETY: list entries are aligned `unw_dyn_info_t` structures that their owners keep alive.
            let [following_address, _, start, end] = unsafe { words.as_ref() };
            next_address = following_address.load(Acquire);
            Some(start.load(Relaxed)..end.load(Relaxed))
        })
    }
}

/// An info as an array of words. It is large enough for both layouts, never freed, and initialised before registration.
/// From then on, only the library writes `next` and `prev`, and only we write `table_data`.
#[repr(C, align(64))]
pub(crate) struct Info {
    words: [AtomicU64; 16],
}

// `u.rti` must fit in the larger layout.
const _: () = assert!(size_of::<Info>() >= (Layout::LoadOffset.union() + 4) * 8 && size_of::<Info>() == 128);

impl Info {
    /// Allocates an info that is never freed. `words` lists the index and value of each word to set.
    fn new_leaked(words: &[(usize, u64)]) -> &'static Info {
        let info = Box::leak(Box::new(Info { words: [const { AtomicU64::new(0) }; 16] }));
        for &(index, word) in words {
            info.words[index].store(word, Relaxed);
        }
        // `_U_dyn_register` links the info with plain stores. On aarch64 only this fence orders our stores before them.
        fence(std::sync::atomic::Ordering::SeqCst);
        info
    }

    pub(super) fn for_leaf(
        layout: Layout,
        range: &Range<u64>,
        segment: usize,
        cells: &'static [AtomicU64],
    ) -> &'static Info {
        Info::for_table(layout, range, segment, cells.as_ptr() as usize, SLOTS)
    }

    /// Creates an info for a table with `length` entries at address `table`.
    pub(super) fn for_table(
        layout: Layout,
        range: &Range<u64>,
        segment: usize,
        table: usize,
        length: usize,
    ) -> &'static Info {
        let rti = layout.union();
        Info::new_leaked(&[
            (START_IP, range.start),
            (END_IP, range.end),
            (FORMAT, UNW_INFO_FORMAT_IP_OFFSET),
            (rti + 1, segment as u64),
            (rti + 2, length as u64),
            (rti + 3, table as u64),
        ])
    }

    /// Creates an info that is safe to register with either layout (see the probe). It covers its own first bytes,
    /// which contain no code.
    pub(super) fn harmless(plain: u64, load_offset: u64) -> &'static Info {
        let info = Info::new_leaked(&[
            (FORMAT, UNW_INFO_FORMAT_DYNAMIC),
            (Layout::Plain.union() + 1, plain),
            (Layout::LoadOffset.union() + 1, load_offset),
        ]);
        info.words[START_IP].store(info.address(), Relaxed);
        info.words[END_IP].store(info.address() + 8, Relaxed);
        info
    }

    pub(super) fn address(&self) -> u64 {
        self as *const Info as u64
    }

    /// Makes the range of a probe's info empty. Other infos must not be retired: the `libunwind` module explains why.
    pub(super) fn retire(&self) {
        self.words[END_IP].store(self.words[START_IP].load(Relaxed), Release);
    }

    /// Replaces the table with one atomic store.
    pub(super) fn set_table(&self, layout: Layout, cells: &'static [AtomicU64]) {
        self.words[layout.union() + 3].store(cells.as_ptr() as u64, Release);
    }
}
