//! Counters of the registry and descriptions of the unwinders, for inspection.

#![forbid(unsafe_code)]

use crate::error::Error;

/// Size and memory use of the registry. Byte counts include only memory that was touched.
///
/// ```
/// use unwind_register::Registry;
///
/// let statistics = Registry::process().statistics();
/// assert_eq!(statistics.registrations, 0);
/// println!("{} functions, {} bytes of entries", statistics.functions, statistics.entry_bytes);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Live registrations.
    pub registrations: usize,
    /// Functions with rules, in live registrations.
    pub functions: usize,
    /// Total functions registered with an FDE of the JIT, dropped ones included.
    pub covered: usize,
    /// Total functions registered with synthesized rules, dropped ones included.
    pub synthesized: usize,
    /// Total functions without any rules.
    pub uncovered: usize,
    /// Total ignored FDEs; see [`Coverage::ignored`](crate::Coverage::ignored).
    pub ignored: usize,
    /// Functions replaced by a later registration at the same address: their JIT did not deregister them.
    pub replaced: usize,
    /// Infos in the list of each libunwind. The first info whose range contains an address decides which table is
    /// searched.
    pub infos: usize,
    /// Bytes of tables in use.
    pub table_bytes: usize,
    /// Bytes of replaced tables in quarantine.
    pub retired_table_bytes: usize,
    /// Bytes of entries (CIEs and FDEs), live or free.
    pub entry_bytes: usize,
    /// Part of `entry_bytes` that is free or in quarantine.
    pub free_entry_bytes: usize,
}

impl Statistics {
    pub(crate) const ZERO: Statistics = Statistics {
        registrations: 0,
        functions: 0,
        covered: 0,
        synthesized: 0,
        uncovered: 0,
        ignored: 0,
        replaced: 0,
        infos: 0,
        table_bytes: 0,
        retired_table_bytes: 0,
        entry_bytes: 0,
        free_entry_bytes: 0,
    };
}

/// Implementation of an unwinder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnwinderKind {
    /// nongnu libunwind whose `unw_dyn_info` lacks a `load_offset` (before 1.6, and 1.9 or later).
    LibunwindPlain,
    /// nongnu libunwind whose `unw_dyn_info` has a `load_offset` (1.6 to 1.8.3).
    LibunwindLoadOffset,
    /// nongnu libunwind with an unknown layout or without a required function.
    LibunwindUnknown,
    /// libgcc, GCC's unwinder.
    Libgcc,
    /// LLVM libunwind.
    Llvm,
}

/// A loaded library with an unwinder that accepts registrations.
///
/// ```
/// use unwind_register::Registry;
///
/// Registry::process().rescan();
/// for unwinder in Registry::process().unwinders() {
///     match &unwinder.ignored {
///         None => println!("{}: {:?}", unwinder.library, unwinder.kind),
///         Some(error) => println!("{}: ignored, {error}", unwinder.library),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwinder {
    /// Path of the library, as reported by the loader; empty for the main program.
    pub library: String,
    /// Implementation of the unwinder.
    pub kind: UnwinderKind,
    /// Reason for ignoring the unwinder; `None` if it is used.
    pub ignored: Option<Error>,
}
