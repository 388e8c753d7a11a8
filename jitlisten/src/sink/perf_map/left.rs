//! Maps of ended processes: see [`crate::liveness`] for how long they are kept.
//!
//! A map is one of ours by its first line, which names its process. It is kept if it belongs to another user, if its
//! process lives, if its lock is held, or if CPython has written lines into it, too (its first line then records that,
//! so that the search is done once). In another PID namespace the PID means nothing: there, a map without a lock must
//! also be old.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jitlisten_files::FileName;

use crate::liveness::{self, Dead, Lock, Owner, ProcessIdentity, Run};
use crate::process::write_nosignal::{effective_user, overwrite};

/// A `/tmp` with more in it is not looked through: that would take the host's time.
const MOST_ENTRIES: usize = 20_000;
/// Limit for maps of dead processes: `/tmp` may be in memory.
const MAX_DEAD_BYTES: u64 = 64 << 20;
/// So many bytes of a map are looked through, once.
const MOST_SEARCHED: u64 = 1 << 26;
/// Longer than any first line.
const FIRST_LINE: usize = 256;
const ALIVE: &str = "alive";
/// As long as [`ALIVE`], in whose place it is written by the process that finds it dead.
const ENDED: &str = "ended";
/// The same, for a map with lines of CPython's: this library leaves it alone, `jitlisten clean` does not.
const MIXED: &str = "mixed";

/// The first line of a map of this process.
pub(super) fn first_line(run: Option<Run>) -> String {
    format!("{MARK}{} {ALIVE}\n", Owner { process: ProcessIdentity::own(), run })
}

/// Beginning of the first line, which perf reads as an empty function at 0.
const MARK: &str = "0 0 jitlisten ";

/// The first line of a map: `0 0 jitlisten PID START NAMESPACE [RUN] STATE`.
#[derive(Debug, PartialEq, Eq)]
pub struct FirstLine {
    /// Owner of the map.
    pub owner: Owner,
    /// Where it says whether the process lives.
    state_at: u64,
    /// Whether it says that the process is dead.
    pub is_ended: bool,
    /// Whether it says that CPython has written into the map, too.
    is_mixed: bool,
}

impl FirstLine {
    /// Parses it; it ends with a line feed.
    pub fn parse(bytes: &[u8]) -> Option<FirstLine> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let (owner, state) = line.strip_prefix(MARK)?.rsplit_once(' ')?;
        let owner = Owner::parse(owner).filter(|_| [ALIVE, ENDED, MIXED].contains(&state))?;
        let state_at = (end - ALIVE.len()) as u64;
        Some(FirstLine { owner, state_at, is_ended: state != ALIVE, is_mixed: state == MIXED })
    }
}

