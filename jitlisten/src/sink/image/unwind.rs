//! `.eh_frame` for an image's own layout, and `.eh_frame_hdr` with its sorted search table.
//!
//! ```text
//!   .eh_frame_hdr   01  1b  03  3b                   version; how what follows is encoded
//!                   i32  .eh_frame, from here        DW_EH_PE_pcrel | DW_EH_PE_sdata4
//!                   u32  count                       DW_EH_PE_udata4
//!                   { i32 function, i32 FDE }        DW_EH_PE_datarel | DW_EH_PE_sdata4: from the start of the header
//!   .eh_frame       CIE "zR"   instructions          of each live section, and of made rules; each CIE once
//!                   FDE        start, length, instructions
//!                   0000                             terminator
//! ```
//!
//! Everything in a live section counts from its own place or is absolute, and the image is somewhere else: so every
//! entry is read and gets a new head. Its instructions, the rules, stay byte for byte as they are.
//!
//! Personality routines and their tables (LSDA) are left out: only the unwinder inside the process runs them, and it
//! reads the live section. Pointers to them may reach further than the 32 bits that everything in an image can be
//! reached with.
//!
//! Format: Linux Standard Base Core 5.0, 10.6. See it with `readelf --debug-dump=frames FILE`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use gimli::{BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};

use super::cfi_entry::{self, Cie};
use super::content::Content;
use crate::{Address, AddressRange, Error, cfi, log_line};

/// The rules of an image's code, ready to be put anywhere.
#[derive(Default)]
pub(crate) struct Rules {
    /// `.eh_frame` without the starts of functions.
    eh_frame: Vec<u8>,
    /// Where a function begins in the process, and where its FDE does in `eh_frame`.
    functions: Vec<(u64, usize)>,
    /// Whether an entry that was copied names a personality routine.
    pub(crate) has_personality: bool,
}

/// Encoded sections; empty where there is nothing to say.
#[derive(Default)]
pub(crate) struct Unwind {
    /// `.eh_frame_hdr`
    pub(crate) hdr: Vec<u8>,
    /// `.eh_frame`
    pub(crate) eh_frame: Vec<u8>,
}

/// Where the sections will be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Offset of `.eh_frame_hdr`.
    pub(crate) hdr: u64,
    /// Offset of `.eh_frame`.
    pub(crate) eh_frame: u64,
    /// Address of byte 0 of the image.
    pub(crate) bias: u64,
}

impl Rules {
    /// What the live sections say of the pages, and what was made for functions that they leave out. Entries that
    /// cannot be read are left out, and logged.
    pub(crate) fn new(content: &Content<'_>) -> Rules {
        let mut rules = Rules::default();
        for part in &content.parts {
            let mut added = Ok(());
            if let Some((range, snapshot)) = &part.eh_frame {
                added = rules.add(snapshot, range.start(), content.pages);
            }
            if !part.made_rules.is_empty() {
                // They get new heads, too.
                let place = cfi::place_behind(part.made_rules);
                let made = cfi::encode(part.made_rules, part.object.machine(), place);
                added = added.and(made.and_then(|made| rules.add(&made, place, content.pages)));
            }
            if let Err(error) = added {
                log_line!(Warn, "an image lacks unwind tables: {error}");
            }
        }
        if !rules.functions.is_empty() {
            rules.eh_frame.extend([0; 4]);
        }
        rules
    }

    /// The entries of a section at `address` that speak of code in `pages`, and of no other.
    fn add(&mut self, snapshot: &[u8], address: Address, pages: AddressRange) -> Result<(), Error> {
        let mut section = EhFrame::new(snapshot, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(address.0);
        let mut cies: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        let mut entries = section.entries(&bases);
        let mut first_error = Ok(());
        while let Some(entry) = entries.next()? {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(EhFrame::cie_from_offset)?;
            let range = AddressRange::new(Address(fde.initial_address()), fde.len()).unwrap_or_default();
            if range.is_empty() || !pages.covers(range) {
                continue;
            }
            let cie = cies.entry(fde.cie().offset()).or_insert_with(|| {
                let copied = Cie::read(snapshot, fde.cie().offset()).and_then(|cie| {
                    check(fde.cie().instructions(&section, &bases))?;
                    Ok(cie.write(&mut self.eh_frame))
                });
                copied.map_err(|error| first_error = Err(error)).ok()
            });
            let Some(cie) = *cie else { continue };
            let copied = cfi_entry::fde_instructions(snapshot, fde.offset(), fde.cie())
                .and_then(|instructions| check(fde.instructions(&section, &bases)).map(|()| instructions));
            match copied {
                Ok(instructions) => {
                    self.has_personality |= fde.cie().personality().is_some();
                    self.functions.push((range.start().0, self.eh_frame.len()));
                    cfi_entry::write_fde(&mut self.eh_frame, cie, range.size(), instructions);
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

    /// Size of `.eh_frame`.
    pub(crate) fn eh_frame_size(&self) -> u64 {
        self.eh_frame.len() as u64
    }

    /// Encodes for these places.
    pub(crate) fn encode(mut self, places: Places) -> Unwind {
        if self.functions.is_empty() {
            return Unwind::default();
        }
        let mut found = Vec::with_capacity(self.functions.len());
        for &(start, fde) in &self.functions {
            let start = start.wrapping_sub(places.bias);
            cfi_entry::set_start(&mut self.eh_frame, fde, start.wrapping_sub(places.eh_frame));
            found.push((start, places.eh_frame + fde as u64));
        }
        found.sort_unstable();
        let relative = |to: u64, from: u64| (to.wrapping_sub(from) as u32).to_le_bytes();
        let mut hdr = vec![1, 0x1b, 0x03, 0x3b];
        hdr.extend(relative(places.eh_frame, places.hdr + 4));
        hdr.extend((found.len() as u32).to_le_bytes());
        for (start, fde) in found {
            hdr.extend(relative(start, places.hdr));
            hdr.extend(relative(fde, places.hdr));
        }
        Unwind { hdr, eh_frame: self.eh_frame }
    }
}

/// Whether instructions can be read by others, wherever they stand: a reader that meets one it does not know may give
/// up on the whole process.
fn check(mut instructions: gimli::CallFrameInstructionIter<'_, EndianSlice<'_, LittleEndian>>) -> Result<(), Error> {
    while let Some(instruction) = instructions.next()? {
        if matches!(instruction, CallFrameInstruction::SetLoc { .. }) {
            return Err(gimli::Error::UnknownCallFrameInstruction(gimli::DW_CFA_set_loc).into());
        }
    }
    Ok(())
}
