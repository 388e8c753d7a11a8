//! A strict reader of `/tmp/perf-PID.map`: one line `START SIZE name` per function.
//!
//! Some eight tools read this file, each with its own idea of it. A map is accepted here only when it lies in the
//! intersection of all of them: lower-case hexadecimal without `0x`, single spaces, printable UTF-8, names of at least
//! three characters (perf drops shorter ones: they are padded with spaces), no empty line, a newline at the end, no two
//! entries over one byte.
//!
//! ```text
//! 7f3a5c0e1000 8b __main__.gamma(long long, double)
//! ```

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::symbols;

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its name, to the end of the line.
    pub name: String,
}

/// The functions of one process, by address.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// In ascending order.
    pub entries: Vec<Entry>,
}

/// A line some reader would trip over.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The last line has no end: a torn write, or a writer that forgot it.
    NoFinalNewline,
    /// Line number, and what is wrong with it.
    Line(usize, &'static str, String),
    /// Two entries claim one byte.
    Overlap(Entry, Entry),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotUtf8 => out.write_str("not UTF-8"),
            Self::NoFinalNewline => out.write_str("no newline at the end"),
            Self::Line(number, what, line) => write!(out, "line {number}: {what}: {line:?}"),
            Self::Overlap(one, other) => write!(out, "{one:x?} overlaps {other:x?}"),
        }
    }
}

impl PerfMap {
    /// Reads a map and checks every rule. What fills the places of dead lines is left out.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let text = std::str::from_utf8(without_first_line(bytes)).map_err(|_| Fault::NotUtf8)?;
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(Fault::NoFinalNewline);
        }
        let mut entries = Vec::new();
        let is_filled =
            |line: &&str| line.strip_prefix("0 0 freed").is_some_and(|rest| rest.bytes().all(|byte| byte == b'-'));
        for (index, line) in text.split_terminator('\n').enumerate().filter(|(_, line)| !is_filled(line)) {
            entries.push(entry(line).map_err(|what| Fault::Line(index + 1, what, line.to_owned()))?);
        }
        entries.sort_by_key(|entry| entry.start);
        for pair in entries.windows(2) {
            if pair[0].start + pair[0].size > pair[1].start {
                return Err(Fault::Overlap(pair[0].clone(), pair[1].clone()));
            }
        }
        Ok(Self { entries })
    }

    /// The entries that name this function.
    pub fn named<'map>(&'map self, function: &'map str) -> impl Iterator<Item = &'map Entry> {
        self.entries.iter().filter(move |entry| symbols::names(&entry.name, function))
    }

    /// All names, one a line: what a failing test shows.
    #[must_use]
    pub fn names(&self) -> String {
        self.entries.iter().map(|entry| format!("{}\n", entry.name)).collect()
    }
}

fn entry(line: &str) -> Result<Entry, &'static str> {
    let (start, rest) = line.split_once(' ').ok_or("no space")?;
    let (size, name) = rest.split_once(' ').ok_or("no name")?;
    let (start, size) = (hexadecimal(start)?, hexadecimal(size)?);
    if size == 0 {
        return Err("covers nothing");
    }
    if start.checked_add(size).is_none() {
        return Err("wraps around");
    }
    if name.chars().count() < 3 {
        return Err("perf drops names shorter than three characters");
    }
    let symbol = name.trim_end_matches(' ');
    let is_padded = symbol.chars().count() < 3 && name.chars().count() == 3;
    let unpadded = if is_padded { symbol } else { name };
    if unpadded.is_empty() || unpadded.starts_with(' ') || unpadded.ends_with(' ') || unpadded.contains("  ") {
        return Err("more than a single space");
    }
    if name.chars().any(char::is_control) {
        return Err("an unprintable character");
    }
    Ok(Entry { start, size, name: name.to_owned() })
}

