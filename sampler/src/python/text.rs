//! Decodes the characters of a `str` (PEP 393).

#![forbid(unsafe_code)]

/// Representation of a `str`, from `PyASCIIObject.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextState {
    /// Bytes per character.
    pub(super) width: u8,
    pub(super) is_ascii: bool,
}

impl TextState {
    /// Parses the fields after `interned`, which has 2, 8 or 16 bits: `kind` (three bits), `compact`, `ascii`. `None`
    /// if the characters are stored elsewhere.
    pub(super) fn parse(state: u32) -> Option<TextState> {
        let fields = [2, 8, 16].into_iter().map(|shift| state >> shift).find(|fields| fields & 7 != 0)?;
        let (width, is_compact, is_ascii) = ((fields & 7) as u8, fields >> 3 & 1 != 0, fields >> 4 & 1 != 0);
        (is_compact && matches!(width, 1 | 2 | 4)).then_some(TextState { width, is_ascii })
    }
}

pub(super) fn decode(width: u32, bytes: &[u8]) -> String {
    let decode_wide = |size: usize| {
        let characters = bytes.chunks_exact(size).map(|chunk| {
            let code = chunk.iter().rev().fold(0_u32, |code, &byte| code << 8 | u32::from(byte));
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        characters.collect()
    };
    match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => decode_wide(2),
        _ => decode_wide(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_states_of_all_releases_are_parsed() {
        let ascii = Some(TextState { width: 1, is_ascii: true });
        // `interned` has 2 bits (with or without `ready` after it), 8 bits, or 16 bits.
        for state in [0xe5, 0x65, 0x64, 1 | 0b11001 << 8, 3 | 0b11001 << 16] {
            assert_eq!(TextState::parse(state), ascii, "{state:#x}");
        }
        assert_eq!(TextState::parse(2 << 2 | 1 << 5), Some(TextState { width: 2, is_ascii: false }));
        assert_eq!(
            (TextState::parse(0), TextState::parse(1 << 2), TextState::parse(3 << 2 | 1 << 5)),
            (None, None, None)
        );
    }

    #[test]
    fn characters_of_every_width_are_decoded() {
        assert_eq!(decode(1, b"a\xe4"), "aä");
        assert_eq!(decode(2, &[0x24, 0x04, 0x3d, 0xd8]), "Ф\u{fffd}");
        assert_eq!(decode(4, &[0x00, 0xf6, 0x01, 0x00]), "😀");
    }
}
