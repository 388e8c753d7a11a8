//! Properties of a process that determine what tools see. The process is not changed.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jitlisten::plumbing::{LogEvent, RUN_VARIABLE};
use jitlisten_files::{FileName, open_regular};
use wire::facts::{Total, Totals};

use super::Finding;
use super::facts;
use super::llvm::{Compiled, Llvm};
use super::python::{self, Environment, PythonFlags};
use crate::command;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::Process;
use crate::run::RunEnvironment;
use crate::scratch::{Kind, Scratch};
use crate::system::{BlockedSignals, end_with_parent, kill_group};

const LIBRARY: &str = "libjitlisten.so";

/// Findings about a program, and the properties that affect tools.
pub(super) struct Program {
    pub(super) findings: Vec<Finding>,
    pub(super) has_library: bool,
    /// True if an LLVM is observed and the program has code that belongs to no file, but no code was reported.
    pub(super) has_unreported_code: bool,
    /// True if the program lacks a dynamic loader, so that our library cannot be preloaded.
    pub(super) is_static: bool,
    pub(super) perf_map: bool,
    pub(super) images: bool,
    pub(super) unwind: bool,
    pub(super) modules: bool,
    /// True if perf can use the unwind tables of all images.
    pub(super) images_have_padding: bool,
    pub(super) lines: bool,
    /// True if some compiled code lacks a line table.
    pub(super) lacks_lines: bool,
    pub(super) code_keeps_frame_pointers: bool,
    pub(super) python_keeps_frame_pointers: bool,
    /// True if a tool starts the program, and may therefore trace it.
    pub(super) is_started_by_tool: bool,
    is_python: bool,
    /// True if an LLVM in the program has compiled code.
    has_compiled: bool,
    /// True if images of compiled code exist or existed.
    had_images: bool,
    /// True if the process ended while it was examined.
    is_partial: bool,
    /// LLVM libraries in our library's facts, by their names in its log.
    known_llvms: Vec<String>,
    /// True if one of the LLVM instances is llvmlite's.
    has_numba: bool,
    /// Each LLVM instance whose code gets no frame pointers, with the reason.
    without_frame_pointers: Vec<String>,
}

impl Program {
    /// Orders examinations by how much they tell.
    fn progress(&self) -> (bool, bool, bool, bool, bool) {
        let has_llvm = self.has_numba || !self.known_llvms.is_empty();
        (self.has_compiled, self.had_images, has_llvm, !self.is_partial, self.is_python)
    }

    fn with_sinks(sinks: &str) -> Program {
        let has_sink = |name: &str| sinks.split(',').any(|sink| sink.trim() == name || sink.trim() == "all");
        Program {
            findings: Vec::new(),
            has_library: true,
            has_unreported_code: false,
            is_static: false,
            perf_map: has_sink("perfmap"),
            images: has_sink("image"),
            unwind: has_sink("unwind"),
            modules: has_sink("modules"),
            images_have_padding: true,
            lines: true,
            lacks_lines: false,
            code_keeps_frame_pointers: true,
            python_keeps_frame_pointers: true,
            is_started_by_tool: true,
            is_python: false,
            has_compiled: false,
            had_images: false,
            is_partial: false,
            known_llvms: Vec::new(),
            has_numba: false,
            without_frame_pointers: Vec::new(),
        }
    }

    /// Returns the expected properties of a program started by `jitlisten run`.
    pub(super) fn expected(run_environment: &RunEnvironment) -> Program {
        let sinks = run_environment.sinks.clone().unwrap_or_default().to_string();
        let mut program = Program::with_sinks(&sinks);
        match Installation::find() {
            Ok(installation) => {
                program.lines = !run_environment.no_lines && installation.site().is_some() && installation.has_lines();
                let library = installation.library().display();
                program.findings.push(Finding::ok("library", format!("{library}, {}", env!("CARGO_PKG_VERSION"))));
            }
            Err(problem) => {
                program.has_library = false;
                program.findings.push(Finding::no("library", problem.to_string(), "install it again"));
            }
        }
        program
    }

