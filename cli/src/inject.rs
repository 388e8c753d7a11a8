//! Runs a few lines of Python in a running interpreter, at a place where it may: between two of its own instructions, in the
//! thread and with the lock that signal handlers of Python have. They call `jitlisten.enable` or `jitlisten.disable`.
//!
//! 1. `sys.remote_exec` (Python 3.14, PEP 768), called by the interpreter of the process itself, started a second time.
//! 2. gdb, which maps a page in the process for the text, and hands `PyRun_SimpleString` with it to `Py_AddPendingCall`. That
//!    function is made for signal handlers: wherever threads stand, it takes no lock but its own and allocates nothing. Where the
//!    main thread waits in the kernel, it is told to look: `Py_MakePendingCalls` with the interpreter's lock.
//!
//! The lines are in a file in a directory of mode 0700 that the user of the process owns; what came of it is written beside it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::Process;
use crate::sinks::Sinks;

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

/// Does it, and says how. Nothing is left in the process when it fails, or the words say so.
pub(crate) fn inject(
    process: &Process,
    installation: &Installation,
    request: &Request,
    timeout: Duration,
) -> Result<String, Problem> {
    let pid = process.pid;
    let version = process.python().ok_or_else(|| Problem::new(format!("process {pid} is not a Python interpreter")))?;
    if version < (3, 8) {
        return Err(Problem::new(format!(
            "process {pid} is Python {}.{}, and 3.8 is the oldest",
            version.0, version.1
        )));
    }
    let package = visible_package(process, installation)?;
    let script = Script::write(process, &package, request)?;
    let mut tried = Vec::new();
    if version >= (3, 14) {
        match remote_exec(process, &script.inside) {
            Ok(()) => {
                return script.wait(process, timeout, || Ok(())).map(|done| format!("{done}, by sys.remote_exec"));
            }
            Err(problem) => tried.push(problem.to_string()),
        }
    }
    match gdb_arm(process, &script.inside) {
        Ok(()) => script.wait(process, timeout, || gdb_wake(process)).map(|done| format!("{done}, by gdb")),
        Err(problem) => {
            tried.push(problem.to_string());
            Err(Problem::new(format!("process {pid} cannot be changed: {}", tried.join("; "))))
        }
    }
}

