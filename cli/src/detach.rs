//! `jitlisten detach`: disables the sinks in a process and ends its recording.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::inject::{self, Request};
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::Process;
use crate::system::BlockedSignals;

const EXAMPLE: &str = "Example: jitlisten detach 4711

The library stays loaded, so that `attach` can turn sinks on again.";

/// Turn off all sinks of a process and end its recording; its files are kept
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Detach {
    /// The process
    pid: u32,
    /// Time limit for the process to reach a point where it can be changed
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    timeout: u64,
}

impl Detach {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let process = Process::open(self.pid)?;
        if process.library_named("libjitlisten.so").is_none() {
            return Err(Problem::new(format!("process {} does not have jitlisten: nothing to turn off", self.pid)));
        }
        let timeout = Duration::from_secs(self.timeout);
        let reply = inject::inject(
            &process,
            &Installation::find()?,
            &Request::Disable,
            timeout,
            &BlockedSignals::termination(),
        )?;
        let _ = writeln!(std::io::stdout(), "{reply}");
        Ok(ExitCode::SUCCESS)
    }
}
