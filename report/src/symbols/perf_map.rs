//! Perf maps: `/tmp/perf-PID.map` with lines of `START SIZE name`, numbers in hexadecimal. Format:
//! `tools/perf/Documentation/jit-interface.txt` in the kernel's source.

use std::cell::RefCell;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jitlisten_files::open_regular;
use rustc_hash::FxHashSet;

use crate::lookup::Lookup;
use crate::recording::Origin;
use crate::recording::Recording;

/// Size limit; the rest of a larger map is ignored.
pub(crate) const MAX_MAP_BYTES: u64 = 512 << 20;

/// Functions of one process, from its perf map.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    entries: Vec<Entry>,
    text: String,
    /// Path of the map, and its size when it was read.
    file: Option<(PathBuf, u64)>,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    end: u64,
    name: (u32, u32),
}

impl PerfMap {
    pub(super) fn open(path: &Path) -> Option<PerfMap> {
        let file = open_regular(path).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_MAP_BYTES).read_to_end(&mut bytes).ok()?;
        let length = bytes.len() as u64;
        let map = PerfMap::parse(String::from_utf8_lossy(&bytes).into_owned());
        Some(PerfMap { file: Some((path.to_owned(), length)), ..map })
    }

    /// Returns true if the map has grown since it was read, or did not exist then.
    pub(super) fn has_grown(&self) -> bool {
        self.file.as_ref().is_none_or(|(path, length)| {
            std::fs::metadata(path).is_ok_and(|metadata| metadata.len().min(MAX_MAP_BYTES) != *length)
        })
    }

    fn parse(text: String) -> PerfMap {
        let mut entries: Vec<Entry> = text.lines().filter_map(|line| parse_entry(line, &text)).collect();
        // If two lines have the same address, the later one is valid. The stable sort keeps their order.
        entries.sort_by_key(|entry| entry.start);
        PerfMap { entries, text, file: None }
    }

    /// Returns the name of the function at an address.
    pub(super) fn find(&self, address: u64) -> Option<&str> {
        let next_index = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries[..next_index].iter().rev().take(64).find(|entry| address < entry.end)?;
        self.text.get(entry.name.0 as usize..entry.name.1 as usize)
    }
}

/// Finds the perf maps of a recording's processes. A pid alone does not identify a process, because a process on
/// another machine, or a later process, may have the same pid.
#[derive(Debug)]
pub(super) struct MapFiles<'a> {
    origins: &'a [Origin],
    roots: &'a [PathBuf],
    /// Pids that occur in several origins.
    ambiguous_pids: FxHashSet<u32>,
    pub(super) notes: RefCell<Vec<String>>,
}

impl<'a> MapFiles<'a> {
    pub(super) fn new(recording: &'a Recording, lookup: &'a Lookup) -> MapFiles<'a> {
        let mut pids = FxHashSet::default();
        let processes = recording.processes.iter();
        let ambiguous_pids = processes.filter(|(_, pid)| !pids.insert(*pid)).map(|(_, pid)| *pid).collect();
        MapFiles { origins: &recording.origins, roots: &lookup.roots, ambiguous_pids, notes: RefCell::default() }
    }

    /// Opens the map of a process. The search covers the recording's own directory, then the user's roots unless
    /// several processes have the pid, then `/tmp` if the recording was made on this machine.
    pub(super) fn open(&self, origin: u32, pid: u32) -> PerfMap {
        let path = map_path(pid);
        let origin = self.origins.get(origin as usize).cloned().unwrap_or_default();
        let candidates = self.roots.iter().map(|root| root.join(&path));
        let (candidates, local_path) = (candidates.collect::<Vec<_>>(), Path::new("/").join(&path));
        let own_path = origin.root.as_ref().map(|root| root.join(&path));
        if let Some(map) = own_path.and_then(|path| PerfMap::open(&path)) {
            return map;
        }
        let is_ambiguous = self.ambiguous_pids.contains(&pid);
        if let Some(map) = candidates.iter().filter(|_| !is_ambiguous).find_map(|path| PerfMap::open(path)) {
            return map;
        }
        if origin.is_here().unwrap_or(!is_ambiguous) {
            if !predates_process(&local_path, pid) {
                return PerfMap::open(&local_path).unwrap_or_default();
            }
            let reason = "it is older than the process that has this number now";
            self.notes
                .borrow_mut()
                .push(format!("{} is not read: {reason}; if it is the right one, add --root /", local_path.display()));
            return PerfMap::default();
        }
        let skipped = candidates.iter().find(|path| is_ambiguous && path.exists());
        if let Some(skipped) = skipped {
            let reason = "several processes of this number are in the recordings";
            self.notes.borrow_mut().push(format!("{} is not read: {reason}", skipped.display()));
        } else if local_path.exists() && !is_ambiguous {
            let reason = format!("the map is from this machine, the recording from {}", origin.host);
            self.notes
                .borrow_mut()
                .push(format!("{} is not read: {reason}; if it is the right one, add --root /", local_path.display()));
        }
        PerfMap::default()
    }
}

