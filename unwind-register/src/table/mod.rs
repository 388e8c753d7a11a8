//! The tables unwinders search: sorted, few, and changed under their eyes.
//!
//! What libunwind does with them (`Gfind_dynamic_proc_info.c`, `Gfind_proc_info-lsb.c`; the same from 1.2 to 1.9): it
//! walks a list of infos *without a lock*, takes the **first** whose range has the address, searches that info's table
//! for the last entry whose start is not above the address, and reads the FDE the entry points to. If that finds
//! nothing, it does not try the next info. So ranges must not overlap, and "small tables first, merged later" is not
//! possible: new code may lie between old code. Instead the address space is cut into [`Leaf`]s:
//!
//! ```text
//!   64 MiB window                                           window
//!  +--------------------------+-------------------+        +-----------------------------+
//!  | leaf                     | leaf (split off)  |        | leaf                        |
//!  +--------------------------+-------------------+        +-----------------------------+
//!     | one info, never changed but for one word
//!     v
//!   +---------------------------------------------------------------------+
//!   | 0 0 0 0 ... 0 0 |alpha| gap gap |beta|gamma| gap gap gap gap |delta| gap |   16384 slots, 8 bytes each
//!   +---------------------------------------------------------------------+
//!       { i32 start, relative to the leaf ; i32 place of the FDE, relative to the arena; 0 = "no rules here" }
//! ```
//!
//! # Why readers need no lock
//!
//! Every function has exactly one slot, and behind it is a slot that says where the function ends ("gap"), unless the
//! next function starts right there. Spare slots are gaps too. Three changes are made to what readers see, each one
//! aligned store:
//!
//! 1. *A gap slot changes* (a function is added, spare slots move). All gap slots between functions `a` and `b` hold a
//!    start from `a.end..=b.start`, before and after. A search for an address inside a function compares it only
//!    against values that keep their side of it, so the search ends in the same slot. Only a search for an address in
//!    the gap can end in a changing slot, and nothing runs there yet.
//! 2. *A function's slot becomes a gap* (it is removed): a search for it finds "no rules" from then on.
//! 3. *The whole table is replaced* (no spare slot where one is needed): the new one says the same as the old, and the
//!    info's pointer to it is one word.
//!
//! A leaf that has become too large is hidden by two new ones, whose infos go to the head of the list. Its own table is
//! left as it is: a search that has passed the head before will still come to it. (Leaving the upper half's functions
//! out of the old table right away was a mistake that the test `readers_never_miss_what_is_alive` caught.)
//!
//! # What a slow reader may hold
//!
//! A replaced table is used again for other functions after [`QUARANTINE`] (or [`SHORT_QUARANTINE`], when [`MANY`] of
//! them wait), but never unmapped. A reader that was stopped inside the search for so long can find a wrong entry, or
//! none; the FDE behind an entry names its own absolute range, the unwinder checks that, and the result is "no rules",
//! never rules of another function.
//!
//! # Memory order
//!
//! Readers are C code, so no sanitizer sees both sides; the tests repeat the argument with readers in Rust, under miri
//! and ThreadSanitizer. An info is complete before it is linked, and a table before the info's pointer changes
//! (release). An FDE is complete before a slot points to it, never changes while it is registered, and gets the length
//! 0 in one aligned store when it is dropped. x86_64 does not reorder loads with loads. On aarch64, info, table, slot
//! and FDE are a chain of address dependencies, and the slots of running code are older than its first instruction.
//!
//! # What was tried and did not work
//!
//! Merging tables by age: libunwind takes the first table whose range fits and does not go on to the next. Hence leaves
//! of addresses. One info per object instead of tables: a walk takes about 80 times as long with 100,000 functions.

#![forbid(unsafe_code)]

mod forest;
mod slots;

pub(crate) use forest::{Forest, LeafId, Publish, Size};
pub(crate) use slots::SLOTS;

/// How long a replaced table keeps its content, in nanoseconds. A search takes about a microsecond, but a thread may be
/// stopped in the middle of it: by a busy machine, or by a container that has used up its share.
pub(crate) const QUARANTINE: u64 = 5_000_000_000;

/// The same, when [`MANY`] tables wait.
pub(crate) const SHORT_QUARANTINE: u64 = 100_000_000;

/// So many replaced tables may wait; at most 128 KiB each.
pub(crate) const MANY: usize = 256;
