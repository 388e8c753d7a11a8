//! Names of the functions and data that an object refers to outside of itself, from the relocations of its code.
//!
//! A library often lacks a symbol for code that a name leads to: `dlsym("cos")` calls a resolver in libm, which returns
//! the address of a local function. The object's relocation still has the name `cos`.

use object::elf;
use object::read::elf::{Rela, SectionHeader, Sym};

use super::Machine;
use super::elf::{Elf, LE, has_flag, is_loaded};
use crate::{Address, Error};

/// Maximum number of references per object.
const MAX_REFERENCES: usize = 16 << 10;
/// Longer names are those of compiled functions, whose objects name them.
const MAX_NAME_BYTES: usize = 128;

/// Reference of code to an undefined symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference<'data> {
    pub(crate) field: Address,
    pub(crate) name: &'data str,
    pub(crate) kind: ReferenceKind,
}

/// Content of a relocated field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReferenceKind {
    /// Address of the symbol, in eight bytes.
    Address,
    /// Distance to the symbol, to a stub that jumps to it, or to a copy of its address; of a call, these are the last
    /// four bytes.
    Call,
}

/// Returns the references of an object's code to undefined symbols. The first reference to a symbol's address stands
/// for all of them.
///
/// # Errors
/// If the object is malformed, or not aligned as LLVM aligns it.
pub(crate) fn references(debug_object: &[u8]) -> Result<Vec<Reference<'_>>, Error> {
    let elf = Elf::parse(debug_object)?;
    let symbols = elf.symbols()?;
    let mut references = Vec::new();
    let mut has_address = vec![false; symbols.len()];
    for section in elf.sections.iter().filter(|_| elf.relocatable) {
        let Some((entries, _)) = section.rela(LE, elf.data)? else { continue };
        let code = elf.sections.section(section.info_link(LE))?;
        if !is_loaded(code) || !has_flag(code, elf::SHF_EXECINSTR) {
            continue;
        }
        for entry in entries {
            let Some(kind) = kind(elf.machine, entry) else { continue };
            let Some(index) = Rela::symbol(entry, LE, false) else { continue };
            let symbol = symbols.symbol(index)?;
            let has_address = has_address.get_mut(index.0).filter(|_| kind == ReferenceKind::Address);
            if !symbol.is_undefined(LE) || has_address.is_some_and(|seen| std::mem::replace(seen, true)) {
                continue;
            }
            let name = std::str::from_utf8(symbols.symbol_name(LE, symbol)?).unwrap_or_default();
            let is_word = !name.is_empty() && !name.contains(|character: char| character.is_control());
            if is_word && name.len() <= MAX_NAME_BYTES && references.len() < MAX_REFERENCES {
                let field = Address(code.sh_addr(LE).wrapping_add(Rela::r_offset(entry, LE)));
                references.push(Reference { field, name, kind });
            }
        }
    }
    Ok(references)
}

fn kind(machine: Machine, entry: &elf::Rela64<object::LittleEndian>) -> Option<ReferenceKind> {
    let addend = Rela::r_addend(entry, LE);
    match (machine, Rela::r_type(entry, LE, false)) {
        (Machine::X86_64, elf::R_X86_64_64) => (addend == 0).then_some(ReferenceKind::Address),
        (Machine::X86_64, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 | elf::R_X86_64_GOTPCRELX) => {
            (addend == -4).then_some(ReferenceKind::Call)
        }
        (Machine::Aarch64, elf::R_AARCH64_CALL26) => (addend == 0).then_some(ReferenceKind::Call),
        _ => None,
    }
}
