//! Restores the environment that `jitlisten run` has changed. The changes are meant for one program, but every tool
//! that starts before it inherits them (`perf record`, `gdb --args`, `valgrind`, a shell, `env`). The program is the
//! first Python interpreter. It restores the variables, so that its children, which may have another libc or
//! architecture, start unchanged.
//!
//! ```text
//!   JITLISTEN_RUN = WORD+WORD..:LIBRARY     set by `jitlisten run`
//!     program       the first Python restores the environment; without this keyword (`-s`), no process does
//!     run=PID-START-NAMESPACE   the process that became the command: its files are kept until it exits
//!     sinks         JITLISTEN was not set before
//!     lines         our sitecustomize is first in PYTHONPATH; it restores PYTHONPATH (python/jitlisten/_site)
//! ```
//!
//! Afterwards `JITLISTEN_RUN` is `lines:PID` until the sitecustomize has read it, or unset.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

const RUN_VARIABLE: &str = "JITLISTEN_RUN";
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Restores the environment if this process is the program. Call only in the constructor, when no other thread can use
/// the environment.
pub(crate) fn restore_environment() {
    let Some(run) = env::var_os(RUN_VARIABLE) else { return };
    let mut parts = run.as_bytes().splitn(2, |byte| *byte == b':');
    let words: Vec<&[u8]> = parts.next().unwrap_or_default().split(|byte| *byte == b'+').collect();
    let library = parts.next().unwrap_or_default();
    if !words.contains(&&b"program"[..]) || !jitlisten_shim::is_python() {
        return;
    }
    let preload = env::var_os(PRELOAD_VARIABLE).unwrap_or_default();
    set_or_remove(PRELOAD_VARIABLE, remove_from_list(preload.as_bytes(), library));
    if words.contains(&&b"sinks"[..]) {
        set_or_remove("JITLISTEN", None);
    }
    let lines = words.contains(&&b"lines"[..]).then(|| format!("lines:{}", std::process::id()).into_bytes());
    set_or_remove(RUN_VARIABLE, lines);
}

/// Returns true if this process is a tool that runs before the program.
pub(crate) fn is_before_program() -> bool {
    let run = env::var_os(RUN_VARIABLE).unwrap_or_default();
    let words = run.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
    words.split(|byte| *byte == b'+').any(|word| word == b"program") && !jitlisten_shim::is_python()
}

/// Returns the path of this library in `LD_PRELOAD`, as set by `jitlisten run`, if this process is a tool that runs
/// before the program.
#[cfg(feature = "interpose")]
pub(crate) fn library_for_program() -> Option<Vec<u8>> {
    let run = env::var_os(RUN_VARIABLE).filter(|_| is_before_program())?;
    run.as_bytes().splitn(2, |byte| *byte == b':').nth(1).map(<[u8]>::to_vec)
}

fn set_or_remove(variable: &str, value: Option<Vec<u8>>) {
    match value {
        // SAFETY: constructors of preloaded libraries run before the program has threads.
        Some(value) => unsafe { env::set_var(variable, OsString::from_vec(value)) },
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
