//! `jitlisten doctor`: which tools will see names, stacks and lines here, and how to fix the rest.
//!
//! ```text
//!   machine.rs   perf, ptrace, gdb, places, glibc                   asked of the system
//!   program.rs   a process, or a command that is run for a moment   asked of /proc, the interpreter, the library's log
//!   heard.rs     how each LLVM of a command was observed            from the library's log
//!   facts.rs     how each LLVM of a process is observed             from what the library publishes
//!   llvm.rs      each LLVM of a process                             the same; its file (llvm_file.rs), symbols, list
//!   python.rs    the interpreter: flags, how it was built           asked of /proc and of the interpreter
//!   tools.rs     tool by tool: names, whole stacks, lines           concluded from the two
//! ```

mod facts;
mod heard;
mod llvm;
mod llvm_file;
mod machine;
mod program;
mod python;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use jitlisten_report::printable;
use serde::Serialize;

use crate::problem::Problem;
use crate::recording;
use crate::run::RunEnvironment;
use machine::Machine;
use program::Program;
use tools::Tool;

const EXAMPLES: &str = "Examples:
  jitlisten doctor
  jitlisten doctor 4711
  jitlisten doctor -- python prog.py";

/// Report what each tool can see, and what to do about the rest
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub(crate) struct Doctor {
    /// A process that runs
    #[arg(conflicts_with = "command")]
    pid: Option<u32>,
    /// A command to run for a moment
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// How long the command runs at most
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    surroundings: RunEnvironment,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) about: &'static str,
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Ok,
    Note,
    No,
}

impl Finding {
    pub(crate) fn ok(about: &'static str, found: impl Into<String>) -> Finding {
        Finding { about, state: State::Ok, found: found.into(), advice: None }
    }

    pub(crate) fn note(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { about, state: State::Note, found: found.into(), advice: Some(advice.into()) }
    }

    pub(crate) fn no(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { about, state: State::No, found: found.into(), advice: Some(advice.into()) }
    }
}

#[derive(Serialize)]
struct Report {
    machine: Vec<Finding>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    program: Vec<Finding>,
    tools: Vec<Tool>,
}

impl Doctor {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let machine = Machine::examine();
        let program = match self.pid {
            Some(pid) => Program::of_process(pid)?,
            None if self.command.is_empty() => Program::expected(&self.surroundings),
            None => Program::of_command(&self.surroundings, &self.command, Duration::from_secs(self.seconds))?,
        };
        let tools = tools::conclude(&machine, &program);
        let report = Report { machine: machine.findings, program: program.findings, tools };
        let text = if self.json {
            serde_json::to_string_pretty(&report).map_err(Problem::new)? + "\n"
        } else {
            report.for_people()
        };
        recording::print(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Report {
    fn for_people(&self) -> String {
        let mut text = String::new();
        for (title, findings) in [("This machine", &self.machine), ("The program", &self.program)] {
            if findings.is_empty() {
                continue;
            }
            let mut table = empty_table();
            for finding in findings {
                let state = match finding.state {
                    State::Ok => "",
                    State::Note => "note",
                    State::No => "no",
                };
                let advice = finding.advice.as_ref().map(|advice| format!("\n-> {advice}")).unwrap_or_default();
                table.add_row([state, finding.about, &format!("{}{advice}", printable(&finding.found))]);
            }
            text += &format!("{title}\n{table}\n\n");
        }
        let mut table = empty_table();
        table.set_header(["with", "names", "whole stacks", "lines", "to do"]);
        for tool in &self.tools {
            let word = |seen: bool| if seen { "yes" } else { "no" };
            let todo = tool.todo.as_deref().unwrap_or_default();
            let lines = if tool.some_lines && !tool.lines { "some" } else { word(tool.lines) };
            table.add_row([tool.tool, word(tool.names), word(tool.stacks), lines, todo]);
        }
        text += &format!("What you will see\n{table}\n");
        // The table fills its columns with spaces.
        text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
    }
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // comfy-table asks a terminal for its width only with features that are not wanted here.
    let width = terminal_size::terminal_size().map_or(120, |(width, _)| width.0);
    table.set_width(width.max(60));
    table
}
