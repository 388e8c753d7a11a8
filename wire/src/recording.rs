//! Names of the files that belong to a recording, and an item of its records.
//!
//! ```text
//!   FILE                                        the recording; for a child process FILE.PID, or %p in the name FILE
//!   FILE.images/image-PID-START-object-N.so     an image of compiled code
//!   FILE.images/python-PID-TIME-N.so            functions that CPython interprets
//!   FILE.images/compilations.jsonl              compilations by Numba
//!   FILE.images/interpreter.json                whose files are whose, according to Python
//!   FILE.old, FILE.old.images/                  the previous recording with the same name
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Thread id of the record with the CPU time of processes that have ended without a sample, and so without a recording.
pub const UNSAMPLED_PROCESSES: u32 = u32::MAX;

/// Name of the file in [`images`] that lists Numba's compilations.
pub const COMPILATIONS: &str = "compilations.jsonl";

/// Name of the file in [`images`] with the interpreter's facts about the owners of files.
pub const INTERPRETER: &str = "interpreter.json";

/// Suffix that [`images`] appends to the name of a recording.
pub const IMAGES: &str = ".images";

/// Suffix that [`old`] appends to the name of a recording.
const OLD_SUFFIX: &str = ".old";

/// Returns the path of a recording's image directory.
pub fn images(recording: &Path) -> PathBuf {
    with_suffix(recording, IMAGES)
}

/// Returns the new name of a recording that is about to be replaced.
pub fn old(recording: &Path) -> PathBuf {
    with_suffix(recording, OLD_SUFFIX)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_a_recording() {
        let file = Path::new("/a/prof.data");
        assert_eq!(images(&old(file)), Path::new("/a/prof.data.old.images"));
    }
}
