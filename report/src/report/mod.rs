//! Content of a report: the profile, the sources of its lines, and notes. Renderers need nothing else.

mod bundle;
mod compiling;
mod diff;
mod imbalance;
mod stacks;
mod title;
mod unreported;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

pub use bundle::{Bundle, MARKER, ROOT};
pub use compiling::CompiledFunction;
pub use diff::{Change, Difference, diff};
pub use imbalance::Imbalance;
pub(crate) use stacks::Unit;
pub use title::Group;

use rustc_hash::FxHashMap;

use crate::answer::{Answer, Evidence, LineTree, Samples, collect};
use crate::error::Error;
use crate::lookup::Lookup;
use crate::lookup::source::{Compiled, SourceText};
use crate::loops::{Loop, find_loops};
use crate::profile::activity::Activities;
use crate::profile::owners::{Owners, is_generated};
use crate::profile::{Detail, FunctionRow, Profile};
use crate::recording::compilations::{self, Compilation};
use crate::recording::{Interpreter, Merger, Recording, Sample, Selection};
use crate::symbols::{Kind, Roots, SharedCode, SymbolCache, Symbols, insert_missing_callers, name_callees};
use crate::words::{count_notes, group_digits, python_name};

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
    /// Files whose path contains one of these parts belong to the user.
    pub mine: Vec<String>,
}

/// Recording on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingFile {
    /// Path of the recording.
    pub path: PathBuf,
    /// Directory that is searched first for the recording's files, if the recording has one of its own.
    pub root: Option<PathBuf>,
}

impl RecordingFile {
    /// Reads the recording, and finds the images beside it.
    fn read(&self, selection: &Selection, lookup: &Lookup) -> Result<Recording, Error> {
        let roots: Vec<PathBuf> = lookup.roots.iter().chain(&self.root).cloned().collect();
        let mut recording = Recording::open_with(&self.path, selection, &roots)?;
        recording.interpreters.extend(Interpreter::read(&self.path));
        recording.find_moved_images(&self.path);
        if let Some(root) = &self.root {
            recording.set_root(root);
        }
        Ok(recording)
    }
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
    /// Samples aggregated by line, function and thread.
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
    samples: OnceLock<Samples>,
    answer: OnceLock<Answer>,
    /// True if samples of compiling were dropped.
    pub(crate) no_compile: bool,
}

impl Report {
    /// Reads a recording and the files that it names.
    ///
    /// # Errors
    /// Returns an error if the recording is unreadable.
    pub fn open(path: &Path, options: &Options) -> Result<Report, Error> {
        Report::open_all(&[RecordingFile::from(path)], options)
    }

    /// Reads several recordings and merges them. Damaged ones among others are left out, with a note.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be read, if all are damaged, or if their events differ.
    pub fn open_all(files: &[RecordingFile], options: &Options) -> Result<Report, Error> {
        Report::open_all_with(files, options, || {})
    }

    /// Same as [`open_all`](Report::open_all). Calls `on_read` each time a recording has been read.
    ///
    /// # Errors
    /// Same as [`open_all`](Report::open_all).
    pub fn open_all_with(files: &[RecordingFile], options: &Options, on_read: impl Fn()) -> Result<Report, Error> {
        let (mut merger, mut compilations, mut notes) = (Merger::default(), Vec::new(), Vec::new());
        let mut shared_code = SharedCode::default();
        let mut recorded: Option<SystemTime> = None;
        let mut damaged = 0;
        for file in files {
            let path = &file.path;
            // With several files, the error must name the file that it concerns.
            let in_file = |error| match error {
                error @ Error::Io { .. } => error,
                error if files.len() == 1 => error,
                error => Error::InFile { path: path.clone(), error: Box::new(error) },
            };
            let mut recording = match file.read(&options.selection, &options.lookup) {
                Err(error @ Error::BadHeader(_)) if damaged + 1 < files.len() => {
                    damaged += 1;
                    notes.push(format!("{}; its samples are missing here", in_file(error)));
                    on_read();
                    continue;
                }
                recording => recording.map_err(in_file)?,
            };
            compilations.extend(compilations::read(path, &recording, &options.selection, &mut notes));
            if files.len() > 1 {
                shared_code.share(&mut recording, &options.lookup);
            }
            merger.add(recording)?;
            let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            recorded = recorded.map_or(modified, |earliest| modified.map(|modified| modified.min(earliest)));
            on_read();
        }
        drop(shared_code);
        let mut report = Report::new(merger.finish()?, recorded, options);
        for compilation in &mut compilations {
            report.symbols.rename_main_text(&mut compilation.file);
        }
        report.compilations = compilations;
        report.notes.extend(count_notes(notes));
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
        let missing_callers = insert_missing_callers(cache, &mut recording, &options.lookup);
        name_callees(cache, &mut recording, &options.lookup);
        let symbols = Symbols::resolve_with(cache, &recording, &options.lookup);
        let detail = Detail { by_thread: options.by_thread, native_lines: options.lookup.native_lines };
        let roots = Roots::new(&recording, &options.lookup);
        let owners = Owners::new(&recording, &options.mine);
        let activities = Activities::with_owners(&recording, &symbols, &roots.all(), owners);
        if options.no_compile {
            recording.samples.retain(|sample| !activities.get(sample.stack).activity.is_for_compiled_code());
        }
        let profile = Profile::with_activities(&recording, &symbols, activities, detail);
        let sources = load_sources(&profile, &symbols, &recording.interpreters, &roots.all(), recorded);
        let mut notes = recording.notes.clone();
        notes.extend(missing_callers);
        notes.extend(symbols.notes.iter().cloned());
        if recording.samples.is_empty() {
            let count = recording.events.get(recording.event).map_or(0, |(_, count)| *count);
            notes.push(match count {
                0 => "the recording has no samples: the program used too little time, or did not load the library \
                      (a wrapper that changes LD_PRELOAD, a statically linked or set-user-ID program, another libc), \
                      or needs all threads that its limit allows, or its children did the work: with -s, their \
                      recordings are beside this one, as FILE.PID"
                    .to_owned(),
                // The selection of a thread or process excludes all samples.
                count => format!("none of the {} samples is of the chosen process and thread", group_digits(count)),
            });
        }
        notes.extend(unreported::note_unreported_code(&recording, &symbols));
        notes.extend(unreported::note_ignored_start_up_file(&recording, &symbols));
        notes.extend(other_events(&recording));
        notes.retain(|note| !note.is_empty());
        let (compilations, no_compile) = (Vec::new(), options.no_compile);
        let (loops, samples, answer) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Report {
            recording,
            symbols,
            profile,
            sources,
            compilations,
            notes,
            recorded,
            roots,
            loops,
            samples,
            answer,
            no_compile,
        }
    }

