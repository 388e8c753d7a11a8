//! Environment variables that several commands read.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;

/// Set by `jitlisten coverage` for its command and all processes that it starts.
pub(crate) const COVERAGE: &str = "JITLISTEN_COVERAGE";

/// Set by `python -m jitlisten` to the path of that Python.
pub(crate) const PYTHON: &str = "JITLISTEN_PYTHON";

/// Returns true if a variable exists and is not empty.
pub(crate) fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// Prepends `first` to a variable that holds a list of paths.
pub(crate) fn prepend_path(mut first: OsString, variable: &str) -> OsString {
    if let Some(old_list) = env::var_os(variable).filter(|old_list| !old_list.is_empty() && *old_list != first) {
        first.push(":");
        first.push(old_list);
    }
    first
}
