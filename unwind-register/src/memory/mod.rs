//! Memory that unwinders may read at any moment, and that is therefore never unmapped.
//!
//! ```text
//!   reserved once: 1 GiB of addresses (less where that is refused or RLIMIT_AS is set), made writable as it fills
//!  +---------+-----------------+----------------+--------+----------------------------------------------+
//!  | 0 ... 0 | blob            | blob           |  free  |   not accessible yet                         |
//!  +---------+-----------------+----------------+--------+----------------------------------------------+
//!   64 bytes   CIE FDE FDE 0 0   CIE FDE 0 0
//!   = an FDE of length 0, to which every gap of every table points: "no rules here"
//! ```
//!
//! One region, because tables name FDEs by a 32-bit distance. A *blob* is our copy of one registered section. When it
//! is dropped, each of its FDEs gets the length 0 (one aligned store), so that even a table that was replaced long ago
//! says "no rules"; its bytes are used again after [`places::QUARANTINE`].
//!
//! Which thread can still read a dropped FDE then? A walk looks up addresses that are on the walking thread's own
//! stack, and code that is on a stack is not freed by a sane JIT. What remains is a walk that followed a stale word,
//! entered a dropped FDE in the very moment of the drop, and was stopped there for the whole quarantine.

mod cells;
mod places;
mod region;
mod word;

pub(crate) use cells::zeroed_cells;
pub(crate) use places::Places;
pub(crate) use region::Region;
pub(crate) use word::word_at;
