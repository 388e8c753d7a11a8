//! Removal of perf maps whose process has exited. [`crate::liveness`] defines how long they are kept.
//!
//! The first line of each of our maps identifies the process. A map is kept if it belongs to another user, if its
//! process is alive, if it is locked, or if CPython has also written to it. The last case is recorded in the first
//! line, so that later processes need not search the file again. A PID from another PID namespace is meaningless here,
//! so a map from such a namespace is only removed if it is unlocked and also old.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jitlisten_files::FileName;

use crate::liveness::{self, DeadOwner, Lock, MAX_DIRECTORY_ENTRIES, Owner, ProcessIdentity, Run, TimeLimit};
use crate::process::write_nosignal::{effective_user, overwrite};

/// Maximum total size of the maps that dead processes have left. It is small because `/tmp` may be in memory.
const MAX_DEAD_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of a map that are searched for CPython lines.
const MAX_SEARCHED_BYTES: u64 = 1 << 26;
const MAX_FIRST_LINE_BYTES: usize = 256;
const ALIVE_STATE: &str = "alive";
/// State of a process that has exited. It overwrites [`ALIVE_STATE`] in place, so it has the same length.
const ENDED_STATE: &str = "ended";
/// State of a process that has exited and whose map also has CPython lines. Only `jitlisten clean` removes such a map.
const MIXED_STATE: &str = "mixed";

/// Returns the first line for a map of this process.
pub(super) fn first_line(run: Option<Run>) -> String {
    format!("{FIRST_LINE_PREFIX}{} {ALIVE_STATE}\n", Owner { process: ProcessIdentity::own(), run })
}

/// Start of the first line, which perf reads as an empty function at address 0.
const FIRST_LINE_PREFIX: &str = "0 0 jitlisten ";

/// First line of a map: `0 0 jitlisten PID START NAMESPACE [RUN] STATE`.
#[derive(Debug, PartialEq, Eq)]
pub struct FirstLine {
    /// Process that wrote the map.
    pub owner: Owner,
    state_offset: u64,
    /// True if the state says that the process has exited.
    pub is_ended: bool,
    /// True if the state says that the map also has CPython lines.
    is_mixed: bool,
}

impl FirstLine {
    /// Parses the first line, which must end with a newline.
    pub fn parse(bytes: &[u8]) -> Option<FirstLine> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let (owner, state) = line.strip_prefix(FIRST_LINE_PREFIX)?.rsplit_once(' ')?;
        let owner = Owner::parse(owner).filter(|_| [ALIVE_STATE, ENDED_STATE, MIXED_STATE].contains(&state))?;
        let state_offset = (end - ALIVE_STATE.len()) as u64;
        Some(FirstLine { owner, state_offset, is_ended: state != ALIVE_STATE, is_mixed: state == MIXED_STATE })
    }
}

