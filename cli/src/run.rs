//! `jitlisten run`: sets environment variables and then replaces itself with the command. `capi/src/run_environment.rs`
//! restores the variables for the children of the program.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;
use jitlisten::plumbing::{self, ProcessIdentity, RUN_VARIABLE, RunRequest, Word};

use crate::command;
use crate::environment::{COVERAGE, PYTHON, is_set, prepend_path};
use crate::installation::Installation;
use crate::problem::Problem;
use crate::sinks::Sinks;

const EXAMPLES: &str = "Examples:
  jitlisten run -- perf record -g python prog.py
  perf record -g jitlisten run -- python prog.py
  jitlisten run --sinks image -- py-spy record --native -o out.svg -- python prog.py

The variables reach every tool before the first Python, which is the program. Its child processes are profiled only \
with -s.";

/// Run a command so that profilers and debuggers see the code that it compiles
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    run_environment: RunEnvironment,
    /// Set PYTHONPERFSUPPORT=1: perf sees Python functions (3.12 or newer), which run 1.7 times slower
    #[arg(long)]
    python_perf: bool,
    /// The command and its arguments; prog.py and -m MODULE mean this environment's Python
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Options for starting a command, shared by all subcommands that do so.
#[derive(Args, Clone, Default, PartialEq)]
pub(crate) struct RunEnvironment {
    /// Sinks to enable: a list of perfmap, image, unwind, modules, jitdump, gdb
    /// [default: $JITLISTEN, or perfmap,image,unwind,modules]
    #[arg(long, value_name = "LIST")]
    pub(crate) sinks: Option<Sinks>,
    /// Do not add line tables to Numba's code
    #[arg(long)]
    pub(crate) no_lines: bool,
    /// Also observe child processes
    #[arg(short = 's', long)]
    pub(crate) subprocesses: bool,
}

impl Run {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let mut command = self.run_environment.command(&self.command)?;
        if self.python_perf {
            command.env("PYTHONPERFSUPPORT", "1");
        }
        Err(exec_command(command))
    }
}

/// Replaces this process with the command; returns an error if that fails.
pub(crate) fn exec_command(mut command: Command) -> Problem {
    let error = command.exec();
    Problem::new(format!("cannot start {}: {error}", Path::new(command.get_program()).display()))
}

impl RunEnvironment {
    /// Builds the command with its environment, after a check that the program exists and that the loader will accept
    /// the library.
    pub(crate) fn command(&self, words: &[OsString]) -> Result<Command, Problem> {
        let words = command::resolve_command(words)?;
        if is_set(COVERAGE) {
            return Err(Problem::new("`jitlisten coverage` runs instrumented code").help("profile without it"));
        }
        if let Some(path) = command::find(&words[0]).filter(|path| command::is_static(path)) {
            let (path, advice) = (path.display(), command::STATIC_ADVICE);
            let warning = format!("{path} is statically linked, so nothing can be preloaded into it: {advice}");
            let _ = writeln!(io::stderr(), "jitlisten: {}", Problem::new(warning));
        }
        let installation = Installation::find()?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove(PYTHON);
        for (variable, value) in self.environment(&installation)? {
            command.env(variable, value);
        }
        Ok(command)
    }

    fn environment(&self, installation: &Installation) -> Result<Vec<(&'static str, OsString)>, Problem> {
        let library = installation.preloadable_library()?;
        let mut variables = vec![("LD_PRELOAD", ld_preload_value(library)?)];
        let mut words = Vec::new();
        let sinks = self.sinks.clone().or_else(|| (!is_set("JITLISTEN")).then(Sinks::available_defaults));
        if let Some(sinks) = &sinks {
            sinks.check_places()?;
            variables.push(("JITLISTEN", sinks.to_string().into()));
            if !is_set("JITLISTEN") {
                words.push(Word::Sinks);
            }
        }
        if let Some(site) = installation.site().filter(|_| !self.no_lines) {
            variables.push(("PYTHONPATH", prepend_path(site.as_os_str().to_owned(), "PYTHONPATH")));
            words.push(Word::Lines);
        }
        let first = if self.subprocesses { Word::Children } else { Word::Program };
        variables.push((RUN_VARIABLE, RunRequest::format(first, current_run(), &words, library)));
        Ok(variables)
    }
}

/// Identity of this process, which becomes the command. Inside another `jitlisten run` that is still active, the
/// identity of that run.
fn current_run() -> plumbing::Run {
    let enclosing_run = env::var_os(RUN_VARIABLE).and_then(|value| RunRequest::parse(&value).run());
    let is_running = |run: &plumbing::Run| run.0.is_alive(plumbing::pid_namespace()) == Some(true);
    enclosing_run.filter(is_running).unwrap_or_else(|| plumbing::Run(ProcessIdentity::own()))
}

/// Name prefixes of gcc's and clang's sanitizer runtimes, which must be loaded before any library that they instrument.
const SANITIZER_PREFIXES: [&str; 6] = ["libasan.", "libhwasan.", "liblsan.", "libtsan.", "libubsan.", "libclang_rt."];

/// Inserts the library after the last sanitizer runtime in the list, or at the front.
fn insert_after_runtimes(library: &Path, list: &str) -> OsString {
    let is_separator = |byte: char| matches!(byte, ' ' | ':');
    let is_runtime = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        SANITIZER_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    // Each entry is a slice of the list, so pointer differences give offsets.
    let end_offset = |entry: &str| entry.as_ptr().addr() + entry.len() - list.as_ptr().addr();
    let end = list.rsplit(is_separator).find(is_runtime).map_or(0, end_offset);
    let rest = list[end..].trim_matches(is_separator);
    let mut joined_list = OsString::from(&list[..end]);
    for (text, needs_separator) in [(library.as_os_str(), end != 0), (rest.as_ref(), true)] {
        if !text.is_empty() {
            joined_list.push(if needs_separator { ":" } else { "" });
            joined_list.push(text);
        }
    }
    joined_list
}

/// Value of `LD_PRELOAD`: the user's list with the library inserted.
fn ld_preload_value(library: &Path) -> Result<OsString, Problem> {
    let old_list = env::var("LD_PRELOAD").unwrap_or_default();
    let is_ours = |path: &&str| Path::new(path).file_name().is_some_and(|name| name == "libjitlisten.so");
    match old_list.split([' ', ':']).find(is_ours) {
        // `old_list` is also empty if the variable is not valid UTF-8; `prepend_path` preserves its bytes.
        None if old_list.is_empty() => Ok(prepend_path(library.into(), "LD_PRELOAD")),
        None => Ok(insert_after_runtimes(library, &old_list)),
        Some(other) if Path::new(other) == library => Ok(old_list.into()),
        Some(other) => {
            Err(Problem::new(format!("LD_PRELOAD has another jitlisten already, {other}"))
                .help("unset it or run that one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_sanitizers_stay_in_front() {
        let list = |list: &str| insert_after_runtimes(Path::new("/our.so"), list).into_string().unwrap();
        assert_eq!(list(""), "/our.so");
        assert_eq!(list("/a.so /b.so"), "/our.so:/a.so /b.so");
        assert_eq!(list("/usr/lib/libasan.so.8"), "/usr/lib/libasan.so.8:/our.so");
        assert_eq!(list("/a.so:libclang_rt.asan-x86_64.so:/b.so"), "/a.so:libclang_rt.asan-x86_64.so:/our.so:/b.so");
        assert_eq!(
            list("libtsan.so.2 libubsan.so.1 /mylibasan.so"),
            "libtsan.so.2 libubsan.so.1:/our.so:/mylibasan.so"
        );
    }
}
