//! Liveness of the process that created a file, and retention of files of dead processes.
//!
//! Files outlive their process, because `perf report`, `perf inject` and debuggers on core files open them by name.
//! Before a process creates its first file of a kind, it removes expired files of dead processes ([`expired`]). Files
//! expire at the age of [`MAX_DEAD_AGE`], or earlier if [`MAX_DEAD_PROCESSES`] or a few gigabytes of more recent files
//! are kept. The age counts from the time at which the process was found dead.
//!
//! Files of an unfinished `jitlisten run` are never removed: with `-s` the run may consist of thousands of short-lived
//! processes, and its recording refers to all of them.
//!
//! A live process holds a lock (`flock(2)`) on one of its files. This works across PID namespaces, where PIDs are
//! ambiguous. A process that has closed unknown descriptors is still recognised by PID and start time.

#![allow(unsafe_code)]

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use crate::process::clock;

/// Maximum age of the files of a dead process.
pub(crate) const MAX_DEAD_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of dead processes whose files are kept, not counting unfinished `jitlisten run`s. Every process that
/// writes files examines all of them when it starts.
const MAX_DEAD_PROCESSES: usize = 1024;

/// Time that a process spends on examining the files of dead processes, and again on removing them. It starts in the
/// host's first compilation, and others may have left any number of files on a slow disk. Later processes continue.
pub(crate) const CLEAN_UP_TIME: Duration = Duration::from_millis(10);

/// Maximum number of directory entries to list in a clean-up. A longer list, perhaps another user's work in `/tmp`, would
/// take too much of the host's time.
pub(crate) const MAX_DIRECTORY_ENTRIES: usize = 20_000;

/// Time limit of a part of a clean-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    end: u64,
}

impl TimeLimit {
    pub(crate) fn after(time: Duration) -> TimeLimit {
        TimeLimit { end: clock::monotonic() + time.as_nanos() as u64 }
    }

    pub(crate) fn is_over(self) -> bool {
        clock::monotonic() >= self.end
    }

    /// Yields entries until the time is over. Processes begin at different entries, so all are reached at some time.
    pub(crate) fn entries<T>(self, mut entries: Vec<T>) -> impl Iterator<Item = T> {
        let first = std::process::id() as usize % entries.len().max(1);
        entries.rotate_left(first);
        entries.into_iter().take_while(move |_| !self.is_over())
    }
}

/// Identity of a process, unique even if its PID is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time, see [`start_time`].
    pub start: u64,
    /// PID namespace of the process, see `pid_namespaces(7)`.
    pub namespace: u64,
}

impl ProcessIdentity {
    /// Identity of this process.
    pub fn own() -> ProcessIdentity {
        let pid = std::process::id();
        ProcessIdentity { pid, start: start_time(pid).unwrap_or(0), namespace: pid_namespace() }
    }

    /// Returns true if the process is running; `None` if it does not belong to `namespace`, the PID namespace of this
    /// process.
    pub fn is_alive(self, namespace: u64) -> Option<bool> {
        (self.namespace == namespace && namespace != 0).then(|| start_time(self.pid) == Some(self.start))
    }

    fn from_numbers(numbers: &[&str]) -> Option<ProcessIdentity> {
        let &[pid, start, namespace] = numbers else { return None };
        Some(ProcessIdentity { pid: pid.parse().ok()?, start: start.parse().ok()?, namespace: namespace.parse().ok()? })
    }
}

/// Process of a `jitlisten run` command; the run is over when this process exits. `JITLISTEN_RUN` contains it in the
/// form `run=PID-START-NAMESPACE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run(pub ProcessIdentity);

impl Run {
    /// Parses `run=PID-START-NAMESPACE`.
    pub fn parse(word: &str) -> Option<Run> {
        let numbers: Vec<&str> = word.strip_prefix("run=")?.split('-').collect();
        ProcessIdentity::from_numbers(&numbers).map(Run).filter(|run| run.to_string() == word)
    }
}

impl Display for Run {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "run={}-{}-{}", self.0.pid, self.0.start, self.0.namespace)
    }
}

/// Owner of a file, as recorded in the file: `PID START NAMESPACE`, followed by its [`Run`] if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process that created the file.
    pub process: ProcessIdentity,
    /// `jitlisten run` that the process belongs to.
    pub run: Option<Run>,
}

impl Owner {
    /// Parses `text`, which must have exactly the format that `Display` prints.
    pub fn parse(text: &str) -> Option<Owner> {
        let words: Vec<&str> = text.split(' ').collect();
        let process = ProcessIdentity::from_numbers(words.get(..3)?)?;
        let run = words.get(3).and_then(|word| Run::parse(word));
        Some(Owner { process, run }).filter(|owner| owner.to_string() == text)
    }

    /// Returns true if the owner belongs to an unfinished `jitlisten run`. `own` is the run of this process.
    pub fn belongs_to_running(&self, namespace: u64, own: Option<Run>) -> bool {
        self.run.is_some_and(|run| own == Some(run) || run.0.is_alive(namespace) == Some(true))
    }

    /// Returns true if the process is known to have exited, given that no process holds the lock on its file. In this
    /// PID namespace the PID decides; in others, the file must have been written long ago.
    pub(crate) fn is_gone(&self, namespace: u64, written: SystemTime) -> bool {
        match self.process.is_alive(namespace) {
            Some(is_alive) => !is_alive,
            None => clock::time_of_day().duration_since(written).is_ok_and(|age| age >= MAX_DEAD_AGE),
        }
    }
}

