//! Sanitisation of names, so that every reader of a perf map accepts them.
//!
//! Perf maps consist of lines. perf drops names shorter than three characters, and reads a leading `0x` as a number.
//! Some readers reject a file that is not UTF-8. Terminals interpret control characters.

use std::borrow::Cow;

/// Maximum length of a readable name in bytes.
pub const MAX_NAME_BYTES: usize = 511;

/// Length of ` ~` followed by 16 hexadecimal digits.
const HASH_SUFFIX_BYTES: usize = 18;

/// Returns a name that every reader of a perf map accepts: one printable line of at least three characters and at most
/// [`MAX_NAME_BYTES`] bytes.
///
/// If the name was truncated, or characters were replaced, ` ~` and a hash of the whole name are appended, so that
/// different names stay different.
pub fn printable(name: &str) -> String {
    into_printable(Cow::Borrowed(name))
}

/// Sanitises a name; does not copy a name that is already valid.
pub(super) fn into_printable(name: Cow<'_, str>) -> String {
    if is_sanitized(&name) { name.into_owned() } else { sanitize(&name) }
}

/// Returns true if the name needs no change, as is the case for nearly all names.
fn is_sanitized(name: &str) -> bool {
    let bytes = name.as_bytes();
    let [first, .., last] = bytes else { return false };
    let has_valid_ends = !matches!(first, b'0' | b' ') && *last != b' ';
    matches!(bytes.len(), 3..=MAX_NAME_BYTES) && has_valid_ends && bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

fn sanitize(name: &str) -> String {
    let trimmed = name.trim();
    if is_sanitized(trimmed) {
        return trimmed.to_owned();
    }
    let mut text = String::with_capacity(trimmed.len().min(MAX_NAME_BYTES));
    if trimmed.starts_with("0x") || trimmed.starts_with("0X") {
        text.push('_');
    }
    let mut is_unchanged = true;
    for character in trimmed.chars() {
        if text.len() + character.len_utf8() > MAX_NAME_BYTES {
            is_unchanged = false;
            break;
        }
        let is_shown = is_printable(character);
        is_unchanged &= is_shown;
        text.push(if is_shown { character } else { '?' });
    }
    if !is_unchanged {
        let max_length =
            (0..=MAX_NAME_BYTES - HASH_SUFFIX_BYTES).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
        text.truncate(text.len().min(max_length));
        text.push_str(&format!(" ~{:016x}", hash(name)));
    }
    match text.chars().count() {
        0 => "(unnamed)".to_owned(),
        1 | 2 => text + "()",
        _ => text,
    }
}

/// Returns false for control characters, characters that change how their neighbours are displayed, line separators,
/// and unassigned code points.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    // Combining marks are only printable after another character, as they occur in names.
    let pair: String = ['a', character].iter().collect();
    pair.escape_debug().count() == 2
}

/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>).
pub(super) fn hash(name: &str) -> u64 {
    let offset_basis = 0xcbf2_9ce4_8422_2325;
    name.bytes().fold(offset_basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
