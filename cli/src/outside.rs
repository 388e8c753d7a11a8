//! `attach --no-inject`: names for compiled code without changing anything in the process.
//!
//! Reads its GDB JIT lists (`jit_list.rs`) and writes `/tmp/perf-PID.map` in the process's `/tmp`, with the PID that
//! the process has in its own namespace.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use jitlisten::{LoadedObject, name};
use jitlisten_files::reopen_regular;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::jit_list::{self, Entry, JitList};
use crate::memory;
use crate::problem::Problem;
use crate::process::Process;

/// How often to look for what is new.
const PAUSE: Duration = Duration::from_millis(250);

/// Writes the perf map of what is there, and goes on with what comes until the process ends if `watch`. `refusal` is
/// why nothing better could be done.
pub(crate) fn read(process: &Process, watch: bool, refusal: Option<&Problem>) -> Result<ExitCode, Problem> {
    let also = |problem: Problem| match refusal {
        Some(refusal) => Problem::new(format!("cannot attach to process {}, nor read it from outside", process.pid))
            .because(refusal)
            .because(&problem),
        None => problem,
    };
    check_access(process).map_err(also)?;
    let mut reader = Reader::new(process).map_err(also)?;
    let mut map = Map::create(process).map_err(also)?;
    if let Some(refusal) = refusal {
        let problem = Problem::new(format!("reading process {} from outside only", process.pid)).because(refusal);
        let _ = writeln!(io::stderr(), "jitlisten: {problem}");
    }
    let functions = reader.add_new(&mut map)?;
    let pid = process.pid;
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "process {pid}: reading only: {functions} compiled functions in {}", map.path.display());
    let _ = out.flush();
    while watch && process.is_there() {
        sleep(PAUSE);
        match reader.add_new(&mut map) {
            Ok(0) => {}
            Ok(more) => {
                let _ = writeln!(out, "process {pid}: {more} more").and_then(|()| out.flush());
            }
            Err(_) if !process.is_there() => break,
            Err(problem) => return Err(problem),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check_access(process: &Process) -> Result<(), Problem> {
    let address = process.mappings.first().map_or(0, |mapping| mapping.start);
    memory::read(process.pid, address, 8).map(|_| ()).map_err(|error| {
        if process.is_there() {
            let pid = process.pid;
            Problem::new(format!("the memory of process {pid} cannot be read: {error}"))
                .help(format!("see `jitlisten doctor {pid}`"))
        } else {
            process.ended()
        }
    })
}

/// What was read so far.
struct Reader<'a> {
    process: &'a Process,
    lists: Vec<JitList>,
    known: HashSet<Entry>,
}

impl Reader<'_> {
    fn new(process: &Process) -> Result<Reader<'_>, Problem> {
        let lists = jit_list::lists(process);
        if lists.is_empty() {
            return Err(Problem::new(format!("no LLVM found in process {}", process.pid)).help("import Numba first"));
        }
        Ok(Reader { process, lists, known: HashSet::new() })
    }

    /// Adds what is new to the map; returns how many functions.
    fn add_new(&mut self, map: &mut Map) -> Result<usize, Problem> {
        let mut lines = String::new();
        let mut count = 0;
        let end = Instant::now() + jit_list::PATIENCE;
        for list in &self.lists {
            for entry in list.entries(self.process).unwrap_or_default() {
                if Instant::now() >= end || self.known.contains(&entry) {
                    continue;
                }
                let Some(object) = entry.object(self.process) else { continue };
                self.known.insert(entry);
                count += describe(&object, &mut lines);
            }
        }
        map.append(&lines)?;
        Ok(count)
    }
}

fn describe(debug_object: &[u8], lines: &mut String) -> usize {
    use std::fmt::Write as _;
    let Ok(object) = LoadedObject::parse(debug_object) else { return 0 };
    for function in object.functions() {
        let name = name::readable(&function.linkage_name, None);
        let _ = writeln!(lines, "{:x} {:x} {}", function.range.start().0, function.range.size(), name.text);
    }
    object.functions().len()
}

/// The perf map, where perf looks for it.
struct Map {
    path: PathBuf,
    file: File,
}

impl Map {
    fn create(process: &Process) -> Result<Map, Problem> {
        let name = format!("perf-{}.map", process.inner_pid());
        let path = process.shown(Path::new("/tmp")).join(&name);
        let failed = |error: io::Error| Problem::new(format!("{} cannot be written: {error}", path.display()));
        let _rights = process.act_as_owner().map_err(failed)?;
        let directory = process.resolve(Path::new("/tmp"), OFlags::DIRECTORY).map_err(failed)?;
        if !is_replaceable(process, &directory, &name).map_err(failed)? {
            return Err(Problem::new(format!("{} exists, written by the process itself", path.display()))
                .help("keep it, or remove it and try again"));
        }
        let _ = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
        let mut file = jitlisten_files::create_new_in(&directory, &name).map_err(failed)?;
        let first = format!("{MARK}{} {} {} alive\n", process.inner_pid(), process.start, process.namespace());
        file.write_all(first.as_bytes()).map_err(failed)?;
        Ok(Map { path, file })
    }

    fn append(&mut self, lines: &str) -> Result<(), Problem> {
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(|error| Problem::new(format!("{} cannot be written: {error}", self.path.display())))
    }
}

/// How the first line of a map written from outside begins, of which perf sees a function of no bytes at 0. What
/// follows tells `jitlisten clean` whose it is.
pub(crate) const MARK: &str = "0 0 jitlisten-outside ";

/// Whether there is no map, one that was written from outside, or one of an earlier process of that number.
fn is_replaceable(process: &Process, directory: &OwnedFd, name: &str) -> io::Result<bool> {
    let found =
        match rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(true),
            found => found?,
        };
    let file = reopen_regular(&found)?;
    let is_stale = process.is_younger_than(&file);
    let mut begin = Vec::new();
    file.take(MARK.len() as u64).read_to_end(&mut begin)?;
    Ok(is_stale || begin == MARK.as_bytes())
}
