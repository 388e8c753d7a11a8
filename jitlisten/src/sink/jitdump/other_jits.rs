//! Code of other JITs in this process, from the perf map that they write.
//!
//! Once `perf inject` has seen a jitdump of a process, it drops every later anonymous executable mapping of that
//! process, and the names of the perf map for it. CPython (3.12 and newer, `-X perf`) gives every Python function a
//! trampoline and a line in the perf map. Therefore the jitdump must contain all code: foreign lines become records of
//! ours.
//!
//! Nothing announces a new line. We read the map when an object of ours is written or freed, when the sink is turned
//! off and when the process exits; a killed process loses the lines since the last reading. A line counts as old as the
//! reading before: our code from the time between is younger, and keeps its addresses.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::clock;
use crate::sink::{OwnLines, StaleMap, perf_map};
use crate::{Address, AddressRange};

/// A larger "function" is no trampoline, and no line of a sane writer.
pub(super) const LARGEST: u64 = 1 << 24;

/// A line of another writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) range: AddressRange,
    pub(super) name: String,
}

/// What is new in the perf map.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// `CLOCK_MONOTONIC`: the lines were written after this.
    pub(super) since: u64,
    pub(super) entries: Vec<Entry>,
}

pub(super) struct OtherJits {
    path: PathBuf,
    own: OwnLines,
    /// Lines that are not ours are another process's.
    is_shared: Arc<AtomicBool>,
    stale: Option<StaleMap>,
    /// Where reading goes on, and in which file.
    offset: u64,
    inode: u64,
    /// The last line copied for an address: a map that was made anew repeats itself.
    reported: BTreeMap<u64, Entry>,
    /// No line that is still untold is older than this.
    since: u64,
}

impl OtherJits {
    pub(super) fn new(own: OwnLines, is_shared: Arc<AtomicBool>, stale: Option<StaleMap>) -> Self {
        let (reported, path) = (BTreeMap::new(), perf_map::path_of_this_process());
        OtherJits { path, own, is_shared, stale, offset: 0, inode: 0, reported, since: clock::monotonic() }
    }

    /// What was written after now is not older than now: code has been freed, and others may use its addresses.
    pub(super) fn begin_anew(&mut self) {
        self.since = clock::monotonic();
    }

    /// Reads on in the map.
    pub(super) fn look(&mut self, now: u64) -> News {
        // A map that cannot be read is of no use to perf either.
        let entries = self.read().unwrap_or_default();
        News { since: std::mem::replace(&mut self.since, now), entries }
    }

    fn read(&mut self) -> io::Result<Vec<Entry>> {
        if self.is_shared.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let metadata = std::fs::symlink_metadata(&self.path)?;
        if metadata.ino() != self.inode || metadata.size() < self.offset {
            let stale = self.stale.take().filter(|stale| stale.is_prefix_of(&metadata));
            (self.inode, self.offset) = (metadata.ino(), stale.map_or(0, StaleMap::size));
        }
        if !metadata.is_file() || metadata.size() == self.offset {
            return Ok(Vec::new());
        }
        let safely = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let mut file: File = OpenOptions::new().read(true).custom_flags(safely).open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (entries, consumed) = parse(&bytes, |at| self.own.contains(self.offset + at));
        self.offset += consumed;
        let reported = &mut self.reported;
        Ok(entries.into_iter().filter(|entry| is_news(reported, entry)).collect())
    }
}

fn is_news(reported: &mut BTreeMap<u64, Entry>, entry: &Entry) -> bool {
    reported.insert(entry.range.start().0, entry.clone()).as_ref() != Some(entry)
}

/// The entries in whole lines of `bytes`, except those that begin where `is_own` says, and how many bytes that were.
fn parse(bytes: &[u8], is_own: impl Fn(u64) -> bool) -> (Vec<Entry>, u64) {
    let mut entries = Vec::new();
    let mut consumed = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        if !is_own(consumed) {
            entries.extend(entry(&String::from_utf8_lossy(text)));
        }
        consumed += line.len() as u64;
    }
    (entries, consumed)
}

/// `START SIZE name`; CPython and others differ in whether they write `0x`.
fn entry(line: &str) -> Option<Entry> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let [start, size] = [start, size].map(|digits| {
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        u64::from_str_radix(digits, 16).ok().filter(|&number| number != 0)
    });
    let range = AddressRange::new(Address(start?), size.filter(|&size| size <= LARGEST)?)?;
    let name = name.trim();
    (!name.is_empty()).then(|| Entry { range, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_whole_is_read_later() {
        let text = b"1000 10 py::f:/a b.py\n0x2000 0x20 g\n0 0 freed--\nnonsense\n3000 8 to";
        let (entries, consumed) = parse(text, |_| false);
        let names: Vec<_> = entries.iter().map(|entry| (entry.range.start().0, entry.name.as_str())).collect();
        assert_eq!(names, [(0x1000, "py::f:/a b.py"), (0x2000, "g")]);
        assert_eq!(consumed as usize, text.len() - "3000 8 to".len());
    }

    #[test]
    fn our_own_lines_are_left_out() {
        let (entries, _) = parse(b"1000 10 ours\n2000 10 theirs\n", |at| at < 13);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].name, "theirs");
    }

    #[test]
    fn an_entry_is_copied_once() {
        let mut reported = BTreeMap::new();
        let entry = |name: &str| Entry { range: AddressRange::new(Address(1), 1).unwrap(), name: name.to_owned() };
        assert!(is_news(&mut reported, &entry("a")));
        assert!(!is_news(&mut reported, &entry("a")));
        assert!(is_news(&mut reported, &entry("b")));
    }
}
