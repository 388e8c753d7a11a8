//! Gathers the content of a report: the profile, the sources of its lines, and notes about both.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use rustc_hash::FxHashMap;

use crate::activity::{self, Activities, Activity};
use crate::compilations::{self, Compilation};
use crate::lookup::Lookup;
use crate::loops::{Loop, loops};
use crate::profile::{Detail, FunctionRow, Profile, ThreadRow};
use crate::recording::{Recording, Selection, Thread};
use crate::roots::Roots;
use crate::source::{Compiled, SourceText};
use crate::symbols::{Kind, SymbolCache, Symbols};
use crate::{Count, Error};

/// What to read and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which part of the recording.
    pub selection: Selection,
    /// Where symbols and sources are.
    pub lookup: Lookup,
    /// Keep the lines of each thread apart.
    pub by_thread: bool,
    /// Leave out what was compiling, so that the rest is everything.
    pub no_compile: bool,
}

/// A recording on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingFile {
    /// The file.
    pub path: PathBuf,
    /// The folder in which the files that it names are looked for first, if it has one of its own.
    pub root: Option<PathBuf>,
}

impl From<&Path> for RecordingFile {
    fn from(path: &Path) -> RecordingFile {
        RecordingFile { path: path.to_owned(), root: None }
    }
}

/// A recording, ready to be shown.
#[derive(Debug)]
pub struct Report {
    /// The samples and stacks.
    pub recording: Recording,
    /// What its places are called.
    pub symbols: Symbols,
    /// Added up.
    pub profile: Profile,
    /// The sources of [`Profile::files`], in their order.
    pub sources: Vec<SourceText>,
    /// What Numba compiled, in the order of time.
    pub compilations: Vec<Compilation>,
    /// What a reader has to know, a sentence each.
    pub notes: Vec<String>,
    /// When the recording ended.
    pub recorded: Option<SystemTime>,
    pub(crate) roots: Roots,
    loops: OnceLock<Vec<Loop>>,
    /// Whether samples of compiling were left out.
    pub(crate) no_compile: bool,
}

/// The threads of a process or of a machine, together.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The machine.
    pub host: String,
    /// The process; 0 for a machine.
    pub pid: u32,
    /// What its first thread was last called.
    pub name: String,
    /// How many threads have samples.
    pub threads: usize,
    /// All samples.
    pub all: Count,
    /// Those in compiled code.
    pub compiled: Count,
}

impl Report {
    /// Reads a recording and everything it names.
    ///
    /// # Errors
    /// When nothing of the recording can be read.
    pub fn open(path: &Path, options: &Options) -> Result<Report, Error> {
        Report::open_all(&[RecordingFile::from(path)], options)
    }

