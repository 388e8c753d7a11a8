//! The bytes of an object's sections that do not depend on its load address: all except those that relocations change.

use std::collections::BTreeMap;

use jitlisten::{Address, AddressRange};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

/// Offsets in a section header.
const SH_ADDR: usize = 16;
const SH_SIZE: usize = 32;

/// An object whose place is not known.
pub(crate) struct Pattern {
    object: Vec<u8>,
    section_table: usize,
    /// The sections that take memory and have bytes.
    pub(super) sections: Vec<Section>,
    /// By their places in the section table.
    by_index: BTreeMap<usize, usize>,
}

pub(super) struct Section {
    /// Its place in the section table.
    pub(super) index: usize,
    pub(super) is_text: bool,
    pub(super) is_eh_frame: bool,
    pub(super) alignment: u64,
    pub(super) bytes: Vec<u8>,
    /// Whether a byte stays as it is.
    stays: Vec<bool>,
    /// The longest run of bytes that stay: first and length.
    pub(super) anchor: (usize, usize),
    pub(super) references: Vec<Reference>,
}

/// A relocation that says where another section of the object is.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    /// Of the field, in its section.
    pub(super) offset: u64,
    pub(super) width: usize,
    pub(super) relative: bool,
    /// Which section, by its place in the section table.
    pub(super) target: usize,
    /// What the field holds beside the section's address.
    pub(super) plus: u64,
}

/// What a relocation does to the bytes around it.
struct Effect {
    before: u64,
    width: u64,
    /// For those that say where their symbol is.
    address: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Absolute,
    Relative,
}

impl Pattern {
    /// Reads a relocatable object; `None` where there is something in it that is not understood.
    pub(crate) fn of(object: Vec<u8>) -> Option<Pattern> {
        let header = FileHeader64::<LE>::parse(&*object).ok()?;
        let here = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
        if header.e_type(LE) != elf::ET_REL || header.e_machine(LE) != here {
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
                stays: vec![true; bytes.len()],
                bytes,
                anchor: (0, 0),
                references: Vec::new(),
            });
        }
        let by_index: BTreeMap<usize, usize> =
            sections.iter().enumerate().map(|(at, section): (usize, &Section)| (section.index, at)).collect();
        for relocations in table.iter() {
            let Some(&at) = by_index.get(&relocations.info_link(LE).0) else { continue };
            let section = &mut sections[at];
            if relocations.sh_type(LE) == elf::SHT_REL {
                return None;
            }
            let Some((entries, _)) = relocations.rela(LE, &*object).ok()? else { continue };
            for entry in entries {
                section.relocate(entry, |symbol| {
                    let symbol_entry = symbols.symbol(symbol).ok()?;
                    let home = symbols.symbol_section(LE, symbol_entry, symbol).ok()??;
                    Some((home.0, symbol_entry.st_value(LE)))
                })?;
            }
        }
        sections.iter_mut().for_each(Section::find_anchor);
        Some(Pattern { section_table, sections, by_index, object })
    }

    /// The object, as a debugger would get it: sections have the addresses and sizes in `placed`, others no address.
    pub(crate) fn into_debug_object(self, placed: &[(usize, AddressRange)]) -> Vec<u8> {
        let Pattern { mut object, section_table, sections, .. } = self;
        // The first word counts.
        let placed: BTreeMap<usize, AddressRange> = placed.iter().rev().copied().collect();
        for section in sections {
            let place = placed.get(&section.index).copied();
            let header = section_table + section.index * size_of::<SectionHeader64<LE>>();
            let mut set = |field: usize, value: u64| {
                if let Some(field) = object.get_mut(header + field..header + field + 8) {
                    field.copy_from_slice(&value.to_le_bytes());
                }
            };
            set(SH_ADDR, place.map_or(0, |place| place.start().0));
            if let Some(place) = place {
                set(SH_SIZE, place.size());
            }
        }
        object
    }

    /// No further is one of its sections from another of the same segment, with what linkers put between them.
    pub(crate) fn extent(&self) -> u64 {
        let size = |section: &Section| section.bytes.len() as u64 + section.alignment;
        2 * self.sections.iter().map(size).sum::<u64>() + 4096
    }

    /// Whether this is the object `bytes`, wherever that says that its sections are: LLVM writes the section table
    /// last.
    pub(crate) fn is_object(&self, bytes: &[u8]) -> bool {
        let (ours, theirs) = (self.object.get(..self.section_table), bytes.get(..self.section_table));
        self.object.len() == bytes.len() && self.section_table > 0 && ours == theirs
    }

    /// The object as it was given.
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }

    /// The place in `sections` of a section of the section table.
    pub(super) fn at(&self, index: usize) -> Option<usize> {
        self.by_index.get(&index).copied()
    }

    #[cfg(test)]
    pub(crate) fn nothing() -> Pattern {
        Pattern::of_texts(&[])
    }

    /// Text sections, each with the part that relocations change.
    #[cfg(test)]
    pub(crate) fn of_texts(texts: &[(&[u8], std::ops::Range<usize>)]) -> Pattern {
        let mut pattern =
            Pattern { object: Vec::new(), section_table: 0, sections: Vec::new(), by_index: BTreeMap::new() };
        texts
            .iter()
            .for_each(|(bytes, changed)| pattern.add(bytes.to_vec(), true, |at| changed.contains(&at), Vec::new()));
        pattern
    }

    /// Adds an `.eh_frame`. Its fields at these offsets say where the texts are.
    #[cfg(test)]
    pub(crate) fn add_table(&mut self, bytes: Vec<u8>, fields: &[usize]) {
        let reference = |(target, &offset): (usize, &usize)| Reference {
            offset: offset as u64,
            width: 4,
            relative: true,
            target,
            plus: 0,
        };
        let references = fields.iter().enumerate().map(reference).collect();
        self.add(bytes, false, |at| fields.iter().any(|&field| (field..field + 4).contains(&at)), references);
    }

    #[cfg(test)]
    fn add(&mut self, bytes: Vec<u8>, is_text: bool, changes: impl Fn(usize) -> bool, references: Vec<Reference>) {
        let (index, is_eh_frame, alignment, anchor) =
            (self.sections.len(), !is_text, if is_text { 16 } else { 8 }, (0, 0));
        let stays = (0..bytes.len()).map(|at| !changes(at)).collect();
        let mut section = Section { index, is_text, is_eh_frame, alignment, bytes, stays, anchor, references };
        section.find_anchor();
        self.by_index.insert(index, index);
        self.sections.push(section);
    }

    /// The size of the object.
    pub(crate) fn size(&self) -> usize {
        self.object.len()
    }

    /// How many sections hold code.
    pub(crate) fn texts(&self) -> usize {
        self.sections.iter().filter(|section| section.is_text).count()
    }
}

