//! Pattern of an object: the bytes of its sections that do not depend on the load address, because no relocation
//! changes them.

use std::collections::BTreeMap;

use jitlisten::{Address, AddressRange};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

/// Offsets of fields in a section header.
const SH_ADDR: usize = 16;
const SH_SIZE: usize = 32;

/// An object whose load address is unknown, prepared for a search by its bytes.
pub(crate) struct Pattern {
    object: Vec<u8>,
    section_table: usize,
    /// Allocated sections that have contents in the file.
    pub(super) sections: Vec<Section>,
    /// Positions in `sections`, by index in the section table.
    by_index: BTreeMap<usize, usize>,
}

/// A section of the object, with the bytes that linking leaves unchanged.
pub(super) struct Section {
    /// Index of the section in the section table.
    pub(super) index: usize,
    pub(super) is_text: bool,
    pub(super) is_eh_frame: bool,
    pub(super) alignment: u64,
    pub(super) bytes: Vec<u8>,
    /// True for each byte that relocations leave unchanged.
    is_fixed: Vec<bool>,
    /// Start and length of the longest run of unchanged bytes.
    pub(super) anchor: (usize, usize),
    pub(super) references: Vec<Reference>,
}

/// A relocation whose field gives the address of another section of the object.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    /// Offset of the field in its section.
    pub(super) offset: u64,
    pub(super) width: usize,
    pub(super) relative: bool,
    /// Section that the field refers to, by index in the section table.
    pub(super) target: usize,
    /// Addend: value that the field adds to the target section's address.
    pub(super) addend: u64,
}

/// Effect of one type of relocation on the bytes of a section.
struct RelocationEffect {
    /// Number of bytes before the field that may change.
    bytes_before: u64,
    /// Width of the field in bytes.
    width: u64,
    /// Kind of address in the field; `None` if the field does not hold the address of the symbol.
    address: Option<AddressKind>,
}

/// Form of the address in a relocated field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AddressKind {
    Absolute,
    Relative,
}

impl Pattern {
    /// Parses a relocatable object; `None` if it contains anything unsupported.
    pub(crate) fn parse(object: Vec<u8>) -> Option<Pattern> {
        let header = FileHeader64::<LE>::parse(&*object).ok()?;
        let expected_machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
        if header.e_type(LE) != elf::ET_REL || header.e_machine(LE) != expected_machine {
            return None;
        }
        let table = header.sections(LE, &*object).ok()?;
        let section_table = usize::try_from(header.e_shoff(LE)).ok()?;
        let symbols = table.symbols(LE, &*object, elf::SHT_SYMTAB).ok()?;
        let mut sections = Vec::new();
        for (index, section) in table.enumerate() {
            let flags = section.sh_flags(LE).0;
            if flags & elf::SHF_ALLOC.0 == 0 || section.sh_type(LE) == elf::SHT_NOBITS || section.sh_size(LE) == 0 {
                continue;
            }
            let bytes = section.data(LE, &*object).ok()?.to_vec();
            let name = table.section_name(LE, section).ok()?;
            sections.push(Section {
                index: index.0,
                is_text: flags & elf::SHF_EXECINSTR.0 != 0,
                is_eh_frame: name == b".eh_frame",
                alignment: section.sh_addralign(LE).max(1),
                is_fixed: vec![true; bytes.len()],
                bytes,
                anchor: (0, 0),
                references: Vec::new(),
            });
        }
        let by_index: BTreeMap<usize, usize> = sections
            .iter()
            .enumerate()
            .map(|(position, section): (usize, &Section)| (section.index, position))
            .collect();
        for relocations in table.iter() {
            let Some(&position) = by_index.get(&relocations.info_link(LE).0) else { continue };
            let section = &mut sections[position];
            if relocations.sh_type(LE) == elf::SHT_REL {
                return None;
            }
            let Some((entries, _)) = relocations.rela(LE, &*object).ok()? else { continue };
            for entry in entries {
                section.record_relocation(entry, |symbol_index| {
                    let symbol_entry = symbols.symbol(symbol_index).ok()?;
                    let section_index = symbols.symbol_section(LE, symbol_entry, symbol_index).ok()??;
                    Some((section_index.0, symbol_entry.st_value(LE)))
                })?;
            }
        }
        sections.iter_mut().for_each(Section::find_anchor);
        Some(Pattern { section_table, sections, by_index, object })
    }

    /// Converts the object into a debug object: sections in `placed` get these addresses and sizes, and all others get
    /// no address.
    pub(crate) fn into_debug_object(self, placed: &[(usize, AddressRange)]) -> Vec<u8> {
        let Pattern { mut object, section_table, sections, .. } = self;
        // If a section is listed twice, its first range wins.
        let placed: BTreeMap<usize, AddressRange> = placed.iter().rev().copied().collect();
        for section in sections {
            let range = placed.get(&section.index).copied();
            let header = section_table + section.index * size_of::<SectionHeader64<LE>>();
            let mut set_field = |field: usize, value: u64| {
                if let Some(field) = object.get_mut(header + field..header + field + 8) {
                    field.copy_from_slice(&value.to_le_bytes());
                }
            };
            set_field(SH_ADDR, range.map_or(0, |range| range.start().0));
            if let Some(range) = range {
                set_field(SH_SIZE, range.size());
            }
        }
        object
    }

