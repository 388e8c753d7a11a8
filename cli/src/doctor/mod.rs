//! `jitlisten doctor`: reports which tools will see names, stacks and lines here, and how to fix the rest.
//!
//! ```text
//!   file         content                                            source
//!   machine.rs   perf, ptrace, gdb, directories, glibc              the system
//!   program.rs   a process, or a command that runs for a moment     /proc, the interpreter, the library's log
//!   heard.rs     LLVM instances of a command, and their hooks       the library's log
//!   facts.rs     LLVM instances of a process, and their hooks       facts that the library publishes
//!   llvm.rs      LLVM instances of a process                        the facts; file (llvm_file.rs), symbols, JIT list
//!   python.rs    the interpreter: flags, build options              /proc and the interpreter's file
//!   tools.rs     each tool: names, whole stacks, lines              conclusions from the machine and the program
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
use jitlisten_report::sanitize;
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
    /// Running process to examine
    #[arg(conflicts_with = "command")]
    pid: Option<u32>,
    /// A command to run for a moment
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Time limit for the command
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run_environment: RunEnvironment,
}

/// Result for one examined property of the machine or the program.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) about: &'static str,
    pub(crate) state: State,
    /// Description of the observed state.
    pub(crate) found: String,
    /// Advice for the user, if there is any.
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
            None if self.command.is_empty() => Program::expected(&self.run_environment),
            None => Program::of_command(&self.run_environment, &self.command, Duration::from_secs(self.seconds))?,
        };
        let tools = tools::conclude(&machine, &program);
        let report = Report { machine: machine.findings, program: program.findings, tools };
        let text = if self.json {
            serde_json::to_string_pretty(&report).map_err(Problem::new)? + "\n"
        } else {
            report.to_text()
        };
        recording::print(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Report {
    fn to_text(&self) -> String {
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
                table.add_row([state, finding.about, &format!("{}{advice}", sanitize(&finding.found))]);
            }
            text += &format!("{title}\n{table}\n\n");
        }
        let mut table = empty_table();
        table.set_header(["with", "names", "whole stacks", "lines", "to do"]);
        for tool in &self.tools {
            let yes_or_no = |seen: bool| if seen { "yes" } else { "no" };
            let todo = tool.todo.as_deref().unwrap_or_default();
            let lines = if tool.some_lines && !tool.lines { "some" } else { yes_or_no(tool.lines) };
            table.add_row([tool.tool, yes_or_no(tool.names), yes_or_no(tool.stacks), lines, todo]);
        }
        text += &format!("What you will see\n{table}\n");
        // The table pads its columns with spaces.
        text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
    }
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // comfy-table could query the terminal width only with features that we do not enable.
    let width = terminal_size::terminal_size().map_or(120, |(width, _)| width.0);
    table.set_width(width.max(60));
    table
}
