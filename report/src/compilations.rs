//! Reads Numba's compilations during a recording: when, for how long, and why. `python/jitlisten/_compilations.py`
//! writes the file beside the recording and documents its fields. The file is untrusted.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use jitlisten_files::open_regular;
use perf_format::recording::{COMPILATIONS, images};
use serde_json::Value;

use crate::printable::printable;
use crate::recording::{Recording, Selection};

/// A file has no more of them, and is no longer: the writer stops earlier.
const MOST: usize = 1 << 16;
const LONGEST: u64 = 64 << 20;
const LONGEST_HEAD: u64 = 4096;
/// What begins so many nanoseconds behind the last sample, or ended before the first, may be of the same recording.
const AROUND: u64 = 1_000_000_000;
/// Five hours, and as many bytes: all of a file can be added up.
const MOST_OF_ONE: u64 = 1 << 44;

/// A function that was compiled, or loaded from Numba's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compilation {
    /// `module.name`.
    pub function: String,
    /// Where it is defined.
    pub file: String,
    /// In that file.
    pub line: u32,
    /// The types of its arguments.
    pub signature: String,
    /// The process.
    pub pid: u32,
    /// The thread that compiled.
    pub tid: u32,
    /// Of how many other compilations it is part.
    pub depth: u32,
    /// When it began, in nanoseconds of the recorder's clock.
    pub begin: u64,
    /// How long that lasted, waiting included.
    pub lasted: u64,
    /// Processor time of the thread, with all that was compiled inside.
    pub took: u64,
    /// Without what was compiled inside.
    pub exclusive: u64,
    /// How much of `took` was in LLVM.
    pub llvm: u64,
    /// Bytes of machine code, with all that was compiled inside.
    pub size: u64,
    /// `file:line` of the call outside of Numba.
    pub caller: Option<String>,
    /// Why it was compiled.
    pub why: Why,
    /// Numba refused the function.
    pub failed: bool,
}

/// Why a function was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was not: it came from Numba's cache.
    Cached,
    /// `cache=True` is not set.
    NotCached,
    /// The cache had no entry.
    NewEntry,
    /// The entry was made without lines, so that it is compiled again.
    NoLines,
    /// Numba does not cache code that refers to addresses of this process.
    Dynamic,
    /// Numba does not cache object mode with loops of their own.
    Lifted,
    /// Another function needs it; or the reason is not known.
    Other,
}

impl Why {
    fn of(word: Option<&str>) -> Why {
        match word {
            Some("cache") => Why::Cached,
            Some("off") => Why::NotCached,
            Some("new") => Why::NewEntry,
            Some("lines") => Why::NoLines,
            Some("dynamic") => Why::Dynamic,
            Some("lifted") => Why::Lifted,
            _ => Why::Other,
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Why::Cached => "from the cache",
            Why::NotCached => "cache=True not set",
            Why::NewEntry => "not in the cache yet",
            Why::NoLines => "its cache entry has no lines",
            Why::Dynamic => "cannot be cached: it uses dynamic globals",
            Why::Lifted => "cannot be cached: it has lifted loops",
            Why::Other => "",
        }
    }
}

impl Compilation {
    /// The name as a person knows it: the program's own file is no `__main__`.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.file).file_stem().and_then(|stem| stem.to_str());
        if let Some(what) = self.function.strip_prefix("<dynamic>.__numba_") {
            // Numba made it of an expression or a loop, and an address is all of its name.
            return what
                .split("_0x")
                .next()
                .unwrap_or(what)
                .replace('_', " ")
                .replace("parfor gufunc", "prange kernel");
        }
        match (self.function.strip_prefix("__main__."), stem) {
            (Some(name), Some(stem)) => format!("{stem}.{}", name.replace("<locals>.", "")),
            _ => self.function.replace("<locals>.", ""),
        }
    }

    /// Whether it was compiled, for itself and not for another function.
    pub fn is_outermost(&self) -> bool {
        self.depth == 0 && self.why != Why::Cached
    }

    fn of_line(line: &[u8], pid: u32) -> Option<Compilation> {
        let row: Value = serde_json::from_slice(line).ok()?;
        let text = |name: &str| Some(printable(row.get(name)?.as_str()?));
        let number = |name: &str| row.get(name).and_then(Value::as_u64);
        let small = |name: &str| u32::try_from(number(name)?).ok();
        let (begin, end) = (number("begin")?, number("end")?);
        let lasted = end.checked_sub(begin).filter(|lasted| *lasted <= MOST_OF_ONE)?;
        let took = number("cpu")?.min(MOST_OF_ONE);
        Some(Compilation {
            function: text("function")?,
            file: text("file")?,
            line: small("line")?,
            signature: text("signature")?,
            pid,
            tid: small("thread")?,
            depth: small("depth")?,
            begin,
            lasted,
            took,
            exclusive: took,
            llvm: number("llvm").unwrap_or_default().min(took),
            size: number("size").unwrap_or_default().min(MOST_OF_ONE),
            caller: text("caller"),
            why: Why::of(row.get("why").and_then(Value::as_str)),
            failed: row.get("failed").is_some(),
        })
    }
}