    /// Upper bound for the distance between two sections of one segment, including the linker's padding.
    pub(crate) fn extent(&self) -> u64 {
        let padded_size = |section: &Section| section.bytes.len() as u64 + section.alignment;
        2 * self.sections.iter().map(padded_size).sum::<u64>() + 4096
    }

    /// Returns true if `bytes` is this same object, ignoring section addresses. LLVM writes the section table last, so
    /// it is at the end.
    pub(crate) fn equals_object(&self, bytes: &[u8]) -> bool {
        let (ours, theirs) = (self.object.get(..self.section_table), bytes.get(..self.section_table));
        self.object.len() == bytes.len() && self.section_table > 0 && ours == theirs
    }

    /// Contents of the object that was passed to [`Pattern::parse`].
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }

    /// Position in `sections` of a section, given its index in the section table.
    pub(super) fn position_of(&self, index: usize) -> Option<usize> {
        self.by_index.get(&index).copied()
    }

    #[cfg(test)]
    pub(crate) fn empty() -> Pattern {
        Pattern::from_texts(&[])
    }

    /// Builds a pattern of text sections, each with the range of bytes that relocations change.
    #[cfg(test)]
    pub(crate) fn from_texts(texts: &[(&[u8], std::ops::Range<usize>)]) -> Pattern {
        let mut pattern =
            Pattern { object: Vec::new(), section_table: 0, sections: Vec::new(), by_index: BTreeMap::new() };
        texts.iter().for_each(|(bytes, changed)| {
            pattern.add(bytes.to_vec(), true, |offset| changed.contains(&offset), Vec::new())
        });
        pattern
    }

    /// Adds an `.eh_frame` whose fields at these offsets hold the addresses of the text sections.
    #[cfg(test)]
    pub(crate) fn add_table(&mut self, bytes: Vec<u8>, fields: &[usize]) {
        let reference = |(target, &offset): (usize, &usize)| Reference {
            offset: offset as u64,
            width: 4,
            relative: true,
            target,
            addend: 0,
        };
        let references = fields.iter().enumerate().map(reference).collect();
        self.add(
            bytes,
            false,
            |position| fields.iter().any(|&field| (field..field + 4).contains(&position)),
            references,
        );
    }

    #[cfg(test)]
    fn add(&mut self, bytes: Vec<u8>, is_text: bool, is_changed: impl Fn(usize) -> bool, references: Vec<Reference>) {
        let (index, is_eh_frame, alignment, anchor) =
            (self.sections.len(), !is_text, if is_text { 16 } else { 8 }, (0, 0));
        let is_fixed = (0..bytes.len()).map(|offset| !is_changed(offset)).collect();
        let mut section = Section { index, is_text, is_eh_frame, alignment, bytes, is_fixed, anchor, references };
        section.find_anchor();
        self.by_index.insert(index, index);
        self.sections.push(section);
    }

    /// Size of the object in bytes.
    pub(crate) fn size(&self) -> usize {
        self.object.len()
    }

    pub(crate) fn text_count(&self) -> usize {
        self.sections.iter().filter(|section| section.is_text).count()
    }
}

