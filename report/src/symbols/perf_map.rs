//! `/tmp/perf-PID.map`: `START SIZE name` in each line, numbers in hexadecimal.
//! Format: `tools/perf/Documentation/jit-interface.txt` in the kernel's source.

use std::cell::RefCell;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jitlisten_files::open_regular;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::lookup::Lookup;
use crate::recording::Origin;
use crate::recording::Recording;

/// A larger map is cut.
pub(crate) const LARGEST: u64 = 512 << 20;

/// The functions of one process that have no file.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    entries: Vec<Entry>,
    text: String,
    /// The file, and how long it was.
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
        file.take(LARGEST).read_to_end(&mut bytes).ok()?;
        let length = bytes.len() as u64;
        let map = PerfMap::parse(String::from_utf8_lossy(&bytes).into_owned());
        Some(PerfMap { file: Some((path.to_owned(), length)), ..map })
    }

    /// Whether there is more in the file by now, or there was none.
    pub(super) fn has_grown(&self) -> bool {
        self.file
            .as_ref()
            .is_none_or(|(path, length)| std::fs::metadata(path).is_ok_and(|data| data.len().min(LARGEST) != *length))
    }

    fn parse(text: String) -> PerfMap {
        let mut entries: Vec<Entry> = text.lines().filter_map(|line| entry(line, &text)).collect();
        // Of two lines for one address the later is right; the sort keeps their order.
        entries.sort_by_key(|entry| entry.start);
        PerfMap { entries, text, file: None }
    }

    /// The name of the function at an address.
    pub(super) fn find(&self, address: u64) -> Option<&str> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries[..after].iter().rev().take(64).find(|entry| address < entry.end)?;
        self.text.get(entry.name.0 as usize..entry.name.1 as usize)
    }
}

/// Where the maps of a recording's processes are. A number of a process says little: another machine, or another
/// process of later, may have it, too.
#[derive(Debug)]
pub(super) struct MapFiles<'a> {
    origins: &'a [Origin],
    roots: &'a [PathBuf],
    /// Numbers of processes of several origins.
    shared: FxHashSet<u32>,
    pub(super) notes: RefCell<Vec<String>>,
}

impl<'a> MapFiles<'a> {
    pub(super) fn new(recording: &'a Recording, lookup: &'a Lookup) -> MapFiles<'a> {
        let mut origins = FxHashMap::default();
        let mut shared = FxHashSet::default();
        for location in &recording.locations {
            if let Some(pid) = location.pid
                && *origins.entry(pid).or_insert(location.origin) != location.origin
            {
                shared.insert(pid);
            }
        }
        MapFiles { origins: &recording.origins, roots: &lookup.roots, shared, notes: RefCell::default() }
    }

    /// The map in the recording's own folder; in a folder that was asked for, unless it could be that of several
    /// processes; at its own place, if the recording is of this machine.
    pub(super) fn open(&self, origin: u32, pid: u32) -> PerfMap {
        let path = PathBuf::from(format!("tmp/perf-{pid}.map"));
        let origin = self.origins.get(origin as usize).cloned().unwrap_or_default();
        let asked = self.roots.iter().map(|root| root.join(&path));
        let (asked, here) = (asked.collect::<Vec<_>>(), Path::new("/").join(&path));
        let own = origin.root.as_ref().map(|root| root.join(&path));
        if let Some(map) = own.and_then(|path| PerfMap::open(&path)) {
            return map;
        }
        let is_shared = self.shared.contains(&pid);
        if let Some(map) = asked.iter().filter(|_| !is_shared).find_map(|path| PerfMap::open(path)) {
            return map;
        }
        if origin.is_here().unwrap_or(!is_shared) {
            if !is_older(&here, pid) {
                return PerfMap::open(&here).unwrap_or_default();
            }
            let number = "it is older than the process that has this number now";
            self.notes
                .borrow_mut()
                .push(format!("{} is not read: {number}; if it is the right one, add --root /", here.display()));
            return PerfMap::default();
        }
        let left = asked.iter().find(|path| is_shared && path.exists());
        if let Some(left) = left {
            let machines = "several processes of this number are in the recordings";
            self.notes.borrow_mut().push(format!("{} is not read: {machines}", left.display()));
        } else if here.exists() && !is_shared {
            let machine = format!("the map is from this machine, the recording from {}", origin.host);
            self.notes
                .borrow_mut()
                .push(format!("{} is not read: {machine}; if it is the right one, add --root /", here.display()));
        }
        PerfMap::default()
    }
}

/// Whether a map was written before the process began that has the number now: CPython's trampolines and others leave
/// theirs.
fn is_older(map: &Path, pid: u32) -> bool {
    let written = std::fs::metadata(map).and_then(|about| about.modified());
    // The kernel says both times in hundredths.
    let is = |began: SystemTime| written.is_ok_and(|written| written + Duration::from_secs(1) < began);
    began(pid).is_some_and(is)
}

/// When a process that runs began.
fn began(pid: u32) -> Option<SystemTime> {
    /// `USER_HZ`, which is this everywhere (`include/asm-generic/param.h` in the kernel's source).
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `starttime`, the 22nd field; the second is in brackets.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    let age = Duration::try_from_secs_f64(uptime).ok()?.checked_sub(Duration::from_millis(ticks * (1000 / TICKS)))?;
    SystemTime::now().checked_sub(age)
}

fn entry(line: &str, text: &str) -> Option<Entry> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    // Short symbols are padded.
    let name = name.trim_end();
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = start.checked_add(u64::from_str_radix(size, 16).ok()?)?;
    let at = name.as_ptr() as usize - text.as_ptr() as usize;
    Some(Entry { start, end, name: (u32::try_from(at).ok()?, u32::try_from(at + name.len()).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this process, which runs.
    #[test]
    fn a_map_that_is_older_than_its_process() {
        let map = std::env::temp_dir().join(format!("jitlisten-report-older-{}", std::process::id()));
        let file = std::fs::File::create(&map).unwrap();
        assert!(!is_older(&map, std::process::id()));
        let hour = Duration::from_secs(3600);
        file.set_modified(began(std::process::id()).unwrap() - hour).unwrap();
        assert!(is_older(&map, std::process::id()) && !is_older(&map, u32::MAX));
        std::fs::remove_file(map).unwrap();
    }

    #[test]
    fn the_later_of_two_lines_for_an_address_is_right() {
        let map = PerfMap::parse("1000 10 old\n2000 20 a b\nrubbish\n1000 10 new\n".to_owned());
        assert_eq!(map.find(0x100f), Some("new"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x201f), Some("a b"));
        assert_eq!(map.find(0), None);
    }
}