/// Those of a recording that is still written, in the order in which they ended.
#[derive(Clone, Debug, Default)]
pub struct GrowingCompilations {
    rows: Vec<Compilation>,
    /// The first line, which another file of this name would not have.
    head: Vec<u8>,
    /// How far it was read.
    at: u64,
}

impl GrowingCompilations {
    /// What was found so far.
    pub fn rows(&self) -> &[Compilation] {
        &self.rows
    }

    /// Reads what came since the last time, if it is of such a process.
    pub fn look(&mut self, recording: &Path, is_recorded: impl Fn(u32) -> bool) {
        let Some(mut file) = open_beside(recording) else { return };
        let length = file.metadata().map_or(0, |found| found.len());
        let mut head = Vec::new();
        let _ = BufReader::new((&file).take(LONGEST_HEAD)).read_until(b'\n', &mut head);
        let Some(pid) = pid_of(&head).filter(|pid| head.ends_with(b"\n") && is_recorded(*pid)) else { return };
        if head != self.head || length < self.at {
            *self = GrowingCompilations { at: head.len() as u64, head, ..GrowingCompilations::default() };
        }
        if file.seek(SeekFrom::Start(self.at)).is_err() {
            return;
        }
        let mut lines = BufReader::new(file.take(LONGEST.saturating_sub(self.at)));
        let mut line = Vec::new();
        while self.rows.len() < MOST && lines.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
            self.at += line.len() as u64;
            self.rows.extend(Compilation::of_line(&line, pid));
            line.clear();
        }
    }
}

fn beside(recording: &Path) -> PathBuf {
    images(recording).join(COMPILATIONS)
}

fn open_beside(recording: &Path) -> Option<File> {
    let path = beside(recording);
    fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
    open_regular(&path).ok()
}

/// The process, by the first line.
fn pid_of(head: &[u8]) -> Option<u32> {
    let head: Value = serde_json::from_slice(head).ok()?;
    u32::try_from(head.get("pid")?.as_u64()?).ok()
}

/// The process, and a line for each.
fn lines_beside(recording: &Path) -> Option<(u32, impl Iterator<Item = Vec<u8>>)> {
    let mut lines = BufReader::new(open_beside(recording)?.take(LONGEST)).split(b'\n').map_while(Result::ok);
    Some((pid_of(&lines.next()?)?, lines))
}

/// Those beside a recording, in the order in which they began. `notes` gets what is wrong with the file.
pub(crate) fn read(
    path: &Path,
    recording: &Recording,
    selection: &Selection,
    notes: &mut Vec<String>,
) -> Vec<Compilation> {
    let Some((pid, lines)) = lines_beside(path) else { return Vec::new() };
    // A file that an earlier recording of this name left, of another process or another time.
    if !recording.threads.iter().any(|thread| thread.pid == pid) {
        return Vec::new();
    }
    // The first sample is also of the time before it.
    let first = recording.samples.iter().map(|sample| sample.time.saturating_sub(sample.weight)).min().unwrap_or(0);
    let last = recording.samples.iter().map(|sample| sample.time).max().unwrap_or(u64::MAX);
    let of_recording = first.saturating_sub(AROUND)..=last.saturating_add(AROUND);
    let mut bad = 0;
    let mut found = Vec::new();
    for line in lines.take(MOST) {
        match Compilation::of_line(&line, pid) {
            Some(row) if row.begin <= *of_recording.end() && row.begin + row.lasted >= *of_recording.start() => {
                found.push(row);
            }
            Some(_) => {}
            None => bad += 1,
        }
    }
    if bad > 0 {
        notes.push(format!("{bad} lines of {} are damaged", printable(&beside(path).to_string_lossy())));
    }
    found.sort_by_key(|row| (row.tid, row.begin, row.depth));
    without_nested(&mut found);
    found.retain(|row| selection.process.is_none_or(|pid| pid == row.pid));
    found.retain(|row| selection.thread.is_none_or(|tid| tid == row.tid));
    found.sort_by_key(|row| (row.begin, row.depth));
    found
}