    /// Examines a running process. A process that has just started is examined again later.
    pub(super) fn of_process(pid: u32) -> Result<Program, Problem> {
        let first = Program::examine(pid)?;
        match Process::open(pid)?.age().and_then(|age| wait_in_start_up(age, first.has_compiled)) {
            None => Ok(first),
            Some(delay) => {
                sleep(delay);
                Ok(Program::examine(pid).unwrap_or(first))
            }
        }
    }

    fn examine(pid: u32) -> Result<Program, Problem> {
        let process = Process::open(pid)?;
        let environment = Environment::read(pid);
        let has_library = our_library(&process).is_some();
        let sinks = environment.get("JITLISTEN").unwrap_or("perfmap,unwind").to_owned();
        let mut program = Program::with_sinks(if has_library { &sinks } else { "" });
        program.has_library = has_library;
        program.is_static = is_static(&process);
        program.is_started_by_tool = false;
        program.code_keeps_frame_pointers = has_library;
        program.images |= process.mappings.iter().any(|mapping| is_image(&mapping.path));
        program.lines = environment.enables_lines();
        program.findings.push(library_finding(&process));
        program.examine_python(&process, &environment);
        program.examine_llvms(&process);
        program.examine_sinks(&process);
        Ok(program)
    }

    /// Runs a command as `jitlisten run` does, examines it, and stops it after `time`.
    pub(super) fn of_command(
        run_environment: &RunEnvironment,
        words: &[OsString],
        time: Duration,
    ) -> Result<Program, Problem> {
        let mut command = run_environment.command(words)?;
        // From here on, a signal ends this command only after the directory is removed.
        let signals = BlockedSignals::termination();
        let scratch = Scratch::new(Kind::Doctor)?;
        let log = scratch.path.join("log");
        command.env("JITLISTEN_LOG", log_destination(&log)).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        end_with_parent(&mut command);
        let child = command
            .spawn()
            .map_err(|error| Problem::new(format!("cannot start {}: {error}", Path::new(&words[0]).display())))?;
        let watched = watch(child, time, &signals);
        let log_text = read_log(&log);
        let events: Vec<LogEvent> = log_text.lines().filter_map(LogEvent::from_line).collect();
        drop(scratch);
        signals.release();
        let has_llvm = events.iter().any(|event| matches!(event, LogEvent::Observed { .. }));
        let mut program = Program::expected(run_environment);
        match watched {
            Some(watched) => program.merge(watched, has_llvm),
            None => {
                program.has_library = has_llvm;
                program.findings.push(Finding::no(
                    "program",
                    "no process with the library was seen",
                    "if the program starts others, use -s; if a tool drops LD_PRELOAD, put jitlisten run behind it",
                ));
            }
        }
        program.add_log_findings(&events);
        Ok(program)
    }

    fn merge(&mut self, watched: Watched, has_llvm: bool) {
        self.python_keeps_frame_pointers = watched.program.python_keeps_frame_pointers;
        self.lines &= watched.program.lines;
        self.lacks_lines = watched.program.lacks_lines;
        self.images_have_padding = watched.program.images_have_padding;
        self.has_unreported_code = watched.program.has_unreported_code;
        self.known_llvms = watched.program.known_llvms;
        self.has_numba = watched.program.has_numba;
        // The log says which sink has failed. A process that has ended may only not have come to its last ones.
        let is_valid =
            |finding: &Finding| finding.about != "library" && !(watched.has_ended && finding.about == "sink");
        self.findings.extend(watched.program.findings.into_iter().filter(is_valid));
        let has_missed_code = !watched.program.has_compiled || self.images && !watched.program.had_images;
        let was_too_short = watched.has_ended && has_llvm && has_missed_code;
        self.findings.push(match was_too_short {
            true => Finding::note(
                "command",
                format!("{}: its compiled code may have been missed", watched.status),
                "let it run for some seconds after it has compiled, or use jitlisten doctor PID",
            ),
            false => Finding::ok("command", watched.status),
        });
    }

