//! Comparison of symbols with function names, and the symbols to expect.

/// Returns true if a symbol contains the function's name as a whole identifier, not as part of a longer or mangled
/// name.
#[must_use]
pub fn names_function(symbol: &str, function: &str) -> bool {
    let is_identifier_char = |c: char| c.is_alphanumeric() || c == '_';
    symbol.match_indices(function).any(|(at, _)| {
        let char_before = symbol[..at].chars().next_back();
        let char_after = symbol[at + function.len()..].chars().next();
        !char_before.is_some_and(is_identifier_char) && !char_after.is_some_and(is_identifier_char)
    })
}

/// Symbols to expect for the frames outside the JIT code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// The program has a symbol table: every frame has a name.
    Present,
    /// The program is stripped, as a distribution's python is: frames beyond the caller of the JIT code may be `??`.
    Stripped,
}
