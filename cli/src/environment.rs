//! Environment variables that several commands read.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;

/// Set by `jitlisten coverage` for its command and all it starts.
pub(crate) const COVERAGE: &str = "JITLISTEN_COVERAGE";

/// Set by `python -m jitlisten`: that Python.
pub(crate) const PYTHON: &str = "JITLISTEN_PYTHON";

/// Whether a variable has a value.
pub(crate) fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// A list of paths with `first` in front.
pub(crate) fn prepended(mut first: OsString, variable: &str) -> OsString {
    if let Some(before) = env::var_os(variable).filter(|before| !before.is_empty() && *before != first) {
        first.push(":");
        first.push(before);
    }
    first
}