    fn add_log_findings(&mut self, events: &[LogEvent]) {
        for event in events {
            if let LogEvent::SinkStopped { sink, .. } = event {
                self.disable_sink(sink);
                self.findings.push(Finding::no("sink", event.to_string(), "fix what the system has refused"));
            }
        }
        self.add_frame_pointer_findings(events);
        for event in events {
            if matches!(event, LogEvent::ListUnhooked { .. } | LogEvent::ListPolled { .. }) {
                self.findings.push(Finding::ok("LLVM", event.to_string()));
            }
        }
        let llvm_findings = super::heard::findings(events, &self.known_llvms);
        if !llvm_findings.is_empty() {
            self.findings.retain(|finding| finding.found != NO_LLVM && finding.found != NO_LLVM_YET);
        }
        self.findings.extend(llvm_findings);
        self.findings.dedup_by(|finding, other| finding.about == other.about && finding.found == other.found);
    }

    fn disable_sink(&mut self, name: &str) {
        match name {
            "perfmap" => self.perf_map = false,
            "image" => self.images = false,
            "unwind" => self.unwind = false,
            "modules" => self.modules = false,
            _ => {}
        }
    }

    fn add_frame_pointer_findings(&mut self, events: &[LogEvent]) {
        let loaded = |event: &&LogEvent| matches!(event, LogEvent::LoadedWithoutFramePointers { .. });
        if let Some(event) = events.iter().find(loaded) {
            self.code_keeps_frame_pointers = false;
            // The event also names the library and the first function. The process, if it still runs, only has counts.
            self.findings.retain(|finding| finding.about != "frame pointers");
            let dwarf = "perf record --call-graph dwarf";
            let advice = if self.has_numba { format!("{dwarf}; {CACHE_ADVICE}") } else { dwarf.to_owned() };
            self.findings.push(Finding::note("frame pointers", event.to_string(), advice));
        }
        let unchanged =
            |event: &&LogEvent| matches!(event, LogEvent::ReleaseUnknown { .. } | LogEvent::CompilerUnhooked { .. });
        if let Some(event) = events.iter().find(unchanged) {
            self.code_keeps_frame_pointers = false;
            self.findings.push(Finding::no("frame pointers", event.to_string(), "images and --call-graph dwarf"));
        }
        for event in events.iter().filter(|event| matches!(event, LogEvent::CodeChanged { .. })) {
            self.findings.push(Finding::ok("frame pointers", event.to_string()));
        }
    }

    fn examine_python(&mut self, process: &Process, environment: &Environment) {
        let Some((major, minor)) = process.python() else { return };
        self.is_python = true;
        let flags = PythonFlags::read(process.pid);
        self.findings.push(Finding::ok("Python", format!("{major}.{minor}, process {}", process.pid)));
        if flags.is_isolated && environment.get(RUN_VARIABLE).is_some() {
            self.lines = false;
            self.findings.push(Finding::note(
                "lines",
                "Python was started with -I, -E or -S, which ignores PYTHONPATH: no lines",
                "omit the flag, or call jitlisten.enable() in the program",
            ));
        }
        if flags.has_perf {
            self.findings.push(Finding::ok("-X perf", "on: Python functions have names in perf"));
        }
        match python::keeps_frame_pointers(process) {
            Some(true) => self.findings.push(Finding::ok("interpreter", "built with frame pointers")),
            Some(false) => {
                self.python_keeps_frame_pointers = false;
                self.findings.push(Finding::note(
                    "interpreter",
                    "built without frame pointers: perf record -g sees compiled code up to the interpreter, and no \
                     further",
                    "perf record --call-graph dwarf, or a Python built with them (Ubuntu 24.04, Fedora, uv)",
                ));
            }
            None => {}
        }
    }

