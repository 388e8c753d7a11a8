//! Names a person recognises, from linkage names.

#![forbid(unsafe_code)]

/// What kind of entry a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// The compiled function itself.
    Function,
    /// Numba's wrapper that the Python dispatcher calls (`cpython::`).
    CpythonWrapper,
    /// Numba's wrapper with a C calling convention (`cfunc.`).
    CfuncWrapper,
    /// A `prange` kernel or a (g)ufunc loop of Numba.
    Gufunc,
}

/// A linkage name made readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadableName {
    /// One line of printable UTF-8, at least three characters.
    pub text: String,
    /// What the symbol is.
    pub kind: EntryKind,
}

/// Makes a linkage name readable. `location` is the file and line of its first instruction, when known.
pub fn readable(linkage_name: &str, _location: Option<(&str, u32)>) -> ReadableName {
    ReadableName { text: linkage_name.to_owned(), kind: EntryKind::Function }
}

/// Whether [`readable`] makes use of a location for this symbol.
pub fn wants_location(linkage_name: &str) -> bool {
    linkage_name.contains("parfor_gufunc")
}

/// The part of `name` that every reader of a perf map takes: one line, printable, three characters or more.
pub fn printable(name: &str) -> String {
    name.to_owned()
}
