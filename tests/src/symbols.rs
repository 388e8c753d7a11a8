//! Expected form and place of symbols.

/// Whether a symbol names this function as a person would recognise it: the bare identifier, not a part of a mangled or
/// longer one.
#[must_use]
pub fn names(symbol: &str, function: &str) -> bool {
    let part_of_identifier = |c: char| c.is_alphanumeric() || c == '_';
    symbol.match_indices(function).any(|(at, _)| {
        let before = symbol[..at].chars().next_back();
        let after = symbol[at + function.len()..].chars().next();
        !before.is_some_and(part_of_identifier) && !after.is_some_and(part_of_identifier)
    })
}

/// Whether a debugger may be expected to name every frame outside the JIT code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// The program has a symbol table: no `??` anywhere.
    Present,
    /// It is stripped, as a distribution's python is: `??` only beyond the code that called into the JIT.
    Stripped,
}