    fn examine_llvms(&mut self, process: &Process) {
        let facts = our_library(process).and_then(|our_library| facts::read(process, our_library));
        let (is_known, totals) = facts.as_ref().map_or((false, Totals::default()), |facts| (true, facts.totals));
        if let Some(omitted) = facts.as_ref().map(|facts| facts.omitted).filter(|omitted| *omitted > 0) {
            self.findings.push(Finding::note("LLVM", format!("{omitted} more than the library shows"), "see its log"));
        }
        let llvms = Llvm::find_all(process, facts);
        let mut list_counts = Compiled::default();
        for llvm in &llvms {
            if let Some(compiled) = llvm.compiled() {
                list_counts.objects += compiled.objects;
                list_counts.functions += compiled.functions;
                list_counts.without_frame_pointer += compiled.without_frame_pointer;
                list_counts.objects_with_lines += compiled.objects_with_lines;
                list_counts.without_lines += compiled.without_lines;
                list_counts.of_program += compiled.of_program;
            }
            self.known_llvms.extend(llvm.name_in_log().map(str::to_owned));
            self.has_numba |= llvm.is_llvmlite();
            self.without_frame_pointers.extend(llvm.without_frame_pointers());
            self.findings.push(llvm.finding(self.has_library, process.has_anonymous_code()));
        }
        if llvms.is_empty() && !self.is_static {
            let advice = "try again after Numba, or another compiler, was imported";
            self.findings.push(Finding::note("LLVM", if is_known { NO_LLVM_YET } else { NO_LLVM }, advice));
        }
        // Lists may be incomplete, but an image always means that code became final.
        let has_image = process.mappings.iter().any(|mapping| is_image(&mapping.path));
        self.has_compiled = list_counts.functions > 0 || totals.get(Total::Functions) > 0 || has_image;
        self.has_unreported_code =
            !self.has_compiled && process.has_anonymous_code() && llvms.iter().any(Llvm::has_no_object);
        // Freed code no longer has an image.
        self.had_images = has_image || totals.get(Total::Images) > 0;
        self.lines |= self.has_library && (list_counts.objects_with_lines > 0 || totals.get(Total::WithLines) > 0);
        self.images_have_padding = totals.get(Total::ImagesWithoutPadding) == 0;
        self.examine_lines(&list_counts);
        self.examine_remarks(&totals);
        self.examine_frame_pointers(&list_counts, &totals);
        if !self.images_have_padding {
            let [images, without_padding] = [Total::Images, Total::ImagesWithoutPadding].map(|total| totals.get(total));
            self.findings.push(Finding::note(
                "images",
                format!(
                    "{without_padding} of {images} have no padding in front: perf --call-graph dwarf cannot \
                    use their unwind tables"
                ),
                "jitlisten record, gdb and py-spy can: see docs/limits.md",
            ));
        }
    }

    /// Reports functions without lines. Only the GDB JIT lists show which functions have lines.
    fn examine_lines(&mut self, list_counts: &Compiled) {
        let Compiled { without_lines, of_program, .. } = *list_counts;
        self.lacks_lines = self.lines && without_lines > 0;
        if self.lacks_lines {
            self.findings.push(Finding::note(
                "lines",
                format!(
                    "{without_lines} of {of_program} compiled functions have none: older than jitlisten in this \
                     process, or compiled without debug information"
                ),
                "jitlisten run from the beginning; what Numba compiles from now on has lines",
            ));
        }
    }

    /// Reports whether LLVM's vectoriser remarks are recorded. Images contain them.
    fn examine_remarks(&mut self, totals: &Totals) {
        if !self.has_numba || totals.get(Total::Images) == 0 || cfg!(not(target_arch = "x86_64")) {
            return;
        }
        self.findings.push(if totals.get(Total::RemarkHandlers) == 0 {
            Finding::note(
                "remarks",
                "those of LLVM's loop vectoriser are not recorded: unknown release of LLVM, or the program handles \
                 diagnostics itself",
                "nothing: jitlisten why goes by the machine code",
            )
        } else {
            let count = totals.get(Total::Remarks);
            Finding::ok("remarks", format!("those of LLVM's loop vectoriser are recorded, so far: {count}"))
        });
    }

