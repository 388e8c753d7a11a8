//! Names of the files that the recorder creates next to a recording: see [`wire::recording`].

#![forbid(unsafe_code)]

use jitlisten_files::FileName;
use wire::recording::{COMPILATIONS, INTERPRETER, PythonImage};

/// Returns true if a file in [`images`](wire::recording::images) has exactly a name that the recorder or our Python
/// package gives to such files.
pub fn is_recorded_file(name: &str) -> bool {
    let is_image = matches!(FileName::parse(name), Some(FileName::KeptImage { .. }));
    is_image || PythonImage::parse(name).is_some() || [COMPILATIONS, INTERPRETER].contains(&name)
}

/// Same as [`is_recorded_file`], and true for files that were not completed.
pub(crate) fn is_own_file(name: &str) -> bool {
    is_recorded_file(name) || is_unfinished(name)
}

/// Returns true for the temporary file of a process that was killed before completing it: `.jitlisten-PID-WORD.new`.
fn is_unfinished(name: &str) -> bool {
    let middle = name.strip_prefix(".jitlisten-").and_then(|rest| rest.strip_suffix(".new"));
    middle.and_then(|middle| middle.split_once('-')).is_some_and(|(pid, word)| is_number(pid) && !word.is_empty())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_are_recognised() {
        let own_names = [
            "compilations.jsonl",
            "interpreter.json",
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
            "python-3.12-0.so",
            "notes.txt",
            ".jitlisten-new",
            "",
        ];
        assert_eq!(own_names.iter().filter(|name| !is_own_file(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(other_names.iter().filter(|name| is_own_file(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
