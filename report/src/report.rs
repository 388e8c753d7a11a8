//! Content of a report: the profile, the sources of its lines, and notes about both.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use rustc_hash::FxHashMap;

use crate::activity::{self, Activities, Activity};
use crate::compilations::{self, Compilation};
use crate::lookup::Lookup;
use crate::loops::{Loop, find_loops};
use crate::profile::{Detail, FunctionRow, Profile, ThreadRow};
use crate::recording::{Recording, Selection, Thread};
use crate::roots::Roots;
use crate::source::{Compiled, SourceText};
use crate::symbols::{Kind, SymbolCache, Symbols};
use crate::{Count, Error};

/// Options for reading a recording.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Selected part of the recording.
    pub selection: Selection,
    /// Options for finding symbols and sources.
    pub lookup: Lookup,
    /// Keep the lines of each thread apart.
    pub by_thread: bool,
    /// Drop samples of compiling, so that the rest is 100 %.
    pub no_compile: bool,
}

/// Recording on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingFile {
    /// Path of the recording.
    pub path: PathBuf,
    /// Directory in which the files that it names are searched first, if it has one of its own.
    pub root: Option<PathBuf>,
}

impl From<&Path> for RecordingFile {
    fn from(path: &Path) -> RecordingFile {
        RecordingFile { path: path.to_owned(), root: None }
    }
}

/// Recording with symbols, profile and sources, ready for output.
#[derive(Debug)]
pub struct Report {
    /// Samples and stacks.
    pub recording: Recording,
    /// Symbols of the recording's locations.
    pub symbols: Symbols,
    /// Samples added up.
    pub profile: Profile,
    /// Sources of [`Profile::files`], in the same order.
    pub sources: Vec<SourceText>,
    /// Numba's compilations, ordered by time.
    pub compilations: Vec<Compilation>,
    /// Notes for the reader, one sentence each.
    pub notes: Vec<String>,
    /// Time at which the recording ended.
    pub recorded: Option<SystemTime>,
    pub(crate) roots: Roots,
    loops: OnceLock<Vec<Loop>>,
    /// True if samples of compiling were dropped.
    pub(crate) no_compile: bool,
}

/// Threads of a process or of a machine, added up.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Name of the machine.
    pub host: String,
    /// Pid; 0 for a machine.
    pub pid: u32,
    /// Last name of the first thread.
    pub name: String,
    /// Number of threads that have samples.
    pub threads: usize,
    /// All samples of the group.
    pub all: Count,
    /// Samples in compiled code.
    pub compiled: Count,
}

impl Report {
    /// Reads a recording and the files that it names.
    ///
    /// # Errors
    /// Returns an error if nothing of the recording can be read.
    pub fn open(path: &Path, options: &Options) -> Result<Report, Error> {
        Report::open_all(&[RecordingFile::from(path)], options)
    }