    /// Reports code without frame pointers. Our library counts all reported functions, including those in no list. The
    /// lists are available even without our library.
    fn examine_frame_pointers(&mut self, list_counts: &Compiled, totals: &Totals) {
        let list_values = (list_counts.without_frame_pointer as u64, list_counts.functions as u64);
        let session_values = (totals.get(Total::FunctionsWithoutFramePointer), totals.get(Total::Functions));
        let (without_frame_pointer, functions) =
            if session_values.1 >= list_values.1 { session_values } else { list_values };
        self.code_keeps_frame_pointers &= without_frame_pointer == 0;
        if self.has_library && without_frame_pointer > 0 {
            let tool = if self.images_have_padding { "perf record --call-graph dwarf" } else { "jitlisten record" };
            let mut causes = self.without_frame_pointers.clone();
            causes.extend(
                self.has_numba.then(|| "from Numba's cache, or older than jitlisten in this process".to_owned()),
            );
            let causes = if causes.is_empty() { "their LLVM did not add them".to_owned() } else { causes.join("; ") };
            self.findings.push(Finding::note(
                "frame pointers",
                format!("{without_frame_pointer} of {functions} compiled functions keep no frame pointer: {causes}"),
                if self.has_numba { format!("{tool}; {CACHE_ADVICE}") } else { tool.to_owned() },
            ));
        }
    }

    /// Reports enabled sinks that produced no output although code was compiled.
    fn examine_sinks(&mut self, process: &Process) {
        if !self.has_library || !self.has_compiled {
            return;
        }
        let map = format!("/tmp/perf-{}.map", process.inner_pid());
        let problem = match process.open_file(Path::new(&map)) {
            Err(_) => Some(format!("perfmap: {map} does not exist")),
            Ok(file) if process.started_after(&file) => Some(format!("perfmap: {map} belongs to an earlier process")),
            Ok(_) => None,
        };
        if let Some(problem) = problem.filter(|_| self.perf_map) {
            self.perf_map = false;
            self.findings.push(Finding::no("sink", problem, SINK_ADVICE));
        }
        if self.images && !self.had_images {
            self.images = false;
            self.findings.push(Finding::no("sink", "image: nothing was compiled yet, or images failed", SINK_ADVICE));
        }
    }
}

const CACHE_ADVICE: &str = "start it with jitlisten run and omit --no-lines: Numba then compiles once more what it has \
    cached without jitlisten";

const NO_LLVM: &str = "no known LLVM in the process";
/// Text of the finding that our library, which examines every loaded library, has found no LLVM.
const NO_LLVM_YET: &str = "no LLVM in the process";

/// Time after process start by which the compiler is assumed to be loaded.
const START_UP_TIME: Duration = Duration::from_secs(3);

/// Returns the time to wait before a process of this age is examined again; `None` if one examination is enough.
fn wait_in_start_up(age: Duration, has_compiled: bool) -> Option<Duration> {
    START_UP_TIME.checked_sub(age).filter(|wait| !has_compiled && !wait.is_zero())
}

const SINK_ADVICE: &str = "start it with JITLISTEN_LOG=FILE; the log shows the error";

