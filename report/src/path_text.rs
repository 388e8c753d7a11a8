//! Paths as text that keeps bytes that are not UTF-8, so that the files can be opened.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// First of 256 private characters that stand for bytes.
const FIRST: u32 = 0x10_fe00;

pub(crate) fn text_of_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(FIRST + u32::from(*byte))));
    }
    text
}

pub(crate) fn path_of_text(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte_of_character(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns the byte that a character stands for.
pub(crate) fn byte_of_character(character: char) -> Option<u8> {
    u32::from(character).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_kept() {
        for path in [&b"/a/\xe9\xff/b.so"[..], "/ä/\u{fffd}".as_bytes(), b"\xf0\x9f", b""] {
            assert_eq!(path_of_text(&text_of_path(path)).as_os_str().as_bytes(), path);
        }
    }
}
