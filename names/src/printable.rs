//! Restricts names to what every reader of them accepts.
//!
//! Perf maps are lines of text (perf drops names shorter than three characters; some readers refuse a file that is not
//! UTF-8), terminals act on control characters, and perf reads a leading `0x` as a number.

use std::borrow::Cow;

/// The longest text, in bytes.
pub const LONGEST: usize = 511;

/// ` ~` and 16 digits.
const MARK: usize = 18;

/// The part of `name` that every reader of a perf map takes: one line, printable, three characters or more.
///
/// At most [`LONGEST`] bytes. Where something had to be cut off or replaced, ` ~` and a fingerprint of the whole name
/// stand at the end, so that different names stay different.
pub fn printable(name: &str) -> String {
    printable_text(Cow::Borrowed(name))
}

/// The same, without a copy where nothing has to be changed.
pub(super) fn printable_text(name: Cow<'_, str>) -> String {
    if is_tidy(&name) { name.into_owned() } else { tidied(&name) }
}

/// Printable as it is, as nearly every name.
fn is_tidy(name: &str) -> bool {
    let bytes = name.as_bytes();
    let [first, .., last] = bytes else { return false };
    let begins_and_ends = !matches!(first, b'0' | b' ') && *last != b' ';
    matches!(bytes.len(), 3..=LONGEST) && begins_and_ends && bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

fn tidied(name: &str) -> String {
    let trimmed = name.trim();
    if is_tidy(trimmed) {
        return trimmed.to_owned();
    }
    let mut shown = String::with_capacity(trimmed.len().min(LONGEST));
    if trimmed.starts_with("0x") || trimmed.starts_with("0X") {
        shown.push('_');
    }
    let mut whole = true;
    for character in trimmed.chars() {
        if shown.len() + character.len_utf8() > LONGEST {
            whole = false;
            break;
        }
        let show = is_printable(character);
        whole &= show;
        shown.push(if show { character } else { '?' });
    }
    if !whole {
        let padding = (0..=LONGEST - MARK).rev().find(|at| shown.is_char_boundary(*at)).unwrap_or(0);
        shown.truncate(shown.len().min(padding));
        shown.push_str(&format!(" ~{:016x}", fingerprint(name)));
    }
    match shown.chars().count() {
        0 => "(unnamed)".to_owned(),
        1 | 2 => shown + "()",
        _ => shown,
    }
}

/// Neither a control character nor one that changes how its neighbours are shown, a line separator or unassigned.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    // Combining marks are printable behind another character, which is how names use them.
    let pair: String = ['a', character].iter().collect();
    pair.escape_debug().count() == 2
}

/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>).
pub(super) fn fingerprint(name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
