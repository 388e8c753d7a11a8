//! The user's command: finds its program, checks that the loader can preload a library into it, waits for it to exit,
//! and derives our exit status from it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use jitlisten::plumbing::elf;
use rustix::fs::Mode;
use rustix::process::{Signal, getegid, geteuid};

use crate::environment::PYTHON;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::system::{BlockedSignals, send_signal};

/// Resolves the user's command and checks that it can be started. The Python of this environment runs `prog.py` and `-m
/// module`.
pub(crate) fn resolve_command(words: &[OsString]) -> Result<Vec<OsString>, Problem> {
    let first = words.first().ok_or_else(|| Problem::new("no command is given"))?;
    let mut words = words.to_vec();
    if needs_python(first) {
        let python = python().ok_or_else(|| Problem::new("command not found: python3"))?;
        words.insert(0, python.into_os_string());
    }
    check_program(&words[0])?;
    Ok(words)
}

/// Returns true if the argument names Python code rather than a program: `-m`, a script, an archive or a folder.
pub(crate) fn needs_python(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_code = path.extension().is_some_and(|extension| extension == "py" || extension == "pyz") && path.is_file();
    word == "-m" || is_code || path.join("__main__.py").is_file()
}

/// Finds Python: the interpreter that started this command, the one that it was installed for, or the first in PATH.
fn python() -> Option<PathBuf> {
    let starting_python = std::env::var_os(PYTHON).map(PathBuf::from).filter(|python| python.is_file());
    let find_in_path = || find("python3".as_ref()).or_else(|| find("python".as_ref()));
    starting_python.or_else(Installation::python).or_else(find_in_path)
}

/// Finds a program, and fails with the reason if the library cannot be loaded into it.
fn check_program(program: &OsStr) -> Result<(), Problem> {
    let path = find(program).ok_or_else(|| {
        let path = Path::new(program);
        let reason = match path.is_file() {
            true => "permission denied (not an executable)",
            false => "command not found",
        };
        Problem::new(format!("{reason}: {}", path.display()))
    })?;
    match preload_refusal(&path) {
        None => Ok(()),
        Some(reason) => Err(Problem::new(format!("{} {reason}", path.display()))),
    }
}

/// Waits for a command to exit, and leaves signals blocked. A termination signal sent to this process is forwarded to
/// the command.
///
/// Other signals do not terminate this process. A batch system may send `SIGUSR1` to all processes of a job, for the
/// program to handle. We do not forward such a signal, because the program would receive it twice.
///
/// Ctrl-C and Ctrl-\ at the terminal signal the whole process group, so they are not forwarded either. Python does not
/// handle Ctrl-C while compiled code runs: see [`Interrupts`].
pub(crate) fn wait(child: &mut Child) -> io::Result<(ExitStatus, BlockedSignals)> {
    // Block signals only after the command has started, because it would inherit the mask. SIGCHLD wakes us when it
    // exits.
    let signals = BlockedSignals::all_external();
    let mut interrupts = Interrupts::None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, signals));
        }
        let wait_signal = signals.wait_signal(Duration::from_millis(500));
        let forwarded_signal = match wait_signal {
            Some(Signal::TERM | Signal::HUP) => wait_signal,
            Some(Signal::INT) => interrupts.register(Instant::now()),
            _ => None,
        };
        if let Some(signal) = forwarded_signal {
            send_signal(child.id(), signal);
        }
        if interrupts.is_advice_due(Instant::now()) {
            let _ = writeln!(io::stderr(), "jitlisten: the program goes on; press Ctrl-C again to end it");
        }
    }
}

/// Time that a program has to exit after an interrupt before we print advice, and time after the advice during which
/// another interrupt escalates to SIGTERM.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);
const ADVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Escalation for a program that ignores interrupts. The terminal delivers the first interrupts to the program. After
/// we have printed advice, the next interrupt becomes SIGTERM, and the one after it SIGKILL.
enum Interrupts {
    None,
    First(Instant),
    Advised(Instant),
    Terminated,
}

