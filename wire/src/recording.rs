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
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// Environment variable that requests a recording.
pub const RECORD_VARIABLE: &str = "JITLISTEN_RECORD";

/// Environment variable with the PID of the process that created the file. That process recognizes itself after
/// `exec(2)` by this variable.
pub const FILE_OWNER_VARIABLE: &str = "JITLISTEN_RECORD_BEGUN";

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

/// Name of a file in [`images`] that lists functions that CPython interprets: `python-PID-TIME-N.so`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonImage {
    /// PID of the recorded process.
    pub pid: u32,
    /// Time when the process began to name functions, by the monotonic clock in ns; hexadecimal in the name.
    pub time: u64,
    /// Index of the file among those of the process.
    pub number: u64,
}

impl PythonImage {
    /// Parses a name; `None` if it does not have exactly this form.
    pub fn parse(name: &str) -> Option<PythonImage> {
        let mut parts = name.strip_prefix("python-")?.strip_suffix(".so")?.split('-');
        let pid = parts.next()?.parse().ok()?;
        let time = u64::from_str_radix(parts.next()?, 16).ok()?;
        let image = PythonImage { pid, time, number: parts.next()?.parse().ok()? };
        (image.to_string() == name).then_some(image)
    }
}

impl Display for PythonImage {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "python-{}-{:x}-{}.so", self.pid, self.time, self.number)
    }
}

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
    fn only_exact_names_of_python_images_are_parsed() {
        let image = PythonImage { pid: 28412, time: 0x11_5498_63aa, number: 7 };
        assert_eq!(PythonImage::parse(&image.to_string()), Some(image));
        let others = "python-3-12-.so python-3.12-0.so python-bindings-x-1.so python-03-12-0.so python-3-1F-0.so \
             python-3-+1-0.so python-3-1-0-0.so python-3-1-0.so.bak";
        for name in others.split_whitespace() {
            assert_eq!(PythonImage::parse(name), None, "{name}");
        }
    }

    #[test]
    fn names_beside_a_recording() {
        let file = Path::new("/a/prof.data");
        assert_eq!(images(&old(file)), Path::new("/a/prof.data.old.images"));
    }
}
