//! The `jitlisten` command: command line, environment, files and messages on top of the library and its reports.
//!
//! Each subcommand is one file, with a `clap::Args` struct and its `execute` method. To add a subcommand, write the
//! file, declare the module below, and extend [`Command`] and [`Command::execute`].
//!
//! A failure prints a few short lines on standard error and exits with status 2. Standard output carries the requested
//! output and nothing else.

#![deny(unsafe_code)]

mod attach;
mod browser;
mod bundle;
mod clean;
mod command;
mod compiles;
mod completions;
mod coverage;
mod detach;
mod diff;
mod doctor;
mod environment;
mod export;
mod flamegraph;
mod hint;
mod inject;
mod input;
mod installation;
mod lines;
mod outside;
mod problem;
mod process;
mod progress;
mod record;
mod recorder;
mod recording;
mod run;
mod scratch;
mod sinks;
mod system;
mod top;
mod why;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::problem::Problem;

/// First commands of a new user; README.md leads with the same ones.
const START: &str = "\
Start with:
  jitlisten prog.py                                which line is slow, and why
  jitlisten run -- perf record -g python prog.py   the same names and lines in another profiler or debugger
  jitlisten doctor -- python prog.py               what each tool will see, and how to fix the rest";

/// Makes code that LLVM compiles at run time visible to profilers, debuggers and unwinders.
#[derive(Parser)]
#[command(name = "jitlisten", version, after_help = START)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Record(record::Record),
    Lines(lines::Lines),
    Why(why::Why),
    Compiles(compiles::Compiles),
    Coverage(coverage::Coverage),
    Top(top::Top),
    Flamegraph(flamegraph::Flamegraph),
    Export(export::Export),
    Diff(diff::Diff),
    Bundle(bundle::MakeBundle),
    Attach(attach::Attach),
    Detach(detach::Detach),
    Doctor(doctor::Doctor),
    Clean(clean::Clean),
    Completions(completions::Completions),
    ManPages(completions::ManPages),
}

impl Command {
    fn execute(self) -> Result<ExitCode, Problem> {
        match self {
            Command::Run(command) => command.execute(),
            Command::Record(command) => command.execute(),
            Command::Lines(command) => command.execute(),
            Command::Why(command) => command.execute(),
            Command::Compiles(command) => command.execute(),
            Command::Coverage(command) => command.execute(),
            Command::Top(command) => command.execute(),
            Command::Flamegraph(command) => command.execute(),
            Command::Export(command) => command.execute(),
            Command::Diff(command) => command.execute(),
            Command::Bundle(command) => command.execute(),
            Command::Attach(command) => command.execute(),
            Command::Detach(command) => command.execute(),
            Command::Doctor(command) => command.execute(),
            Command::Clean(command) => command.execute(),
            Command::Completions(command) => command.execute(),
            Command::ManPages(command) => command.execute(),
        }
    }
}

fn main() -> ExitCode {
    system::keep_descriptors_closed();
    let mut words: Vec<_> = std::env::args_os().collect();
    if words.len() < 2 {
        let _ = writeln!(std::io::stderr(), "{START}\n\n`jitlisten --help` lists all commands.");
        return ExitCode::from(2);
    }
    let app = Arguments::command();
    words = input::insert_dashes(&app, input::insert_default_subcommand(&app, words));
    match Arguments::parse_from(words).command.execute() {
        Ok(status) => status,
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "jitlisten: {problem}");
            problem.status()
        }
    }
}
