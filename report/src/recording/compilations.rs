//! Numba's compilations during a recording, with their start, duration and reason. `python/jitlisten/_compilations.py`
//! writes the file in the recording's images directory and documents its fields. The file is untrusted.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use jitlisten_files::open_regular;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use wire::recording::{COMPILATIONS, images};

use super::{Recording, Sample, Selection};
use crate::lookup::source_path;
use crate::sanitize::sanitize;
use crate::words::{file_name, precise_duration};

/// Maximum number of compilations to read from a file. The writer stops earlier.
const MAX_COMPILATIONS: usize = 1 << 16;
/// Maximum number of lines to read from a file: each compilation has up to three.
const MAX_LINES: usize = 3 * MAX_COMPILATIONS;
/// Shortest first use of Numba that is worth a word beside a compilation.
pub(crate) const MIN_FIRST_USE_NS: u64 = 5_000_000;
/// Maximum number of bytes to read from a file. The writer stops earlier.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum size of the header line.
const MAX_HEADER_BYTES: u64 = 4096;
/// Compilations this close to the first or last sample may still belong to the recording.
const TOLERANCE_NS: u64 = 1_000_000_000;
/// Maximum duration in ns (five hours) and size in bytes, so that the sum over a whole file cannot overflow.
const MAX_FIELD_VALUE: u64 = 1 << 44;

/// Compilation of a function, or its load from Numba's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compilation {
    /// Qualified name: `module.name`.
    pub function: String,
    /// File that defines the function.
    pub file: String,
    /// Line of the definition.
    pub line: u32,
    /// Argument types.
    pub signature: String,
    /// Machine on which the function was compiled.
    pub host: String,
    /// Process that compiled the function.
    pub pid: u32,
    /// Thread that compiled the function.
    pub tid: u32,
    /// Number of enclosing compilations.
    pub depth: u32,
    /// Start time in ns of the recorder's clock.
    pub begin: u64,
    /// Elapsed time in ns, including waits.
    pub lasted: u64,
    /// CPU time of the thread in ns, including nested compilations and `first_use`.
    pub cpu_ns: u64,
    /// CPU time in ns without nested compilations.
    pub exclusive: u64,
    /// CPU time in ns that Numba took to build its registries and its runtime, once in the process; part of `cpu_ns`.
    pub first_use: u64,
    /// CPU time in ns to save the code in Numba's cache, after the compilation.
    pub saved: u64,
    /// CPU time in LLVM in ns, without that of `first_use`; part of `cpu_ns`.
    pub llvm: u64,
    /// Size of the machine code in bytes, including nested compilations.
    pub size: u64,
    /// Call outside of Numba that triggered the compilation, as `file:line`.
    pub caller: Option<String>,
    /// Reason for the compilation.
    pub why: Why,
    /// True for the loop that makes a function a ufunc.
    pub is_loop: bool,
    /// True if Numba rejected the function.
    pub failed: bool,
    /// False if the compilation was interrupted, or goes on. Its times end at the last sample of the thread.
    pub is_finished: bool,
}

/// Reason for a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Loaded from Numba's cache instead of compiled.
    Cached,
    /// The function does not have `cache=True`.
    NotCached,
    /// The function was unpickled, which loses its cache.
    Unpickled,
    /// The loop that makes a function a ufunc, which Numba builds in each run.
    Wrapper,
    /// The cache had no entry.
    NewEntry,
    /// The cache entry lacks a line table, so the function is compiled again.
    NoLines,
    /// All cache entries are for other processors.
    OtherProcessor,
    /// Numba does not cache code that refers to addresses of this process.
    Dynamic,
    /// Numba does not cache object mode functions with lifted loops.
    Lifted,
    /// Numba does not cache methods of a jitclass.
    Jitclass,
    /// A variable of the closure is a compiled function, which gives the cache entry another key in each process.
    Closure,
    /// The source is in no file, where Numba would keep the cache.
    Generated,
    /// Compiled because another function needs it, or for an unknown reason.
    Other,
}

/// Words for the loop that makes a function a ufunc.
const LOOP_WORDS: &str = "its loop as a ufunc";

