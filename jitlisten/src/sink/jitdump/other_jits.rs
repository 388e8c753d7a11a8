//! Code of other JITs in this process, read from the perf map that they write.
//!
//! Once `perf inject` has seen a jitdump of a process, it drops every later anonymous executable mapping of that
//! process, and the perf map's names for that mapping. CPython (3.12 and newer, `-X perf`) creates a trampoline and a
//! perf map line for each Python function. The jitdump must therefore describe all code, so we copy foreign lines into
//! records of our own.
//!
//! No event announces a new line. We read the map when one of our objects is written or freed, when the sink is
//! disabled, and when the process exits. If the process is killed, lines since the last read are lost. Each line gets
//! the time of the previous read. Our code that became final after that read has a later time, and therefore keeps its
//! addresses.

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

/// Maximum size of a function in bytes. Lines with a larger size are assumed to be invalid.
pub(super) const MAX_FUNCTION_BYTES: u64 = 1 << 24;

/// Perf map line of another writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) range: AddressRange,
    pub(super) name: String,
}

/// Lines that were added to the perf map since the last poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NewEntries {
    /// Lower bound of the times at which the lines were added, `CLOCK_MONOTONIC` in ns.
    pub(super) not_before: u64,
    pub(super) entries: Vec<Entry>,
}

pub(super) struct OtherJits {
    path: PathBuf,
    own_lines: OwnLines,
    /// Set if another process shares the map, because foreign lines may then describe that process's code.
    is_shared: Arc<AtomicBool>,
    stale_map: Option<StaleMap>,
    /// Offset of the next read, valid for the file with inode number `inode`.
    offset: u64,
    inode: u64,
    /// Last line that was copied for each address. A map that is written anew repeats its lines.
    reported: BTreeMap<u64, Entry>,
    /// Lower bound of the times of lines that were not copied yet, `CLOCK_MONOTONIC` in ns.
    not_before: u64,
}

impl OtherJits {
    pub(super) fn new(own_lines: OwnLines, is_shared: Arc<AtomicBool>, stale_map: Option<StaleMap>) -> Self {
        let (reported, path) = (BTreeMap::new(), perf_map::own_map_path());
        OtherJits {
            path,
            own_lines,
            is_shared,
            stale_map,
            offset: 0,
            inode: 0,
            reported,
            not_before: clock::monotonic(),
        }
    }

    /// Sets the lower bound for later lines to now, because code was freed and other JITs may reuse its addresses.
    pub(super) fn advance_lower_bound(&mut self) {
        self.not_before = clock::monotonic();
    }

    /// Reads the lines that were added since the last call.
    pub(super) fn poll(&mut self, now: u64) -> NewEntries {
        // If we cannot read the map, perf cannot either.
        let entries = self.read().unwrap_or_default();
        NewEntries { not_before: std::mem::replace(&mut self.not_before, now), entries }
    }

    fn read(&mut self) -> io::Result<Vec<Entry>> {
        if self.is_shared.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let metadata = std::fs::symlink_metadata(&self.path)?;
        if metadata.ino() != self.inode || metadata.size() < self.offset {
            let stale = self.stale_map.take().filter(|stale| stale.is_prefix_of(&metadata));
            (self.inode, self.offset) = (metadata.ino(), stale.map_or(0, StaleMap::size));
        }
        if !metadata.is_file() || metadata.size() == self.offset {
            return Ok(Vec::new());
        }
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (entries, consumed) = parse(&bytes, |relative| self.own_lines.contains(self.offset + relative));
        self.offset += consumed;
        let reported = &mut self.reported;
        Ok(entries.into_iter().filter(|entry| record_if_new(reported, entry)).collect())
    }
}

fn record_if_new(reported: &mut BTreeMap<u64, Entry>, entry: &Entry) -> bool {
    reported.insert(entry.range.start().0, entry.clone()).as_ref() != Some(entry)
}

/// Parses the whole lines in `bytes`, skipping those whose offset satisfies `is_own`. Returns the entries and the
/// number of bytes consumed.
fn parse(bytes: &[u8], is_own: impl Fn(u64) -> bool) -> (Vec<Entry>, u64) {
    let mut entries = Vec::new();
    let mut consumed = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        if !is_own(consumed) {
            entries.extend(parse_line(&String::from_utf8_lossy(text)));
        }
        consumed += line.len() as u64;
    }
    (entries, consumed)
}

/// Parses `START SIZE name`, with or without the `0x` that some writers add.
fn parse_line(line: &str) -> Option<Entry> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let [start, size] = [start, size].map(|text| {
        let text = text.strip_prefix("0x").unwrap_or(text);
        u64::from_str_radix(text, 16).ok().filter(|&number| number != 0)
    });
    let range = AddressRange::new(Address(start?), size.filter(|&size| size <= MAX_FUNCTION_BYTES)?)?;
    let name = name.trim();
    (!name.is_empty()).then(|| Entry { range, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_line_is_read_later() {
        let text = b"1000 10 py::f:/a b.py\n0x2000 0x20 g\n0 0 freed--\nnonsense\n3000 8 to";
        let (entries, consumed) = parse(text, |_| false);
        let names: Vec<_> = entries.iter().map(|entry| (entry.range.start().0, entry.name.as_str())).collect();
        assert_eq!(names, [(0x1000, "py::f:/a b.py"), (0x2000, "g")]);
        assert_eq!(consumed as usize, text.len() - "3000 8 to".len());
    }

    #[test]
    fn our_own_lines_are_skipped() {
        let (entries, _) = parse(b"1000 10 ours\n2000 10 theirs\n", |offset| offset < 13);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].name, "theirs");
    }

    #[test]
    fn an_entry_is_copied_once() {
        let mut reported = BTreeMap::new();
        let entry = |name: &str| Entry { range: AddressRange::new(Address(1), 1).unwrap(), name: name.to_owned() };
        assert!(record_if_new(&mut reported, &entry("a")));
        assert!(!record_if_new(&mut reported, &entry("a")));
        assert!(record_if_new(&mut reported, &entry("b")));
    }
}
