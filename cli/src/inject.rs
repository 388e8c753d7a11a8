//! Runs a few lines of Python in a running interpreter, at a place where it may: between two of its own instructions, in the
//! thread and with the lock that signal handlers of Python have. They call `jitlisten.enable` or `jitlisten.disable`.
//!
//! 1. `sys.remote_exec` (Python 3.14, PEP 768), called by the interpreter of the process itself, started a second time.
//! 2. `ptrace`: a page is mapped in the process for the text, and `PyRun_SimpleString` with it handed to `Py_AddPendingCall`. That
//!    function is made for signal handlers: wherever threads stand, it takes no lock but its own and allocates nothing. Where the
//!    main thread waits for a lock, the wait is interrupted, as by a signal, and Python looks at what is pending.
//!
//! 3. gdb (`gdb.rs`) makes the same call, where it may and this command may not.
//!
//! Our own `ptrace` comes before gdb because it needs no gdb, and because a gdb before 14 may end the process.
//!
//! The lines are in a file in a directory of mode 0700 that the user of the process owns; what came of it is written beside it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use jitlisten_report::printable;

use crate::gdb;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::Process;
use crate::sinks::Sinks;
use crate::symbols;
use crate::trace::{self, Stopped};

/// How often to look whether the process has done it.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a main thread that runs Python takes at most to look at pending calls, generously.
const SOON: Duration = Duration::from_secs(3);

/// What is to be done in the process.
pub(crate) enum Request {
    Enable {
        sinks: Sinks,
        lines: bool,
    },
    Disable,
    /// A call of the package's, as Python.
    Call(String),
}

impl Request {
    fn python(&self) -> String {
        match self {
            Request::Enable { sinks, lines } => {
                let lines = if *lines { "True" } else { "False" };
                format!("jitlisten.enable({:?}, lines={lines})", sinks.to_string())
            }
            Request::Disable => "jitlisten.disable()".to_owned(),
            Request::Call(call) => call.clone(),
        }
    }
}

/// How the lines get into the process, in the order in which the ways are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Way {
    /// The interpreter's own, from Python 3.14 on
    RemoteExec,
    /// Without any other tool
    Ptrace,
    /// Version 14 or newer
    Gdb,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::RemoteExec => "sys.remote_exec",
            Way::Ptrace => "ptrace",
            Way::Gdb => "gdb",
        }
    }

    /// Makes the interpreter run the lines soon.
    fn start(self, process: &Process, script: &Script, version: (u32, u32)) -> Result<(), Problem> {
        match self {
            Way::RemoteExec if version < (3, 14) => Err(Problem::new(format!(
                "this is Python {}.{}, and 3.14 is the first that has it",
                version.0, version.1
            ))),
            Way::RemoteExec => remote_exec(process, &script.inside),
            Way::Ptrace => arm(process, &script.inside),
            Way::Gdb => arm_by_gdb(process, script),
        }
    }
}

/// Does it, and says how. Nothing is left in the process when it fails, or the words say so. `only` is the way to go; by default
/// all are tried.
pub(crate) fn inject(
    process: &Process,
    installation: &Installation,
    request: &Request,
    timeout: Duration,
    only: Option<Way>,
) -> Result<String, Problem> {
    let pid = process.pid;
    let version = process.python().ok_or_else(|| {
        Problem::new(format!(
            "process {pid} is not a Python interpreter, and only those can be asked while they run: start it by jitlisten, or let it \
             call the functions of jitlisten.h"
        ))
    })?;
    if version < (3, 8) {
        return Err(Problem::new(format!(
            "process {pid} is Python {}.{}, and 3.8 is the oldest",
            version.0, version.1
        )));
    }
    if let Some(tracer) = process.tracer() {
        return Err(Problem::new(format!(
            "process {pid} is traced by process {tracer} (a debugger, strace): end that first"
        )));
    }
    let package = visible_package(process, installation)?;
    let script = Script::write(process, &package, request)?;
    let mut tried = Vec::new();
    for way in [Way::RemoteExec, Way::Ptrace, Way::Gdb].into_iter().filter(|way| only.is_none_or(|only| only == *way)) {
        match way.start(process, &script, version) {
            Ok(()) if way == Way::RemoteExec => {
                return script.wait(process, timeout, || Ok(())).map(|done| format!("{done}, by {}", way.name()));
            }
            Ok(()) => {
                return script
                    .wait(process, timeout, || wake(process))
                    .map(|done| format!("{done}, by {}", way.name()));
            }
            Err(_) if !process.is_there() => return Err(process.ended()),
            Err(problem) => tried.push(format!("{}: {problem}", way.name())),
        }
    }
    Err(Problem::new(format!("process {pid} cannot be changed: {}", tried.join("; "))))
}

