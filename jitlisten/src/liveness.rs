//! Whether the process that created a file is still alive, and how long files of ended processes are kept.
//!
//! Files outlive the process, because `perf report`, `perf inject` and a debugger on a core file open them by name.
//! Each process that creates its first file of a kind removes old ones: it keeps those of the [`DEAD_KEPT`] processes
//! that ended last, for at most [`DEAD_AGE`]. The age counts from the moment when the end was detected.
//!
//! A living process holds a lock (`flock(2)`) on one of its files, which works across PID namespaces, where PIDs are
//! ambiguous. A process that has closed unknown descriptors is still recognised by PID and start time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use crate::process::clock;

/// The files of how many dead processes are kept.
pub(crate) const DEAD_KEPT: usize = 16;
/// How long they are kept.
pub(crate) const DEAD_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A recording of many short processes is looked at when they are over.
const DEAD_RECENTLY: Duration = Duration::from_secs(3600);

/// What a dead process has left.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dead<T> {
    /// When it was found out.
    pub(crate) since: SystemTime,
    /// When it last wrote.
    pub(crate) written: SystemTime,
    pub(crate) left: T,
}

/// Those that are kept no longer. Of those that died within the last hour, `recent` are kept even if they are more.
pub(crate) fn expired<T: Ord>(mut dead: Vec<Dead<T>>, recent: usize) -> impl Iterator<Item = T> {
    dead.sort();
    let (now, count) = (clock::time_of_day(), dead.len());
    let is_recent = |dead: &Dead<T>| now.duration_since(dead.since).is_ok_and(|age| age < DEAD_RECENTLY);
    let of_last_hour = dead.iter().rev().take_while(|dead| is_recent(dead)).count();
    let many = count.saturating_sub(of_last_hour.min(recent).max(DEAD_KEPT));
    // What seems to come from the future is young.
    let is_old = move |since: SystemTime| now.duration_since(since).is_ok_and(|age| age >= DEAD_AGE);
    dead.into_iter()
        .enumerate()
        .filter(move |(index, dead)| *index < many || is_old(dead.since))
        .map(|(_, dead)| dead.left)
}

/// When a process began, in clock ticks since boot: field 22 of `proc_pid_stat(5)`.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the program's name in parentheses, may have anything in it.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// When this process began, by the clock that files are dated with.
pub fn began() -> Option<SystemTime> {
    // SAFETY: sysconf has no precondition.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|&ticks| ticks > 0)?;
    let ticks = start_time(std::process::id())?;
    let since_boot =
        Duration::from_secs(ticks / per_second) + Duration::from_secs(ticks % per_second) / per_second as u32;
    let age = Duration::from_nanos(clock::nanoseconds_of(libc::CLOCK_BOOTTIME)).checked_sub(since_boot)?;
    clock::time_of_day().checked_sub(age)
}

/// The PID namespace, in which our number counts (`pid_namespaces(7)`); 0 where `/proc` does not say.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// What came of asking for a lock without waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// It is ours.
    Taken,
    /// Another process has it.
    Held,
    /// The file system or a seccomp filter knows no locks.
    Unknown,
}

/// Alone on the file.
pub(crate) fn lock_exclusive(file: &File) -> Lock {
    flock(file, libc::LOCK_EX)
}

/// With others; an exclusive one becomes this.
pub(crate) fn lock_shared(file: &File) -> Lock {
    flock(file, libc::LOCK_SH)
}

fn flock(file: &File, operation: i32) -> Lock {
    // SAFETY: the descriptor is open while `file` is borrowed.
    match unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) } {
        0 => Lock::Taken,
        _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Lock::Held,
        _ => Lock::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_begun() {
        let pid = std::process::id();
        assert!(start_time(pid).is_some());
        assert_eq!(start_time(pid), start_time(pid));
        assert_eq!(start_time(u32::MAX), None);
        assert_ne!(pid_namespace(), 0);
        assert!(began().is_some_and(|began| began <= clock::time_of_day()));
    }

    #[test]
    fn sixteen_are_kept_and_none_for_longer_than_a_week() {
        let dead = |hours: u64| {
            let since = clock::time_of_day() - Duration::from_secs(hours * 3600);
            Dead { since, written: since, left: hours }
        };
        let old = |ages: Vec<u64>, recent| expired(ages.into_iter().map(dead).collect(), recent).collect::<Vec<_>>();
        assert_eq!(old((0..18).collect(), 0), [17, 16]);
        assert_eq!(old(vec![1, 7 * 24 + 1, 7 * 24 - 1], 0), [7 * 24 + 1]);
        assert_eq!(old(vec![0; 30], 20).len(), 10);
        assert_eq!(old(vec![0; 30], 50).len(), 0);
        assert_eq!(old([vec![0; 10], vec![2; 10]].concat(), 50), [2; 4]);
    }
}