/// Removes maps of this user's dead processes from `directory`: examines as many as `time` allows, and again removes as
/// many. Keeps `own_path`, and the maps of `run` and of other runs that have not ended.
pub(super) fn remove_dead_maps(time: Duration, directory: &Path, own_path: &Path, run: Option<Run>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let namespace = liveness::pid_namespace();
    let mut maps = Vec::new();
    for entry in entries.flatten().take(MAX_DIRECTORY_ENTRIES) {
        let path = entry.path();
        if matches!(FileName::parse(entry.file_name()), Some(FileName::PerfMap { .. })) && path != own_path {
            maps.push((entry.metadata().and_then(|metadata| metadata.modified()).ok(), path));
        }
    }
    // One scan may find many dead maps. Mark them in the order of their last writes, apart from where the scan begins, to
    // keep the latest ones longest.
    maps.sort();
    let examined = TimeLimit::after(time).entries(maps);
    let dead = examined.filter_map(|(_, path)| check_dead(path, namespace, run)).collect();
    let limit = TimeLimit::after(time);
    for path in liveness::expired(dead, MAX_DEAD_BYTES).take_while(|_| !limit.is_over()) {
        // Check again under the lock, because a new process may have got the PID in the meantime.
        if let Some((_lock, _)) = lock_map(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn check_dead(path: PathBuf, namespace: u64, run: Option<Run>) -> Option<DeadOwner<PathBuf>> {
    let (file, first_line) = lock_map(&path)?;
    let metadata = file.metadata().ok()?;
    let (written, bytes) = (metadata.modified().ok()?, metadata.len());
    if first_line.is_mixed || first_line.owner.belongs_to_running(namespace, run) {
        return None;
    }
    if first_line.is_ended {
        return Some(DeadOwner { since: written, written, bytes, files: path });
    }
    if !first_line.owner.is_gone(namespace, written) {
        return None;
    }
    if has_cpython_lines(&file, MAX_SEARCHED_BYTES).ok()? {
        let _ = overwrite(&file, MIXED_STATE.as_bytes(), first_line.state_offset);
        return None;
    }
    overwrite(&file, ENDED_STATE.as_bytes(), first_line.state_offset).ok()?;
    let since = file.metadata().ok()?.modified().ok()?;
    Some(DeadOwner { since, written, bytes, files: path })
}

/// Opens and locks one of our maps. Returns `None` for any other file, or if the lock is held.
fn lock_map(path: &Path) -> Option<(File, FirstLine)> {
    let path_metadata = fs::symlink_metadata(path).ok()?;
    if !path_metadata.is_file() || path_metadata.uid() != effective_user() || path_metadata.nlink() != 1 {
        return None;
    }
    let file = jitlisten_files::open_existing(path).ok()?;
    let file_metadata = file.metadata().ok()?;
    if (path_metadata.dev(), path_metadata.ino()) != (file_metadata.dev(), file_metadata.ino()) {
        return None;
    }
    let mut head = Vec::new();
    (&file).take(MAX_FIRST_LINE_BYTES as u64).read_to_end(&mut head).ok()?;
    let first_line = FirstLine::parse(&head)?;
    // A copy named after another PID belongs to the user.
    let has_matching_pid =
        FileName::parse(path.file_name()?) == Some(FileName::PerfMap { pid: first_line.owner.process.pid });
    (has_matching_pid && liveness::lock_exclusive(&file) == Lock::Taken).then_some((file, first_line))
}

/// Returns true if the map has lines of CPython trampolines, which are named `py::function:file`. Reads at most `limit`
/// bytes, and stops at the first match.
fn has_cpython_lines(mut file: &File, limit: u64) -> io::Result<bool> {
    const MARKER: &[u8] = b" py::";
    file.rewind()?;
    let mut file = file.take(limit);
    let mut buffer = vec![0; 1 << 16];
    let mut carried = 0;
    loop {
        let read_bytes = file.read(&mut buffer[carried..])?;
        let end = carried + read_bytes;
        if buffer[..end].windows(MARKER.len()).any(|bytes| bytes == MARKER) {
            return Ok(true);
        }
        if read_bytes == 0 {
            return Ok(false);
        }
        // The marker may straddle two chunks.
        carried = end.min(MARKER.len() - 1);
        buffer.copy_within(end - carried..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::clock;

    /// PID that no process has: `pid_max` is at most 2^22.
    const UNUSED_PID: u32 = 5_000_000;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("jitlisten-left-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn map(&self, number: u32) -> PathBuf {
            self.0.join(format!("perf-{number}.map"))
        }

        /// Adds a map that begins with `first_line` and was last written `hours` ago.
        fn add(&self, number: u32, first_line: &str, hours: u64) {
            fs::write(self.map(number), format!("{first_line}1000 10 name\n")).unwrap();
            let written_at = clock::time_of_day() - Duration::from_secs(hours * 3600);
            File::options().write(true).open(self.map(number)).unwrap().set_modified(written_at).unwrap();
        }

        fn clean(&self) {
            remove_dead_maps(Duration::from_secs(600), &self.0, &self.map(1), None);
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn line(pid: u32, state: &str) -> String {
        format!("0 0 jitlisten {pid} 1 {} {state}\n", liveness::pid_namespace())
    }

    #[test]
    fn a_first_line_identifies_the_owner() {
        let own = first_line(None);
        let parsed = FirstLine::parse(own.as_bytes()).unwrap();
        assert_eq!((parsed.owner.process, parsed.is_ended), (ProcessIdentity::own(), false));
        assert_eq!(&own[parsed.state_offset as usize..], "alive\n");
        assert!(!parsed.owner.is_gone(liveness::pid_namespace(), clock::time_of_day()));
        let run = Some(Run(ProcessIdentity::own()));
        assert_eq!(FirstLine::parse(first_line(run).as_bytes()).unwrap().owner.run, run);
        for line in ["7f00 10 name\n", "0 0 jitlisten 1 2 3\n", "0 0 jitlisten 1 2 3 alive", "0 0 freed---\n"] {
            assert_eq!(FirstLine::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn maps_are_kept_for_a_week_and_up_to_a_size() {
        let directory = Directory::new("count");
        let name = |number: u32| line(UNUSED_PID + number, ENDED_STATE);
        (0..60).for_each(|number| directory.add(UNUSED_PID + number, &name(number), u64::from(number) * 2));
        directory.add(UNUSED_PID + 60, &name(60), 7 * 24 + 1);
        File::options().write(true).open(directory.map(UNUSED_PID + 40)).unwrap().set_len(MAX_DEAD_BYTES).unwrap();
        let written_at = clock::time_of_day() - Duration::from_secs(80 * 3600);
        File::options().write(true).open(directory.map(UNUSED_PID + 40)).unwrap().set_modified(written_at).unwrap();
        directory.clean();
        let kept: Vec<u32> = (0..61).filter(|number| directory.map(UNUSED_PID + number).exists()).collect();
        assert_eq!(kept, (0..=40).collect::<Vec<_>>());
    }

    /// `jitlisten run -s -- perf record ...` may start many workers, and perf reads their maps when it exits.
    #[test]
    fn maps_of_an_unfinished_run_are_kept() {
        let directory = Directory::new("run");
        let own = ProcessIdentity::own();
        let ended = ProcessIdentity { start: own.start + 1, ..own };
        for (number, run) in [(0, own), (1, ended)] {
            let pid = UNUSED_PID + number;
            let owner = Owner { process: ProcessIdentity { pid, start: 1, ..own }, run: Some(Run(run)) };
            directory.add(pid, &format!("{FIRST_LINE_PREFIX}{owner} {ENDED_STATE}\n"), 365 * 24);
        }
        directory.clean();
        assert_eq!([0, 1].map(|number| directory.map(UNUSED_PID + number).exists()), [true, false]);
    }

    #[test]
    fn time_counts_from_death_not_from_the_last_write() {
        let directory = Directory::new("found");
        directory.add(UNUSED_PID, &line(UNUSED_PID, ALIVE_STATE), 30 * 24);
        directory.clean();
        directory.clean();
        assert!(fs::read_to_string(directory.map(UNUSED_PID)).unwrap().starts_with(&line(UNUSED_PID, ENDED_STATE)));
    }

    /// A map with CPython lines may be large and is never removed, so later processes must not read all of it again.
    #[test]
    fn cpython_lines_are_searched_once() {
        let directory = Directory::new("python");
        directory.add(UNUSED_PID, &format!("{}2000 10 py::f:/a.py\n", line(UNUSED_PID, ALIVE_STATE)), 1);
        directory.clean();
        let text = fs::read_to_string(directory.map(UNUSED_PID)).unwrap();
        assert!(text.starts_with(&line(UNUSED_PID, MIXED_STATE)) && text.contains("py::f"), "{text}");
        // Only its state protects the map, because the CPython line is missing.
        fs::write(directory.map(UNUSED_PID), line(UNUSED_PID, MIXED_STATE)).unwrap();
        directory.clean();
        assert_eq!(fs::read_to_string(directory.map(UNUSED_PID)).unwrap(), line(UNUSED_PID, MIXED_STATE));
        assert!(FirstLine::parse(line(UNUSED_PID, MIXED_STATE).as_bytes()).unwrap().is_ended);
    }

    #[test]
    fn a_cpython_line_is_found_anywhere() {
        let directory = Directory::new("search");
        for before in [0, 5, (1 << 16) - 3, 1 << 16, (3 << 16) - 7] {
            fs::write(directory.map(2), "x".repeat(before) + " py::f:/a.py\n" + &"y".repeat(1 << 17)).unwrap();
            let mut file = File::open(directory.map(2)).unwrap();
            assert!(has_cpython_lines(&file, u64::MAX).unwrap(), "{before}");
            // Reading stops at the end of the chunk with the match.
            assert!(file.stream_position().unwrap() <= before as u64 + (1 << 16) + 5, "{before}");
            assert!(!has_cpython_lines(&file, before as u64 + 4).unwrap(), "{before}");
        }
    }

    #[test]
    fn only_maps_of_our_dead_processes_are_removed() {
        let directory = Directory::new("others");
        let old_hours = 365 * 24;
        directory.add(UNUSED_PID, "", old_hours);
        directory.add(UNUSED_PID + 1, &line(UNUSED_PID + 1, ENDED_STATE), old_hours);
        let locked_map = File::open(directory.map(UNUSED_PID + 1)).unwrap();
        assert_eq!(liveness::lock_shared(&locked_map), Lock::Taken);
        directory.add(std::process::id(), &first_line(None), old_hours);
        directory.add(UNUSED_PID + 6, &line(UNUSED_PID + 5, ENDED_STATE), old_hours);
        directory.add(
            UNUSED_PID + 3,
            &format!("{}2000 10 py::f:/a.py\n", line(UNUSED_PID + 3, ALIVE_STATE)),
            old_hours,
        );
        directory.add(UNUSED_PID + 4, &format!("0 0 jitlisten {} 1 7 alive\n", UNUSED_PID + 4), 1);
        directory.add(UNUSED_PID + 5, &line(UNUSED_PID + 5, ENDED_STATE), old_hours);
        directory.clean();
        let kept: Vec<u32> = (0..7).filter(|number| directory.map(UNUSED_PID + number).exists()).collect();
        assert_eq!(kept, [0, 1, 3, 4, 6]);
        assert!(directory.map(std::process::id()).exists(), "it lives");
        drop(locked_map);
        directory.clean();
        assert!(!directory.map(UNUSED_PID + 1).exists());
    }
}