impl Why {
    fn from_word(word: Option<&str>) -> Why {
        match word {
            Some("cache") => Why::Cached,
            Some("off") => Why::NotCached,
            Some("pickled") => Why::Unpickled,
            Some("wrapper") => Why::Wrapper,
            Some("new") => Why::NewEntry,
            Some("lines") => Why::NoLines,
            Some("processor") => Why::OtherProcessor,
            Some("dynamic") => Why::Dynamic,
            Some("lifted") => Why::Lifted,
            Some("jitclass") => Why::Jitclass,
            Some("closure") => Why::Closure,
            Some("generated") => Why::Generated,
            _ => Why::Other,
        }
    }

    /// Label in reports.
    pub fn words(self) -> &'static str {
        match self {
            Why::Cached => "from the cache",
            Why::NotCached => "cache=True not set",
            Why::Unpickled => "cache lost when the function is pickled",
            Why::Wrapper => LOOP_WORDS,
            Why::NewEntry => "no cache entry for this source yet",
            Why::NoLines => "its cache entry has no lines",
            Why::OtherProcessor => "cached for another processor only",
            Why::Dynamic => "cannot be cached: it uses dynamic globals",
            Why::Lifted => "cannot be cached: it has lifted loops",
            Why::Jitclass => "cannot be cached: a jitclass",
            Why::Closure => "cannot be cached: a closure over a compiled function",
            Why::Generated => "cannot be cached: its source is in no file",
            Why::Other => "",
        }
    }

    /// Returns true if the next run of the program compiles the function again.
    pub(crate) fn is_repeated(self) -> bool {
        match self {
            Why::NotCached | Why::Unpickled | Why::Dynamic | Why::Lifted => true,
            Why::Jitclass | Why::Closure | Why::Generated | Why::Wrapper => true,
            Why::Cached | Why::NewEntry | Why::NoLines | Why::OtherProcessor | Why::Other => false,
        }
    }

    /// Returns true if the next run of the program loads the function from the cache.
    pub(crate) fn is_stored(self) -> bool {
        matches!(self, Why::NewEntry | Why::NoLines | Why::OtherProcessor)
    }
}

