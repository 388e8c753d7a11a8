//! Functions of an object, from its symbol table.
//!
//! A symbol table is not a list of functions: several symbols may have one address, sizes may be zero (assembly) or
//! wrong, and it contains labels and the mapping symbols of AArch64 (`$x`). The result is a list that a profiler can
//! search: sorted, non-overlapping, each function non-empty and inside its section.

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

/// Sort key of a symbol: prefers global binding, a name without a local prefix, a known size, and a shorter name.
type Rank<'data> = (u8, bool, bool, Reverse<(usize, &'data [u8])>);

/// All functions in `text`, which must be sorted.
pub(super) fn parse(elf: &Elf<'_>, text: &[Text], name_budget: &mut Budget) -> Result<Vec<Function>, Error> {
    let mut by_section = candidates(elf, text)?;
    let mut functions = Vec::new();
    for (text, candidates) in text.iter().zip(&mut by_section) {
        if candidates.iter().any(Candidate::is_function) {
            candidates.retain(Candidate::is_function);
        }
        candidates.sort_by(|a, b| a.start.cmp(&b.start).then_with(|| b.rank().cmp(&a.rank())));
        append_functions(candidates, text.text_range.range, name_budget, &mut functions)?;
    }
    Ok(functions)
}

/// Candidates in each text range, in the order of the symbol table.
fn candidates<'data>(elf: &Elf<'data>, text: &[Text]) -> Result<Vec<Vec<Candidate<'data>>>, Error> {
    let symbols = elf.symbols()?;
    let mut candidates: Vec<Vec<Candidate<'data>>> = text.iter().map(|_| Vec::new()).collect();
    let mut index_by_section = vec![None; elf.sections.len()];
    for (text_index, text) in text.iter().enumerate() {
        if let Some(slot) = index_by_section.get_mut(text.index.0) {
            *slot = Some(text_index);
        }
    }
    for (index, symbol) in symbols.enumerate().skip(1) {
        // COMMON, absolute and undefined symbols belong to no section.
        let Some(section) = symbols.symbol_section(LE, symbol, index)? else { continue };
        let text_index = index_by_section.get(section.0).copied().flatten();
        let Some(list) = text_index.and_then(|text_index| candidates.get_mut(text_index)) else { continue };
        let start = elf.symbol_base(section)?.checked_add(symbol.st_value(LE));
        let name = symbols.symbol_name(LE, symbol)?;
        let (Some(start), true) = (start, can_name_code(symbol.st_type(), name)) else { continue };
        let (symbol_type, bind) = (symbol.st_type(), symbol.st_bind());
        list.push(Candidate { start, size: symbol.st_size(LE), symbol_type, bind, name });
    }
    Ok(candidates)
}

/// Returns true if a symbol can name code. Excludes sections, files, assembler labels and mapping symbols (AAELF64,
/// 5.5.4).
fn can_name_code(symbol_type: elf::SymbolType, name: &[u8]) -> bool {
    match symbol_type {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => !name.is_empty(),
        elf::STT_NOTYPE => !matches!(name, [] | [b'$', b'a' | b'd' | b't' | b'x'] | [b'$', _, b'.', ..]),
        _ => false,
    }
}

impl Candidate<'_> {
    /// Returns true for typed symbols. Labels (`STT_NOTYPE`) count only in sections without typed symbols, such as
    /// handwritten assembly.
    fn is_function(&self) -> bool {
        self.symbol_type != elf::STT_NOTYPE
    }

    /// Rank among several symbols at one address; the name with the highest rank is shown.
    fn rank(&self) -> Rank<'_> {
        let bind = match self.bind {
            elf::STB_GLOBAL => 2,
            elf::STB_WEAK => 1,
            _ => 0,
        };
        let is_public = !self.name.starts_with(b".") && !self.name.starts_with(b"$");
        let name = self.name.get(..64).unwrap_or(self.name);
        (bind, is_public, self.size != 0, Reverse((self.name.len(), name)))
    }
}

/// Appends the functions of one section. `candidates` must be sorted by start, best names first.
fn append_functions(
    candidates: &[Candidate<'_>],
    text: AddressRange,
    name_budget: &mut Budget,
    functions: &mut Vec<Function>,
) -> Result<(), Error> {
    let mut groups = candidates.chunk_by(|a, b| a.start == b.start).peekable();
    while let Some(group) = groups.next() {
        let limit =
            groups.peek().and_then(|next_group| next_group.first()).map_or(text.end().0, |next_group| next_group.start);
        let Some(range) = clamp_range(group, text, limit.min(text.end().0)) else { continue };
        let [best, alternatives @ ..] = group else { continue };
        let linkage_name = name_budget.name(best.name)?;
        let mut aliases: Vec<Box<str>> = Vec::new();
        for candidate in alternatives {
            let alias = name_budget.name(candidate.name)?;
            if alias != linkage_name && aliases.last() != Some(&alias) {
                aliases.push(alias);
            }
        }
        functions.push(Function { linkage_name, range, aliases });
    }
    Ok(())
}

/// Range of a group of symbols with the same start: the largest declared size, limited by the next function or the end
/// of the section. If no size is declared, the function extends to that limit.
fn clamp_range(group: &[Candidate<'_>], text: AddressRange, limit: u64) -> Option<AddressRange> {
    let start = group.first()?.start;
    let max_size = limit.checked_sub(start)?;
    let declared_size = group.iter().map(|candidate| candidate.size).max()?;
    let size = if declared_size == 0 { max_size } else { declared_size.min(max_size) };
    let range = AddressRange::new(Address(start), size)?;
    (size != 0 && text.contains(Address(start))).then_some(range)
}