/// Returns the path of a process's map below a root.
fn map_path(pid: u32) -> PathBuf {
    PathBuf::from(format!("tmp/perf-{pid}.map"))
}

/// Returns true if there is a map of this process, or of another one with this pid, in any of the places that
/// [`MapFiles::open`] searches.
pub(super) fn has_map(origin: Option<&Origin>, roots: &[PathBuf], pid: u32) -> bool {
    let own_root = origin.and_then(|origin| origin.root.as_deref());
    let roots = roots.iter().map(PathBuf::as_path).chain(own_root).chain([Path::new("/")]);
    let path = map_path(pid);
    roots.map(|root| root.join(&path)).any(|path| path.exists())
}

/// Returns true if a map is older than the process that now has its pid. CPython and other writers do not delete their
/// maps.
fn predates_process(map: &Path, pid: u32) -> bool {
    let written = std::fs::metadata(map).and_then(|metadata| metadata.modified());
    // The kernel reports start times in hundredths of a second.
    let is_before = |start_time: SystemTime| written.is_ok_and(|written| written + Duration::from_secs(1) < start_time);
    start_time(pid).is_some_and(is_before)
}

/// Returns the start time of a running process.
fn start_time(pid: u32) -> Option<SystemTime> {
    /// Value of `USER_HZ` on all architectures (`include/asm-generic/param.h` in the kernel's source).
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The 22nd field is `starttime`. The second field is the command name in parentheses, which may contain spaces.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    let age = Duration::try_from_secs_f64(uptime)
        .ok()?
        .checked_sub(Duration::from_millis(ticks * (1000 / TICKS_PER_SECOND)))?;
    SystemTime::now().checked_sub(age)
}

fn parse_entry(line: &str, text: &str) -> Option<Entry> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    // Some writers pad short names with spaces.
    let name = name.trim_end();
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = start.checked_add(u64::from_str_radix(size, 16).ok()?)?;
    let offset = name.as_ptr() as usize - text.as_ptr() as usize;
    Some(Entry { start, end, name: (u32::try_from(offset).ok()?, u32::try_from(offset + name.len()).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test writes the map of its own process, which is running.
    #[test]
    fn a_map_older_than_its_process_is_detected() {
        let map = std::env::temp_dir().join(format!("jitlisten-report-older-{}", std::process::id()));
        let file = std::fs::File::create(&map).unwrap();
        assert!(!predates_process(&map, std::process::id()));
        let hour = Duration::from_secs(3600);
        file.set_modified(start_time(std::process::id()).unwrap() - hour).unwrap();
        assert!(predates_process(&map, std::process::id()) && !predates_process(&map, u32::MAX));
        std::fs::remove_file(map).unwrap();
    }

    #[test]
    fn the_later_of_two_entries_for_an_address_wins() {
        let map = PerfMap::parse("1000 10 old\n2000 20 a b\nrubbish\n1000 10 new\n".to_owned());
        assert_eq!(map.find(0x100f), Some("new"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x201f), Some("a b"));
        assert_eq!(map.find(0), None);
    }
}
