//! Everything that a report shows, gathered: the profile, the sources of its lines, and what has to be said about both.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::profile::{Detail, Profile};
use crate::recording::{Recording, Selection};
use crate::source::{Compiled, SourceText};
use crate::symbols::{Lookup, SymbolCache, Symbols};
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
    /// What a reader has to know, a sentence each.
    pub notes: Vec<String>,
    pub(crate) roots: Vec<PathBuf>,
}

impl Report {
    /// Reads a recording and everything it names.
    ///
    /// # Errors
    /// When nothing of the recording can be read.
    pub fn open(path: &Path, options: &Options) -> Result<Report, Error> {
        let recording = Recording::open(path, &options.selection)?;
        let recorded = std::fs::metadata(path).and_then(|data| data.modified()).ok();
        Ok(Report::new(recording, recorded, options))
    }

    /// From a recording that is read already; `recorded` is when it ended.
    pub fn new(recording: Recording, recorded: Option<SystemTime>, options: &Options) -> Report {
        Report::with(&mut SymbolCache::default(), recording, recorded, options)
    }

    /// As [`new`](Report::new), with the files that are open already.
    pub fn with(
        cache: &mut SymbolCache,
        recording: Recording,
        recorded: Option<SystemTime>,
        options: &Options,
    ) -> Report {
        let symbols = Symbols::resolve_with(cache, &recording, &options.lookup);
        let detail = Detail { by_thread: options.by_thread, native_lines: options.lookup.native_lines };
        let profile = Profile::new(&recording, &symbols, detail);
        let sources = sources(&profile, &symbols, &options.lookup.roots, recorded);
        let mut notes = recording.notes.clone();
        notes.extend(symbols.notes.iter().cloned());
        if recording.samples.is_empty() {
            notes.push("the recording has no samples".to_owned());
        }
        notes.extend(other_events(&recording));
        notes.retain(|note| !note.is_empty());
        Report { recording, symbols, profile, sources, notes, roots: options.lookup.roots.clone() }
    }

    /// The name of the event.
    pub fn event(&self) -> &str {
        self.recording.events.get(self.recording.event).map_or("", |(event, _)| event.name.as_str())
    }

    /// One line that says what this is.
    pub fn title(&self) -> String {
        let facts = &self.recording.facts;
        let mut title = format!("{} samples of {}", grouped(self.profile.all.samples), self.event());
        let (first, last) = self.times();
        if last > first {
            title.push_str(&format!(", {}", duration(last - first)));
        }
        let threads = self.profile.threads.len();
        title.push_str(&format!(", {threads} thread{}", if threads == 1 { "" } else { "s" }));
        let processes = self.processes().len();
        if processes > 1 {
            title.push_str(&format!(" in {processes} processes"));
        }
        if !facts.host.is_empty() {
            title.push_str(&format!(", on {}", facts.host));
        }
        title
    }

    /// The processes that have samples, the heaviest first.
    pub fn processes(&self) -> Vec<(u32, Count)> {
        let mut processes: Vec<(u32, Count)> = Vec::new();
        for row in &self.profile.threads {
            match processes.iter_mut().find(|(pid, _)| *pid == row.thread.pid) {
                Some((_, count)) => *count += row.all,
                None => processes.push((row.thread.pid, row.all)),
            }
        }
        processes.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        processes
    }

    fn times(&self) -> (u64, u64) {
        let times = self.recording.samples.iter().map(|sample| sample.time);
        (times.clone().min().unwrap_or_default(), times.max().unwrap_or_default())
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
    (!others.is_empty()).then(|| format!("the recording has samples of other events, too: {}", others.join(", ")))
}

pub(crate) fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
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
