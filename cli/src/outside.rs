//! `attach --no-inject`: names compiled code without changing the process. Reads the GDB JIT lists of the process
//! (`jit_list.rs`) and writes a perf map into its `/tmp`, named after the process's PID in its own namespace.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use jitlisten::{LoadedObject, name};
use jitlisten_files::{FileName, reopen_regular};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::problem::Problem;
use crate::process::Process;
use crate::process::jit_list::{self, Entry, JitList};
use crate::process::memory;

/// Interval at which the lists are read again.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Writes a perf map of existing code; with `watch`, also appends new code until the process exits. `refusal` is the
/// reason why injection failed.
pub(crate) fn read(process: &Process, watch: bool, refusal: Option<&Problem>) -> Result<ExitCode, Problem> {
    let with_refusal = |problem: Problem| match refusal {
        Some(refusal) => Problem::new(format!("cannot attach to process {}, nor read it from outside", process.pid))
            .because(refusal)
            .because(&problem),
        None => problem,
    };
    check_access(process).map_err(with_refusal)?;
    let mut reader = Reader::new(process).map_err(with_refusal)?;
    let mut map = Map::create(process).map_err(with_refusal)?;
    if let Some(refusal) = refusal {
        let problem = Problem::new(format!("reading process {} from outside only", process.pid)).because(refusal);
        let _ = writeln!(io::stderr(), "jitlisten: {problem}");
    }
    let functions = reader.add_new(&mut map)?;
    let pid = process.pid;
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "process {pid}: reading only: {functions} compiled functions in {}", map.path.display());
    let _ = out.flush();
    while watch && process.is_alive() {
        sleep(POLL_INTERVAL);
        match reader.add_new(&mut map) {
            Ok(0) => {}
            Ok(new_functions) => {
                let _ = writeln!(out, "process {pid}: {new_functions} more").and_then(|()| out.flush());
            }
            Err(_) if !process.is_alive() => break,
            Err(problem) => return Err(problem),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check_access(process: &Process) -> Result<(), Problem> {
    let address = process.mappings.first().map_or(0, |mapping| mapping.start);
    memory::read(process.pid, address, 8).map(|_| ()).map_err(|error| {
        if process.is_alive() {
            let pid = process.pid;
            Problem::new(format!("the memory of process {pid} cannot be read: {error}"))
                .help(format!("see `jitlisten doctor {pid}`"))
        } else {
            process.ended_problem()
        }
    })
}

/// Reads the JIT lists of one process, and remembers the entries that were read.
struct Reader<'a> {
    process: &'a Process,
    lists: Vec<JitList>,
    read_entries: HashSet<Entry>,
}

impl Reader<'_> {
    fn new(process: &Process) -> Result<Reader<'_>, Problem> {
        let lists = jit_list::find_lists(process);
        if lists.is_empty() {
            return Err(Problem::new(format!("no LLVM found in process {}", process.pid)).help("import Numba first"));
        }
        Ok(Reader { process, lists, read_entries: HashSet::new() })
    }

    /// Appends new functions to the map and returns their number.
    fn add_new(&mut self, map: &mut Map) -> Result<usize, Problem> {
        let mut lines = String::new();
        let mut count = 0;
        let deadline = Instant::now() + jit_list::READ_TIMEOUT;
        for list in &self.lists {
            for entry in list.entries(self.process).unwrap_or_default() {
                if Instant::now() >= deadline || self.read_entries.contains(&entry) {
                    continue;
                }
                let Some(object) = entry.object(self.process) else { continue };
                self.read_entries.insert(entry);
                count += write_map_lines(&object, &mut lines);
            }
        }
        map.append(&lines)?;
        Ok(count)
    }
}

fn write_map_lines(debug_object: &[u8], lines: &mut String) -> usize {
    use std::fmt::Write as _;
    let Ok(object) = LoadedObject::parse(debug_object) else { return 0 };
    for function in object.functions() {
        let name = name::readable(&function.linkage_name, None);
        let _ = writeln!(lines, "{:x} {:x} {}", function.range.start().0, function.range.size(), name.text);
    }
    object.functions().len()
}

/// A perf map at the path where perf expects it.
struct Map {
    path: PathBuf,
    file: File,
}

impl Map {
    fn create(process: &Process) -> Result<Map, Problem> {
        let name = FileName::PerfMap { pid: process.inner_pid() }.to_string();
        let path = process.visible_path(Path::new("/tmp")).join(&name);
        let write_problem = |error: io::Error| Problem::new(format!("{} cannot be written: {error}", path.display()));
        let _rights = process.act_as_owner().map_err(write_problem)?;
        let directory = process.resolve(Path::new("/tmp"), OFlags::DIRECTORY).map_err(write_problem)?;
        if !is_replaceable(process, &directory, &name).map_err(write_problem)? {
            return Err(Problem::new(format!("{} exists, written by the process itself", path.display()))
                .help("keep it, or remove it and try again"));
        }
        let _ = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
        let mut file = jitlisten_files::create_new_in(&directory, &name).map_err(write_problem)?;
        let first_line = format!("{MARK}{} {} {} alive\n", process.inner_pid(), process.start, process.namespace());
        file.write_all(first_line.as_bytes()).map_err(write_problem)?;
        Ok(Map { path, file })
    }

    fn append(&mut self, lines: &str) -> Result<(), Problem> {
        let result = self.file.write_all(lines.as_bytes());
        result.map_err(|error| Problem::new(format!("{} cannot be written: {error}", self.path.display())))
    }
}

/// Prefix of the first line in a perf map that was written from outside the process. perf parses the line as an empty
/// function at address 0. The rest of the line identifies the process for `jitlisten clean`.
pub(crate) const MARK: &str = "0 0 jitlisten-outside ";

/// Returns true if no map exists, or if it was written from outside or by an earlier process with the same PID.
fn is_replaceable(process: &Process, directory: &OwnedFd, name: &str) -> io::Result<bool> {
    let descriptor =
        match rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(true),
            descriptor => descriptor?,
        };
    let file = reopen_regular(&descriptor)?;
    let is_stale = process.started_after(&file);
    let mut start = Vec::new();
    file.take(MARK.len() as u64).read_to_end(&mut start)?;
    Ok(is_stale || start == MARK.as_bytes())
}