    /// Returns the content of the first screen.
    pub fn answer(&self) -> &Answer {
        self.answer.get_or_init(|| Answer::new(&self.evidence()))
    }

    /// Returns the tree of the user's lines, with the place of each sample.
    pub(crate) fn line_tree(&self) -> LineTree {
        LineTree::new(&self.evidence())
    }

    fn evidence(&self) -> Evidence<'_> {
        Evidence {
            samples: self
                .samples
                .get_or_init(|| collect(&self.recording, &self.symbols, &self.profile, &self.compilations)),
            run_queue_ns: self.run_queue_ns(),
            is_jit_disabled: self.recording.interpreters.iter().any(|facts| facts.is_jit_disabled),
            symbols: &self.symbols,
            profile: &self.profile,
            sources: &self.sources,
            compilations: &self.compilations,
            loops: self.loops(),
        }
    }

    /// Returns the loops of compiled code that ran, hottest first.
    pub fn loops(&self) -> &[Loop] {
        self.loops.get_or_init(|| {
            let mut loops = find_loops(&self.recording, &self.symbols, &self.profile, &self.roots);
            for hot_loop in &mut loops {
                self.symbols.rename_main_text(&mut hot_loop.path);
                self.symbols.rename_main_text(&mut hot_loop.loop_path);
            }
            loops
        })
    }

    /// Returns the loops whose hottest line this is.
    pub(crate) fn loops_at(&self, path: &str, line: u32) -> impl Iterator<Item = &Loop> {
        self.loops().iter().filter(move |hot_loop| hot_loop.line == line && hot_loop.path == path)
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
        self.profile.activities.owners().is_user_source(path)
    }

    /// Returns true for a function in the user's files, and for generated code without a file unless a library runs it.
    pub(crate) fn is_user_function(&self, row: &FunctionRow) -> bool {
        match (row.kind, row.lines) {
            // Functions of Numba's runtime have no lines.
            (Kind::Compiled, None) => !row.name.starts_with("NRT_"),
            (Kind::Compiled | Kind::Python, Some(lines)) => {
                let path = &self.profile.files[lines.file as usize].path;
                self.is_user_source(path)
                    || is_generated(path) && !row.shares.self_count.is_zero() && !row.is_library_function
            }
            _ => false,
        }
    }

    /// Returns a function's name. A Python name includes the file name, because every module has a function `<module>`.
    pub fn name_with_file(&self, row: &FunctionRow) -> String {
        match (row.kind, row.lines) {
            (Kind::Python, Some(lines)) => python_name(&row.name, &self.profile.files[lines.file as usize].path),
            _ => row.name.clone(),
        }
    }

    /// Returns the time from the first sample, or the time that it stands for, to the last in ns; `None` for merged
    /// recordings.
    pub fn elapsed(&self) -> Option<u64> {
        let samples = self.recording.samples.iter();
        let start = |sample: &Sample| sample.time.saturating_sub(if self.is_time() { sample.weight } else { 0 });
        let (first, last) = (samples.clone().map(start).min()?, samples.map(|sample| sample.time).max()?);
        (self.recording.parts <= 1).then_some(last - first)
    }
}

fn load_sources(
    profile: &Profile,
    symbols: &Symbols,
    interpreters: &[Interpreter],
    roots: &[PathBuf],
    recorded: Option<SystemTime>,
) -> Vec<SourceText> {
    let compiled_text = |path: &str| match symbols.source_hashes.get(path) {
        Some(hashes) => Compiled::From(hashes.clone()),
        None => recorded.map_or(Compiled::Unknown, Compiled::Before),
    };
    let cells = interpreters.iter().flat_map(|facts| &facts.cells);
    let cells: FxHashMap<&str, &str> = cells.map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let main_text = |path: &str| symbols.main_texts.iter().find(|(main, _)| *main == path);
    let source_text = |path: &str| match main_text(path) {
        Some((_, text)) => SourceText::from_text(text.as_deref().unwrap_or_default()),
        None if cells.contains_key(path) => SourceText::from_text(cells[path]),
        None => SourceText::open(path, roots, &compiled_text(path)),
    };
    profile.files.iter().map(|file| source_text(&file.path)).collect()
}

fn other_events(recording: &Recording) -> Option<String> {
    let other_events =
        recording.events.iter().enumerate().filter(|(index, (_, count))| *index != recording.event && *count != 0);
    let other_events: Vec<String> =
        other_events.map(|(_, (event, count))| format!("{} ({count})", event.name)).collect();
    (!other_events.is_empty()).then(|| format!("other events in the recording: {}", other_events.join(", ")))
}
