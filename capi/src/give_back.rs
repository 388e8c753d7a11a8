//! The environment of `jitlisten run` is for one program, and goes through every tool that stands before it (`perf
//! record`, `gdb --args`, `valgrind`, a shell, `env`). The program is the first Python interpreter: there the variables
//! become what they were before, so that its children, which may have another libc or be of another architecture, are
//! started as ever.
//!
//! ```text
//!   JITLISTEN_RUN = WORD+WORD..:LIBRARY     set by `jitlisten run`
//!     program       the first Python gives the environment back; without it (`-s`) no process does
//!     run=PID-START-NAMESPACE   the process that became the command: its files are kept until it has ended
//!     sinks         JITLISTEN was not set before
//!     lines         a sitecustomize of ours is first in PYTHONPATH; it gives that back (python/jitlisten/_site)
//! ```
//!
//! Afterwards `JITLISTEN_RUN` is `lines:PID` until the sitecustomize has read it, or gone.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

const RUN: &str = "JITLISTEN_RUN";
const PRELOAD: &str = "LD_PRELOAD";

/// Gives the environment back if this is the program. For the constructor: no other thread may use the environment.
pub(crate) fn give_back() {
    let Some(run) = env::var_os(RUN) else { return };
    let mut parts = run.as_bytes().splitn(2, |byte| *byte == b':');
    let words: Vec<&[u8]> = parts.next().unwrap_or_default().split(|byte| *byte == b'+').collect();
    let library = parts.next().unwrap_or_default();
    if !words.contains(&&b"program"[..]) || !jitlisten_shim::is_python() {
        return;
    }
    let preload = env::var_os(PRELOAD).unwrap_or_default();
    set(PRELOAD, without(preload.as_bytes(), library));
    if words.contains(&&b"sinks"[..]) {
        set("JITLISTEN", None);
    }
    let lines = words.contains(&&b"lines"[..]).then(|| format!("lines:{}", std::process::id()).into_bytes());
    set(RUN, lines);
}

/// Whether the program is yet to come: this process stands before it.
pub(crate) fn stands_before_program() -> bool {
    let run = env::var_os(RUN).unwrap_or_default();
    let words = run.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
    words.split(|byte| *byte == b'+').any(|word| word == b"program") && !jitlisten_shim::is_python()
}

/// The path of this library as `jitlisten run` has put it into `LD_PRELOAD`, if the program is yet to come.
pub(crate) fn library_for_program() -> Option<Vec<u8>> {
    let run = env::var_os(RUN).filter(|_| stands_before_program())?;
    run.as_bytes().splitn(2, |byte| *byte == b':').nth(1).map(<[u8]>::to_vec)
}

fn set(variable: &str, value: Option<Vec<u8>>) {
    match value {
        // SAFETY: constructors of preloaded libraries run before the program has threads.
        Some(value) => unsafe { env::set_var(variable, OsString::from_vec(value)) },
        // SAFETY: constructors of preloaded libraries run before the program has threads.
        None => unsafe { env::remove_var(variable) },
    }
}

/// The list without this path and the divider behind it; the rest as it is written. `None` if nothing is left.
fn without(list: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let is_divider = |byte: &u8| matches!(byte, b' ' | b':');
    let mut at = 0;
    for token in list.split(is_divider) {
        if token == path {
            let mut rest = list[..at].to_vec();
            rest.extend_from_slice(list.get(at + token.len() + 1..).unwrap_or_default());
            while list.len() == at + token.len() && rest.last().is_some_and(is_divider) {
                rest.pop();
            }
            return (!rest.is_empty()).then_some(rest);
        }
        at += token.len() + 1;
    }
    Some(list.to_vec())
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn the_rest_of_the_list_is_as_it_was() {
        let without = |list: &str| without(list.as_bytes(), b"/our.so").map(|rest| String::from_utf8(rest).unwrap());
        assert_eq!(without("/our.so"), None);
        assert_eq!(without("/our.so:/a.so /b.so").as_deref(), Some("/a.so /b.so"));
        assert_eq!(without("/a.so:/our.so:/b.so").as_deref(), Some("/a.so:/b.so"));
        assert_eq!(without("/a.so:/our.so").as_deref(), Some("/a.so"));
        assert_eq!(without("/a.so:/our.so.1").as_deref(), Some("/a.so:/our.so.1"));
    }
}
