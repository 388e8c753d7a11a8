//! Properties of a process that decide what tools see. Nothing is changed in it.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jitlisten_files::open_regular;

use super::Finding;
use super::facts::{Facts, Totals};
use super::llvm::{Compiled, Llvm};
use super::python::{self, Environment, PythonFlags};
use crate::command;
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::Process;
use crate::run::RunEnvironment;
use crate::scratch::{Kind, Scratch};
use crate::system::{Blocked, end_with_parent, kill_group};

const LIBRARY: &str = "libjitlisten.so";

/// What was found.
pub(super) struct Program {
    pub(super) findings: Vec<Finding>,
    pub(super) has_library: bool,
    /// It has no loader, so it cannot get the library.
    pub(super) is_static: bool,
    pub(super) perf_map: bool,
    pub(super) images: bool,
    pub(super) unwind: bool,
    pub(super) modules: bool,
    /// Whether perf can use the unwind tables of all images.
    pub(super) images_have_padding: bool,
    pub(super) lines: bool,
    /// Some compiled code has none.
    pub(super) lacks_lines: bool,
    pub(super) code_keeps_frame_pointers: bool,
    pub(super) python_keeps_frame_pointers: bool,
    /// Who starts a program may trace it.
    pub(super) is_started_by_tool: bool,
    is_python: bool,
    /// An LLVM in it has.
    has_compiled: bool,
    /// Its code was mapped from files.
    had_images: bool,
    /// The LLVMs in it that the library shows, as they are named in its log.
    shown: Vec<String>,
    /// One of its LLVMs is that of llvmlite.
    has_numba: bool,
    /// LLVMs whose code gets no frame pointers, and why.
    without_frame_pointers: Vec<String>,
}

impl Program {
    fn with_sinks(sinks: &str) -> Program {
        let has = |name: &str| sinks.split(',').any(|sink| sink.trim() == name || sink.trim() == "all");
        Program {
            findings: Vec::new(),
            has_library: true,
            is_static: false,
            perf_map: has("perfmap"),
            images: has("image"),
            unwind: has("unwind"),
            modules: has("modules"),
            images_have_padding: true,
            lines: true,
            lacks_lines: false,
            code_keeps_frame_pointers: true,
            python_keeps_frame_pointers: true,
            is_started_by_tool: true,
            is_python: false,
            has_compiled: false,
            had_images: false,
            shown: Vec::new(),
            has_numba: false,
            without_frame_pointers: Vec::new(),
        }
    }

