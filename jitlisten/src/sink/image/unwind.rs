//! `.eh_frame` for the layout of an image, and `.eh_frame_hdr` with its sorted search table.
//!
//! ```text
//!   .eh_frame_hdr   01  1b  03  3b                   version; encodings of the following fields
//!                   i32  offset of .eh_frame         DW_EH_PE_pcrel | DW_EH_PE_sdata4
//!                   u32  count                       DW_EH_PE_udata4
//!                   { i32 function, i32 FDE }        DW_EH_PE_datarel | DW_EH_PE_sdata4: from the start of the header
//!   .eh_frame       CIE "zR"   instructions          of each live section, and of derived rules; each CIE once
//!                   FDE        start, length, instructions
//!                   0000                             terminator
//! ```
//!
//! Pointers in a live section are absolute or relative to their own address, but the image has other addresses.
//! Therefore each entry is parsed and gets a new header. Its instructions, which are the unwind rules, are copied
//! unchanged.
//!
//! Personality routines and their tables (LSDA) are omitted, because only the unwinder inside the process needs them,
//! and it reads the live section. They may also be out of reach of the image's 32-bit offsets.
//!
//! Format: Linux Standard Base Core 5.0, 10.6. Inspect it with `readelf --debug-dump=frames FILE`.

use std::collections::BTreeMap;

use gimli::{BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};
use jitlisten_unwinder::{Common, NewCommon, NewEntry, Pointers, Section};

use super::content::Content;
use crate::{Address, AddressRange, Error, cfi, log_line};

/// Unwind rules for the code of an image, before the sections have addresses.
#[derive(Default)]
pub(crate) struct UnwindRules {
    /// Content of `.eh_frame`, with the start addresses of functions left blank.
    eh_frame: Vec<u8>,
    /// Start address of each function in the process, with the offset of its FDE in `eh_frame`.
    functions: Vec<(u64, usize)>,
    /// True if a copied entry refers to a personality routine.
    pub(crate) has_personality: bool,
}

/// Encoded unwind sections; empty if no function has rules.
#[derive(Default)]
pub(crate) struct UnwindTables {
    /// Content of `.eh_frame_hdr`.
    pub(crate) hdr: Vec<u8>,
    pub(crate) eh_frame: Vec<u8>,
}

/// Offsets of the unwind sections, and the address of the image.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SectionOffsets {
    /// Offset of `.eh_frame_hdr`.
    pub(crate) hdr: u64,
    pub(crate) eh_frame: u64,
    /// Address at which byte 0 of the file would be mapped.
    pub(crate) bias: u64,
}

impl UnwindRules {
    /// Collects the rules for the pages: those of the live sections, and derived rules for functions that the live
    /// sections do not cover. Entries that cannot be parsed are omitted and logged.
    pub(crate) fn new(content: &Content<'_>) -> UnwindRules {
        let mut rules = UnwindRules::default();
        for part in &content.parts {
            let mut result = Ok(());
            if let Some((range, snapshot)) = &part.eh_frame {
                result = rules.add_section(snapshot, range.start(), content.pages);
            }
            if !part.derived_rules.is_empty() {
                // Derived rules are encoded as a section, which is then copied like the others.
                let address = cfi::address_after(part.derived_rules);
                let encoded = cfi::encode(part.derived_rules, part.object.machine(), address);
                result = result.and(encoded.and_then(|encoded| rules.add_section(&encoded, address, content.pages)));
            }
            if let Err(error) = result {
                log_line!(Warn, "an image lacks unwind tables: {error}");
            }
        }
        if !rules.functions.is_empty() {
            rules.eh_frame.extend([0; 4]);
        }
        rules
    }