fn hexadecimal(digits: &str) -> Result<u64, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("not lower-case hexadecimal without 0x");
    }
    u64::from_str_radix(digits, 16).map_err(|_| "does not fit 64 bits")
}

/// Where the map of a process is: the path is fixed, `TMPDIR` does not count.
#[must_use]
pub fn path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// A map without the line that says whose it is, `0 0 jitlisten PID ...`.
#[must_use]
pub fn without_first_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == b'\n').filter(|_| bytes.starts_with(b"0 0 jitlisten "));
    end.map_or(bytes, |end| &bytes[end + 1..])
}

/// When this binary started its first host.
static BEGAN: OnceLock<SystemTime> = OnceLock::new();

/// A host is about to be started: what is older than the first one is of another process with the same number.
pub fn begin() {
    BEGAN.get_or_init(SystemTime::now);
}

/// Takes the map of an ended process away: process ids come again, and a stale map would be read with the next.
///
/// # Panics
/// When others may write to the file, or it is no regular file.
#[must_use]
pub fn take(pid: u32) -> Option<Vec<u8>> {
    let path = path(pid);
    let about = fs::symlink_metadata(&path).ok()?;
    let bytes = without_first_line(&fs::read(&path).ok()?).to_vec();
    let _ = fs::remove_file(&path);
    if BEGAN.get().is_some_and(|began| about.modified().is_ok_and(|written| written < *began)) {
        return None;
    }
    if !std::thread::panicking() {
        assert!(about.is_file(), "{} is no regular file", path.display());
        assert_eq!(about.permissions().mode() & 0o022, 0, "{} can be written by others", path.display());
        assert_eq!(about.nlink(), 1, "{} has other names", path.display());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Fault {
        PerfMap::parse(text.as_bytes()).expect_err(text)
    }

    #[test]
    fn reads_entries_in_order() {
        let map = PerfMap::parse(b"2000 10 module.beta(long long)\n1000 8b module.alpha(double) [cpython]\n").unwrap();
        assert_eq!(map.entries[0], Entry { start: 0x1000, size: 0x8b, name: "module.alpha(double) [cpython]".into() });
        assert_eq!(map.named("beta").count(), 1);
        assert_eq!(map.named("bet").count(), 0);
        assert!(PerfMap::parse(b"").unwrap().entries.is_empty());
    }

    #[test]
    fn refuses_what_some_reader_refuses() {
        for line in [
            "0x1000 10 name",
            "1000 0x10 name",
            "1000 1F name",
            "1000  10 name",
            "1000 10  name",
            "1000 10 name ",
            "1000 10 two  spaces",
            "1000 10 ab",
            "1000 10 ab  ",
            "1000 10    ",
            "1000 10",
            "1000",
            "",
            "1000 0 name",
            "ffffffffffffffff 10 name",
            "10000000000000000 10 name",
            "1000 10 tab\there",
            " 1000 10 name",
        ] {
            assert!(matches!(fault(&format!("{line}\n")), Fault::Line(1, ..)), "{line:?}");
        }
        assert_eq!(fault("1000 10 torn"), Fault::NoFinalNewline);
        assert!(matches!(fault("1000 10 name\n\n2000 10 name\n"), Fault::Line(2, ..)));
        assert_eq!(PerfMap::parse(b"1000 10 \xff\xff\xff\n").unwrap_err(), Fault::NotUtf8);
    }

    #[test]
    fn short_symbols_are_padded() {
        assert!(PerfMap::parse(b"1000 10 f0 \n2000 10 f  \n").is_ok());
    }

    #[test]
    fn refuses_two_names_for_one_byte() {
        assert!(matches!(fault("1000 11 alpha\n1010 10 beta\n"), Fault::Overlap(..)));
        assert!(matches!(fault("1000 10 alpha\n1000 10 alias\n"), Fault::Overlap(..)));
        assert!(PerfMap::parse(b"1000 10 alpha\n1010 10 beta\n").is_ok());
    }
}