/// The package as the process sees it; it has to be the same one.
fn visible_package(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let package = installation.package().ok_or_else(|| {
        Problem::new("the Python package is not installed beside this command: pip install jitlisten")
    })?;
    let file = package.join("__init__.py");
    if !file.is_file() || process.sees_another(&file) {
        return Err(Problem::new(format!(
            "process {} is in a container, which does not see {}: install jitlisten there and attach from inside",
            process.pid,
            package.display()
        )));
    }
    Ok(package.to_owned())
}

/// The lines and what came of them, in a directory of their own.
struct Script {
    /// As this process sees it, below `temporary`: the path by way of the target ends with the target.
    directory: PathBuf,
    /// The target's `/tmp`.
    _temporary: File,
    /// As the target sees the file.
    inside: PathBuf,
    keep: bool,
}

impl Script {
    fn write(process: &Process, package: &Path, request: &Request) -> Result<Script, Problem> {
        let name = format!("jitlisten-attach-{}-{}", process.pid, std::process::id());
        let inside = Path::new("/tmp").join(&name).join("script.py");
        let visible = process.visible(Path::new("/tmp"));
        let refused =
            |error: io::Error| Problem::new(format!("{} cannot be written: {error}", visible.join(&name).display()));
        let temporary = File::open(&visible).map_err(refused)?;
        let descriptor = format!("/proc/{}/fd/{}", std::process::id(), temporary.as_raw_fd());
        let directory = Path::new(&descriptor).join(&name);
        let script = Script { directory, _temporary: temporary, inside, keep: false };
        script.fill(process, package, request).map_err(refused)?;
        Ok(script)
    }