    /// Reads several recordings and adds them up.
    ///
    /// # Errors
    /// When nothing can be read of one of them, or they are of different events.
    pub fn open_all(files: &[RecordingFile], options: &Options) -> Result<Report, Error> {
        let (mut recordings, mut compilations, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut recorded: Option<SystemTime> = None;
        for RecordingFile { path, root } in files {
            let roots: Vec<PathBuf> = options.lookup.roots.iter().chain(root).cloned().collect();
            let recording = Recording::open_with(path, &options.selection, &roots);
            // Of several files it has to be said which one is meant.
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
            let modified = std::fs::metadata(path).and_then(|data| data.modified()).ok();
            recorded = recorded.map_or(modified, |before| modified.map(|modified| modified.min(before)));
        }
        let mut report = Report::new(Recording::merged(recordings)?, recorded, options);
        report.compilations = compilations;
        report.notes.extend(notes);
        Ok(report)
    }

    /// From a recording that is read already; `recorded` is when it ended.
    pub fn new(recording: Recording, recorded: Option<SystemTime>, options: &Options) -> Report {
        Report::with(&mut SymbolCache::default(), recording, recorded, options)
    }

    /// As [`new`](Report::new), with the files that are open already.
    pub fn with(
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
        let roots = Roots::of(&recording, &options.lookup);
        let sources = sources(&profile, &symbols, &roots.all(), recorded);
        let mut notes = recording.notes.clone();
        notes.extend(symbols.notes.iter().cloned());
        if recording.samples.is_empty() {
            let count = recording.events.get(recording.event).map_or(0, |(_, count)| *count);
            notes.push(match count {
                0 => "the recording has no samples: the program used too little time, or did not load the library \
                      (a wrapper that changes LD_PRELOAD, a statically linked or set-user-ID program, another libc)"
                    .to_owned(),
                // With a selection of one thread or process.
                count => format!("none of the {} samples is of the chosen process and thread", grouped(count)),
            });
        }
        notes.extend(other_events(&recording));
        notes.retain(|note| !note.is_empty());
        let (compilations, no_compile) = (Vec::new(), options.no_compile);
        let loops = OnceLock::new();
        Report { recording, symbols, profile, sources, compilations, notes, recorded, roots, loops, no_compile }
    }

    /// The loops of compiled code that ran, the heaviest first.
    pub fn loops(&self) -> &[Loop] {
        self.loops.get_or_init(|| loops(&self.recording, &self.symbols, &self.profile, &self.roots))
    }

    /// The name of the event.
    pub fn event(&self) -> &str {
        self.recording.events.get(self.recording.event).map_or("", |(event, _)| event.name.as_str())
    }

    /// Whether the samples are of time, so that their weight is nanoseconds.
    pub fn is_time(&self) -> bool {
        let event = self.event().split(':').next().unwrap_or_default();
        ["cpu-clock", "task-clock", "wall-clock"].contains(&event)
    }

    /// Whether a source is the user's, and neither a library's nor Python's.
    pub fn is_users(&self, path: &str) -> bool {
        activity::is_user_source(path)
    }

    /// Whether a function is of the user's files, or of code without a file that no library runs.
    pub(crate) fn is_yours(&self, row: &FunctionRow) -> bool {
        match (row.kind, row.lines) {
            // Numba's runtime has no lines.
            (Kind::Compiled, None) => !row.name.starts_with("NRT_"),
            (Kind::Compiled | Kind::Python, Some(at)) => {
                let path = &self.profile.files[at.file as usize].path;
                self.is_users(path)
                    || activity::is_generated(path) && !row.shares.own.is_zero() && !row.is_library_function
            }
            _ => false,
        }
    }

    /// From the first sample to the last, in nanoseconds; nothing for several recordings.
    pub fn elapsed(&self) -> Option<u64> {
        let times = self.recording.samples.iter().map(|sample| sample.time);
        let (first, last) = (times.clone().min()?, times.max()?);
        (self.recording.parts <= 1).then_some(last - first)
    }

    /// What ran, as a person would name it: `prog.py`, `-m module`, `./program`. Of perf, what it was given behind
    /// `--`.
    pub fn program(&self) -> String {
        program(&self.recording.facts.command)
    }

    /// `Python 3.12`, by the files that the process mapped.
    fn python(&self) -> Option<String> {
        self.recording.files.iter().find_map(|file| {
            let name = file_name(&file.path);
            let version = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
            let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty()).then(|| format!("Python 3.{digits}"))
        })
    }

    /// One line that says what this is.
    pub fn title(&self) -> String {
        let facts = &self.recording.facts;
        let mut parts = vec![self.program()];
        parts.extend(self.python());
        let all = self.profile.all;
        let within = self.elapsed().filter(|elapsed| *elapsed > 0).map(|elapsed| format!(" in {}", duration(elapsed)));
        let within = within.unwrap_or_default();
        if self.is_time() {
            let what = if self.recording.is_wall() { "of threads' time" } else { "of processor time" };
            parts.push(format!("{} {what}{within}", duration(all.weight)));
        } else if !within.is_empty() {
            parts.push(within.trim_start().to_owned());
        }
        if self.recording.parts > 1 {
            parts.push(format!("{} recordings", self.recording.parts));
        }
        let mut processes = counted(self.busy_threads(), "thread");
        match self.processes().len() {
            0 | 1 => {}
            several => processes.push_str(&format!(" in {several} processes")),
        }
        parts.push(processes);
        let event = self.event().trim_end_matches(":u");
        parts.push(format!("{} samples of {event}", grouped(all.samples)));
        // A process that was killed has not said where it was.
        let hosts: Vec<Group> = self.hosts().into_iter().filter(|group| !group.host.is_empty()).collect();
        match hosts.as_slice() {
            [Group { host, .. }] => parts.push(format!("on {host}")),
            [] if !facts.host.is_empty() => parts.push(format!("on {}", facts.host)),
            [] => {}
            hosts => parts.push(format!("on {} machines", hosts.len())),
        }
        parts.join(" · ")
    }

