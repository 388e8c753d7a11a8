//! Makes text safe to print.

/// So many characters of a text are kept.
pub(crate) const LONGEST_LINE: usize = 1000;

/// Text without anything that a terminal or a browser would obey: control characters are shown as pictures, tabs are
/// spaces, characters that change the direction of text are left out.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (count, character) in text.chars().enumerate() {
        if count >= LONGEST_LINE {
            shown.push('…');
            break;
        }
        match character {
            '\t' => shown.push_str("    "),
            '\0'..='\x1f' => shown.push(char::from_u32(0x2400 + character as u32).unwrap_or('?')),
            '\x7f' => shown.push('␡'),
            '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                shown.push('\u{fffd}');
            }
            other => shown.push(other),
        }
    }
    shown
}
