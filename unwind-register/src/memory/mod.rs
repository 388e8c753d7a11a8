//! Memory that unwinders may read at any moment and that is therefore never unmapped.
//!
//! ```text
//!   reserved once: 1 GiB of address space (less if refused, or if RLIMIT_AS is set), made writable as it fills
//!  +---------+-----------------+----------------+--------+----------------------------------------------+
//!  | 0 ... 0 | blob            | blob           |  free  |   not accessible yet                         |
//!  +---------+-----------------+----------------+--------+----------------------------------------------+
//!   64 bytes   CIE FDE FDE 0 0   CIE FDE 0 0
//!   = a zero-length FDE that every gap of every table points to: "no rules here"
//! ```
//!
//! There is a single region, because tables refer to FDEs by a 32-bit offset. A *blob* is our copy of one registered
//! section. Dropping it sets the length of each of its FDEs to 0 (one aligned store), so even a table that was replaced
//! long ago then yields "no rules". The bytes are reused after [`allocator::QUARANTINE_NS`].
//!
//! A dropped FDE should have no readers. A walk looks up addresses on the walking thread's own stack, and a sane JIT
//! does not free code that is on a stack. The exception is a walk that followed a stale word, reached the FDE at the
//! very moment of the drop, and was then suspended for the whole quarantine.

mod allocator;
mod cells;
mod region;
mod word;

pub(crate) use allocator::RegionAllocator;
pub(crate) use cells::zeroed_cells;
pub(crate) use region::Region;
pub(crate) use word::word_at;