    /// A program that would be started by `jitlisten run`.
    pub(super) fn expected(surroundings: &RunEnvironment) -> Program {
        let sinks = surroundings.sinks.clone().unwrap_or_default().to_string();
        let mut program = Program::with_sinks(&sinks);
        match Installation::find() {
            Ok(installation) => {
                program.lines = !surroundings.no_lines && installation.site().is_some() && installation.has_lines();
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

    /// A process that runs; one that has just begun is looked at again.
    pub(super) fn of_process(pid: u32) -> Result<Program, Problem> {
        let first = Program::look(pid)?;
        match Process::open(pid)?.age().and_then(|age| wait_in_start_up(age, first.has_compiled)) {
            None => Ok(first),
            Some(time) => {
                sleep(time);
                Ok(Program::look(pid).unwrap_or(first))
            }
        }
    }

    fn look(pid: u32) -> Result<Program, Problem> {
        let process = Process::open(pid)?;
        let environment = Environment::of(pid);
        let preloaded = library(&process).is_some();
        let sinks = environment.get("JITLISTEN").unwrap_or("perfmap,unwind").to_owned();
        let mut program = Program::with_sinks(if preloaded { &sinks } else { "" });
        program.has_library = preloaded;
        program.is_static = is_static(&process);
        program.is_started_by_tool = false;
        program.code_keeps_frame_pointers = preloaded;
        program.images |= process.mappings.iter().any(|mapping| is_image(&mapping.path));
        program.lines = environment.says_lines();
        program.findings.push(library_of(&process));
        program.examine_python(&process, &environment);
        program.examine_llvms(&process);
        program.examine_sinks(&process);
        Ok(program)
    }

    /// A command: it is started as by `jitlisten run`, looked at while it runs, and stopped when the time is over.
    pub(super) fn of_command(
        surroundings: &RunEnvironment,
        words: &[OsString],
        time: Duration,
    ) -> Result<Program, Problem> {
        let mut started = surroundings.command(words)?;
        // From here on the directory is removed at the end, whoever asks for it.
        let signals = Blocked::ends();
        let scratch = Scratch::new(Kind::Doctor)?;
        let log = scratch.path.join("log");
        started.env("JITLISTEN_LOG", prefixed(&log)).process_group(0);
        started.stdin(Stdio::null()).stdout(Stdio::null());
        end_with_parent(&mut started);
        let child = started
            .spawn()
            .map_err(|error| Problem::new(format!("cannot start {}: {error}", Path::new(&words[0]).display())))?;
        let seen = watch(child, time, &signals);
        let text = read_log(&log);
        drop(scratch);
        signals.end();
        let mut program = Program::expected(surroundings);
        match seen {
            Some(seen) => program.take(seen),
            None => {
                program.has_library = text.contains("LLVM in ");
                program.findings.push(Finding::no(
                    "program",
                    "no process with the library was seen",
                    "if the program starts others, use -s; if a tool drops LD_PRELOAD, put jitlisten run behind it",
                ));
            }
        }
        program.take_log(&text);
        Ok(program)
    }

    fn take(&mut self, seen: Seen) {
        self.python_keeps_frame_pointers = seen.program.python_keeps_frame_pointers;
        self.lines &= seen.program.lines;
        self.lacks_lines = seen.program.lacks_lines;
        self.images_have_padding = seen.program.images_have_padding;
        self.shown = seen.program.shown;
        self.has_numba = seen.program.has_numba;
        let without_library = seen.program.findings.into_iter().filter(|finding| finding.about != "library");
        self.findings.extend(without_library);
        self.findings.push(Finding::ok("command", seen.status));
    }

    /// What the library has said: see the log lines of `shim` and of the session.
    fn take_log(&mut self, text: &str) {
        for line in text.lines().filter(|line| line.contains(" sink stops: ")) {
            let sinks = [
                ("perfmap", &mut self.perf_map),
                ("image", &mut self.images),
                ("unwind", &mut self.unwind),
                ("modules", &mut self.modules),
            ];
            for (name, works) in sinks {
                *works &= !line.contains(&format!("the {name} sink stops"));
            }
            self.findings.push(Finding::no("sink", after(line, "the "), "fix what the system has refused"));
        }
        if let Some(line) = text.lines().find(|line| line.contains("code without frame pointers was loaded")) {
            self.code_keeps_frame_pointers = false;
            // The log also names the library and the first function; the process, if it still lives, only has counts.
            self.findings.retain(|finding| !finding.found.contains(HAVE_NONE));
            self.findings.push(Finding::note(
                "frame pointers",
                // With the library in front, if the log names it.
                after(line, " warn: ").trim_start_matches(" warn: "),
                if self.has_numba {
                    format!("perf record --call-graph dwarf; {CACHED}")
                } else {
                    "perf record --call-graph dwarf".to_owned()
                },
            ));
        }
        if let Some(line) = text.lines().find(|line| line.contains("code gets no frame pointers")) {
            self.code_keeps_frame_pointers = false;
            self.findings.push(Finding::no("frame pointers", after(line, "LLVM "), "images and --call-graph dwarf"));
        }
        for line in text.lines().filter(|line| line.contains(": frame pointers ") && line.ends_with(" enabled")) {
            self.findings.push(Finding::ok("frame pointers", after(line, "LLVM ")));
        }
        for line in text.lines().filter(|line| line.contains("could not hook __jit_debug_register_code")) {
            self.findings.push(Finding::ok("LLVM", after(line, "/")));
        }
        let heard = super::heard::findings(text, &self.shown);
        if !heard.is_empty() {
            self.findings.retain(|finding| finding.found != NO_LLVM && finding.found != NONE_YET);
        }
        self.findings.extend(heard);
        self.findings.dedup_by(|one, other| one.about == other.about && one.found == other.found);
    }

    fn examine_python(&mut self, process: &Process, environment: &Environment) {
        let Some((major, minor)) = process.python() else { return };
        self.is_python = true;
        let flags = PythonFlags::of(process.pid);
        self.findings.push(Finding::ok("Python", format!("{major}.{minor}, process {}", process.pid)));
        if flags.is_isolated && environment.get("JITLISTEN_RUN").is_some() {
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
        let facts = library(process).and_then(|library| Facts::of(process, library));
        let (is_known, totals) = facts.as_ref().map_or((false, Totals::default()), |facts| (true, facts.totals));
        if let Some(left_out) = facts.as_ref().map(|facts| facts.left_out).filter(|left_out| *left_out > 0) {
            self.findings.push(Finding::note("LLVM", format!("{left_out} more than the library shows"), "see its log"));
        }
        let llvms = Llvm::all(process, facts);
        let mut listed = Compiled::default();
        for llvm in &llvms {
            if let Some(compiled) = llvm.compiled() {
                listed.objects += compiled.objects;
                listed.functions += compiled.functions;
                listed.without_frame_pointer += compiled.without_frame_pointer;
                listed.objects_with_lines += compiled.objects_with_lines;
                listed.without_lines += compiled.without_lines;
                listed.of_program += compiled.of_program;
            }
            self.shown.extend(llvm.name_in_log().map(str::to_owned));
            self.has_numba |= llvm.is_llvmlite();
            self.without_frame_pointers.extend(llvm.without_frame_pointers());
            self.findings.push(llvm.finding(self.has_library));
        }
        if llvms.is_empty() && !self.is_static {
            let advice = "try again after Numba, or another compiler, was imported";
            self.findings.push(Finding::note("LLVM", if is_known { NONE_YET } else { NO_LLVM }, advice));
        }
        // Objects need not be in a list: images are of what is final.
        let has_image = process.mappings.iter().any(|mapping| is_image(&mapping.path));
        self.has_compiled = listed.functions > 0 || totals.functions > 0 || has_image;
        // What has been freed has none.
        self.had_images = has_image || totals.images > 0;
        self.lines |= self.has_library && (listed.objects_with_lines > 0 || totals.objects_with_lines > 0);
        self.images_have_padding = totals.images_without_padding == 0;
        self.examine_lines(&listed);
        self.examine_remarks(&totals);
        self.examine_frame_pointers(&listed, &totals);
        if !self.images_have_padding {
            let Totals { images, images_without_padding, .. } = totals;
            self.findings.push(Finding::note(
                "images",
                format!(
                    "{images_without_padding} of {images} have no padding in front: perf --call-graph dwarf cannot \
                    use their unwind tables"
                ),
                "jitlisten record, gdb and py-spy can: see docs/limits.md",
            ));
        }
    }

    /// Only the list says which functions have lines.
    fn examine_lines(&mut self, listed: &Compiled) {
        let Compiled { without_lines, of_program, .. } = *listed;
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

    /// Whether LLVM's reasons for slow loops are recorded. Images carry them.
    fn examine_remarks(&mut self, totals: &Totals) {
        if !self.has_numba || totals.images == 0 || cfg!(not(target_arch = "x86_64")) {
            return;
        }
        self.findings.push(if totals.remark_handlers == 0 {
            Finding::note(
                "remarks",
                "those of LLVM's loop vectoriser are not recorded: unknown release of LLVM, or the program handles \
                 diagnostics itself",
                "nothing: jitlisten why goes by the machine code",
            )
        } else {
            let count = totals.remarks;
            Finding::ok("remarks", format!("those of LLVM's loop vectoriser are recorded, so far: {count}"))
        });
    }

    /// The library counts all that was reported to it, also what is in no list; the list is known without it, too.
    fn examine_frame_pointers(&mut self, listed: &Compiled, totals: &Totals) {
        let of_list = (listed.without_frame_pointer as u64, listed.functions as u64);
        let of_session = (totals.without_frame_pointer, totals.functions);
        let (without, all) = if of_session.1 >= of_list.1 { of_session } else { of_list };
        self.code_keeps_frame_pointers &= without == 0;
        if self.has_library && without > 0 {
            let tool = if self.images_have_padding { "perf record --call-graph dwarf" } else { "jitlisten record" };
            let mut causes = self.without_frame_pointers.clone();
            causes.extend(
                self.has_numba.then(|| "from Numba's cache, or older than jitlisten in this process".to_owned()),
            );
            let causes = if causes.is_empty() { "their LLVM did not add them".to_owned() } else { causes.join("; ") };
            self.findings.push(Finding::note(
                "frame pointers",
                format!("{without} of {all} {HAVE_NONE}{causes}"),
                if self.has_numba { format!("{tool}; {CACHED}") } else { tool.to_owned() },
            ));
        }
    }

    /// Sinks that were asked for and of which there is nothing, although there is code for them.
    fn examine_sinks(&mut self, process: &Process) {
        if !self.has_library || !self.has_compiled {
            return;
        }
        let map = format!("/tmp/perf-{}.map", process.inner_pid());
        let problem = match process.open_file(Path::new(&map)) {
            Err(_) => Some(format!("perfmap: {map} does not exist")),
            Ok(file) if process.is_younger_than(&file) => Some(format!("perfmap: {map} belongs to an earlier process")),
            Ok(_) => None,
        };
        if let Some(problem) = problem.filter(|_| self.perf_map) {
            self.perf_map = false;
            self.findings.push(Finding::no("sink", problem, SINK));
        }
        if self.images && !self.had_images {
            self.images = false;
            self.findings.push(Finding::no("sink", "image: nothing was compiled yet, or images failed", SINK));
        }
    }
}

/// Of functions without frame pointers, in front of the causes.
const HAVE_NONE: &str = "compiled functions keep no frame pointer: ";

const CACHED: &str = "start it with jitlisten run and omit --no-lines: Numba then compiles once more what it has \
    cached without jitlisten";

const NO_LLVM: &str = "no known LLVM in the process";
/// What the library says, which looks into every library.
const NONE_YET: &str = "no LLVM in the process";

/// For so long after its start a process may not have loaded what compiles.
const START_UP: Duration = Duration::from_secs(3);

/// How long to wait before a second look at a process of this age, which has compiled already or not.
fn wait_in_start_up(age: Duration, has_compiled: bool) -> Option<Duration> {
    START_UP.checked_sub(age).filter(|wait| !has_compiled && !wait.is_zero())
}

const SINK: &str = "start it with JITLISTEN_LOG=FILE; the log shows the error";

/// The log, in which the program may have written anything, or which it may have replaced.
fn read_log(log: &Path) -> String {
    const MAX_LOG_BYTES: u64 = 64 << 20;
    let mut text = Vec::new();
    let _ = open_regular(log).and_then(|file| file.take(MAX_LOG_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

fn prefixed(log: &Path) -> OsString {
    let mut value = OsString::from("info:");
    value.push(log);
    value
}

fn after(line: &str, word: &str) -> String {
    line.find(word).map_or(line, |at| &line[at..]).to_owned()
}

fn is_image(path: &Path) -> bool {
    let is_object = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("object-"));
    let directory = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy());
    is_object && directory.is_some_and(|name| name.starts_with("image-"))
}

/// Our library: the one that `make install` makes has its version behind its name.
fn library(process: &Process) -> Option<&Path> {
    process.library_named(LIBRARY).or_else(|| process.library_beginning(&format!("{LIBRARY}.")))
}

fn is_static(process: &Process) -> bool {
    !process.mappings.iter().any(|mapping| is_loader(&mapping.path))
}

fn library_of(process: &Process) -> Finding {
    match library(process) {
        Some(path) => Finding::ok("library", format!("{} is in process {}", path.display(), process.pid)),
        None if is_static(process) => Finding::no(
            "library",
            format!("process {} is statically linked: nothing can be preloaded or attached", process.pid),
            command::STATIC,
        ),
        None => Finding::no(
            "library",
            format!("process {} does not have {LIBRARY}", process.pid),
            format!("jitlisten attach {}, or start it with jitlisten run", process.pid),
        ),
    }
}

/// `ld-linux-x86-64.so.2`, `ld-2.28.so`, `ld-musl-x86_64.so.1`
fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-") || name.as_bytes().starts_with(b"ld.so"))
}

/// What was seen of a command.
struct Seen {
    program: Program,
    status: String,
}

/// How long a command runs on after it was seen to compile.
const ENOUGH: Duration = Duration::from_secs(2);
/// How often to look: an interpreter is asked how it was built, which takes time.
const PAUSE: Duration = Duration::from_millis(300);

/// Looks at the process that has the library until it has compiled something, has ended, the time is over, or someone
/// ends this process.
fn watch(mut child: Child, time: Duration, signals: &Blocked) -> Option<Seen> {
    let began = Instant::now();
    let mut end = began + time;
    let mut best: Option<Program> = None;
    let status = loop {
        if !best.as_ref().is_some_and(|seen| seen.has_compiled) {
            best = look(child.id()).or(best);
            if best.as_ref().is_some_and(|seen| seen.has_compiled) {
                end = end.min(Instant::now() + ENOUGH);
            }
        }
        match child.try_wait() {
            Ok(Some(status)) => break format!("ended ({status}) after {:.1} s", began.elapsed().as_secs_f32()),
            Ok(None) if Instant::now() < end && signals.arrived(PAUSE).is_none() => {}
            _ => break format!("was stopped after {:.1} s", began.elapsed().as_secs_f32()),
        }
    };
    kill_group(child.id());
    let _ = child.wait();
    best.map(|program| Seen { program, status })
}

/// Of the processes with the library, one that compiles, else one with a Python.
fn look(pid: u32) -> Option<Program> {
    let with_library = |pid: &u32| Process::open(*pid).is_ok_and(|process| library(&process).is_some());
    let programs = descendants(pid).into_iter().filter(with_library).filter_map(|pid| Program::look(pid).ok());
    programs.max_by_key(|program| (program.has_compiled, program.is_python))
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_in_start_up_is_looked_at_twice() {
        assert_eq!(wait_in_start_up(Duration::from_secs(1), false), Some(Duration::from_secs(2)));
        assert_eq!(wait_in_start_up(Duration::from_secs(1), true), None);
        assert_eq!(wait_in_start_up(START_UP, false), None);
        assert_eq!(wait_in_start_up(Duration::from_secs(60), false), None);
    }
}
