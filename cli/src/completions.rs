//! `jitlisten completions` and `jitlisten man-pages`: write shell completions and man pages with clap's generators.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use jitlisten_files::Visibility;

use crate::Arguments;
use crate::problem::Problem;
use crate::recording;

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
        recording::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ManPages {
    pub(crate) fn execute(&self) -> Result<ExitCode, Problem> {
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        self.write(&command)
            .map_err(|error| Problem::new(format!("cannot write into {}: {error}", self.directory.display())))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the man page of a command and of each subcommand.
    fn write(&self, command: &clap::Command) -> io::Result<()> {
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            self.write(subcommand)?;
        }
        let page = clap_mangen::Man::new(command.clone());
        let mut text = Vec::new();
        page.render(&mut text)?;
        recording::save(&self.directory.join(page.get_filename()), &text, Visibility::Umask)
    }
}