impl Compilation {
    /// Returns the function name for reports. The file name replaces `__main__`.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.file).file_stem().and_then(|stem| stem.to_str());
        if let Some(description) = self.function.strip_prefix("<dynamic>.__numba_") {
            // Numba generated this function for an expression or a loop. The rest of its name is an address.
            return description
                .split("_0x")
                .next()
                .unwrap_or(description)
                .replace('_', " ")
                .replace("parfor gufunc", "prange kernel");
        }
        match (self.function.strip_prefix("__main__."), stem) {
            (Some(name), Some(stem)) => format!("{stem}.{}", name.replace("<locals>.", "")),
            _ => self.function.replace("<locals>.", ""),
        }
    }

    /// Returns true for a compilation that is not nested in another one. Loads from the cache do not count.
    pub fn is_outermost(&self) -> bool {
        self.depth == 0 && self.why != Why::Cached
    }

    /// Returns the CPU time in ns that samples show as compiling: without Numba's first use, and with saving the code.
    pub fn compiling_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.first_use).saturating_add(self.saved)
    }

    /// Returns the compilation as JSON. Times are in ns; `when` counts from `start`.
    pub(crate) fn to_value(&self, start: u64) -> Value {
        json!({
            "function": self.name(), "file": self.file, "line": self.line, "signature": self.signature,
            "host": self.host, "pid": self.pid, "tid": self.tid, "depth": self.depth,
            "when": self.begin.saturating_sub(start), "lasted": self.lasted,
            "took": self.cpu_ns, "exclusive": self.exclusive, "first_use": self.first_use, "saved": self.saved,
            "llvm": self.llvm, "size": self.size, "caller": self.caller, "failed": self.failed,
            "finished": self.is_finished,
            "cached": self.why == Why::Cached, "why": self.why_words(),
        })
    }

    /// Returns the label of the reason. A loop of a ufunc that can be cached has both.
    fn why_words(&self) -> String {
        match self.why {
            why if self.is_loop && why != Why::Wrapper => format!("{LOOP_WORDS}; {}", why.words()),
            why => why.words().to_owned(),
        }
    }

    /// Describes why a function was compiled, for which call, and what else its time contains.
    pub(crate) fn reason(&self) -> String {
        let called = self.caller.as_ref().map(|caller| format!("for {}", file_name(caller)));
        let reason = match self.depth {
            // Numba never caches nested compilations separately, so a missing `cache=True` does not explain this one.
            1.. if self.why.is_repeated() && !self.is_loop => String::new(),
            _ => self.why_words(),
        };
        let end = match (self.failed, self.is_finished) {
            (true, _) => Some("failed".to_owned()),
            (false, true) => None,
            (false, false) => Some("not finished".to_owned()),
        };
        let first_use = (self.first_use >= MIN_FIRST_USE_NS)
            .then(|| format!("Numba's first use {}", precise_duration(self.first_use)));
        let parts = [end, called, Some(reason), first_use];
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("; ")
    }

    /// Parses a line. Returns the compilation and its number, which an earlier line may have.
    fn parse(line: &[u8], pid: u32) -> Option<(Option<u64>, Compilation)> {
        let row: Value = serde_json::from_slice(line).ok()?;
        let text = |name: &str| Some(sanitize(row.get(name)?.as_str()?));
        let number = |name: &str| row.get(name).and_then(Value::as_u64);
        let number_u32 = |name: &str| u32::try_from(number(name)?).ok();
        let begin = number("begin")?;
        let has_end = row.get("end").is_some();
        let (lasted, cpu_ns) = match has_end {
            true => (number("end")?.checked_sub(begin)?, number("cpu")?.min(MAX_FIELD_VALUE)),
            false => (0, 0),
        };
        let lasted = Some(lasted).filter(|lasted| *lasted <= MAX_FIELD_VALUE)?;
        let first_use = number("first_use").unwrap_or_default().min(cpu_ns);
        let why = Why::from_word(row.get("why").and_then(Value::as_str));
        let compilation = Compilation {
            function: text("function")?,
            file: source_path(row.get("file")?.as_str()?),
            line: number_u32("line")?,
            signature: without_addresses(&text("signature")?),
            host: String::new(),
            pid,
            tid: number_u32("thread")?,
            depth: number_u32("depth")?,
            begin,
            lasted,
            cpu_ns,
            exclusive: cpu_ns,
            first_use,
            saved: number("saved").unwrap_or_default().min(MAX_FIELD_VALUE),
            llvm: number("llvm").unwrap_or_default().min(cpu_ns - first_use),
            size: number("size").unwrap_or_default().min(MAX_FIELD_VALUE),
            caller: text("caller"),
            why,
            is_loop: why == Why::Wrapper || row.get("loop").is_some(),
            failed: row.get("failed").is_some(),
            is_finished: has_end && row.get("interrupted").is_none(),
        };
        Some((number("id"), compilation))
    }
}

/// Returns a signature without the addresses of functions, which differ in each run.
fn without_addresses(signature: &str) -> String {
    let mut parts = signature.split(" at 0x");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_hexdigit()));
    }
    text
}

/// Compilations of a file. The line at the end of a compilation replaces that at its begin.
#[derive(Clone, Debug, Default)]
struct Rows {
    rows: Vec<Compilation>,
    /// Index by id and begin. After an exec, the ids begin again.
    index_of: FxHashMap<(u64, u64), usize>,
}

impl Rows {
    fn add(&mut self, (id, row): (Option<u64>, Compilation)) {
        let next = self.rows.len();
        match id.map_or(next, |id| *self.index_of.entry((id, row.begin)).or_insert(next)) {
            index if index < next => self.rows[index] = row,
            _ => self.rows.push(row),
        }
    }
}

/// Compilations of a recording that is still being written, in the order they began.
#[derive(Clone, Debug, Default)]
pub struct GrowingCompilations {
    rows: Rows,
    /// Header line of the file. If the line changes, another file has replaced this one.
    header: Vec<u8>,
    /// File offset up to which lines have been read.
    offset: u64,
}

