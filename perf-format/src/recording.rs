//! Names of the files that belong to a recording.
//!
//! ```text
//!   FILE                                        the recording; for a child process FILE.PID, or %p in the name FILE
//!   FILE.images/image-PID-START-object-N.so     an image of compiled code
//!   FILE.images/python-PID-TIME-N.so            functions that CPython interprets
//!   FILE.images/compilations.jsonl              compilations by Numba
//!   FILE.old, FILE.old.images/                  the previous recording with the same name
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jitlisten_files::FileName;

/// Name of the file in [`images`] that lists Numba's compilations.
pub const COMPILATIONS: &str = "compilations.jsonl";

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

/// Returns true if a name has exactly one of the forms that the recorder gives to files in [`images`].
pub fn is_beside(name: &str) -> bool {
    let is_image = matches!(FileName::parse(name), Some(FileName::KeptImage { .. }));
    name == COMPILATIONS || is_image || is_python_file(name) || is_unfinished(name)
}

/// Returns true for the temporary file of a process that was killed before completing it: `.jitlisten-PID-WORD.new`.
fn is_unfinished(name: &str) -> bool {
    let middle = name.strip_prefix(".jitlisten-").and_then(|rest| rest.strip_suffix(".new"));
    middle.and_then(|middle| middle.split_once('-')).is_some_and(|(pid, word)| is_number(pid) && !word.is_empty())
}

/// Returns true for a file that lists CPython functions: `python-PID-TIME-N.so`.
fn is_python_file(name: &str) -> bool {
    let middle = name.strip_prefix("python-").and_then(|rest| rest.strip_suffix(".so"));
    let parts: Vec<&str> = middle.into_iter().flat_map(|middle| middle.split('-')).collect();
    let is_hexadecimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    matches!(parts[..], [pid, time, number] if is_number(pid) && is_hexadecimal(time) && is_number(number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
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
    fn only_exact_names_are_recognised() {
        let own_names = [
            "compilations.jsonl",
            "image-4711-90345-object-0.so",
            "image-4711-90345-2-object-17.so",
            "python-28412-11549863aae-0.so",
            ".jitlisten-4711-0.new",
        ];
        let other_names = [
            "image-1-object-0.so",
            "image-my-1-object-0.so",
            "image-1-2-object-.so",
            "image-1-2-object-detector.so",
            "image-1-2-object-0.so.bak",
            "python-3-12-.so",
            "python-3.12-0.so",
            "python-bindings-x-1.so",
            "notes.txt",
            ".jitlisten-new",
            "",
        ];
        assert_eq!(own_names.iter().filter(|name| !is_beside(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(other_names.iter().filter(|name| is_beside(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn names_beside_a_recording() {
        let file = Path::new("/a/prof.data");
        assert_eq!(images(&old(file)), Path::new("/a/prof.data.old.images"));
    }
}
