//! A strict parser of `/tmp/perf-PID.map`, which has one line `START SIZE name` per function.
//!
//! Some eight tools read this file, each with slightly different rules. This parser accepts only their intersection:
//! lower-case hexadecimal without `0x`, single spaces, printable UTF-8, names of at least three characters (perf drops
//! shorter names, so they are padded with spaces), no empty line, a newline at the end, no overlapping entries.
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

/// A function in a perf map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Start address.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Name, up to the end of the line.
    pub name: String,
}

/// The functions of one process, by address.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// Entries in ascending order of address.
    pub entries: Vec<Entry>,
}

/// A violation of a rule that at least one reader of perf maps depends on.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The last line lacks a newline, because a write was torn or the writer omits it.
    NoFinalNewline,
    /// A malformed line, with its number, the violated rule and its text.
    Line(usize, &'static str, String),
    /// Two entries that overlap.
    Overlap(Entry, Entry),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotUtf8 => out.write_str("not UTF-8"),
            Self::NoFinalNewline => out.write_str("no newline at the end"),
            Self::Line(number, rule, line) => write!(out, "line {number}: {rule}: {line:?}"),
            Self::Overlap(first, second) => write!(out, "{first:x?} overlaps {second:x?}"),
        }
    }
}

impl PerfMap {
    /// Parses a map and checks every rule. Filler lines that replaced freed entries are skipped.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let text = std::str::from_utf8(strip_owner_line(bytes)).map_err(|_| Fault::NotUtf8)?;
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(Fault::NoFinalNewline);
        }
        let mut entries = Vec::new();
        let is_filler =
            |line: &&str| line.strip_prefix("0 0 freed").is_some_and(|rest| rest.bytes().all(|byte| byte == b'-'));
        for (index, line) in text.split_terminator('\n').enumerate().filter(|(_, line)| !is_filler(line)) {
            entries.push(parse_entry(line).map_err(|rule| Fault::Line(index + 1, rule, line.to_owned()))?);
        }
        entries.sort_by_key(|entry| entry.start);
        for pair in entries.windows(2) {
            if pair[0].start + pair[0].size > pair[1].start {
                return Err(Fault::Overlap(pair[0].clone(), pair[1].clone()));
            }
        }
        Ok(Self { entries })
    }

    /// Entries with this function name.
    pub fn named<'map>(&'map self, function: &'map str) -> impl Iterator<Item = &'map Entry> {
        self.entries.iter().filter(move |entry| symbols::names_function(&entry.name, function))
    }

    /// All names, one per line, for the message of a failed test.
    #[must_use]
    pub fn names(&self) -> String {
        self.entries.iter().map(|entry| format!("{}\n", entry.name)).collect()
    }
}

fn parse_entry(line: &str) -> Result<Entry, &'static str> {
    let (start, rest) = line.split_once(' ').ok_or("no space")?;
    let (size, name) = rest.split_once(' ').ok_or("no name")?;
    let (start, size) = (parse_hexadecimal(start)?, parse_hexadecimal(size)?);
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

fn parse_hexadecimal(digits: &str) -> Result<u64, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("not lower-case hexadecimal without 0x");
    }
    u64::from_str_radix(digits, 16).map_err(|_| "does not fit 64 bits")
}

/// Path of a process's map. It is fixed; `TMPDIR` does not affect it.
#[must_use]
pub fn path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// Contents of a map without the owner's line, `0 0 jitlisten PID ...`.
#[must_use]
pub fn strip_owner_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == b'\n').filter(|_| bytes.starts_with(b"0 0 jitlisten "));
    end.map_or(bytes, |end| &bytes[end + 1..])
}

/// Time when this test binary started its first host.
static FIRST_START: OnceLock<SystemTime> = OnceLock::new();

/// Records the time when the first host starts; call this before starting a host. An older perf map belongs to a
/// previous process with the same id.
pub fn record_host_start() {
    FIRST_START.get_or_init(SystemTime::now);
}

/// Reads and removes the map of a process that has exited. Process ids are reused, so a stale map could be mistaken for
/// that of a later process.
///
/// # Panics
/// If other users may write to the file, or it is not a regular file.
#[must_use]
pub fn take(pid: u32) -> Option<Vec<u8>> {
    let path = path(pid);
    let metadata = fs::symlink_metadata(&path).ok()?;
    let bytes = strip_owner_line(&fs::read(&path).ok()?).to_vec();
    let _ = fs::remove_file(&path);
    if FIRST_START.get().is_some_and(|first_start| metadata.modified().is_ok_and(|written| written < *first_start)) {
        return None;
    }
    if !std::thread::panicking() {
        assert!(metadata.is_file(), "{} is no regular file", path.display());
        assert_eq!(metadata.permissions().mode() & 0o022, 0, "{} can be written by others", path.display());
        assert_eq!(metadata.nlink(), 1, "{} has other names", path.display());
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
