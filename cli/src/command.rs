//! The user's command: finding the program, checking that the loader will preload a library into it, waiting for it,
//! and its exit status.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::{Signal, getegid, geteuid};

use crate::environment::PYTHON;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::system::{Blocked, send_signal};

/// The command in full, if it can be started: `prog.py` and `-m module` are for the Python of this environment.
pub(crate) fn checked(words: &[OsString]) -> Result<Vec<OsString>, Problem> {
    let first = words.first().ok_or_else(|| Problem::new("no command is given"))?;
    let mut words = words.to_vec();
    if is_for_python(first) {
        let python = python().ok_or_else(|| Problem::new("command not found: python3"))?;
        words.insert(0, python.into_os_string());
    }
    check(&words[0])?;
    Ok(words)
}

/// Whether this is a program of Python's, and not one of the system's.
pub(crate) fn is_for_python(word: &OsStr) -> bool {
    let path = Path::new(word);
    word == "-m" || (path.extension().is_some_and(|extension| extension == "py") && path.is_file())
}

/// The Python that has started this command, the one that it was installed for, or the first in PATH.
fn python() -> Option<PathBuf> {
    let started = std::env::var_os(PYTHON).map(PathBuf::from).filter(|python| python.is_file());
    let in_path = || find("python3".as_ref()).or_else(|| find("python".as_ref()));
    started.or_else(Installation::python).or_else(in_path)
}

/// Looks the command up and says why the library could not be loaded into it.
fn check(program: &OsStr) -> Result<(), Problem> {
    let path = find(program).ok_or_else(|| {
        let path = Path::new(program);
        let why = match path.is_file() {
            true => "permission denied (not an executable)",
            false => "command not found",
        };
        Problem::new(format!("{why}: {}", path.display()))
    })?;
    match refusal(&path) {
        None => Ok(()),
        Some(why) => Err(Problem::new(format!("{} {why}", path.display()))),
    }
}

/// Waits for a command, which decides what a signal is: who ends this process means the command. Returns with signals
/// blocked.
///
/// No other signal ends this process: a batch system sends, say, `SIGUSR1` to all processes of a job, and the program
/// handles it. It is not passed on, since the program would get it twice.
///
/// An interrupt or a quit of the terminal is for the command, too, and so not passed on. Python does not notice it in
/// compiled code: see [`Interrupts`].
pub(crate) fn wait(child: &mut Child) -> io::Result<(ExitStatus, Blocked)> {
    // The command would inherit what is blocked before it is there. SIGCHLD says that it has ended.
    let signals = Blocked::sent();
    let mut interrupts = Interrupts::None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, signals));
        }
        let arrived = signals.arrived(Duration::from_millis(500));
        let passed_on = match arrived {
            Some(Signal::TERM | Signal::HUP) => arrived,
            Some(Signal::INT) => interrupts.another(Instant::now()),
            _ => None,
        };
        if let Some(signal) = passed_on {
            send_signal(child.id(), signal);
        }
        if interrupts.advice_is_due(Instant::now()) {
            let _ = writeln!(io::stderr(), "jitlisten: the program goes on; press Ctrl-C again to end it");
        }
    }
}

/// How long a program may take to end after an interrupt, and how long the advice to interrupt it again holds.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);
const ADVICE_VALID: Duration = Duration::from_secs(10);

/// The interrupts of a program that does not end: the first ones are its own, the next one after some advice ends it,
/// and one more kills it.
enum Interrupts {
    None,
    First(Instant),
    Advised(Instant),
    Ended,
}

impl Interrupts {
    /// The signal that the next interrupt becomes for the program.
    fn another(&mut self, now: Instant) -> Option<Signal> {
        match self {
            Interrupts::Ended => return Some(Signal::KILL),
            Interrupts::Advised(since) if now < *since + ADVICE_VALID => {
                *self = Interrupts::Ended;
                return Some(Signal::TERM);
            }
            Interrupts::First(_) => {}
            Interrupts::Advised(_) | Interrupts::None => *self = Interrupts::First(now),
        }
        None
    }

    /// True once after an interrupt that has not ended the program.
    fn advice_is_due(&mut self, now: Instant) -> bool {
        let is_due = matches!(self, Interrupts::First(since) if now >= *since + INTERRUPT_TIMEOUT);
        if is_due {
            *self = Interrupts::Advised(now);
        }
        is_due
    }
}

