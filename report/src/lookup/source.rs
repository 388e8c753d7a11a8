//! Source files as printable text.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::source_hashes::hash as source_hash;
use super::{candidates, find_respelled};
use crate::sanitize::{MAX_LINE_CHARACTERS, sanitize};
use jitlisten_files::open_regular;

/// Maximum size of a source file; larger files are not read.
const MAX_SOURCE_BYTES: u64 = 64 << 20;

/// Text of a source file, or a note that says why it is missing.
#[derive(Clone, Debug, Default)]
pub struct SourceText {
    lines: Vec<String>,
    /// Note for the reader if the file is missing or has changed.
    pub note: Option<String>,
}

/// Identity of the source text that was compiled.
#[derive(Clone, Debug)]
pub enum Compiled {
    /// Hashes of the text; several if the file changed while the program ran.
    From(Vec<String>),
    /// End of the recording. The text was compiled before this time.
    Before(SystemTime),
    /// No information about the compiled text.
    Unknown,
}

impl Compiled {
    /// Returns a note if the file differs from the text that was compiled.
    fn compare(&self, bytes: &[u8], modified: Option<SystemTime>) -> Option<String> {
        let note = match self {
            Compiled::From(hashes) if !hashes.contains(&source_hash(bytes)) => {
                "differs from the compiled text (by its hash): its lines may have moved"
            }
            Compiled::From(hashes) if hashes.len() > 1 => {
                "was changed while the program ran: code of several versions is added up here"
            }
            Compiled::Before(recorded) if modified.is_some_and(|modified| modified > *recorded) => {
                "was changed after the recording; its lines may have moved"
            }
            _ => return None,
        };
        Some(note.to_owned())
    }
}

impl SourceText {
    /// Reads a source file below one of the roots, or at its own path.
    pub fn open(path: &str, roots: &[PathBuf], compiled: &Compiled) -> SourceText {
        if let Some(name) = path.rsplit('/').next().filter(|name| name.starts_with('<')) {
            let reason = if name.starts_with("<frozen ") { "is part of Python" } else { "was generated (exec)" };
            return SourceText::missing(format!("is not available: its code {reason}"));
        }
        let (mut last_error, mut changed) = (String::new(), None);
        for candidate in candidates(roots, Path::new(path)) {
            let read = read_file(&candidate).or_else(|error| {
                let respelled = find_respelled(&candidate).ok_or(error)?;
                read_file(&respelled)
            });
            match read {
                Ok((bytes, modified)) => {
                    let note = compiled.compare(&bytes, modified);
                    let is_unchanged = note.is_none();
                    let text = SourceText { lines: split_lines(&bytes), note };
                    if is_unchanged {
                        return text;
                    }
                    // Continue, because another root may have the text that was compiled.
                    changed.get_or_insert(text);
                }
                Err(error) => last_error = error,
            }
        }
        changed.unwrap_or_else(|| SourceText::missing(format!("cannot be read: {last_error}")))
    }

    /// Returns text that the recording itself contains.
    pub(crate) fn from_text(text: &str) -> SourceText {
        SourceText { lines: split_lines(text.as_bytes()), note: None }
    }

    fn missing(note: String) -> SourceText {
        SourceText { lines: Vec::new(), note: Some(note) }
    }

    /// Returns the text of a line. Lines start at 1.
    pub fn line(&self, number: u32) -> Option<&str> {
        self.lines.get((number as usize).checked_sub(1)?).map(String::as_str)
    }

    /// Returns the number of lines.
    pub fn len(&self) -> u32 {
        self.lines.len() as u32
    }

    /// Returns true if there are no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

fn read_file(path: &Path) -> Result<(Vec<u8>, Option<SystemTime>), String> {
    let file = open_regular(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.len() > MAX_SOURCE_BYTES {
        return Err(format!("{} bytes are too many for a source", metadata.len()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SOURCE_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok((bytes, metadata.modified().ok()))
}

fn split_lines(bytes: &[u8]) -> Vec<String> {
    let is_latin1 = declares_latin(bytes);
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let to_text = |line: &[u8]| {
        let line = line.get(..MAX_LINE_CHARACTERS * 4).unwrap_or(line);
        let text = match is_latin1 {
            true => line.iter().map(|byte| char::from(*byte)).collect(),
            false => String::from_utf8_lossy(line).into_owned(),
        };
        sanitize(&text)
    };
    // Python, too, accepts \n, \r\n and \r as the end of a line.
    let mut lines: Vec<String> = Vec::new();
    for part in bytes.split(|byte| *byte == b'\n') {
        lines.extend(part.strip_suffix(b"\r").unwrap_or(part).split(|byte| *byte == b'\r').map(to_text));
    }
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Returns true if the file declares a Latin encoding. According to PEP 263, the declaration is in the first two lines.
fn declares_latin(bytes: &[u8]) -> bool {
    let first_lines = bytes.split(|byte| *byte == b'\n').take(2);
    first_lines.filter(|line| line.starts_with(b"#")).any(|line| {
        let line = String::from_utf8_lossy(line.get(..200).unwrap_or(line)).to_ascii_lowercase();
        ["latin-1", "latin1", "iso-8859-1", "iso-8859-15", "cp1252"].iter().any(|name| {
            line.split_once("coding")
                .is_some_and(|(_, rest)| rest.trim_start_matches([':', '=', ' ', '\t']).starts_with(name))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_cannot_control_a_terminal() {
        let text = split_lines(b"a\x1b[2Jb\tc\r\n\xff\xfe\nlast");
        assert_eq!(text, ["a\u{241b}[2Jb    c", "\u{fffd}\u{fffd}", "last"]);
        assert_eq!(split_lines("# -*- coding: latin-1 -*-\n\u{e9}".replace('\u{e9}', "e").as_bytes())[1], "e");
        assert_eq!(split_lines(b"# coding: latin-1\n\xe9")[1], "\u{e9}");
        assert_eq!(split_lines(b"a\rb\r\nc\n\nd\r"), ["a", "b", "c", "", "d"]);
        let long_lines = split_lines(&vec![b'x'; 100_000]);
        assert_eq!(long_lines[0].chars().count(), MAX_LINE_CHARACTERS + 1);
    }

    #[test]
    fn a_hash_takes_precedence_over_a_time() {
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9);
        let (same, other) = (source_hash(b"x = 1\n"), source_hash(b"x = 2\n"));
        let compare = |hashes: &[&String]| {
            let hashes = hashes.iter().map(|hash| (*hash).clone()).collect();
            Compiled::From(hashes).compare(b"x = 1\n", Some(later))
        };
        assert_eq!(compare(&[&same]), None, "only touched");
        assert!(compare(&[&other]).is_some_and(|note| note.contains("by its hash")));
        assert!(compare(&[&other, &same]).is_some_and(|note| note.contains("while the program ran")));
        let before = Compiled::Before(SystemTime::UNIX_EPOCH);
        assert!(before.compare(b"", Some(later)).is_some_and(|note| note.contains("after the recording")));
        assert_eq!(before.compare(b"", Some(SystemTime::UNIX_EPOCH)), None);
    }

    #[test]
    fn a_missing_source_has_a_note() {
        let text = SourceText::open("/nonexistent/x.py", &[], &Compiled::Unknown);
        assert!(text.is_empty() && text.note.is_some_and(|note| note.contains("cannot be read")));
        assert!(SourceText::open("<string>", &[], &Compiled::Unknown).note.is_some());
    }
}