    /// Copies the entries of a section at `address` that lie completely in `pages`.
    fn add_section(&mut self, snapshot: &[u8], address: Address, pages: AddressRange) -> Result<(), Error> {
        let mut section = EhFrame::new(snapshot, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(address.0);
        let mut commons: BTreeMap<usize, Option<CopiedCommon<'_>>> = BTreeMap::new();
        let mut entries = section.entries(&bases);
        let mut first_error = Ok(());
        while let Some(entry) = entries.next()? {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(EhFrame::cie_from_offset)?;
            let range = AddressRange::new(Address(fde.initial_address()), fde.len()).unwrap_or_default();
            if range.is_empty() || !pages.covers(range) {
                continue;
            }
            let common = commons.entry(fde.cie().offset()).or_insert_with(|| {
                let copied = check_instructions(fde.cie().instructions(&section, &bases))
                    .and_then(|()| CopiedCommon::new(snapshot, fde.cie().offset(), &mut self.eh_frame));
                copied.map_err(|error| first_error = Err(error)).ok()
            });
            let Some(common) = common else { continue };
            let copied = check_instructions(fde.instructions(&section, &bases))
                .and_then(|()| common.add_entry(fde.offset(), range.size(), &mut self.eh_frame));
            match copied {
                Ok(offset) => {
                    self.has_personality |= fde.cie().personality().is_some();
                    self.functions.push((range.start().0, offset));
                }
                Err(error) => first_error = Err(error),
            }
        }
        first_error
    }

    /// Size of `.eh_frame_hdr`.
    pub(crate) fn hdr_size(&self) -> u64 {
        if self.functions.is_empty() { 0 } else { 12 + 8 * self.functions.len() as u64 }
    }

    pub(crate) fn eh_frame_size(&self) -> u64 {
        self.eh_frame.len() as u64
    }

    /// Fills in the addresses, and builds the search table.
    pub(crate) fn encode(mut self, offsets: SectionOffsets) -> UnwindTables {
        if self.functions.is_empty() {
            return UnwindTables::default();
        }
        let mut table = Vec::with_capacity(self.functions.len());
        for &(start, fde) in &self.functions {
            let start = start.wrapping_sub(offsets.bias);
            let field = fde + NewEntry::START_OFFSET;
            let relative_start = start.wrapping_sub(offsets.eh_frame).wrapping_sub(field as u64) as u32;
            self.eh_frame[field..field + 4].copy_from_slice(&relative_start.to_le_bytes());
            table.push((start, offsets.eh_frame + fde as u64));
        }
        table.sort_unstable();
        let relative = |target: u64, base: u64| (target.wrapping_sub(base) as u32).to_le_bytes();
        let mut hdr = vec![1, 0x1b, 0x03, 0x3b];
        hdr.extend(relative(offsets.eh_frame, offsets.hdr + 4));
        hdr.extend((table.len() as u32).to_le_bytes());
        for (start, fde) in table {
            hdr.extend(relative(start, offsets.hdr));
            hdr.extend(relative(fde, offsets.hdr));
        }
        UnwindTables { hdr, eh_frame: self.eh_frame }
    }
}

/// A CIE of a live section, copied to an image.
struct CopiedCommon<'a> {
    section: Section<'a>,
    common: Common,
    copy: NewCommon<'a>,
    offset: usize,
}

impl<'a> CopiedCommon<'a> {
    fn new(snapshot: &'a [u8], offset: usize, out: &mut Vec<u8>) -> Result<Self, Error> {
        let section = Section { bytes: snapshot, address: 0, data_base: None };
        let common = section.common(offset).map_err(|_| gimli::Error::UnknownAugmentation)?;
        let copy =
            NewCommon::copied(snapshot, &common, 0).ok_or(gimli::Error::UnsupportedRegister(common.return_address))?;
        Ok(CopiedCommon { section, common, copy, offset: copy.write(out, Pointers::Relative) })
    }

    /// Copies the FDE at `offset` and leaves its start address blank. Returns the offset of the copy.
    fn add_entry(&self, offset: usize, size: u64, out: &mut Vec<u8>) -> Result<usize, Error> {
        let record = self.section.record(offset).ok().flatten();
        let entry = record.and_then(|record| self.section.entry_of(record, self.common).ok());
        let instructions = entry.and_then(|entry| entry.section.get(entry.instructions.0..entry.instructions.1));
        let instructions = instructions.ok_or(gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(offset as u64)))?;
        let entry = NewEntry { start: 0, size, lsda: 0, instructions };
        Ok(entry.write(out, self.offset, &self.copy, Pointers::Relative))
    }
}

/// Returns an error if there are instructions that other readers cannot decode, or that cannot be moved to another
/// address. A reader that finds an unknown instruction may give up on the whole process.
fn check_instructions(
    mut instructions: gimli::CallFrameInstructionIter<'_, EndianSlice<'_, LittleEndian>>,
) -> Result<(), Error> {
    while let Some(instruction) = instructions.next()? {
        if matches!(instruction, CallFrameInstruction::SetLoc { .. }) {
            return Err(gimli::Error::UnknownCallFrameInstruction(gimli::DW_CFA_set_loc).into());
        }
    }
    Ok(())
}
