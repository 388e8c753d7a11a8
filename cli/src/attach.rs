//! `jitlisten attach`: makes JIT-compiled code in a running process visible.
//!
//! ```text
//!   method    mechanism           source          result
//!   inside    ptrace              inject/mod.rs   all sinks; frame pointers and lines for code compiled later
//!   outside   process_vm_readv    outside.rs      perf map of existing code; with --watch, also of later code
//! ```

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::inject::{self, Request};
use crate::installation::Installation;
use crate::outside;
use crate::problem::Problem;
use crate::process::Process;
use crate::sinks::Sinks;
use crate::system::BlockedSignals;

const EXAMPLES: &str = "Examples:
  jitlisten attach 4711
  jitlisten attach 4711 --sinks image
  jitlisten attach 4711 --no-inject --watch

Existing code gets names; code compiled from now on also gets stacks and lines. Needs the right to trace the process.";

/// Make the code of a running process visible
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Attach {
    /// The process
    pid: u32,
    /// Sinks to enable: a list of perfmap, image, unwind, modules, jitdump, gdb
    #[arg(long, value_name = "LIST", default_value = "perfmap,image,unwind")]
    sinks: Sinks,
    /// Do not add line tables to Numba's code
    #[arg(long)]
    no_lines: bool,
    /// Change nothing in the process: read its memory, and write the perf map
    #[arg(long)]
    no_inject: bool,
    /// With --no-inject: continue until the process ends
    #[arg(long)]
    watch: bool,
    /// Time limit for the process to reach a point where it can be changed
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    timeout: u64,
}

impl Attach {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let process = Process::open(self.pid)?;
        let signals = BlockedSignals::termination();
        let refusal = match self.no_inject {
            true => None,
            false => match self.inject(&process, &signals) {
                Ok(reply) => {
                    let _ = writeln!(std::io::stdout(), "{reply}");
                    return Ok(ExitCode::SUCCESS);
                }
                Err(_) if !process.is_alive() => return Err(process.ended_problem()),
                Err(problem) => Some(problem),
            },
        };
        signals.release();
        outside::read(&process, self.watch, refusal.as_ref())
    }

    fn inject(&self, process: &Process, signals: &BlockedSignals) -> Result<String, Problem> {
        let request = Request::Enable { sinks: self.sinks.clone(), lines: !self.no_lines };
        inject::inject(process, &Installation::find()?, &request, Duration::from_secs(self.timeout), signals)
    }
}