/// Takes the time of each from that of the one it is part of. They are in the order of their threads and beginnings.
fn without_nested(rows: &mut [Compilation]) {
    let mut around: Vec<usize> = Vec::new();
    for at in 0..rows.len() {
        let (tid, begin, took) = (rows[at].tid, rows[at].begin, rows[at].took);
        while around.last().is_some_and(|&outer| {
            let outer = &rows[outer];
            outer.tid != tid || outer.depth >= rows[at].depth || outer.begin + outer.lasted < begin
        }) {
            around.pop();
        }
        if let Some(&outer) = around.last() {
            rows[outer].exclusive = rows[outer].exclusive.saturating_sub(took);
        }
        around.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Option<Compilation> {
        Compilation::of_line(text.as_bytes(), 7)
    }

    /// A row of thread 7.
    fn spanning(depth: u32, begin: u64, end: u64) -> Compilation {
        row(&format!(
            r#"{{"function": "__main__.f.<locals>.g", "file": "/a/prog.py", "line": 3, "signature": "(int64)",
                 "thread": 7, "depth": {depth}, "begin": {begin}, "end": {end}, "cpu": {}, "llvm": 90, "why": "off",
                 "caller": "/a/prog.py:9"}}"#,
            end - begin
        ))
        .expect("a row")
    }

    #[test]
    fn what_is_compiled_inside_is_taken_off_once() {
        let mut rows = [spanning(0, 100, 200), spanning(1, 110, 160), spanning(2, 120, 130), spanning(1, 170, 180)];
        without_nested(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.exclusive), [40, 40, 10, 10]);
        // Without the one around: nothing is known of it.
        let mut rows = [spanning(1, 110, 160), spanning(0, 300, 400), spanning(1, 290, 310)];
        without_nested(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.exclusive), [50, 80, 20]);
    }

    #[test]
    fn a_row_is_for_people() {
        let row = spanning(0, 0, 1_500_000_000);
        assert_eq!((row.name().as_str(), row.llvm), ("prog.f.g", 90));
        let kernel =
            Compilation { function: "<dynamic>.__numba_parfor_gufunc_0x7efe944eea90".to_owned(), ..row.clone() };
        assert_eq!(kernel.name(), "prange kernel");
        assert_eq!((row.caller.as_deref(), row.why), (Some("/a/prog.py:9"), Why::NotCached));
    }

    /// The lines of a file that grows are read once, and a line only when it is whole.
    #[test]
    fn what_grows_is_read_on() {
        let folder = std::env::temp_dir().join(format!("jitlisten-growing-{}", std::process::id()));
        let recording = folder.join("a.data");
        let path = beside(&recording);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let line = |name: &str| {
            format!(r#"{{"function": "{name}", "file": "", "line": 3, "signature": "", "thread": 7, "depth": 0, "#)
                + "\"begin\": 5, \"end\": 6, \"cpu\": 1}\n"
        };
        let mut growing = GrowingCompilations::default();
        let mut names = |text: &str| {
            fs::write(&path, text).expect("a file");
            growing.look(&recording, |pid| pid < 9);
            growing.rows().iter().map(|row| row.function.clone()).collect::<Vec<_>>().join(" ")
        };
        let head = "{\"pid\": 7}\n";
        let (one, two) = (line("one"), line("two"));
        assert_eq!(names("{\"pid"), "");
        assert_eq!(names(&format!("{head}{one}{}", &two[..9])), "one");
        // Nothing is read twice: what stands there now is not looked at again.
        assert_eq!(names(&format!("{head}{}{two}", one.replace("one", "ONE"))), "one two");
        // Another process begins the file anew; then one that is not recorded.
        assert_eq!(names(&format!("{{\"pid\": 8}}\n{two}")), "two");
        assert_eq!(names(&format!("{{\"pid\": 9}}\n{one}{one}")), "two");
        fs::remove_dir_all(folder).expect("the folder");
    }

    #[test]
    fn damaged_lines_are_none() {
        assert!(spanning(0, 100, 150).llvm == 50, "no more than all of it");
        for text in ["", "{", "[]", "3", "{}", "null", r#"{"function": 3}"#, "\u{0}"] {
            assert_eq!(row(text), None, "{text}");
        }
        let whole = r#"{"function": "f", "file": "", "line": 3, "signature": "",
            "thread": 7, "depth": 0, "begin": 5, "end": END, "cpu": 1}"#;
        assert!(row(&whole.replace("END", "6")).is_some());
        for end in ["4", "-1", "1e30", "18446744073709551615", "\"6\""] {
            assert_eq!(row(&whole.replace("END", end)), None, "{end}");
        }
    }
}