impl GrowingCompilations {
    /// Compilations read so far.
    pub fn rows(&self) -> &[Compilation] {
        &self.rows.rows
    }

    /// Reads the lines added since the last call, if `is_recorded` returns true for the process that wrote the file.
    pub fn read_new(&mut self, recording: &Path, is_recorded: impl Fn(u32) -> bool) {
        let Some(mut file) = open_compilations(recording) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut header = Vec::new();
        let _ = BufReader::new((&file).take(MAX_HEADER_BYTES)).read_until(b'\n', &mut header);
        let Some(pid) = pid_of(&header).filter(|pid| header.ends_with(b"\n") && is_recorded(*pid)) else { return };
        if header != self.header || length < self.offset {
            *self = GrowingCompilations { offset: header.len() as u64, header, ..GrowingCompilations::default() };
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut lines = BufReader::new(file.take(MAX_FILE_BYTES.saturating_sub(self.offset)));
        let mut line = Vec::new();
        while self.rows.rows.len() < MAX_COMPILATIONS
            && lines.read_until(b'\n', &mut line).is_ok()
            && line.ends_with(b"\n")
        {
            self.offset += line.len() as u64;
            if let Some(row) = Compilation::parse(&line, pid) {
                self.rows.add(row);
            }
            line.clear();
        }
    }
}

fn compilations_path(recording: &Path) -> PathBuf {
    images(recording).join(COMPILATIONS)
}

fn open_compilations(recording: &Path) -> Option<File> {
    let path = compilations_path(recording);
    fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
    open_regular(&path).ok()
}

/// Returns the pid from the header line.
fn pid_of(header: &[u8]) -> Option<u32> {
    let header: Value = serde_json::from_slice(header).ok()?;
    u32::try_from(header.get("pid")?.as_u64()?).ok()
}

/// Returns the pid, and an iterator over the other lines.
fn read_lines(recording: &Path) -> Option<(u32, impl Iterator<Item = Vec<u8>>)> {
    let mut lines =
        BufReader::new(open_compilations(recording)?.take(MAX_FILE_BYTES)).split(b'\n').map_while(Result::ok);
    Some((pid_of(&lines.next()?)?, lines))
}

/// Reads the compilations that belong to a recording, ordered by start. Problems with the file are added to `notes`.
pub(crate) fn read(
    path: &Path,
    recording: &Recording,
    selection: &Selection,
    notes: &mut Vec<String>,
) -> Vec<Compilation> {
    let Some((pid, lines)) = read_lines(path) else { return Vec::new() };
    // The file may be left over from an earlier recording of the same name, by another process or at another time.
    if !recording.threads.iter().any(|thread| thread.pid == pid) {
        return Vec::new();
    }
    // The first sample's period begins before its timestamp.
    let first = recording.samples.iter().map(|sample| sample.time.saturating_sub(sample.weight)).min().unwrap_or(0);
    let last = recording.samples.iter().map(|sample| sample.time).max().unwrap_or(u64::MAX);
    let accepted_times = first.saturating_sub(TOLERANCE_NS)..=last.saturating_add(TOLERANCE_NS);
    let mut damaged = 0;
    let mut rows = Rows::default();
    for line in lines.take(MAX_LINES) {
        match Compilation::parse(&line, pid) {
            Some(row) => rows.add(row),
            None => damaged += 1,
        }
    }
    let mut rows = rows.rows;
    rows.iter_mut().for_each(|row| row.host.clone_from(&recording.facts.host));
    end_interrupted(&mut rows, recording);
    rows.retain(|row| row.begin <= *accepted_times.end() && row.begin + row.lasted >= *accepted_times.start());
    if damaged > 0 {
        notes.push(format!("{damaged} lines of {} are damaged", sanitize(&compilations_path(path).to_string_lossy())));
    }
    rows.sort_by_key(|row| (row.tid, row.begin, row.depth));
    subtract_nested(&mut rows);
    rows.retain(|row| selection.process.is_none_or(|pid| pid == row.pid));
    rows.retain(|row| selection.thread.is_none_or(|tid| tid == row.tid));
    rows.sort_by_key(|row| (row.begin, row.depth));
    rows
}

/// Maximum number of compilations without an end.
const MAX_INTERRUPTED: usize = 1 << 10;

/// Ends compilations without an end at the last sample of their thread.
fn end_interrupted(rows: &mut [Compilation], recording: &Recording) {
    let mut interrupted: Vec<_> = rows.iter_mut().filter(|row| !row.is_finished && row.lasted == 0).collect();
    // A thread has few, unless the file is damaged.
    interrupted.truncate(MAX_INTERRUPTED);
    if interrupted.is_empty() {
        return;
    }
    let mut by_thread: FxHashMap<u32, Vec<&Sample>> = FxHashMap::default();
    for sample in &recording.samples {
        by_thread.entry(sample.thread).or_default().push(sample);
    }
    for row in interrupted {
        let thread = recording.threads.iter().position(|thread| thread.pid == row.pid && thread.tid == row.tid);
        let samples = thread.and_then(|thread| by_thread.get(&(thread as u32))).into_iter().flatten();
        for sample in samples.filter(|sample| sample.time > row.begin) {
            row.lasted = row.lasted.max(sample.time - row.begin).min(MAX_FIELD_VALUE);
            if !recording.is_wall() {
                row.cpu_ns = row.cpu_ns.saturating_add(sample.weight.min(sample.time - row.begin)).min(row.lasted);
            }
        }
        row.exclusive = row.cpu_ns;
    }
}

/// Subtracts the time of each compilation from its enclosing compilation. `rows` are ordered by thread and start.
fn subtract_nested(rows: &mut [Compilation]) {
    let mut enclosing: Vec<usize> = Vec::new();
    for index in 0..rows.len() {
        let (tid, begin, cpu_ns) = (rows[index].tid, rows[index].begin, rows[index].cpu_ns);
        while enclosing.last().is_some_and(|&outer| {
            let outer = &rows[outer];
            outer.tid != tid || outer.depth >= rows[index].depth || outer.begin + outer.lasted < begin
        }) {
            enclosing.pop();
        }
        if let Some(&outer) = enclosing.last() {
            rows[outer].exclusive = rows[outer].exclusive.saturating_sub(cpu_ns);
        }
        enclosing.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_row(text: &str) -> Option<Compilation> {
        Compilation::parse(text.as_bytes(), 7).map(|(_, row)| row)
    }

    /// Returns a row of thread 7.
    fn row_spanning(depth: u32, begin: u64, end: u64) -> Compilation {
        parse_row(&format!(
            r#"{{"function": "__main__.f.<locals>.g", "file": "/a/prog.py", "line": 3, "signature": "(int64)",
                 "thread": 7, "depth": {depth}, "begin": {begin}, "end": {end}, "cpu": {}, "llvm": 90, "why": "off",
                 "caller": "/a/prog.py:9"}}"#,
            end - begin
        ))
        .expect("a row")
    }