impl Section {
    /// Returns true if `bytes` may be this section after linking.
    pub(super) fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes.len()
            && self
                .bytes
                .iter()
                .zip(&self.is_fixed)
                .zip(bytes)
                .all(|((expected, is_fixed), other)| !is_fixed || expected == other)
    }

    /// Returns true if `bytes` may be the part of this section that begins at `start`. The bytes in `ignored` need not
    /// match.
    pub(super) fn part_matches(&self, start: usize, bytes: &[u8], ignored: Option<std::ops::Range<usize>>) -> bool {
        let ignored = ignored.unwrap_or_default();
        let expected = self.bytes[start..].iter().zip(&self.is_fixed[start..]).enumerate();
        expected
            .zip(bytes)
            .all(|((offset, (expected, is_fixed)), other)| !is_fixed || ignored.contains(&offset) || expected == other)
    }

    /// Returns the section's bytes, with every byte that relocations change set to `changed`.
    #[cfg(test)]
    pub(super) fn relocated_with(&self, changed: u8) -> Vec<u8> {
        self.bytes.iter().zip(&self.is_fixed).map(|(&byte, &is_fixed)| if is_fixed { byte } else { changed }).collect()
    }

    /// Number of unchanged bytes at the start of the section.
    pub(super) fn fixed_prefix_len(&self) -> usize {
        self.is_fixed.iter().take_while(|&&is_fixed| is_fixed).count()
    }

    /// Search key. Sections with equal keys match at the same addresses.
    pub(super) fn search_key(&self) -> (&[u8], &[bool], u64) {
        (&self.bytes, &self.is_fixed, self.alignment)
    }

    /// Number of bytes that linking leaves unchanged.
    pub(super) fn weight(&self) -> usize {
        self.is_fixed.iter().filter(|&&is_fixed| is_fixed).count()
    }

    /// Address of the reference's target, provided that this section is at `address` and contains `bytes`.
    pub(super) fn resolve(reference: &Reference, address: Address, bytes: &[u8]) -> Option<Address> {
        let offset = usize::try_from(reference.offset).ok()?;
        let field = bytes.get(offset..offset.checked_add(reference.width)?)?;
        let value = match *field {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            _ => u64::from_le_bytes(field.try_into().ok()?),
        };
        let base = if reference.relative { address.0.wrapping_add(reference.offset) } else { 0 };
        Some(Address(value.wrapping_add(base).wrapping_sub(reference.addend)))
    }

    /// Records a relocation's effect on this section; `None` if its type is unsupported or its field is out of bounds.
    fn record_relocation(
        &mut self,
        entry: &Rela64<LE>,
        symbol: impl Fn(object::SymbolIndex) -> Option<(usize, u64)>,
    ) -> Option<()> {
        let (offset, kind) = (entry.r_offset.get(LE), entry.r_type(LE, false));
        let relocation_effect = relocation_effect(kind.0)?;
        let end = offset.checked_add(relocation_effect.width)?;
        if end > self.bytes.len() as u64 {
            return None;
        }
        self.is_fixed[offset.saturating_sub(relocation_effect.bytes_before) as usize..end as usize].fill(false);
        if let Some(kind) = relocation_effect.address
            && let Some((target, value)) = symbol(object::SymbolIndex(entry.r_sym(LE, false) as usize))
        {
            let (width, relative) = (relocation_effect.width as usize, kind == AddressKind::Relative);
            let addend = value.wrapping_add(entry.r_addend.get(LE) as u64);
            self.references.push(Reference { offset, width, relative, target, addend });
        }
        Some(())
    }

    /// Finds the longest run of unchanged bytes.
    fn find_anchor(&mut self) {
        let mut run_start = 0;
        for position in 0..=self.is_fixed.len() {
            if position == self.is_fixed.len() || !self.is_fixed[position] {
                if position - run_start > self.anchor.1 {
                    self.anchor = (run_start, position - run_start);
                }
                run_start = position + 1;
            }
        }
    }
}

/// Effect of a relocation type, from x86-64 psABI, table 4.9. JITLink turns loads from the global offset table into
/// direct ones (`optimizeGOTAndStubAccesses`), which changes up to three bytes before the field.
#[cfg(target_arch = "x86_64")]
fn relocation_effect(kind: u32) -> Option<RelocationEffect> {
    use elf::*;
    let no_address = |width| Some(RelocationEffect { bytes_before: 0, width, address: None });
    match elf::RelocationType(kind) {
        R_X86_64_NONE => no_address(0),
        R_X86_64_64 => Some(RelocationEffect { bytes_before: 0, width: 8, address: Some(AddressKind::Absolute) }),
        R_X86_64_PC64 => Some(RelocationEffect { bytes_before: 0, width: 8, address: Some(AddressKind::Relative) }),
        R_X86_64_PC32 | R_X86_64_PLT32 => {
            Some(RelocationEffect { bytes_before: 0, width: 4, address: Some(AddressKind::Relative) })
        }
        R_X86_64_GOTPCREL | R_X86_64_GOTPCRELX | R_X86_64_REX_GOTPCRELX => {
            Some(RelocationEffect { bytes_before: 3, width: 4, address: None })
        }
        R_X86_64_32
        | R_X86_64_32S
        | R_X86_64_GOTPC32
        | R_X86_64_GOTTPOFF
        | R_X86_64_TPOFF32
        | R_X86_64_DTPOFF32
        | R_X86_64_TLSGD
        | R_X86_64_TLSLD
        | R_X86_64_GOTPC32_TLSDESC => no_address(4),
        R_X86_64_GOTOFF64 | R_X86_64_GOTPC64 | R_X86_64_GOTPCREL64 | R_X86_64_GOT64 | R_X86_64_PLTOFF64
        | R_X86_64_TPOFF64 | R_X86_64_DTPOFF64 => no_address(8),
        R_X86_64_TLSDESC_CALL => no_address(2),
        _ => None,
    }
}

/// Effect of a relocation type, from AAELF64 5.7. Data relocations come first, then those of four-byte instructions.
#[cfg(target_arch = "aarch64")]
fn relocation_effect(kind: u32) -> Option<RelocationEffect> {
    use elf::*;
    let kind = elf::RelocationType(kind);
    let (width, address) = match kind {
        R_AARCH64_NONE => (0, None),
        R_AARCH64_ABS64 => (8, Some(AddressKind::Absolute)),
        R_AARCH64_PREL64 => (8, Some(AddressKind::Relative)),
        R_AARCH64_PREL32 => (4, Some(AddressKind::Relative)),
        R_AARCH64_ABS32 => (4, None),
        _ if (R_AARCH64_MOVW_UABS_G0.0..=R_AARCH64_TLSDESC_CALL.0).contains(&kind.0) => (4, None),
        _ => return None,
    };
    Some(RelocationEffect { bytes_before: 0, width, address })
}