impl Section {
    /// Whether `bytes` may be this section after linking.
    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes.len()
            && self.bytes.iter().zip(&self.stays).zip(bytes).all(|((own, stays), there)| !stays || own == there)
    }

    /// Whether `bytes` may be the part of this section from `start` on, whatever is at `except` in it.
    pub(super) fn part_is(&self, start: usize, bytes: &[u8], except: Option<std::ops::Range<usize>>) -> bool {
        let except = except.unwrap_or_default();
        let own = self.bytes[start..].iter().zip(&self.stays[start..]).enumerate();
        own.zip(bytes).all(|((at, (own, stays)), there)| !stays || except.contains(&at) || own == there)
    }

    /// Its bytes, with those that relocations change set to `changed`.
    #[cfg(test)]
    pub(super) fn relocated_with(&self, changed: u8) -> Vec<u8> {
        self.bytes.iter().zip(&self.stays).map(|(&byte, &stays)| if stays { byte } else { changed }).collect()
    }

    /// How many bytes at the start stay as they are.
    pub(super) fn stays_from_start(&self) -> usize {
        self.stays.iter().take_while(|&&stays| stays).count()
    }

    /// What decides where it fits: sections with the same key fit the same places.
    pub(super) fn search_key(&self) -> (&[u8], &[bool], u64) {
        (&self.bytes, &self.stays, self.alignment)
    }

    /// How many bytes stay as they are.
    pub(super) fn weight(&self) -> usize {
        self.stays.iter().filter(|&&stays| stays).count()
    }

    /// Where a reference says that its target begins, when this section, with these bytes, is at `address`.
    pub(super) fn resolve(reference: &Reference, address: Address, bytes: &[u8]) -> Option<Address> {
        let at = usize::try_from(reference.offset).ok()?;
        let field = bytes.get(at..at.checked_add(reference.width)?)?;
        let value = match *field {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            _ => u64::from_le_bytes(field.try_into().ok()?),
        };
        let base = if reference.relative { address.0.wrapping_add(reference.offset) } else { 0 };
        Some(Address(value.wrapping_add(base).wrapping_sub(reference.plus)))
    }

    fn relocate(
        &mut self,
        entry: &Rela64<LE>,
        symbol: impl Fn(object::SymbolIndex) -> Option<(usize, u64)>,
    ) -> Option<()> {
        let (offset, kind) = (entry.r_offset.get(LE), entry.r_type(LE, false));
        let effect = effect(kind.0)?;
        let end = offset.checked_add(effect.width)?;
        if end > self.bytes.len() as u64 {
            return None;
        }
        self.stays[offset.saturating_sub(effect.before) as usize..end as usize].fill(false);
        if let Some(kind) = effect.address
            && let Some((target, value)) = symbol(object::SymbolIndex(entry.r_sym(LE, false) as usize))
        {
            let (width, relative) = (effect.width as usize, kind == Kind::Relative);
            let plus = value.wrapping_add(entry.r_addend.get(LE) as u64);
            self.references.push(Reference { offset, width, relative, target, plus });
        }
        Some(())
    }

    fn find_anchor(&mut self) {
        let mut begin = 0;
        for end in 0..=self.stays.len() {
            if end == self.stays.len() || !self.stays[end] {
                if end - begin > self.anchor.1 {
                    self.anchor = (begin, end - begin);
                }
                begin = end + 1;
            }
        }
    }
}