    /// Reads several recordings and merges them.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be read, or if they are of different events.
    pub fn open_all(files: &[RecordingFile], options: &Options) -> Result<Report, Error> {
        let (mut recordings, mut compilations, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut recorded: Option<SystemTime> = None;
        for RecordingFile { path, root } in files {
            let roots: Vec<PathBuf> = options.lookup.roots.iter().chain(root).cloned().collect();
            let recording = Recording::open_with(path, &options.selection, &roots);
            // With several files, the error must say which one it concerns.
            let mut recording = recording.map_err(|error| match error {
                error @ Error::Io { .. } => error,
                error if files.len() == 1 => error,
                error => Error::InFile { path: path.clone(), error: Box::new(error) },
            })?;
            recording.find_moved_images(path);
            if let Some(root) = root {
                recording.set_root(root);
            }
            compilations.extend(compilations::read(path, &recording, &options.selection, &mut notes));
            recordings.push(recording);
            let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            recorded = recorded.map_or(modified, |earliest| modified.map(|modified| modified.min(earliest)));
        }
        let mut report = Report::new(Recording::merged(recordings)?, recorded, options);
        report.compilations = compilations;
        report.notes.extend(notes);
        Ok(report)
    }

    /// Builds a report from a recording in memory. `recorded` is the time at which it ended.
    pub fn new(recording: Recording, recorded: Option<SystemTime>, options: &Options) -> Report {
        Report::with_cache(&mut SymbolCache::default(), recording, recorded, options)
    }

    /// Same as [`new`](Report::new), with a cache of open files.
    pub fn with_cache(
        cache: &mut SymbolCache,
        mut recording: Recording,
        recorded: Option<SystemTime>,
        options: &Options,
    ) -> Report {
        let symbols = Symbols::resolve_with(cache, &recording, &options.lookup);
        let detail = Detail { by_thread: options.by_thread, native_lines: options.lookup.native_lines };
        let activities = Activities::new(&recording, &symbols);
        if options.no_compile {
            recording.samples.retain(|sample| activities.get(sample.stack).activity != Activity::Compiling);
        }
        let profile = Profile::with_activities(&recording, &symbols, activities, detail);
        let roots = Roots::new(&recording, &options.lookup);
        let sources = load_sources(&profile, &symbols, &roots.all(), recorded);
        let mut notes = recording.notes.clone();
        notes.extend(symbols.notes.iter().cloned());
        if recording.samples.is_empty() {
            let count = recording.events.get(recording.event).map_or(0, |(_, count)| *count);
            notes.push(match count {
                0 => "the recording has no samples: the program used too little time, or did not load the library \
                      (a wrapper that changes LD_PRELOAD, a statically linked or set-user-ID program, another libc)"
                    .to_owned(),
                // The selection of a thread or process excludes all samples.
                count => format!("none of the {} samples is of the chosen process and thread", group_digits(count)),
            });
        }
        notes.extend(other_events(&recording));
        notes.retain(|note| !note.is_empty());
        let (compilations, no_compile) = (Vec::new(), options.no_compile);
        let loops = OnceLock::new();
        Report { recording, symbols, profile, sources, compilations, notes, recorded, roots, loops, no_compile }
    }

    /// Returns the loops of compiled code that ran, hottest first.
    pub fn loops(&self) -> &[Loop] {
        self.loops.get_or_init(|| find_loops(&self.recording, &self.symbols, &self.profile, &self.roots))
    }

    /// Returns the name of the event.
    pub fn event(&self) -> &str {
        self.recording.events.get(self.recording.event).map_or("", |(event, _)| event.name.as_str())
    }

    /// Returns true if samples measure time, so that their weight is in ns.
    pub fn is_time(&self) -> bool {
        let event = self.event().split(':').next().unwrap_or_default();
        ["cpu-clock", "task-clock", "wall-clock"].contains(&event)
    }

    /// Returns true if a source belongs neither to a library nor to Python.
    pub fn is_user_source(&self, path: &str) -> bool {
        activity::is_user_source(path)
    }

    /// Returns true for a function in the user's files, or in code without a file that is not run by a library.
    pub(crate) fn is_user_function(&self, row: &FunctionRow) -> bool {
        match (row.kind, row.lines) {
            // Numba's runtime has no lines.
            (Kind::Compiled, None) => !row.name.starts_with("NRT_"),
            (Kind::Compiled | Kind::Python, Some(lines)) => {
                let path = &self.profile.files[lines.file as usize].path;
                self.is_user_source(path)
                    || activity::is_generated(path) && !row.shares.self_count.is_zero() && !row.is_library_function
            }
            _ => false,
        }
    }

    /// Returns the time from the first sample to the last in ns; `None` for merged recordings.
    pub fn elapsed(&self) -> Option<u64> {
        let times = self.recording.samples.iter().map(|sample| sample.time);
        let (first, last) = (times.clone().min()?, times.max()?);
        (self.recording.parts <= 1).then_some(last - first)
    }

    /// Returns the name of the recorded program: `prog.py`, `-m module`, `./program`. For perf, the arguments after
    /// `--`.
    pub fn program(&self) -> String {
        program_name(&self.recording.facts.command)
    }

    /// Returns the version, as in `Python 3.12`, from the files that the process mapped.
    fn python_version(&self) -> Option<String> {
        self.recording.files.iter().find_map(|file| {
            let name = file_name(&file.path);
            let version = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
            let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty()).then(|| format!("Python 3.{digits}"))
        })
    }

    /// Returns a line that describes the recording.
    pub fn title(&self) -> String {
        let facts = &self.recording.facts;
        let mut parts = vec![self.program()];
        parts.extend(self.python_version());
        let all = self.profile.all;
        let elapsed_text =
            self.elapsed().filter(|elapsed| *elapsed > 0).map(|elapsed| format!(" in {}", duration(elapsed)));
        let elapsed_text = elapsed_text.unwrap_or_default();
        if self.is_time() {
            let unit = if self.recording.is_wall() { "of threads' time" } else { "of processor time" };
            parts.push(format!("{} {unit}{elapsed_text}", duration(all.weight)));
        } else if !elapsed_text.is_empty() {
            parts.push(elapsed_text.trim_start().to_owned());
        }
        if self.recording.parts > 1 {
            parts.push(format!("{} recordings", self.recording.parts));
        }
        let mut processes = plural(self.busy_threads(), "thread");
        match self.processes().len() {
            0 | 1 => {}
            count => processes.push_str(&format!(" in {count} processes")),
        }
        parts.push(processes);
        let event = self.event().trim_end_matches(":u");
        parts.push(format!("{} samples of {event}", group_digits(all.samples)));
        // A process that was killed has not recorded its machine.
        let hosts: Vec<Group> = self.hosts().into_iter().filter(|group| !group.host.is_empty()).collect();
        match hosts.as_slice() {
            [Group { host, .. }] => parts.push(format!("on {host}")),
            [] if !facts.host.is_empty() => parts.push(format!("on {}", facts.host)),
            [] => {}
            hosts => parts.push(format!("on {} machines", hosts.len())),
        }
        parts.join(" · ")
    }

