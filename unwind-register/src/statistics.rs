//! Counters and names of the registry, for inspection.

#![forbid(unsafe_code)]

use crate::error::Error;

/// How much is registered, and what it costs. Bytes are memory that was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Registrations that are alive.
    pub registrations: usize,
    /// Functions in them that have rules.
    pub functions: usize,
    /// Functions ever registered with an FDE of the JIT.
    pub covered: usize,
    /// Functions ever registered with rules made from their frame pointer.
    pub synthesized: usize,
    /// Functions ever seen that have no rules.
    pub uncovered: usize,
    /// FDEs ever left out; see [`Coverage::refused`](crate::Coverage::refused).
    pub refused: usize,
    /// Functions that vanished because another one was registered over them: their JIT did not say that they were gone.
    pub replaced: usize,
    /// Infos in an unwinder's list: it takes the first whose range fits, and searches that one's table.
    pub infos: usize,
    /// Bytes of the tables in use.
    pub table_bytes: usize,
    /// Bytes of replaced tables that wait to be used again.
    pub retired_table_bytes: usize,
    /// Bytes of entries (CIEs and FDEs), alive or not.
    pub entry_bytes: usize,
    /// The part of them that waits to be used again.
    pub free_entry_bytes: usize,
}

impl Statistics {
    pub(crate) const ZERO: Statistics = Statistics {
        registrations: 0,
        functions: 0,
        covered: 0,
        synthesized: 0,
        uncovered: 0,
        refused: 0,
        replaced: 0,
        infos: 0,
        table_bytes: 0,
        retired_table_bytes: 0,
        entry_bytes: 0,
        free_entry_bytes: 0,
    };
}

/// What kind of unwinder a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnwinderKind {
    /// nongnu libunwind whose `unw_dyn_info` has no `load_offset` (before 1.6, from 1.9 on).
    LibunwindPlain,
    /// nongnu libunwind 1.6 to 1.8.3.
    LibunwindLoadOffset,
    /// nongnu libunwind that was not understood.
    LibunwindUnknown,
    /// libgcc.
    Libgcc,
    /// LLVM's libunwind.
    Llvm,
}

/// A library with an unwinder in it that takes registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwinder {
    /// Its path, as the loader knows it; empty for the main program.
    pub library: String,
    /// What it is.
    pub kind: UnwinderKind,
    /// Why it is not used, if it is not.
    pub refused: Option<Error>,
}
