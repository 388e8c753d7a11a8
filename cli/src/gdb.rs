//! Does by gdb what `trace.rs` does by itself: for a gdb that may trace where this command may not, because of capabilities that its
//! file has, or because a policy of the system names it.
//!
//! The function that is called is good for signal handlers, so it does not matter where the main thread stands; a call that does not
//! come back in time is taken back by gdb. Not by a gdb before 14: it cannot write the vector registers of a processor that has more
//! of them than it knows, and then leaves the thread with half of its registers, of which the process dies (seen with 13.1).

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;

/// The oldest that gives a call up in time, and all registers back.
const OLDEST: u32 = 14;
const SAID: &str = "jitlisten: pending call ";

/// What is called in the process.
pub(crate) struct Call<'a> {
    /// The address of `mmap`.
    pub(crate) mmap: u64,
    /// The address of `Py_AddPendingCall`.
    pub(crate) add: u64,
    /// The address of the function that it is given.
    pub(crate) run: u64,
    /// What that function is given: a C string.
    pub(crate) text: &'a str,
}

/// The newest thing known of the gdb in `PATH`: its version in words, and the major one.
pub(crate) fn version(program: &Path) -> (String, Option<u32>) {
    let output = Command::new(program).arg("--version").env_remove("LD_PRELOAD").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let number = text.lines().next().unwrap_or_default().trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let major = number.split('.').next().and_then(|major| major.parse().ok());
    (number, major)
}

/// Makes the call in the main thread of the process. The reason is without the name of the tool.
pub(crate) fn call(pid: u32, call: &Call<'_>, script: &Path) -> Result<(), String> {
    let program = command::find("gdb".as_ref()).ok_or("is not installed")?;
    let (number, major) = version(&program);
    if major.is_none_or(|major| major < OLDEST) {
        return Err(format!("{number} is too old: before {OLDEST}, a call in a process may end it"));
    }
    std::fs::write(script, call.script())
        .map_err(|error| format!("{} cannot be written: {error}", script.display()))?;
    let output = Command::new(program)
        .args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off"])
        // No symbols are needed: the addresses are known.
        .args(["-iex", "set auto-solib-add off", "-p", &pid.to_string(), "-x"])
        .arg(script)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match said.lines().find_map(|line| line.strip_prefix(SAID)) {
        Some("0") => Ok(()),
        Some(_) => Err("too many pending calls".to_owned()),
        None => Err(complained
            .lines()
            .map(str::trim)
            .find(|line| line.contains("not permitted") || line.contains("ptrace:"))
            .or(complained.lines().map(str::trim).rfind(|line| !line.is_empty()))
            .unwrap_or("gave no reason")
            .trim_end_matches('.')
            .to_owned()),
    }
}

impl Call<'_> {
    /// An error ends it, and gdb with it, which lets the process go on.
    fn script(&self) -> String {
        let Call { mmap, add, run, text } = self;
        let mut script = format!(
            "set direct-call-timeout 5\nset unwind-on-timeout on\nset unwind-on-signal on\nthread 1\n\
             set $page = ((unsigned long (*)(unsigned long, unsigned long, int, int, int, long)) {mmap:#x})(0, 4096, 3, 0x22, -1, 0)\n\
             if $page + 1 != 0 && $page != 0\n"
        );
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        for (at, word) in bytes.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            let value = u64::from_le_bytes(whole);
            let _ = writeln!(script, "set {{unsigned long}} ($page + {}) = {value:#x}", at * 8);
        }
        let _ = write!(
            script,
            "printf \"{SAID}%d\\n\", ((int (*)(unsigned long, unsigned long)) {add:#x})({run:#x}, $page)\nend\ndetach\n"
        );
        script
    }
}

#[cfg(test)]
mod tests {
    use super::Call;

    #[test]
    fn the_text_is_written_in_words_with_a_nul() {
        let script = Call { mmap: 0x10, add: 0x20, run: 0x30, text: "12345678" }.script();
        assert!(script.contains("($page + 0) = 0x3837363534333231\n"), "{script}");
        assert!(script.contains("($page + 8) = 0x0\n"), "{script}");
        assert!(script.contains("0x20)(0x30, $page)"), "{script}");
    }
}