impl Display for Owner {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let ProcessIdentity { pid, start, namespace } = self.process;
        write!(formatter, "{pid} {start} {namespace}")?;
        self.run.iter().try_for_each(|run| write!(formatter, " {run}"))
    }
}

/// Files of a dead process.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeadOwner<T> {
    /// Time at which the process was found dead.
    pub(crate) since: SystemTime,
    /// Time at which the process last wrote to one of its files.
    pub(crate) written: SystemTime,
    /// Total size of the files in bytes.
    pub(crate) bytes: u64,
    pub(crate) files: T,
}

/// Yields the files to remove: too old, or beyond `max_bytes` or [`MAX_DEAD_PROCESSES`], counted from the most recently
/// dead process.
pub(crate) fn expired<T: Ord>(mut dead: Vec<DeadOwner<T>>, max_bytes: u64) -> impl Iterator<Item = T> {
    dead.sort();
    let now = clock::time_of_day();
    let mut newer_bytes = 0_u64;
    let newest_first = dead.into_iter().rev().enumerate().map(move |(newer_count, dead)| {
        // A time in the future counts as recent.
        let is_old = now.duration_since(dead.since).is_ok_and(|age| age >= MAX_DEAD_AGE);
        let is_too_many = newer_count >= MAX_DEAD_PROCESSES || newer_bytes >= max_bytes;
        newer_bytes = newer_bytes.saturating_add(dead.bytes);
        (is_old || is_too_many).then_some(dead.files)
    });
    newest_first.flatten()
}

/// Start time of a process, in clock ticks since boot: field 22 of `/proc/PID/stat` (`proc_pid_stat(5)`).
pub fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the program name in parentheses, may contain anything.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Start time of this process, comparable with file timestamps.
pub fn process_start_time() -> Option<SystemTime> {
    // SAFETY: sysconf has no precondition.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|&ticks| ticks > 0)?;
    let ticks = start_time(std::process::id())?;
    let since_boot =
        Duration::from_secs(ticks / per_second) + Duration::from_secs(ticks % per_second) / per_second as u32;
    let age = Duration::from_nanos(clock::clock_ns(libc::CLOCK_BOOTTIME)).checked_sub(since_boot)?;
    clock::time_of_day().checked_sub(age)
}

/// PID namespace of this process (`pid_namespaces(7)`); 0 if `/proc` is not readable.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Result of an attempt to lock a file without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// The lock was acquired.
    Taken,
    /// Another process holds the lock.
    Held,
    /// Locks are unsupported by the file system, or denied by a seccomp filter.
    Unknown,
}

/// Tries to acquire an exclusive lock on the file.
pub(crate) fn lock_exclusive(file: &File) -> Lock {
    flock(file, libc::LOCK_EX)
}

/// Tries to acquire a shared lock on the file; replaces our exclusive lock if we hold it.
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
        assert!(process_start_time().is_some_and(|began| began <= clock::time_of_day()));
    }

    fn dead(hours: u64, bytes: u64) -> DeadOwner<u64> {
        let since = clock::time_of_day() - Duration::from_secs(hours * 3600);
        DeadOwner { since, written: since, bytes, files: hours }
    }

    #[test]
    fn age_size_and_number_limit_what_is_kept() {
        let expired_files = |dead: Vec<DeadOwner<u64>>| expired(dead, 100).collect::<Vec<_>>();
        assert_eq!(expired_files((0..168).map(|hours| dead(hours, 0)).collect()), [0; 0]);
        assert_eq!(expired_files(vec![dead(1, 0), dead(7 * 24 + 1, 0), dead(7 * 24 - 1, 0)]), [7 * 24 + 1]);
        assert_eq!(
            expired_files(vec![dead(3, 50), dead(1, 99), dead(2, 1)]),
            [3],
            "the last 100 bytes are of the first two"
        );
        assert_eq!(
            expired_files(vec![dead(2, 1), dead(1, 1000)]),
            [2],
            "the last process stays, however large its files are"
        );
        assert_eq!(expired_files((0..1030).map(|_| dead(5, 0)).collect()).len(), 1030 - MAX_DEAD_PROCESSES);
    }

    #[test]
    fn an_owner_is_parsed_as_it_is_printed() {
        for text in ["12 345 4026531836", "12 345 4026531836 run=7-9-4026531836"] {
            assert_eq!(Owner::parse(text).map(|owner| owner.to_string()).as_deref(), Some(text));
        }
        for text in
            ["12 345", "12 345 4026531836 ", "012 345 1", "12 345 1 run=7-9", "12 345 1 run=7-9-1 more", "a b c"]
        {
            assert_eq!(Owner::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_run_is_over_when_its_process_has_ended() {
        let own = ProcessIdentity::own();
        let is_running =
            |process, namespace| Owner { process: own, run: Some(Run(process)) }.belongs_to_running(namespace, None);
        assert!(is_running(own, own.namespace));
        assert!(!is_running(ProcessIdentity { start: own.start + 1, ..own }, own.namespace));
        assert!(!is_running(own, own.namespace + 1));
        let run_elsewhere = Some(Run(ProcessIdentity { namespace: own.namespace + 1, ..own }));
        assert!(Owner { process: own, run: run_elsewhere }.belongs_to_running(own.namespace, run_elsewhere));
    }
}
