//! Functions from the symbol table.
//!
//! A symbol table is not a list of functions: several symbols may name one address, sizes may be zero (assembly) or
//! wrong, and it contains labels and the mapping symbols of AArch64 (`$x`). The result is a list that a profiler can
//! search: sorted, not empty, not overlapping, each inside its section.

use std::cmp::Reverse;

use object::elf;
use object::read::elf::Sym;

use super::budget::Budget;
use super::elf::{Elf, LE};
use super::parts::Function;
use super::text::Text;
use crate::{Address, AddressRange, Error};

/// A symbol that may name a function.
struct Candidate<'data> {
    start: u64,
    size: u64,
    symbol_type: elf::SymbolType,
    bind: elf::SymbolBind,
    name: &'data [u8],
}

/// Binding, whether the name is tidy, whether the size is known, and the shorter name.
type Rank<'data> = (u8, bool, bool, Reverse<(usize, &'data [u8])>);

/// All functions in `text`, which is sorted.
pub(super) fn parse(elf: &Elf<'_>, text: &[Text], names: &mut Budget) -> Result<Vec<Function>, Error> {
    let mut by_section = candidates(elf, text)?;
    let mut functions = Vec::new();
    for (text, candidates) in text.iter().zip(&mut by_section) {
        if candidates.iter().any(Candidate::is_function) {
            candidates.retain(Candidate::is_function);
        }
        candidates.sort_by(|a, b| a.start.cmp(&b.start).then_with(|| b.rank().cmp(&a.rank())));
        in_section(candidates, text.shown.range, names, &mut functions)?;
    }
    Ok(functions)
}

/// The candidates of each text range, in the order of the symbol table.
fn candidates<'data>(elf: &Elf<'data>, text: &[Text]) -> Result<Vec<Vec<Candidate<'data>>>, Error> {
    let symbols = elf.symbols()?;
    let mut found: Vec<Vec<Candidate<'data>>> = text.iter().map(|_| Vec::new()).collect();
    let mut place_of = vec![None; elf.sections.len()];
    for (place, text) in text.iter().enumerate() {
        if let Some(known) = place_of.get_mut(text.index.0) {
            *known = Some(place);
        }
    }
    for (index, symbol) in symbols.enumerate().skip(1) {
        // COMMON, absolute and undefined symbols have no section.
        let Some(section) = symbols.symbol_section(LE, symbol, index)? else { continue };
        let place = place_of.get(section.0).copied().flatten();
        let Some(list) = place.and_then(|place| found.get_mut(place)) else { continue };
        let start = elf.symbol_base(section)?.checked_add(symbol.st_value(LE));
        let name = symbols.symbol_name(LE, symbol)?;
        let (Some(start), true) = (start, is_name(symbol.st_type(), name)) else { continue };
        let (symbol_type, bind) = (symbol.st_type(), symbol.st_bind());
        list.push(Candidate { start, size: symbol.st_size(LE), symbol_type, bind, name });
    }
    Ok(found)
}

/// Whether a symbol can name code: not a section, a file, a label of the assembler or a mapping symbol (AAELF64,
/// 5.5.4).
fn is_name(symbol_type: elf::SymbolType, name: &[u8]) -> bool {
    match symbol_type {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => !name.is_empty(),
        elf::STT_NOTYPE => !matches!(name, [] | [b'$', b'a' | b'd' | b't' | b'x'] | [b'$', _, b'.', ..]),
        _ => false,
    }
}

impl Candidate<'_> {
    /// Labels count only in a section without one of these: handwritten assembly that says no types.
    fn is_function(&self) -> bool {
        self.symbol_type != elf::STT_NOTYPE
    }

    /// Which of several names at one address is shown: the largest.
    fn rank(&self) -> Rank<'_> {
        let bind = match self.bind {
            elf::STB_GLOBAL => 2,
            elf::STB_WEAK => 1,
            _ => 0,
        };
        let tidy = !self.name.starts_with(b".") && !self.name.starts_with(b"$");
        let name = self.name.get(..64).unwrap_or(self.name);
        (bind, tidy, self.size != 0, Reverse((self.name.len(), name)))
    }
}

/// Appends the functions of one section; `candidates` are sorted by start, then best first.
fn in_section(
    candidates: &[Candidate<'_>],
    text: AddressRange,
    names: &mut Budget,
    functions: &mut Vec<Function>,
) -> Result<(), Error> {
    let mut groups = candidates.chunk_by(|a, b| a.start == b.start).peekable();
    while let Some(group) = groups.next() {
        let limit = groups.peek().and_then(|next| next.first()).map_or(text.end().0, |next| next.start);
        let Some(range) = clamp(group, text, limit.min(text.end().0)) else { continue };
        let [best, others @ ..] = group else { continue };
        let linkage_name = names.name(best.name)?;
        let mut aliases: Vec<Box<str>> = Vec::new();
        for candidate in others {
            let alias = names.name(candidate.name)?;
            if alias != linkage_name && aliases.last() != Some(&alias) {
                aliases.push(alias);
            }
        }
        functions.push(Function { linkage_name, range, aliases });
    }
    Ok(())
}

/// The range of a group: the largest size it claims, up to the next function or the end of the section; all of that
/// where it claims none.
fn clamp(group: &[Candidate<'_>], text: AddressRange, limit: u64) -> Option<AddressRange> {
    let start = group.first()?.start;
    let padding = limit.checked_sub(start)?;
    let claimed = group.iter().map(|candidate| candidate.size).max()?;
    let size = if claimed == 0 { padding } else { claimed.min(padding) };
    let range = AddressRange::new(Address(start), size)?;
    (size != 0 && text.contains(Address(start))).then_some(range)
}
