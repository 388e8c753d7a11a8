//! `unw_dyn_info_t`, which has two layouts under one SONAME.
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
//! Source: `include/libunwind-dynamic.h`; `load_offset` came with commit a4014f33 (2020-09) and went with 62dfb323
//! (2025-06). `table_len` counts 8-byte words, which is what one table entry is.

use crate::table::SLOTS;
use std::ops::Range;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

/// Which of the two layouts a copy was compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Up to 1.5 and from 1.9 on.
    Plain,
    /// 1.6 to 1.8.3.
    LoadOffset,
}

impl Layout {
    /// The index of the word where the union `u` starts.
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

/// `unw_dyn_info_list_t`: the same in both layouts.
#[repr(C)]
pub(super) struct List {
    version: u32,
    generation: AtomicU32,
    first: AtomicPtr<Info>,
}

impl List {
    /// The ranges of all infos, also those of others, as libunwind itself walks them: without a lock.
    ///
    /// Our own infos never overlap a leaf that is to be made, and those of the probe are empty. An owner that frees an
    /// info while stacks are walked is lost with or without us.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next = self.first.load(Acquire) as u64;
        std::iter::from_fn(move || {
            // Only the first four words are read: a foreign info may be shorter than ours.
            let words = std::ptr::NonNull::new(next as usize as *mut [AtomicU64; 4])?;
            // SAFETY: what is in the list is a `unw_dyn_info_t`, kept alive by its owner; the words are aligned.
            let [following, _, start, end] = unsafe { words.as_ref() };
            next = following.load(Acquire);
            Some(start.load(Relaxed)..end.load(Relaxed))
        })
    }
}

/// An info in words. Large enough for both layouts, never freed, written by us before it is registered; afterwards only
/// the library writes `next` and `prev`, and we `table_data`.
#[repr(C, align(64))]
pub(crate) struct Info {
    words: [AtomicU64; 16],
}

// `u.rti` of the larger layout has to fit.
const _: () = assert!(size_of::<Info>() >= (Layout::LoadOffset.union() + 4) * 8 && size_of::<Info>() == 128);

impl Info {
    fn leaked(words: &[(usize, u64)]) -> &'static Info {
        let info = Box::leak(Box::new(Info { words: [const { AtomicU64::new(0) }; 16] }));
        for &(index, word) in words {
            info.words[index].store(word, Relaxed);
        }
        // `_U_dyn_register` links the info with plain stores: on aarch64 nothing else orders them behind ours.
        fence(std::sync::atomic::Ordering::SeqCst);
        info
    }

    /// The info of a leaf.
    pub(super) fn table(
        layout: Layout,
        range: &Range<u64>,
        segment: usize,
        cells: &'static [AtomicU64],
    ) -> &'static Info {
        Info::search(layout, range, segment, cells.as_ptr() as usize, SLOTS)
    }

    /// The info of a table with `length` entries at `table`.
    pub(super) fn search(
        layout: Layout,
        range: &Range<u64>,
        segment: usize,
        table: usize,
        length: usize,
    ) -> &'static Info {
        let rti = layout.union();
        Info::leaked(&[
            (START_IP, range.start),
            (END_IP, range.end),
            (FORMAT, UNW_INFO_FORMAT_IP_OFFSET),
            (rti + 1, segment as u64),
            (rti + 2, length as u64),
            (rti + 3, table as u64),
        ])
    }

    /// An info that is safe to register whatever the layout is: see the probe. Covers its own first bytes, where no
    /// code is.
    pub(super) fn harmless(plain: u64, load_offset: u64) -> &'static Info {
        let info = Info::leaked(&[
            (FORMAT, UNW_INFO_FORMAT_DYNAMIC),
            (Layout::Plain.union() + 1, plain),
            (Layout::LoadOffset.union() + 1, load_offset),
        ]);
        info.words[START_IP].store(info.address(), Relaxed);
        info.words[END_IP].store(info.address() + 8, Relaxed);
        info
    }

    /// Its own address.
    pub(super) fn address(&self) -> u64 {
        self as *const Info as u64
    }

    /// Makes the range empty. Only for infos of the probe: see the module above.
    pub(super) fn retire(&self) {
        self.words[END_IP].store(self.words[START_IP].load(Relaxed), Release);
    }

    /// Replaces the table, in one store.
    pub(super) fn set_table(&self, layout: Layout, cells: &'static [AtomicU64]) {
        self.words[layout.union() + 3].store(cells.as_ptr() as u64, Release);
    }
}