    fn fill(&self, process: &Process, package: &Path, request: &Request) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.directory)?;
        let script = self.directory.join("script.py");
        let text = include_str!("inject.py")
            .replace("@PACKAGES@", &quoted(package.parent().unwrap_or(package)))
            .replace("@DIRECTORY@", &quoted(self.inside.parent().unwrap_or(Path::new("/"))))
            .replace("@CALL@", &request.python());
        fs::write(&script, text)?;
        fs::set_permissions(&script, Permissions::from_mode(0o600))?;
        // SAFETY: geteuid has no precondition.
        if let Some((user, group)) = process.owner().filter(|(user, _)| *user != unsafe { libc::geteuid() }) {
            chown(&script, Some(user), Some(group))?;
            chown(&self.directory, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Waits for the result; `wake` is called once if it takes long.
    fn wait(
        mut self,
        process: &Process,
        timeout: Duration,
        wake: impl FnOnce() -> io::Result<()>,
    ) -> Result<String, Problem> {
        let began = Instant::now();
        let mut wake = Some(wake);
        loop {
            if let Ok(result) = fs::read_to_string(self.directory.join("result")) {
                return match result.split_once(' ') {
                    // The process has written it.
                    Some(("ok", words)) => Ok(printable(words.trim_end())),
                    Some((_, words)) => Err(Problem::new(format!("process {}: {}", process.pid, words.trim_end()))),
                    None => Err(Problem::new(format!("process {} has not said what became of it", process.pid))),
                };
            }
            if !process.is_there() {
                return Err(process.ended());
            }
            if began.elapsed() >= SOON.min(timeout)
                && let Some(wake) = wake.take()
            {
                // Where that cannot be, the main thread comes back by itself, or does not.
                let _ = wake();
            }
            if began.elapsed() >= timeout {
                // A process that comes late finds the file, and removes it.
                self.keep = fs::write(self.directory.join("late"), "").is_ok();
                return Err(Problem::new(format!(
                    "the main thread of process {} has not been in Python for {} s; it will be done when it is there again",
                    process.pid,
                    timeout.as_secs()
                )));
            }
            sleep(PAUSE);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !self.keep {
            for name in ["script.py", "result", "late", "commands"] {
                let _ = fs::remove_file(self.directory.join(name));
            }
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

/// As a string of Python, in ASCII: what the interpreter takes a file's bytes for is up to the program's locale. Bytes that are no
/// UTF-8 are as `os.fsdecode` makes them.
pub(crate) fn quoted(text: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let mut quoted = "\"".to_owned();
    for part in text.as_ref().as_bytes().utf8_chunks() {
        for character in part.valid().chars() {
            let _ = match character {
                '"' | '\\' => write!(quoted, "\\{character}"),
                ' '..='~' => write!(quoted, "{character}"),
                other => write!(quoted, "\\U{:08x}", u32::from(other)),
            };
        }
        for byte in part.invalid() {
            let _ = write!(quoted, "\\udc{byte:02x}");
        }
    }
    quoted + "\""
}

fn remote_exec(process: &Process, script: &Path) -> Result<(), Problem> {
    let program = process.program().ok_or_else(|| Problem::new("its interpreter is not known"))?;
    let interpreter = if process.sees_another(&program) { process.visible(&program) } else { program };
    // It has to be of the same version as the one in the process: the same file, then.
    let output = Command::new(&interpreter)
        .args(["-I", "-S", "-c", "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"])
        .arg(process.pid.to_string())
        .arg(script)
        .stdin(Stdio::null())
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(|error| Problem::new(format!("{} cannot be started: {error}", interpreter.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(Problem::new(last))
}

/// What is called to hand the lines to the interpreter.
struct Functions {
    /// `Py_AddPendingCall`
    add: u64,
    /// `PyRun_SimpleString`
    run: u64,
    mmap: u64,
}

impl Functions {
    fn find(process: &Process) -> Result<Functions, Problem> {
        let find = |name: &str| {
            let is_python = |path: &&Path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().contains("python"))
                    || Some(*path) == process.executable()
            };
            let found = process
                .libraries()
                .into_iter()
                .filter(is_python)
                .find_map(|path| symbols::address(process, path, name));
            found.ok_or_else(|| Problem::new(format!("its interpreter exports no {name}")))
        };
        let libc = process.libraries().into_iter().find(|path| is_libc(path));
        let mmap = libc.and_then(|libc| symbols::address(process, libc, "mmap"));
        Ok(Functions {
            add: find("Py_AddPendingCall")?,
            run: find("PyRun_SimpleString")?,
            mmap: mmap.ok_or_else(|| Problem::new("it has another libc than glibc"))?,
        })
    }
}

/// What `PyRun_SimpleString` is given. It stays in a page of its own for as long as the process.
fn lines(script: &Path) -> String {
    let script = quoted(script);
    format!("try:\n exec(compile(open({script}).read(), 'jitlisten', 'exec'), {{}})\nexcept BaseException: pass\n")
}

/// Hands the lines to `Py_AddPendingCall`.
fn arm(process: &Process, script: &Path) -> Result<(), Problem> {
    let functions = Functions::find(process)?;
    let mut text = lines(script).into_bytes();
    text.push(0);
    let arm = || -> io::Result<()> {
        let stopped = Stopped::main_thread(process.pid)?;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let page = stopped.call(functions.mmap, [0, 4096, protection, flags, u64::MAX, 0])?;
        if page == u64::MAX || page == 0 {
            return Err(io::Error::other("it has no memory left"));
        }
        trace::write_memory(process.pid as i32, page, &text)?;
        match stopped.call(functions.add, [functions.run, page, 0, 0, 0, 0])? as i32 {
            0 => Ok(()),
            _ => Err(io::Error::other("too many pending calls")),
        }
    };
    arm().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Problem::new(format!("not permitted{}", rights())),
        _ => Problem::new(error),
    })
}

/// Why the kernel may have said so.
fn rights() -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => " (a seccomp filter, or privileges of the process)",
        "3" => " (kernel.yama.ptrace_scope is 3: start the program with `jitlisten run`)",
        _ => " (kernel.yama.ptrace_scope: use sudo, or start the program with `jitlisten run`)",
    }
}

fn arm_by_gdb(process: &Process, script: &Script) -> Result<(), Problem> {
    let Functions { add, run, mmap } = Functions::find(process)?;
    let text = lines(&script.inside);
    gdb::call(process.pid, &gdb::Call { mmap, add, run, text: &text }, &script.directory.join("commands"))
        .map_err(Problem::new)
}

fn is_libc(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name == "libc.so.6" || name.starts_with("libc-2.")
    })
}

/// Where the main thread waits for a lock, such as for the end of another thread, it looks at its pending calls now.
fn wake(process: &Process) -> io::Result<()> {
    Stopped::main_thread(process.pid)?.interrupt_lock().map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Python itself reads it, in the C locale.
    #[test]
    fn a_quoted_path_is_the_path() {
        let hostile = b"/a \"b\"'\\n\n\x7f/e\xcc\x81 \xe2\x80\xae\xf0\x9f\x90\x8d \xff\xc3\x28.data";
        let quoted = quoted(OsStr::from_bytes(hostile));
        assert!(quoted.is_ascii() && !quoted.contains('\n'), "{quoted}");
        let print = format!("import os, sys; sys.stdout.buffer.write(os.fsencode({quoted}))");
        let output = Command::new("python3").args(["-X", "utf8", "-c", &print]).output().expect("python3");
        assert_eq!(output.stdout, hostile, "{quoted}");
    }
}
