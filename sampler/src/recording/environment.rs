//! Recordings that the environment requests.

use std::fs;
use std::path::Path;

use jitlisten::plumbing::{LiveObjects, process_start_time};
use wire::recording::{FILE_OWNER_VARIABLE, RECORD_VARIABLE};

use crate::recording::options::Options;
use crate::recording::process::is_launcher;
use crate::recording::recorder::{self, Error, Start};
use crate::writer::held_file::Role;
use crate::writer::origin::Origin;

/// Processes that inherit a recording request from the environment, besides the one that the request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InheritedBy {
    /// No other process: children are recorded only with the option `children`.
    NoProcess,
    /// Every child process, if this process is a launcher such as a shell.
    Descendants,
}

/// Starts a recording if the environment requests one for this process. Only call from a constructor, when no other
/// thread can use the environment.
///
/// # Errors
/// Any [`Error`], if a recording is requested and cannot start.
pub fn start_by_environment(inherited_by: InheritedBy) -> Result<bool, Error> {
    let Some(value) = std::env::var_os(RECORD_VARIABLE) else { return Ok(false) };
    let mut options = Options::parse(&value).map_err(Error::Options)?.absolute();
    let pid = std::process::id();
    let (own_pid, file_owner) = (pid.to_string(), std::env::var(FILE_OWNER_VARIABLE).ok());
    let is_child = options.pid.is_some_and(|requested_pid| requested_pid != pid);
    match options.pid {
        Some(_) if is_child && !options.children => return Ok(false),
        Some(_) if is_child => options = options.for_child(),
        Some(_) => {}
        // Do not record the child of a program that is already recorded, unless that program is a launcher.
        None if inherited_by == InheritedBy::Descendants
            && file_owner.as_deref().is_some_and(|owner| owner != own_pid && !is_launcher(owner)) =>
        {
            return Ok(false);
        }
        // Store this process's PID, so that a program that it executes is recorded as well, but its children are not.
        None if inherited_by == InheritedBy::NoProcess => {
            set_variable(RECORD_VARIABLE, &Options { pid: Some(pid), ..options.clone() }.to_value());
        }
        None => {}
    }
    let gives_signal_stacks = recorder::inspect_process()?;
    set_variable(FILE_OWNER_VARIABLE, std::ffi::OsStr::new(&own_pid));
    // A fork child has its parent's environment, which does not tell whether the child has created its file. The path
    // may also still hold an earlier recording, which this process replaces only at its first sample.
    let continues =
        |file: &Path| (is_child || file_owner.as_ref() == Some(&own_pid)) && was_created_by_this_process(file);
    let role = match options.pid {
        None if inherited_by == InheritedBy::NoProcess => Role::Program,
        None if is_launcher("self") => Role::Launcher,
        None if file_owner.as_ref().is_some_and(|owner| *owner != own_pid) => Role::Tool,
        None => Role::Command,
        Some(_) => Role::Program,
    };
    let run = LiveObjects::process().and_then(|objects| objects.run());
    let start = Start { is_child, role, run, gives_signal_stacks, inherited: None };
    recorder::start_with(options, start, continues)?;
    Ok(true)
}

/// Returns true if this process created the file before its exec(2). The file must name this PID and be newer than the
/// process: since the process started, no other process can have had this PID.
fn was_created_by_this_process(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    Origin::read(path).is_some_and(|origin| origin.pid == std::process::id())
        && process_start_time().is_some_and(|began| modified.is_ok_and(|modified| modified >= began))
}

fn set_variable(name: &str, value: &std::ffi::OsStr) {
    // SAFETY: the caller is a constructor, which runs before the program has threads.
    unsafe { std::env::set_var(name, value) };
}