    /// Counts the threads that did real work. Idle threads of a library's pool may spin for a while.
    fn busy_threads(&self) -> usize {
        let threads = &self.profile.threads;
        let is_busy = |row: &&ThreadRow| row.works && row.all.percent_of(self.profile.all) >= 0.5;
        let busy = threads.iter().filter(is_busy).count();
        if busy == 0 { threads.len() } else { busy }
    }

    /// Returns the processes that have samples, hottest first.
    pub fn processes(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), thread.pid))
    }

    /// Returns the machines that have samples, hottest first.
    pub fn hosts(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), 0))
    }

    /// Returns name and id of a thread, with its process and machine if there are several.
    pub(crate) fn thread_name(&self, thread: &Thread) -> String {
        let Thread { name, pid, tid, host, .. } = thread;
        let has_several = |key_of: fn(&Thread) -> (&str, u32)| {
            let mut keys = self.profile.threads.iter().map(|row| key_of(&row.thread));
            keys.next().is_some_and(|first| keys.any(|other| other != first))
        };
        let mut text = format!("{name} {tid}");
        if has_several(|thread| (&thread.host, thread.pid)) {
            text.push_str(&format!(" of process {pid}"));
        }
        if has_several(|thread| (&thread.host, 0)) {
            text.push_str(&format!(" on {host}"));
        }
        text
    }

    fn groups(&self, key: impl Fn(&Thread) -> (String, u32)) -> Vec<Group> {
        let mut groups: FxHashMap<(String, u32), Group> = FxHashMap::default();
        for row in &self.profile.threads {
            let key = key(&row.thread);
            let group = groups.entry(key).or_insert_with_key(|(host, pid)| Group {
                host: host.clone(),
                pid: *pid,
                ..Group::default()
            });
            group.all += row.all;
            group.compiled += row.compiled;
            group.threads += 1;
            // The first thread's id is the pid.
            if group.name.is_empty() || row.thread.tid == row.thread.pid {
                group.name.clone_from(&row.thread.name);
            }
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| b.all.cmp(&a.all).then_with(|| (&a.host, a.pid).cmp(&(&b.host, b.pid))));
        groups
    }
}

fn load_sources(
    profile: &Profile,
    symbols: &Symbols,
    roots: &[PathBuf],
    recorded: Option<SystemTime>,
) -> Vec<SourceText> {
    let compiled_text = |path: &str| match symbols.source_hashes.get(path) {
        Some(hashes) => Compiled::From(hashes.clone()),
        None => recorded.map_or(Compiled::Unknown, Compiled::Before),
    };
    profile.files.iter().map(|file| SourceText::open(&file.path, roots, &compiled_text(&file.path))).collect()
}

fn other_events(recording: &Recording) -> Option<String> {
    let other_events =
        recording.events.iter().enumerate().filter(|(index, (_, count))| *index != recording.event && *count != 0);
    let other_events: Vec<String> =
        other_events.map(|(_, (event, count))| format!("{} ({count})", event.name)).collect();
    (!other_events.is_empty()).then(|| format!("other events in the recording: {}", other_events.join(", ")))
}

pub(crate) fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

fn program_name(command: &[String]) -> String {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let has_prefix = |word: &str, name: &str| file_name(word).starts_with(name);
    match words.as_slice() {
        [first, ..] if has_prefix(first, "perf") => match words.iter().position(|word| *word == "--") {
            Some(separator) => program_name(&command[separator + 1..]),
            None => "perf record".to_owned(),
        },
        // Form of the command: `env NAME=VALUE... program`.
        ["env", ..] => program_name(&command[1..]),
        [first, _, ..] if first.contains('=') => program_name(&command[1..]),
        [python, "-m", module, ..] if has_prefix(python, "python") => format!("-m {module}"),
        [python, option, ..] if has_prefix(python, "python") && option.starts_with('-') => format!("python {option}"),
        [python, script, ..] if has_prefix(python, "python") => file_name(script).to_owned(),
        [first, ..] => file_name(first).to_owned(),
        [] => "a recording".to_owned(),
    }
}

/// Formats a count with its noun: `1 thread`, `2 threads`.
pub(crate) fn plural(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", group_digits(number as u64), if number == 1 { "" } else { "s" })
}

pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Separates groups of three digits: `1,234,567` for 1234567.
pub(crate) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped_digits = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            grouped_digits.push(',');
        }
        grouped_digits.push(digit);
    }
    grouped_digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_names_that_people_use() {
        let named = |command: &str| program_name(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (command, name) in [
            ("/usr/bin/python3.12 dir/prog.py -x", "prog.py"),
            ("python -m pytest -q", "-m pytest"),
            ("python -c pass", "python -c"),
            ("./host 3", "host"),
            ("/usr/bin/perf record -g -- env A=b python prog.py", "prog.py"),
            ("perf record -g", "perf record"),
        ] {
            assert_eq!(named(command), name, "{command}");
        }
        assert_eq!(program_name(&[]), "a recording");
    }
}