/// x86-64 psABI, table 4.9. JITLink turns loads from the table of addresses into plain ones
/// (`optimizeGOTAndStubAccesses`), which changes up to three bytes in front of the field.
#[cfg(target_arch = "x86_64")]
fn effect(kind: u32) -> Option<Effect> {
    use elf::*;
    let plain = |width| Some(Effect { before: 0, width, address: None });
    match elf::RelocationType(kind) {
        R_X86_64_NONE => plain(0),
        R_X86_64_64 => Some(Effect { before: 0, width: 8, address: Some(Kind::Absolute) }),
        R_X86_64_PC64 => Some(Effect { before: 0, width: 8, address: Some(Kind::Relative) }),
        R_X86_64_PC32 | R_X86_64_PLT32 => Some(Effect { before: 0, width: 4, address: Some(Kind::Relative) }),
        R_X86_64_GOTPCREL | R_X86_64_GOTPCRELX | R_X86_64_REX_GOTPCRELX => {
            Some(Effect { before: 3, width: 4, address: None })
        }
        R_X86_64_32
        | R_X86_64_32S
        | R_X86_64_GOTPC32
        | R_X86_64_GOTTPOFF
        | R_X86_64_TPOFF32
        | R_X86_64_DTPOFF32
        | R_X86_64_TLSGD
        | R_X86_64_TLSLD
        | R_X86_64_GOTPC32_TLSDESC => plain(4),
        R_X86_64_GOTOFF64 | R_X86_64_GOTPC64 | R_X86_64_GOTPCREL64 | R_X86_64_GOT64 | R_X86_64_PLTOFF64
        | R_X86_64_TPOFF64 | R_X86_64_DTPOFF64 => plain(8),
        R_X86_64_TLSDESC_CALL => plain(2),
        _ => None,
    }
}

/// AAELF64 5.7: data, and then instructions of four bytes.
#[cfg(target_arch = "aarch64")]
fn effect(kind: u32) -> Option<Effect> {
    use elf::*;
    let kind = elf::RelocationType(kind);
    let (width, address) = match kind {
        R_AARCH64_NONE => (0, None),
        R_AARCH64_ABS64 => (8, Some(Kind::Absolute)),
        R_AARCH64_PREL64 => (8, Some(Kind::Relative)),
        R_AARCH64_PREL32 => (4, Some(Kind::Relative)),
        R_AARCH64_ABS32 => (4, None),
        _ if (R_AARCH64_MOVW_UABS_G0.0..=R_AARCH64_TLSDESC_CALL.0).contains(&kind.0) => (4, None),
        _ => return None,
    };
    Some(Effect { before: 0, width, address })
}