/// How a program has ended, after its name.
pub(crate) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if code != 0 => format!("has ended with status {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "has ended".to_owned(),
    }
}

/// The status of a command as that of this one; of a signal what a shell makes of it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The file that `execvp(3)` would run.
pub(crate) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| is_executable(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Why the loader would not preload our library into this program. A script, or a program without a loader, may start
/// others.
fn refusal(path: &Path) -> Option<&'static str> {
    if gains_privileges(path) {
        return Some(
            "runs with privileges of its own (set-user-ID or file capabilities), so the loader drops LD_PRELOAD: \
             put `jitlisten run --` behind it, before python",
        );
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(1 << 16).read_to_end(&mut head).ok()?;
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    // e_ident[EI_CLASS] of elf(5)
    if head.get(4) != Some(&2) {
        return Some("is a 32-bit program; jitlisten is for 64-bit programs");
    }
    // The path of the loader, PT_INTERP, is in the first pages.
    let musl = head.windows(b"/ld-musl-".len()).any(|window| window == b"/ld-musl-");
    musl.then_some("is built for musl; jitlisten is for programs with glibc")
}

/// What can be done with a program that no library can be preloaded into.
pub(crate) const STATIC: &str = "build it without -static; programs that it starts can be observed";

/// Whether the program has no loader (`PT_INTERP` of `elf(5)`). It may still start programs that have one.
pub(crate) fn is_static(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut head));
    read.is_ok() && has_no_loader(&head) == Some(true)
}

/// By the program headers; `None` where they are not in `head`, or where it is no 64-bit program.
fn has_no_loader(head: &[u8]) -> Option<bool> {
    const INTERP: u32 = 3;
    let word = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let is_program = head.starts_with(b"\x7fELF\x02\x01") && matches!(word(16)?, 2 | 3);
    let table = usize::try_from(u64::from_le_bytes(head.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(word(54)?), usize::from(word(56)?));
    let headers = head.get(table..table.checked_add(size * count)?)?;
    let mut types =
        headers.chunks_exact(size.max(56)).map(|header| header.first_chunk().map(|&kind| u32::from_le_bytes(kind)));
    is_program.then(|| count > 0 && types.all(|kind| kind != Some(INTERP)))
}

fn gains_privileges(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let mode = Mode::from_raw_mode(metadata.mode());
    let set_user = mode.contains(Mode::SUID) && metadata.uid() != user;
    let set_group = mode.contains(Mode::SGID | Mode::XGRP) && metadata.gid() != group;
    set_user || set_group || (user != 0 && has_capabilities(path))
}

/// Whether the file has capabilities (`capabilities(7)`).
pub(crate) fn has_capabilities(path: &Path) -> bool {
    rustix::fs::getxattr_query(path, "security.capability").is_ok_and(|size| size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_end_a_program_that_goes_on() {
        let (mut interrupts, start) = (Interrupts::None, Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!((interrupts.another(at(0)), interrupts.another(at(1))), (None, None), "the program's own");
        assert_eq!([1, 2, 3].map(|seconds| interrupts.advice_is_due(at(seconds))), [false, true, false]);
        assert_eq!(interrupts.another(at(20)), None, "the advice is old");
        assert!(interrupts.advice_is_due(at(22)));
        assert_eq!([23, 24].map(|seconds| interrupts.another(at(seconds))), [Some(Signal::TERM), Some(Signal::KILL)]);
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let program = |kind: u8, headers: &[u8]| {
            let mut head = [0; 64];
            head[..6].copy_from_slice(b"\x7fELF\x02\x01");
            (head[16], head[32], head[54], head[56]) = (kind, 64, 56, headers.len() as u8);
            let headers = headers.iter().flat_map(|&kind| [&[kind, 0, 0, 0][..], &[0; 52]].concat());
            head.into_iter().chain(headers).collect::<Vec<u8>>()
        };
        assert_eq!(has_no_loader(&program(2, &[1, 1, 7])), Some(true));
        assert_eq!(has_no_loader(&program(3, &[6, 3, 1])), Some(false));
        assert_eq!(has_no_loader(&program(1, &[1])), None, "an object file");
        assert_eq!(has_no_loader(&program(2, &[1, 3])[..100]), None);
        assert_eq!(has_no_loader(b"#!/bin/sh\n"), None);
        assert!(!is_static(Path::new("/proc/self/exe")));
    }
}
