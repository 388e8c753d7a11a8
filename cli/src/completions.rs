//! `jitlisten completions` and `jitlisten man-pages`: what a shell and `man` need, written by clap's own generators.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::Arguments;
use crate::problem::Problem;

const COMPLETIONS: &str = "Example: source <(jitlisten completions bash)";
const MAN_PAGES: &str = "Example: jitlisten man-pages ~/.local/share/man/man1";

/// Print the completions of a shell
#[derive(Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write a man page for each command
#[derive(Args)]
#[command(after_help = MAN_PAGES)]
pub(crate) struct ManPages {
    /// An existing directory
    directory: PathBuf,
}

impl Completions {
    pub(crate) fn execute(&self) -> Result<ExitCode, Problem> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "jitlisten", &mut text);
        // A reader that has closed the pipe has what it wants.
        let _ = io::stdout().write_all(&text);
        Ok(ExitCode::SUCCESS)
    }
}

impl ManPages {
    pub(crate) fn execute(&self) -> Result<ExitCode, Problem> {
        clap_mangen::generate_to(Arguments::command(), &self.directory)
            .map_err(|error| Problem::new(format!("cannot write into {}: {error}", self.directory.display())))?;
        Ok(ExitCode::SUCCESS)
    }
}
