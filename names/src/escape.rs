//! Numba's escapes: `_xx` (before 0.56 `$xx`), two lower-case hexadecimal digits for one byte of UTF-8.
//!
//! The escape character itself is not escaped, so `_call` might be the byte 0xca and `ll`. Two facts keep apart what is
//! an escape and what only looks so: Numba never escapes `[A-Za-z0-9_]`, and the bytes of one character are valid
//! UTF-8.

use std::borrow::Cow;

/// A mangled name of Numba before 0.56, which wrote `$xx`, as it is written now. `None` for any other.
pub(super) fn with_newer_escapes(linkage_name: &str) -> Option<String> {
    let has_mangled_part = linkage_name.contains('$') && linkage_name.contains("_Z");
    let is_escape = |text: &str| text.as_bytes().first_chunk().is_some_and(|&[high, low]| byte(high, low).is_some());
    let is_older = has_mangled_part && linkage_name.split('$').skip(1).all(is_escape);
    is_older.then(|| linkage_name.replace('$', "_"))
}

/// A part of a Python name. Of ASCII only what a qualified name can hold is resolved: `<lambda>` as a whole, and the
/// `$1` of Numba before 0.54.
pub(super) fn identifier(text: &str) -> Cow<'_, str> {
    if !text.contains('_') {
        return Cow::Borrowed(text);
    }
    if let Some(inner) = text.strip_prefix("_3c").and_then(|rest| rest.strip_suffix("_3e")) {
        return Cow::Owned(format!("<{}>", identifier(inner)));
    }
    if let Some((name, count)) = text.rsplit_once("_24")
        && !count.is_empty()
        && count.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Cow::Owned(format!("{}${count}", identifier(name)));
    }
    unescape(text, |character| !character.is_ascii() && character.is_alphanumeric())
}

/// The text of a type: anything may be escaped there.
pub(super) fn type_text(text: &str) -> Cow<'_, str> {
    unescape(text, |character| !character.is_control() && character != '_' && !character.is_ascii_alphanumeric())
}

/// Replaces the escapes of characters that `wanted` accepts.
fn unescape(text: &str, wanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains('_') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('_') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        let (character, length) = match escaped_character(escape) {
            Some((character, length)) if wanted(character) => (character, length),
            _ => ('_', 1),
        };
        plain.push(character);
        rest = escape.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// The character that `text` begins with, escaped, and the length of its escapes.
fn escaped_character(text: &str) -> Option<(char, usize)> {
    let mut bytes = [0_u8; 4];
    let found =
        text.as_bytes().chunks_exact(3).map_while(escaped_byte).zip(&mut bytes).map(|(byte, place)| *place = byte);
    let count = found.count();
    let bytes = bytes.get(..count)?;
    let length = match bytes.first()? {
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    let character = std::str::from_utf8(bytes.get(..length)?).ok()?.chars().next()?;
    Some((character, length * 3))
}

fn escaped_byte(chunk: &[u8]) -> Option<u8> {
    let &[b'_', high, low] = chunk else { return None };
    byte(high, low)
}

/// Of two digits.
fn byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}
