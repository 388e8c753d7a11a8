//! Search tables for unwinders: sorted, few, and modified while unwinders read them.
//!
//! libunwind (`Gfind_dynamic_proc_info.c`, `Gfind_proc_info-lsb.c`; unchanged from 1.2 to 1.9) walks a list of infos
//! *without a lock*. It takes the **first** info whose range contains the address and searches that info's table for
//! the last entry whose start is not above the address. It then reads the FDE of that entry. If this search fails, it
//! does not try the next info. Ranges must therefore not overlap, and "small tables first, merged later" is impossible:
//! new code may lie between old code. Instead the address space is divided into [`Leaf`]s:
//!
//! ```text
//!   64 MiB window                                           window
//!  +--------------------------+-------------------+        +-----------------------------+
//!  | leaf                     | leaf (split off)  |        | leaf                        |
//!  +--------------------------+-------------------+        +-----------------------------+
//!     | one info; only one word of it ever changes
//!     v
//!   +---------------------------------------------------------------------+
//!   | 0 0 0 0 ... 0 0 |alpha| gap gap |beta|gamma| gap gap gap gap |delta| gap |   16384 slots, 8 bytes each
//!   +---------------------------------------------------------------------+
//!       { i32 start, relative to the leaf ; i32 offset of the FDE in the region; 0 = "no rules here" }
//! ```
//!
//! # Why readers need no lock
//!
//! Every function has exactly one slot. The next slot marks the end of the function (a "gap"), unless the next function
//! starts right there. Spare slots are gaps, too. Readers can observe three changes, each of them one aligned
//! store:
//!
//! 1. *A gap slot changes* (a function is added, spare slots move). All gap slots between functions `a` and `b` contain
//!    a start in `a.end..=b.start`, before and after the change. A search for an address inside a function compares it
//!    with values that stay on the same side of it, so it ends in the same slot. Only a search for an address in the
//!    gap can end in a changing slot, and no code runs there yet.
//! 2. *A function's slot becomes a gap* (the function is removed): from then on, a search for it finds "no rules".
//! 3. *The whole table is replaced* (no spare slot where one is needed): the new table has the same content, and the
//!    info's pointer to it is one word.
//!
//! When a leaf becomes too large, two new leaves hide it; their infos go to the head of the list. The old leaf's table
//! stays unchanged, because a search that has already passed the head still reaches it. (An earlier version immediately
//! removed the functions of the upper half from the old table; the test `readers_never_miss_what_is_alive` caught this
//! mistake.)
//!
//! # Slow readers
//!
//! A replaced table is reused for other functions after [`QUARANTINE_NS`] (or [`SHORT_QUARANTINE_NS`] if more than
//! [`MAX_RETIRED_TABLES`] are waiting), but never unmapped. A reader that was suspended inside the search for that long
//! can find a wrong entry or no entry. But the FDE of an entry contains its own absolute range, which the unwinder
//! checks. The result is then "no rules", never the rules of another function.
//!
//! # Memory order
//!
//! Readers are C code, so no sanitizer sees both sides. The tests check the argument with readers in Rust, under Miri
//! and ThreadSanitizer. An info is complete before it is linked, and a table before the info's pointer changes
//! (release). An FDE is complete before a slot points to it and does not change while registered; dropping it sets its
//! length to 0 in one aligned store. x86_64 does not reorder loads with loads. On aarch64, info, table, slot and FDE
//! form a chain of address dependencies, and the slots of running code are older than its first instruction.
//!
//! # Rejected designs
//!
//! Merging tables by age fails: libunwind uses the first table whose range contains the address and does not continue
//! with the next. Leaves are therefore partitioned by address. One info per object instead of tables is slow: with
//! 100,000 functions, a walk takes about 80 times as long.

#![forbid(unsafe_code)]

mod forest;
mod slots;

pub(crate) use forest::{Forest, LeafId, Publish, Size};
pub(crate) use slots::SLOTS;

/// Time that a replaced table keeps its content. A search takes about a microsecond, but its thread may be
/// suspended: by a busy machine, or by a container that has used up its CPU quota.
pub(crate) const QUARANTINE_NS: u64 = 5_000_000_000;

/// Quarantine when more than [`MAX_RETIRED_TABLES`] tables are waiting.
pub(crate) const SHORT_QUARANTINE_NS: u64 = 100_000_000;

/// Number of waiting tables above which the short quarantine applies. Each takes at most 128 KiB.
pub(crate) const MAX_RETIRED_TABLES: usize = 256;