/// Removes maps of dead processes of this user in `directory`, except `own` and those of `run` or another one that is
/// not over.
pub(super) fn remove_old(directory: &Path, own: &Path, run: Option<Run>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let namespace = liveness::pid_namespace();
    let mut maps = Vec::new();
    for entry in entries.flatten().take(MOST_ENTRIES) {
        let path = entry.path();
        if matches!(FileName::parse(entry.file_name()), Some(FileName::PerfMap { .. })) && path != own {
            maps.push((entry.metadata().and_then(|about| about.modified()).ok(), path));
        }
    }
    // Many may be found at once: who wrote last is found last, and stays longest.
    maps.sort();
    let dead = maps.into_iter().filter_map(|(_, path)| found_dead(path, namespace, run)).collect();
    for path in liveness::expired(dead, MAX_DEAD_BYTES) {
        // Once more under the lock: a process may have got the number meanwhile.
        if let Some((_lock, _)) = locked(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn found_dead(path: PathBuf, namespace: u64, run: Option<Run>) -> Option<Dead<PathBuf>> {
    let (file, first) = locked(&path)?;
    let about = file.metadata().ok()?;
    let (written, bytes) = (about.modified().ok()?, about.len());
    if first.is_mixed || first.owner.belongs_to_running(namespace, run) {
        return None;
    }
    if first.is_ended {
        return Some(Dead { since: written, written, bytes, files: path });
    }
    if !first.owner.is_gone(namespace, written) {
        return None;
    }
    if has_lines_of_python(&file, MOST_SEARCHED).ok()? {
        let _ = overwrite(&file, MIXED.as_bytes(), first.state_at);
        return None;
    }
    overwrite(&file, ENDED.as_bytes(), first.state_at).ok()?;
    let since = file.metadata().ok()?.modified().ok()?;
    Some(Dead { since, written, bytes, files: path })
}

/// The map with its first line, if it is one of ours and its lock is free, which is ours then.
fn locked(path: &Path) -> Option<(File, FirstLine)> {
    let about = fs::symlink_metadata(path).ok()?;
    if !about.is_file() || about.uid() != effective_user() || about.nlink() != 1 {
        return None;
    }
    let file = jitlisten_files::open_existing(path).ok()?;
    let now = file.metadata().ok()?;
    if (about.dev(), about.ino()) != (now.dev(), now.ino()) {
        return None;
    }
    let mut start = Vec::new();
    (&file).take(FIRST_LINE as u64).read_to_end(&mut start).ok()?;
    let first = FirstLine::parse(&start)?;
    // A copy of a map under another number is the user's.
    let is_its_name = FileName::parse(path.file_name()?) == Some(FileName::PerfMap { pid: first.owner.process.pid });
    (is_its_name && liveness::lock_exclusive(&file) == Lock::Taken).then_some((file, first))
}

/// CPython names its trampolines `py::function:file`. Reads until it finds one, and so many bytes at most.
fn has_lines_of_python(mut file: &File, most: u64) -> io::Result<bool> {
    const MARK: &[u8] = b" py::";
    file.rewind()?;
    let mut file = file.take(most);
    let mut buffer = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        let read = file.read(&mut buffer[kept..])?;
        let end = kept + read;
        if buffer[..end].windows(MARK.len()).any(|bytes| bytes == MARK) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        // It may begin at the end of this piece.
        kept = end.min(MARK.len() - 1);
        buffer.copy_within(end - kept..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::clock;
    use std::time::Duration;

    /// No process has such a number: `pid_max` is at most 2^22.
    const UNUSED_PID: u32 = 5_000_000;

    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Place {
            let path = std::env::temp_dir().join(format!("jitlisten-left-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Place(path)
        }

        fn map(&self, number: u32) -> PathBuf {
            self.0.join(format!("perf-{number}.map"))
        }

        /// A map that begins with `first`, last written so many hours ago.
        fn add(&self, number: u32, first: &str, hours: u64) {
            fs::write(self.map(number), format!("{first}1000 10 name\n")).unwrap();
            let then = clock::time_of_day() - Duration::from_secs(hours * 3600);
            File::options().write(true).open(self.map(number)).unwrap().set_modified(then).unwrap();
        }

        fn clean(&self) {
            remove_old(&self.0, &self.map(1), None);
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn line(pid: u32, state: &str) -> String {
        format!("0 0 jitlisten {pid} 1 {} {state}\n", liveness::pid_namespace())
    }

    #[test]
    fn a_first_line_says_whose_the_map_is() {
        let own = first_line(None);
        let parsed = FirstLine::parse(own.as_bytes()).unwrap();
        assert_eq!((parsed.owner.process, parsed.is_ended), (ProcessIdentity::own(), false));
        assert_eq!(&own[parsed.state_at as usize..], "alive\n");
        assert!(!parsed.owner.is_gone(liveness::pid_namespace(), clock::time_of_day()));
        let run = Some(Run(ProcessIdentity::own()));
        assert_eq!(FirstLine::parse(first_line(run).as_bytes()).unwrap().owner.run, run);
        for other in ["7f00 10 name\n", "0 0 jitlisten 1 2 3\n", "0 0 jitlisten 1 2 3 alive", "0 0 freed---\n"] {
            assert_eq!(FirstLine::parse(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn maps_are_kept_for_a_week_and_up_to_a_size() {
        let place = Place::new("count");
        let name = |number: u32| line(UNUSED_PID + number, ENDED);
        (0..60).for_each(|number| place.add(UNUSED_PID + number, &name(number), u64::from(number) * 2));
        place.add(UNUSED_PID + 60, &name(60), 7 * 24 + 1);
        File::options().write(true).open(place.map(UNUSED_PID + 40)).unwrap().set_len(MAX_DEAD_BYTES).unwrap();
        let then = clock::time_of_day() - Duration::from_secs(80 * 3600);
        File::options().write(true).open(place.map(UNUSED_PID + 40)).unwrap().set_modified(then).unwrap();
        place.clean();
        let kept: Vec<u32> = (0..61).filter(|number| place.map(UNUSED_PID + number).exists()).collect();
        assert_eq!(kept, (0..=40).collect::<Vec<_>>());
    }

    /// The workers of `jitlisten run -s -- perf record ...`, which reads their maps at its end.
    #[test]
    fn maps_of_a_run_that_is_not_over_stay() {
        let place = Place::new("run");
        let own = ProcessIdentity::own();
        let over = ProcessIdentity { start: own.start + 1, ..own };
        for (number, run) in [(0, own), (1, over)] {
            let pid = UNUSED_PID + number;
            let owner = Owner { process: ProcessIdentity { pid, start: 1, ..own }, run: Some(Run(run)) };
            place.add(pid, &format!("{MARK}{owner} {ENDED}\n"), 365 * 24);
        }
        place.clean();
        assert_eq!([0, 1].map(|number| place.map(UNUSED_PID + number).exists()), [true, false]);
    }

    #[test]
    fn who_wrote_long_ago_may_have_died_just_now() {
        let place = Place::new("found");
        place.add(UNUSED_PID, &line(UNUSED_PID, ALIVE), 30 * 24);
        place.clean();
        place.clean();
        assert!(fs::read_to_string(place.map(UNUSED_PID)).unwrap().starts_with(&line(UNUSED_PID, ENDED)));
    }

    /// Such a map may be large, and is there for ever: no later process reads it again.
    #[test]
    fn lines_of_python_are_searched_once() {
        let place = Place::new("python");
        place.add(UNUSED_PID, &format!("{}2000 10 py::f:/a.py\n", line(UNUSED_PID, ALIVE)), 1);
        place.clean();
        let text = fs::read_to_string(place.map(UNUSED_PID)).unwrap();
        assert!(text.starts_with(&line(UNUSED_PID, MIXED)) && text.contains("py::f"), "{text}");
        // Without that line it would be one of ours.
        fs::write(place.map(UNUSED_PID), line(UNUSED_PID, MIXED)).unwrap();
        place.clean();
        assert_eq!(fs::read_to_string(place.map(UNUSED_PID)).unwrap(), line(UNUSED_PID, MIXED));
        assert!(FirstLine::parse(line(UNUSED_PID, MIXED).as_bytes()).unwrap().is_ended);
    }

    #[test]
    fn a_line_of_python_is_found_wherever_it_stands() {
        let place = Place::new("search");
        for before in [0, 5, (1 << 16) - 3, 1 << 16, (3 << 16) - 7] {
            fs::write(place.map(2), "x".repeat(before) + " py::f:/a.py\n" + &"y".repeat(1 << 17)).unwrap();
            let mut file = File::open(place.map(2)).unwrap();
            assert!(has_lines_of_python(&file, u64::MAX).unwrap(), "{before}");
            // No more is read than that.
            assert!(file.stream_position().unwrap() <= before as u64 + (1 << 16) + 5, "{before}");
            assert!(!has_lines_of_python(&file, before as u64 + 4).unwrap(), "{before}");
        }
    }

    #[test]
    fn what_is_not_a_dead_process_of_ours_stays() {
        let place = Place::new("others");
        let old = 365 * 24;
        place.add(UNUSED_PID, "", old);
        place.add(UNUSED_PID + 1, &line(UNUSED_PID + 1, ENDED), old);
        let held = File::open(place.map(UNUSED_PID + 1)).unwrap();
        assert_eq!(liveness::lock_shared(&held), Lock::Taken);
        place.add(std::process::id(), &first_line(None), old);
        place.add(UNUSED_PID + 6, &line(UNUSED_PID + 5, ENDED), old);
        place.add(UNUSED_PID + 3, &format!("{}2000 10 py::f:/a.py\n", line(UNUSED_PID + 3, ALIVE)), old);
        place.add(UNUSED_PID + 4, &format!("0 0 jitlisten {} 1 7 alive\n", UNUSED_PID + 4), 1);
        place.add(UNUSED_PID + 5, &line(UNUSED_PID + 5, ENDED), old);
        place.clean();
        let kept: Vec<u32> = (0..7).filter(|number| place.map(UNUSED_PID + number).exists()).collect();
        assert_eq!(kept, [0, 1, 3, 4, 6]);
        assert!(place.map(std::process::id()).exists(), "it lives");
        drop(held);
        place.clean();
        assert!(!place.map(UNUSED_PID + 1).exists());
    }
}