/// Reads the log. Its content is untrusted, because the program may have written to it or replaced it.
fn read_log(log: &Path) -> String {
    const MAX_LOG_BYTES: u64 = 64 << 20;
    let mut text = Vec::new();
    let _ = open_regular(log).and_then(|file| file.take(MAX_LOG_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

fn log_destination(log: &Path) -> OsString {
    let mut value = OsString::from("info:");
    value.push(log);
    value
}

fn is_image(path: &Path) -> bool {
    let name = |path: &Path| path.file_name().and_then(FileName::parse);
    matches!(name(path), Some(FileName::Image { .. }))
        && matches!(path.parent().and_then(name), Some(FileName::Images { .. }))
}

/// Returns our library. A copy from `make install` has a version suffix.
fn our_library(process: &Process) -> Option<&Path> {
    process.library_named(LIBRARY).or_else(|| process.library_with_prefix(&format!("{LIBRARY}.")))
}

fn is_static(process: &Process) -> bool {
    !process.mappings.iter().any(|mapping| is_loader(&mapping.path))
}

fn library_finding(process: &Process) -> Finding {
    match our_library(process) {
        Some(path) => Finding::ok("library", format!("{} is in process {}", path.display(), process.pid)),
        None if is_static(process) => Finding::no(
            "library",
            format!("process {} is statically linked: nothing can be preloaded or attached", process.pid),
            command::STATIC_ADVICE,
        ),
        None => Finding::no(
            "library",
            format!("process {} does not have {LIBRARY}", process.pid),
            format!("jitlisten attach {}, or start it with jitlisten run", process.pid),
        ),
    }
}

/// Returns true for a dynamic loader such as `ld-linux-x86-64.so.2`, `ld-2.28.so` or `ld-musl-x86_64.so.1`.
fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-") || name.as_bytes().starts_with(b"ld.so"))
}

struct Watched {
    program: Program,
    status: String,
    /// True if the command ended by itself.
    has_ended: bool,
}

/// Maximum time that a command keeps running after it has compiled code.
const RUN_ON_TIME: Duration = Duration::from_secs(2);
/// Interval between two examinations, which are slow because they read the interpreter's code.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Examines the processes of a command until one has compiled code, the command exits, `time` is over, or a signal
/// arrives. Then kills the command.
fn watch(mut child: Child, time: Duration, signals: &BlockedSignals) -> Option<Watched> {
    let started = Instant::now();
    let mut deadline = started + time;
    let mut best: Option<Program> = None;
    let (has_ended, status) = loop {
        // The first object may be on its way into the sinks.
        if !best.as_ref().is_some_and(|program| program.has_compiled && program.had_images) {
            best = best.into_iter().chain(examine_descendants(child.id())).max_by_key(Program::progress);
        }
        if best.as_ref().is_some_and(|program| program.has_compiled) {
            deadline = deadline.min(Instant::now() + RUN_ON_TIME);
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                break (true, format!("ended ({status}) after {:.1} s", started.elapsed().as_secs_f32()));
            }
            Ok(None) if Instant::now() < deadline && signals.wait_signal(POLL_INTERVAL).is_none() => {}
            _ => break (false, format!("was stopped after {:.1} s", started.elapsed().as_secs_f32())),
        }
    };
    kill_group(child.id());
    let _ = child.wait();
    best.map(|program| Watched { program, status, has_ended })
}

/// Examines the processes that have loaded our library, and returns the examination that tells most.
fn examine_descendants(pid: u32) -> Option<Program> {
    let has_library = |pid: &u32| Process::open(*pid).is_ok_and(|process| our_library(&process).is_some());
    let examine = |pid: u32| {
        let program = Program::examine(pid).ok()?;
        Some(Program { is_partial: !has_library(&pid), ..program })
    };
    descendants(pid).into_iter().filter(has_library).filter_map(examine).max_by_key(Program::progress)
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut processes = vec![pid];
    let mut index = 0;
    while let Some(&pid) = processes.get(index) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        index += 1;
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_in_start_up_is_looked_at_twice() {
        assert_eq!(wait_in_start_up(Duration::from_secs(1), false), Some(Duration::from_secs(2)));
        assert_eq!(wait_in_start_up(Duration::from_secs(1), true), None);
        assert_eq!(wait_in_start_up(START_UP_TIME, false), None);
        assert_eq!(wait_in_start_up(Duration::from_secs(60), false), None);
    }
}
