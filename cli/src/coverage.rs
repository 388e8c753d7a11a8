//! `jitlisten coverage`: sets environment variables and executes the command. Python processes in it that run
//! coverage.py then also measure compiled code (`python/jitlisten/_coverage`). The native library is not used.

use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, ExitCode};

use clap::Args;
use jitlisten::plumbing::RUN_VARIABLE;

use crate::command;
use crate::environment::{COVERAGE, PYTHON, is_set, prepend_path};
use crate::installation::Installation;
use crate::problem::Problem;
use crate::run::exec_command;

const EXAMPLES: &str = "Examples:
  jitlisten coverage -- pytest --cov=pkg --cov-branch
  jitlisten coverage -- coverage run -m unittest

The same without this command: `plugins = jitlisten.coverage` below `[run]` in .coveragerc.
The code is instrumented: never measure time with it.";

/// Run a command so that coverage.py also measures the code that Numba compiles
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Coverage {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Coverage {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let words = command::resolve_command(&self.command)?;
        if is_set(RUN_VARIABLE) || loads_library() {
            return Err(Problem::new("coverage instruments the code that Numba compiles")
                .help("run it without `jitlisten run`, `record` and `lines`"));
        }
        let site = Installation::find()?.site().ok_or_else(|| {
            Problem::new("the Python package of jitlisten is not installed beside this command")
                .help("pip install jitlisten")
        })?;
        let _ = writeln!(std::io::stderr(), "jitlisten: this run is instrumented for coverage: do not time it");
        let mut command = Command::new(&words[0]);
        let path = prepend_path(site.into_os_string(), "PYTHONPATH");
        command.args(&words[1..]).env_remove(PYTHON).env(COVERAGE, "1").env("PYTHONPATH", path);
        Err(exec_command(command))
    }
}

fn loads_library() -> bool {
    env::var("LD_PRELOAD").unwrap_or_default().contains("libjitlisten.so")
}