/// The package as the process sees it; it has to be the same one.
fn visible_package(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let package = installation.package().ok_or_else(|| {
        Problem::new("the Python package is not installed beside this command: pip install jitlisten")
    })?;
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let file = package.join("__init__.py");
    if identity(&file).is_none() || identity(&file) != identity(&process.visible(&file)) {
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
    /// As this process sees it.
    directory: PathBuf,
    /// As the target sees the file.
    inside: PathBuf,
    keep: bool,
}

impl Script {
    fn write(process: &Process, package: &Path, request: &Request) -> Result<Script, Problem> {
        let name = format!("jitlisten-attach-{}-{}", process.pid, std::process::id());
        let inside = Path::new("/tmp").join(&name).join("script.py");
        let directory = process.visible(Path::new("/tmp")).join(&name);
        let script = Script { inside, directory, keep: false };
        script
            .fill(process, package, request)
            .map_err(|error| Problem::new(format!("{} cannot be written: {error}", script.directory.display())))?;
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
        wake: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<String, Problem> {
        let began = Instant::now();
        let mut wake = Some(wake);
        loop {
            if let Ok(result) = fs::read_to_string(self.directory.join("result")) {
                return match result.split_once(' ') {
                    Some(("ok", words)) => Ok(words.trim_end().to_owned()),
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
                // Whoever comes late finds the file, and removes it.
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
            for name in ["script.py", "result", "late"] {
                let _ = fs::remove_file(self.directory.join(name));
            }
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

/// As a string of Python.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

fn remote_exec(process: &Process, script: &Path) -> Result<(), Problem> {
    let interpreter = fs::read_link(format!("/proc/{}/exe", process.pid))
        .map_err(|error| Problem::new(format!("its interpreter is not known: {error}")))?;
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
    Err(Problem::new(format!("sys.remote_exec: {last}")))
}

/// gdb with these commands, attached to the process.
fn gdb(process: &Process, commands: &[String]) -> Result<String, Problem> {
    let program = command::find("gdb".as_ref()).ok_or_else(|| Problem::new("gdb is not installed"))?;
    let mut gdb = Command::new(program);
    // Symbols of the interpreter and of libc are enough; those of an LLVM would take seconds.
    gdb.args(["-nx", "-batch", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]);
    gdb.args(["-ex", "set pagination off", "-p", &process.pid.to_string()]);
    gdb.args(["-ex", "sharedlibrary libc\\.|libpython|libpthread"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    gdb.args(["-ex", "detach"]).stdin(Stdio::null()).env_remove("LD_PRELOAD");
    let output = gdb.output().map_err(|error| Problem::new(format!("gdb cannot be started: {error}")))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = ["ptrace: ", "Could not attach", "No such process"];
    if let Some(line) = errors.lines().find(|line| refused.iter().any(|word| line.contains(word))) {
        return Err(Problem::new(format!("gdb: {}", explained(line.trim()))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &errors)
}

fn explained(line: &str) -> String {
    if line.contains("not permitted") {
        return format!("{line} (see `jitlisten doctor` for who may trace)");
    }
    line.trim_end_matches('.').to_owned()
}

fn gdb_arm(process: &Process, script: &Path) -> Result<(), Problem> {
    let text = format!(
        "try:\\n exec(compile(open('{}').read(), 'jitlisten', 'exec'), {{}})\\nexcept BaseException: pass\\n",
        script.display()
    );
    let length = text.replace("\\n", "\n").len() + 1;
    let commands = [
        // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS: a page that stays for as long as the process.
        "set $page = ((char *(*)(long, long, int, int, int, long)) mmap)(0, 4096, 3, 0x22, -1, 0)".to_owned(),
        format!("set {{char[{length}]}} $page = \"{text}\""),
        "printf \"armed: %d\\n\", ((int (*)(void *, void *)) Py_AddPendingCall)((void *) PyRun_SimpleString, $page)"
            .to_owned(),
    ];
    let said = gdb(process, &commands)?;
    if said.lines().any(|line| line.trim() == "armed: 0") {
        return Ok(());
    }
    let reason =
        said.lines().rfind(|line| line.starts_with("No symbol") || line.contains("rror")).unwrap_or("no reason given");
    Err(Problem::new(format!("gdb: {}", reason.trim().trim_end_matches('.'))))
}

/// Functions in which a thread waits in the kernel and holds nothing.
const WAITING: [&str; 14] = [
    "poll",
    "ppoll",
    "select",
    "pselect",
    "epoll_wait",
    "accept",
    "recv",
    "nanosleep",
    "futex",
    "sem_",
    "waitpid",
    "wait4",
    "read",
    "pause",
];
/// Functions that hold something, or wait for the interpreter's lock and then look by themselves.
const BUSY: [&str; 12] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "dlopen",
    "_dl_",
    "LLVM",
    "llvm",
    "take_gil",
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "pthread_mutex_lock",
];

/// Lets the main thread look at its pending calls, if it waits for something outside of Python.
fn gdb_wake(process: &Process) -> Result<(), Problem> {
    let said = gdb(process, &["thread 1".to_owned(), "backtrace 12".to_owned()])?;
    if !waits_in_kernel(&said) {
        return Err(Problem::new("the main thread computes"));
    }
    let commands = [
        "thread 1",
        "set $state = ((int (*)(void)) PyGILState_Ensure)()",
        "set $made = ((int (*)(void)) Py_MakePendingCalls)()",
        "call ((void (*)(int)) PyGILState_Release)($state)",
    ];
    gdb(process, &commands.map(str::to_owned)).map(|_| ())
}

/// Whether a backtrace of gdb is of a thread that waits in a call that Python's interpreter has made.
fn waits_in_kernel(backtrace: &str) -> bool {
    let frames: Vec<&str> = backtrace.lines().filter(|line| line.starts_with('#')).collect();
    let is = |frame: &str, words: &[&str]| words.iter().any(|word| frame.contains(word));
    frames.first().is_some_and(|first| is(first, &WAITING))
        && frames.iter().any(|frame| frame.contains("_PyEval_EvalFrame"))
        && !frames.iter().any(|frame| is(frame, &BUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_told_from_one_that_is_busy() {
        let join = "#0  0x1 in __futex_abstimed_wait () from libc.so.6\n#1  0x2 in PyThread_acquire_lock_timed ()\n#2  0x3 in ?? ()\n#3  0x4 in _PyEval_EvalFrameDefault ()";
        assert!(waits_in_kernel(join));
        assert!(!waits_in_kernel(&join.replace("PyThread_acquire_lock_timed", "take_gil")));
        assert!(!waits_in_kernel(&join.replace("?? ", "malloc ")));
        assert!(!waits_in_kernel("#0  0x1 in kernel ()\n#1  0x4 in _PyEval_EvalFrameDefault ()"));
    }
}
