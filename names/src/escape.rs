//! Numba's escapes: `_xx` (`$xx` before Numba 0.56), two lower-case hexadecimal digits per byte of UTF-8.
//!
//! The escape character itself is not escaped, so `_call` might mean the byte 0xca followed by `ll`. Two facts
//! distinguish real escapes from look-alikes: Numba never escapes `[A-Za-z0-9_]`, and the bytes of one character are
//! valid UTF-8.

use std::borrow::Cow;

/// Converts a name mangled by Numba before 0.56, which wrote `$xx`, to the current escapes. Returns `None` for other
/// names.
pub(super) fn with_current_escapes(linkage_name: &str) -> Option<String> {
    let has_mangled_part = linkage_name.contains('$') && linkage_name.contains("_Z");
    let is_escape =
        |text: &str| text.as_bytes().first_chunk().is_some_and(|&[high, low]| parse_hex_byte(high, low).is_some());
    let has_old_escapes = has_mangled_part && linkage_name.split('$').skip(1).all(is_escape);
    has_old_escapes.then(|| linkage_name.replace('$', "_"))
}

/// Unescapes a component of a Python name. Among ASCII characters, only those that occur in qualified names are
/// unescaped: `<lambda>` as a whole, and the `$1` that Numba before 0.54 appended.
pub(super) fn unescape_identifier(text: &str) -> Cow<'_, str> {
    if !text.contains('_') {
        return Cow::Borrowed(text);
    }
    if let Some(inner) = text.strip_prefix("_3c").and_then(|rest| rest.strip_suffix("_3e")) {
        return Cow::Owned(format!("<{}>", unescape_identifier(inner)));
    }
    if let Some((name, count)) = text.rsplit_once("_24")
        && !count.is_empty()
        && count.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Cow::Owned(format!("{}${count}", unescape_identifier(name)));
    }
    unescape(text, |character| !character.is_ascii() && character.is_alphanumeric())
}

/// Unescapes the mangled form of a type, where any character may be escaped.
pub(super) fn unescape_type(text: &str) -> Cow<'_, str> {
    unescape(text, |character| !character.is_control() && character != '_' && !character.is_ascii_alphanumeric())
}

/// Replaces the escapes of all characters that `is_accepted` accepts.
fn unescape(text: &str, is_accepted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains('_') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(index) = rest.find('_') {
        let (literal, escape) = rest.split_at(index);
        plain.push_str(literal);
        let (character, length) = match escaped_character(escape) {
            Some((character, length)) if is_accepted(character) => (character, length),
            _ => ('_', 1),
        };
        plain.push(character);
        rest = escape.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Decodes the escaped character at the start of `text`. Returns the character and the length of its escapes.
fn escaped_character(text: &str) -> Option<(char, usize)> {
    let mut bytes = [0_u8; 4];
    let decoded =
        text.as_bytes().chunks_exact(3).map_while(escaped_byte).zip(&mut bytes).map(|(byte, slot)| *slot = byte);
    let count = decoded.count();
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
    parse_hex_byte(high, low)
}

/// Parses two hexadecimal digits.
fn parse_hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}