    /// The threads that did more than start: those of a library's pool may spin a while, and have no work.
    fn busy_threads(&self) -> usize {
        let threads = &self.profile.threads;
        let is_busy = |row: &&ThreadRow| row.works && row.all.percent_of(self.profile.all) >= 0.5;
        let busy = threads.iter().filter(is_busy).count();
        if busy == 0 { threads.len() } else { busy }
    }

    /// The processes that have samples, the heaviest first.
    pub fn processes(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), thread.pid))
    }

    /// The machines that have samples, the heaviest first.
    pub fn hosts(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), 0))
    }

    /// Name and number, and what else is needed to tell it apart.
    pub(crate) fn thread_name(&self, thread: &Thread) -> String {
        let Thread { name, pid, tid, host, .. } = thread;
        let is_of_several = |which: fn(&Thread) -> (&str, u32)| {
            let mut all = self.profile.threads.iter().map(|row| which(&row.thread));
            all.next().is_some_and(|first| all.any(|other| other != first))
        };
        let mut shown = format!("{name} {tid}");
        if is_of_several(|thread| (&thread.host, thread.pid)) {
            shown.push_str(&format!(" of process {pid}"));
        }
        if is_of_several(|thread| (&thread.host, 0)) {
            shown.push_str(&format!(" on {host}"));
        }
        shown
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
            // The first thread of a process has its number.
            if group.name.is_empty() || row.thread.tid == row.thread.pid {
                group.name.clone_from(&row.thread.name);
            }
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| b.all.cmp(&a.all).then_with(|| (&a.host, a.pid).cmp(&(&b.host, b.pid))));
        groups
    }
}

fn sources(profile: &Profile, symbols: &Symbols, roots: &[PathBuf], recorded: Option<SystemTime>) -> Vec<SourceText> {
    let compiled = |path: &str| match symbols.source_hashes.get(path) {
        Some(hashes) => Compiled::From(hashes.clone()),
        None => recorded.map_or(Compiled::Unknown, Compiled::Before),
    };
    profile.files.iter().map(|file| SourceText::open(&file.path, roots, &compiled(&file.path))).collect()
}

fn other_events(recording: &Recording) -> Option<String> {
    let others = recording.events.iter().enumerate().filter(|(at, (_, count))| *at != recording.event && *count != 0);
    let others: Vec<String> = others.map(|(_, (event, count))| format!("{} ({count})", event.name)).collect();
    (!others.is_empty()).then(|| format!("other events in the recording: {}", others.join(", ")))
}

pub(crate) fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

fn program(command: &[String]) -> String {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let is = |word: &str, name: &str| file_name(word).starts_with(name);
    match words.as_slice() {
        [first, ..] if is(first, "perf") => match words.iter().position(|word| *word == "--") {
            Some(at) => program(&command[at + 1..]),
            None => "perf record".to_owned(),
        },
        // `env NAME=VALUE... program`
        ["env", ..] => program(&command[1..]),
        [first, _, ..] if first.contains('=') => program(&command[1..]),
        [python, "-m", module, ..] if is(python, "python") => format!("-m {module}"),
        [python, option, ..] if is(python, "python") && option.starts_with('-') => format!("python {option}"),
        [python, script, ..] if is(python, "python") => file_name(script).to_owned(),
        [first, ..] => file_name(first).to_owned(),
        [] => "a recording".to_owned(),
    }
}

/// `1 thread`, `2 threads`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_names_that_people_use() {
        let named = |command: &str| program(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
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
        assert_eq!(program(&[]), "a recording");
    }
}
