//! Sanitised text for output.

use crate::path_text::byte_of_character;

/// Maximum length of a line in characters; longer ones are truncated.
pub(crate) const MAX_LINE_CHARACTERS: usize = 1000;

/// Returns text that is safe for a terminal and a browser. Control characters become visible symbols, tabs become
/// spaces, and characters that change the direction of text are replaced.
pub fn sanitize(text: &str) -> String {
    let mut safe_text = String::with_capacity(text.len());
    for (count, character) in text.chars().enumerate() {
        if count >= MAX_LINE_CHARACTERS {
            safe_text.push('…');
            break;
        }
        match character {
            '\t' => safe_text.push_str("    "),
            '\0'..='\x1f' => safe_text.push(char::from_u32(0x2400 + character as u32).unwrap_or('?')),
            '\x7f' => safe_text.push('␡'),
            '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                safe_text.push('\u{fffd}');
            }
            other if byte_of_character(other).is_some() => safe_text.push('\u{fffd}'),
            other => safe_text.push(other),
        }
    }
    safe_text
}