impl Interrupts {
    /// Records an interrupt; returns the signal to send to the program, if any.
    fn register(&mut self, now: Instant) -> Option<Signal> {
        match self {
            Interrupts::Terminated => return Some(Signal::KILL),
            Interrupts::Advised(advised_at) if now < *advised_at + ADVICE_TIMEOUT => {
                *self = Interrupts::Terminated;
                return Some(Signal::TERM);
            }
            Interrupts::First(_) => {}
            Interrupts::Advised(_) | Interrupts::None => *self = Interrupts::First(now),
        }
        None
    }

    /// Returns true, once only, if the program is still running `INTERRUPT_TIMEOUT` after an interrupt.
    fn is_advice_due(&mut self, now: Instant) -> bool {
        let is_due = matches!(self, Interrupts::First(interrupted_at) if now >= *interrupted_at + INTERRUPT_TIMEOUT);
        if is_due {
            *self = Interrupts::Advised(now);
        }
        is_due
    }
}

/// Describes how a program ended, in words that follow the program's name.
pub(crate) fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if code != 0 => format!("has ended with status {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "has ended".to_owned(),
    }
}

/// Exit status of this process: the command's own, or 128 plus the signal number, as in a shell.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Finds the file that `execvp(3)` would execute.
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

/// Returns the reason why the loader would not preload our library into this program. A script or a program without a
/// loader is accepted, because it may start other programs.
fn preload_refusal(path: &Path) -> Option<&'static str> {
    if gains_privileges(path) {
        return Some(
            "runs with privileges of its own (set-user-ID or file capabilities), so the loader drops LD_PRELOAD: \
             put `jitlisten run --` behind it, before python",
        );
    }
    let first_bytes = read_first_bytes(path).filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    // `e_ident[EI_CLASS]` in elf(5).
    if first_bytes.get(4) != Some(&2) {
        return Some("is a 32-bit program; jitlisten is for 64-bit programs");
    }
    // The loader's path (`PT_INTERP`) is in the first pages of the file.
    let is_musl = first_bytes.windows(b"/ld-musl-".len()).any(|window| window == b"/ld-musl-");
    is_musl.then_some("is built for musl; jitlisten is for programs with glibc")
}

/// Reads the pages that have a program's headers and the path of its loader.
fn read_first_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Advice for a statically linked program, into which no library can be preloaded.
pub(crate) const STATIC_ADVICE: &str = "build it without -static; programs that it starts can be observed";

/// Returns true if the program lacks a loader (`PT_INTERP` in `elf(5)`). Such a program may still start others that
/// have one.
pub(crate) fn is_static(path: &Path) -> bool {
    read_first_bytes(path).is_some_and(|bytes| elf::loader_path(&bytes).is_some_and(<[u8]>::is_empty))
}

fn gains_privileges(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let mode = Mode::from_raw_mode(metadata.mode());
    let sets_user_id = mode.contains(Mode::SUID) && metadata.uid() != user;
    let sets_group_id = mode.contains(Mode::SGID | Mode::XGRP) && metadata.gid() != group;
    sets_user_id || sets_group_id || (user != 0 && has_capabilities(path))
}

/// Returns true if the file has capabilities (`capabilities(7)`).
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
        assert_eq!((interrupts.register(at(0)), interrupts.register(at(1))), (None, None), "the program's own");
        assert_eq!([1, 2, 3].map(|seconds| interrupts.is_advice_due(at(seconds))), [false, true, false]);
        assert_eq!(interrupts.register(at(20)), None, "the advice is old");
        assert!(interrupts.is_advice_due(at(22)));
        assert_eq!([23, 24].map(|seconds| interrupts.register(at(seconds))), [Some(Signal::TERM), Some(Signal::KILL)]);
    }

    #[test]
    fn a_test_program_has_a_loader() {
        assert!(!is_static(Path::new("/proc/self/exe")));
    }
}