    #[test]
    fn nested_compilations_are_subtracted_once() {
        let mut rows = [
            row_spanning(0, 100, 200),
            row_spanning(1, 110, 160),
            row_spanning(2, 120, 130),
            row_spanning(1, 170, 180),
        ];
        subtract_nested(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.exclusive), [40, 40, 10, 10]);
        // Nested rows whose enclosing compilation is missing keep their time.
        let mut rows = [row_spanning(1, 110, 160), row_spanning(0, 300, 400), row_spanning(1, 290, 310)];
        subtract_nested(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.exclusive), [50, 80, 20]);
    }

    #[test]
    fn names_and_reasons_are_readable() {
        let signature = "(type(CPUDispatcher(<function f at 0x7f12ab34cd00>)), int64)";
        assert_eq!(without_addresses(signature), "(type(CPUDispatcher(<function f>)), int64)");
        assert_eq!(without_addresses("(int64)"), "(int64)");
        let row = row_spanning(0, 0, 1_500_000_000);
        assert_eq!((row.name().as_str(), row.llvm), ("prog.f.g", 90));
        let kernel =
            Compilation { function: "<dynamic>.__numba_parfor_gufunc_0x7efe944eea90".to_owned(), ..row.clone() };
        assert_eq!(kernel.name(), "prange kernel");
        assert_eq!((row.caller.as_deref(), row.why), (Some("/a/prog.py:9"), Why::NotCached));
        let loops = [(Why::NotCached, 0), (Why::Wrapper, 1)]
            .map(|(why, depth)| Compilation { is_loop: true, caller: None, why, depth, ..row.clone() }.reason());
        assert_eq!(loops, ["its loop as a ufunc; cache=True not set", "its loop as a ufunc"]);
    }

    /// Lines of a growing file are read once, and only when they are complete.
    #[test]
    fn growing_files_are_followed() {
        let folder = std::env::temp_dir().join(format!("jitlisten-growing-{}", std::process::id()));
        let recording = folder.join("a.data");
        let path = compilations_path(&recording);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let line = |name: &str| {
            format!(r#"{{"function": "{name}", "file": "", "line": 3, "signature": "", "thread": 7, "depth": 0, "#)
                + "\"begin\": 5, \"end\": 6, \"cpu\": 1}\n"
        };
        let mut growing = GrowingCompilations::default();
        let mut names = |text: &str| {
            fs::write(&path, text).expect("a file");
            growing.read_new(&recording, |pid| pid < 9);
            growing.rows().iter().map(|row| row.function.clone()).collect::<Vec<_>>().join(" ")
        };
        let header = "{\"pid\": 7}\n";
        let (one, two) = (line("one"), line("two"));
        assert_eq!(names("{\"pid"), "");
        assert_eq!(names(&format!("{header}{one}{}", &two[..9])), "one");
        // A changed line before the read offset is not read again.
        assert_eq!(names(&format!("{header}{}{two}", one.replace("one", "ONE"))), "one two");
        // First, a new process replaces the file. Then a process that is not recorded replaces it.
        assert_eq!(names(&format!("{{\"pid\": 8}}\n{two}")), "two");
        assert_eq!(names(&format!("{{\"pid\": 9}}\n{one}{one}")), "two");
        fs::remove_dir_all(folder).expect("the folder");
    }

    /// The end of a compilation replaces its begin.
    #[test]
    fn compilations_have_one_row() {
        let line = |id: u32, begin: u32, end: &str| {
            format!(
                r#"{{"id": {id}, "function": "f{id}", "file": "", "line": 3, "signature": "", "thread": 7,
                    "depth": 0, "begin": {begin}{end}}}"#
            )
        };
        let mut rows = Rows::default();
        let end = r#", "end": 9, "cpu": 3, "first_use": 8, "saved": 2, "llvm": 3"#;
        for text in [line(1, 5, ""), line(2, 5, ""), line(1, 5, end), line(1, 8, "")] {
            rows.add(Compilation::parse(text.as_bytes(), 7).expect("a row"));
        }
        let [first, second, _after_exec] = rows.rows.as_slice() else { panic!("three rows") };
        assert_eq!((first.lasted, first.cpu_ns, first.first_use, first.compiling_ns()), (4, 3, 3, 2));
        assert_eq!(first.llvm, 0, "no part of the first use");
        assert!(first.is_finished && !second.is_finished);
        assert_eq!((second.function.as_str(), second.reason().as_str()), ("f2", "not finished"));
    }

    #[test]
    fn damaged_lines_are_ignored() {
        assert!(row_spanning(0, 100, 150).llvm == 50, "no more than all of it");
        for text in ["", "{", "[]", "3", "{}", "null", r#"{"function": 3}"#, "\u{0}"] {
            assert_eq!(parse_row(text), None, "{text}");
        }
        let whole = r#"{"function": "f", "file": "", "line": 3, "signature": "",
            "thread": 7, "depth": 0, "begin": 5, "end": END, "cpu": 1}"#;
        assert!(parse_row(&whole.replace("END", "6")).is_some());
        for end in ["4", "-1", "1e30", "18446744073709551615", "\"6\""] {
            assert_eq!(parse_row(&whole.replace("END", end)), None, "{end}");
        }
    }
}
