//! Debug sections with their relocations applied.
//!
//! LLVM relocates only loaded sections. The `.debug_*` sections of a debug object are as the assembler wrote them:
//! zeros in place of addresses and offsets, with relocations in `.rela.debug_*`. They are relocated here as a debugger
//! does when it reads a `.o` file: `S + A` (absolute) or `S + A - P` (relative). `S` is `sh_addr + st_value` of the
//! symbol: an address for text, an offset for another debug section, whose `sh_addr` is 0.
//!
//! Sources: x86-64 psABI 4.4.1; AAELF64 5.7.5; `RuntimeDyldELF::resolveX86_64Relocation`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use object::LittleEndian;
use object::elf;
use object::read::elf::{Rela, SectionHeader, Sym, SymbolTable};

use super::Machine;
use super::budget::Budget;
use super::elf::{Elf, Header, LE, Section, has_flag};
use crate::Error;

type RelaEntry = elf::Rela64<LittleEndian>;

pub(crate) type NamedSection<'data> = (Box<str>, Cow<'data, [u8]>);

/// All `.debug_*` sections of a debug object, relocated, in file order.
///
/// Compressed sections are omitted, because no JIT writes them.
///
/// # Errors
/// If the object is malformed, or has an unsupported relocation type.
pub(crate) fn relocated_sections(debug_object: &[u8]) -> Result<Vec<NamedSection<'_>>, Error> {
    relocated_where(debug_object, |name| name.starts_with(b".debug_"))
}

/// Relocated sections whose name satisfies `is_wanted`, whether loaded or not. Undefined symbols have the value 0.
pub(crate) fn relocated_where(data: &[u8], is_wanted: fn(&[u8]) -> bool) -> Result<Vec<NamedSection<'_>>, Error> {
    let Some(copy) = super::elf::aligned_copy(data) else {
        return relocated(data, is_wanted);
    };
    let sections = relocated(&copy, is_wanted)?.into_iter();
    Ok(sections.map(|(name, bytes)| (name, Cow::Owned(bytes.into_owned()))).collect())
}

fn relocated(data: &[u8], is_wanted: fn(&[u8]) -> bool) -> Result<Vec<NamedSection<'_>>, Error> {
    let elf = Elf::parse(data)?;
    let symbols = elf.symbols()?;
    let relocations = relocations_by_target(&elf)?;
    // Sections of a well-formed file do not overlap, so together with their relocations they are smaller than the file.
    let mut budget = Budget::new(data.len(), 1);
    let mut sections_found = Vec::new();
    for (index, section) in elf.sections.enumerate() {
        let name = elf.name_of(section)?;
        if !is_wanted(name) || has_flag(section, elf::SHF_COMPRESSED) {
            continue;
        }
        let mut bytes = Cow::Borrowed(section.data(LE, elf.data)?);
        for entries in relocations.get(&index.0).into_iter().flatten() {
            budget.spend((bytes.len() + size_of_val(*entries)) as u64)?;
            apply(&elf, &symbols, section, entries, bytes.to_mut())?;
        }
        sections_found.push((budget.name(name)?, bytes));
    }
    Ok(sections_found)
}

/// Relocation entries (`SHT_RELA`) by target section. Linked files have no relocations left to apply.
fn relocations_by_target<'data>(elf: &Elf<'data>) -> Result<BTreeMap<usize, Vec<&'data [RelaEntry]>>, Error> {
    let mut by_target: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for section in elf.sections.iter().filter(|_| elf.relocatable) {
        if let Some((entries, _symbols)) = section.rela(LE, elf.data)? {
            by_target.entry(section.info_link(LE).0).or_default().push(entries);
        }
    }
    Ok(by_target)
}

/// Value and width of a relocated field.
struct Kind {
    size: usize,
    value: Value,
}

/// Formula for the value of a relocated field.
enum Value {
    /// `S + A`
    Absolute,
    /// `S + A - P`
    Relative,
    /// `st_value + A`: offset of a variable in its thread-local block
    ThreadLocal,
}

fn kind(machine: Machine, r_type: elf::RelocationType) -> Result<Option<Kind>, Error> {
    let (size, value) = match (machine, r_type) {
        (Machine::X86_64, elf::R_X86_64_NONE) | (Machine::Aarch64, elf::R_AARCH64_NONE) => return Ok(None),
        (Machine::X86_64, elf::R_X86_64_64) | (Machine::Aarch64, elf::R_AARCH64_ABS64) => (8, Value::Absolute),
        (Machine::X86_64, elf::R_X86_64_32 | elf::R_X86_64_32S) | (Machine::Aarch64, elf::R_AARCH64_ABS32) => {
            (4, Value::Absolute)
        }
        (Machine::X86_64, elf::R_X86_64_PC64) | (Machine::Aarch64, elf::R_AARCH64_PREL64) => (8, Value::Relative),
        // A PLT entry is optional, because the field may refer to the symbol directly.
        (Machine::X86_64, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32) | (Machine::Aarch64, elf::R_AARCH64_PREL32) => {
            (4, Value::Relative)
        }
        (Machine::X86_64, elf::R_X86_64_DTPOFF64) | (Machine::Aarch64, elf::R_AARCH64_TLS_DTPREL) => {
            (8, Value::ThreadLocal)
        }
        (Machine::X86_64, elf::R_X86_64_DTPOFF32) => (4, Value::ThreadLocal),
        (_, other) => return Err(Error::UnknownRelocation(other.0)),
    };
    Ok(Some(Kind { size, value }))
}

/// Applies `entries` to the `bytes` of `section`. Sums wrap, as in hardware.
fn apply(
    elf: &Elf<'_>,
    symbols: &SymbolTable<'_, Header>,
    section: &Section,
    entries: &[RelaEntry],
    bytes: &mut [u8],
) -> Result<(), Error> {
    for entry in entries {
        let Some(Kind { size, value }) = kind(elf.machine, Rela::r_type(entry, LE, false))? else { continue };
        let offset = Rela::r_offset(entry, LE);
        let addend = Rela::r_addend(entry, LE) as u64;
        let (base, symbol_value) = symbol_value(elf, symbols, entry)?;
        let result = match value {
            Value::Absolute => base.wrapping_add(symbol_value).wrapping_add(addend),
            Value::Relative => {
                let field_address = section.sh_addr(LE).wrapping_add(offset);
                base.wrapping_add(symbol_value).wrapping_add(addend).wrapping_sub(field_address)
            }
            Value::ThreadLocal => symbol_value.wrapping_add(addend),
        };
        let field = usize::try_from(offset).ok().and_then(|start| bytes.get_mut(start..start.checked_add(size)?));
        let field = field.ok_or(Error::RelocationOutside(offset))?;
        for (byte, new_byte) in field.iter_mut().zip(result.to_le_bytes()) {
            *byte = new_byte;
        }
    }
    Ok(())
}

/// Returns the address of the symbol's section, and the symbol's `st_value`. Both are zero for a relocation without a
/// symbol, or with an undefined symbol.
fn symbol_value(elf: &Elf<'_>, symbols: &SymbolTable<'_, Header>, entry: &RelaEntry) -> Result<(u64, u64), Error> {
    let Some(index) = Rela::symbol(entry, LE, false) else { return Ok((0, 0)) };
    let symbol = symbols.symbol(index)?;
    match symbols.symbol_section(LE, symbol, index)? {
        Some(section) => Ok((elf.symbol_base(section)?, symbol.st_value(LE))),
        None if symbol.is_absolute(LE) => Ok((0, symbol.st_value(LE))),
        None => Ok((0, 0)),
    }
}
