//! Restores the environment that `jitlisten run` has changed. The changes are meant for one program, but every tool
//! that starts before it inherits them (`perf record`, `gdb --args`, `valgrind`, a shell, `env`). The program is the
//! first Python interpreter. It restores the variables, so that its children, which may have another libc or
//! architecture, start unchanged.
//!
//! `JITLISTEN_RUN` ([`RunRequest`]) lists the changes.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use jitlisten::plumbing::{RUN_VARIABLE, RunRequest, Word};

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Restores the environment if this process is the program. Call only in the constructor, when no other thread can use
/// the environment.
pub(crate) fn restore_environment() {
    let Some(value) = env::var_os(RUN_VARIABLE) else { return };
    let request = RunRequest::parse(&value);
    if !is_of_program(&request) {
        return;
    }
    let preload = env::var_os(PRELOAD_VARIABLE).unwrap_or_default();
    let preload = remove_from_list(preload.as_bytes(), request.library);
    set_or_remove(PRELOAD_VARIABLE, preload.map(OsString::from_vec));
    if request.has(Word::Sinks) {
        set_or_remove("JITLISTEN", None);
    }
    let remaining = request.has(Word::Lines).then(|| RunRequest::remaining(std::process::id()));
    set_or_remove(RUN_VARIABLE, remaining);
}

/// Returns true if this process is the program that the request is for.
pub(crate) fn is_of_program(request: &RunRequest<'_>) -> bool {
    request.has(Word::Program) && jitlisten_shim::is_python()
}

/// Returns true if this process is a tool that runs before the program.
pub(crate) fn is_before_program() -> bool {
    let value = env::var_os(RUN_VARIABLE).unwrap_or_default();
    RunRequest::parse(&value).has(Word::Program) && !jitlisten_shim::is_python()
}

/// Returns the path of this library in `LD_PRELOAD`, as set by `jitlisten run`, if this process is a tool that runs
/// before the program.
#[cfg(feature = "interpose")]
pub(crate) fn library_for_program() -> Option<Vec<u8>> {
    let value = env::var_os(RUN_VARIABLE).filter(|_| is_before_program())?;
    Some(RunRequest::parse(&value).library.to_vec())
}

fn set_or_remove(variable: &str, value: Option<OsString>) {
    match value {
        // SAFETY: constructors of preloaded libraries run before the program has threads.
        Some(value) => unsafe { env::set_var(variable, value) },
        // SAFETY: constructors of preloaded libraries run before the program has threads.
        None => unsafe { env::remove_var(variable) },
    }
}

/// Removes `path` and the separator after it from `list`, and keeps the rest unchanged. `None` if nothing remains.
fn remove_from_list(list: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let is_divider = |byte: &u8| matches!(byte, b' ' | b':');
    let mut offset = 0;
    for token in list.split(is_divider) {
        if token == path {
            let mut rest = list[..offset].to_vec();
            rest.extend_from_slice(list.get(offset + token.len() + 1..).unwrap_or_default());
            while list.len() == offset + token.len() && rest.last().is_some_and(is_divider) {
                rest.pop();
            }
            return (!rest.is_empty()).then_some(rest);
        }
        offset += token.len() + 1;
    }
    Some(list.to_vec())
}

#[cfg(test)]
mod tests {
    use super::remove_from_list;

    #[test]
    fn other_list_entries_stay_unchanged() {
        let remove_own =
            |list: &str| remove_from_list(list.as_bytes(), b"/our.so").map(|rest| String::from_utf8(rest).unwrap());
        assert_eq!(remove_own("/our.so"), None);
        assert_eq!(remove_own("/our.so:/a.so /b.so").as_deref(), Some("/a.so /b.so"));
        assert_eq!(remove_own("/a.so:/our.so:/b.so").as_deref(), Some("/a.so:/b.so"));
        assert_eq!(remove_own("/a.so:/our.so").as_deref(), Some("/a.so"));
        assert_eq!(remove_own("/a.so:/our.so.1").as_deref(), Some("/a.so:/our.so.1"));
    }
}
