//! Temporary directories for recordings and output, accessible only to their user. The name of each is
//! `TMPDIR/jitlisten-KIND-XXXXXX`, with a random suffix. A directory is removed when dropped, or by `jitlisten clean`
//! if its process was killed. A process holds a lock (`flock(2)`) on its directories while it runs.

use std::env::temp_dir;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jitlisten_files::OwnDirectory;
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::geteuid;

use crate::problem::Problem;

/// Purpose of a scratch directory.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Recording of `jitlisten top`, and the output of the recorded program.
    Top,
    /// Recording of a command whose working directory is not writable.
    Lines,
    /// Log that the library writes in a program started by `jitlisten doctor`.
    Doctor,
}

const KINDS: [Kind; 3] = [Kind::Top, Kind::Lines, Kind::Doctor];
/// Length of the random suffix, which consists of letters and digits.
const RANDOM_LENGTH: usize = 6;
/// File name and content of the marker in directories that we create.
const MARKER: (&str, &[u8]) = ("jitlisten-scratch", b"temporary files of jitlisten\n");
/// Minimum age for removal: a younger directory may not be locked yet.
const MIN_AGE: Duration = Duration::from_secs(60);

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Top => "jitlisten-top-",
            Kind::Lines => "jitlisten-lines-",
            Kind::Doctor => "jitlisten-doctor-",
        }
    }
}

/// Returns true if `name` has the form of a scratch directory's name.
pub(crate) fn is_scratch_name(name: &str) -> bool {
    let is_random = |rest: &str| rest.len() == RANDOM_LENGTH && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    KINDS.iter().any(|kind| name.strip_prefix(kind.prefix()).is_some_and(is_random))
}

/// A locked temporary directory.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    _lock: File,
}

impl Scratch {
    pub(crate) fn new(kind: Kind) -> Result<Scratch, Problem> {
        let parent = temp_dir();
        let created_directory = OwnDirectory::create_random(&parent, kind.prefix());
        let marked_directory =
            created_directory.and_then(|directory| directory.write(MARKER.0, MARKER.1).map(|()| directory));
        let problem = |error| Problem::new(format!("cannot make a directory in {}: {error}", parent.display()));
        let path = marked_directory.map_err(problem)?.path().to_owned();
        let lock = open_locked(&path).ok_or_else(|| Problem::new(format!("cannot lock {}", path.display())));
        lock.map(|lock| Scratch { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Finds this user's scratch directories whose processes have exited.
pub(crate) fn find_abandoned() -> Vec<PathBuf> {
    let entries = fs::read_dir(temp_dir()).into_iter().flatten().flatten();
    let scratch_directories = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_scratch_name));
    scratch_directories.map(|entry| entry.path()).filter(|path| is_abandoned(path)).collect()
}

fn is_abandoned(path: &Path) -> bool {
    let Some(Ok(metadata)) = open_locked(path).map(|directory| directory.metadata()) else { return false };
    let has_marker = OwnDirectory::open(path).is_ok_and(|directory| directory.has_file(MARKER.0, MARKER.1));
    let is_old = metadata.modified().is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= MIN_AGE));
    metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o777 == 0o700 && is_old && has_marker
}

/// Opens and locks a directory; `None` if another process holds the lock.
fn open_locked(path: &Path) -> Option<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = File::options().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_exact_form() {
        for name in ["jitlisten-top-a1B2c3", "jitlisten-lines-AAAAAA", "jitlisten-doctor-000000"] {
            assert!(is_scratch_name(name), "{name}");
        }
        for name in [
            "jitlisten-top-",
            "jitlisten-top-notes1x",
            "jitlisten-top-a1B2c",
            "jitlisten-a1B2c3",
            "jitlisten-lines-a.B2c3",
        ] {
            assert!(!is_scratch_name(name), "{name}");
        }
    }
}
