//! `.eh_frame` for an image's own layout, and `.eh_frame_hdr` with its sorted search table.
//!
//! ```text
//!   .eh_frame_hdr   01  1b  03  3b                   version; how what follows is encoded
//!                   i32  .eh_frame, from here        DW_EH_PE_pcrel | DW_EH_PE_sdata4
//!                   u32  count                       DW_EH_PE_udata4
//!                   { i32 function, i32 FDE }        DW_EH_PE_datarel | DW_EH_PE_sdata4: from the start of the header
//!   .eh_frame       the entries of the live section, moved; behind them those that were missing
//! ```
//!
//! Everything in the live section counts from its own place or is absolute, and the image is somewhere else: so every
//! entry is read and written again. Its rules stay as they are.
//!
//! Format: Linux Standard Base Core 5.0, 10.6. See it with `readelf --debug-dump=frames FILE`.

#![forbid(unsafe_code)]

use gimli::write::{Address as WriteAddress, EhFrame, EndianVec, FrameTable};
use gimli::{BaseAddresses, CieOrFde, DW_EH_PE_absptr, DwEhPe, LittleEndian, UnwindSection};

use super::content::Content;
use crate::cfi::{self, FunctionRules};
use crate::{Address, Error, Machine};

/// The rules of an image's code, ready to be written anywhere.
pub(crate) struct Rules<'a> {
    machine: Machine,
    live: &'a [u8],
    live_at: u64,
    /// Whether the live section's pointers are absolute.
    absolute: bool,
    /// For functions the live section does not speak of.
    made: Vec<FunctionRules>,
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

impl<'a> Rules<'a> {
    /// What the live section says, and what was made for functions that it leaves out.
    pub(crate) fn new(content: &Content<'a>) -> Rules<'a> {
        let (range, live) = content.eh_frame.unwrap_or_default();
        let made = content.made_rules.iter().filter(|rules| content.pages.covers(rules.range));
        Rules {
            machine: content.object.machine(),
            live,
            live_at: range.start().0,
            absolute: has_absolute_pointers(live),
            made: made.cloned().collect(),
        }
    }

    /// Encodes for these places. The sizes do not depend on them.
    pub(crate) fn encode(&self, places: Places) -> Result<Unwind, Error> {
        let mut eh_frame = self.encode_live(places)?;
        if !self.made.is_empty() {
            // The last entry of all is followed by the terminator, and none in between.
            let at = places.bias.wrapping_add(places.eh_frame).wrapping_add(eh_frame.len() as u64);
            eh_frame.extend(cfi::encode(&self.made, self.machine, Address(at))?);
        } else if !eh_frame.is_empty() {
            eh_frame.extend([0; 4]);
        }
        let hdr = if eh_frame.is_empty() { Vec::new() } else { self.search_table(&eh_frame, places)? };
        Ok(Unwind { hdr, eh_frame })
    }

    fn encode_live(&self, places: Places) -> Result<Vec<u8>, Error> {
        let mut section = gimli::EhFrame::new(self.live, LittleEndian);
        section.set_address_size(8);
        // gimli reads and writes relative pointers as if both sections were at 0.
        let move_by = if self.absolute { 0 } else { self.live_at.wrapping_sub(places.eh_frame) };
        let moved = |address: u64| address.wrapping_add(move_by).wrapping_sub(places.bias);
        let table = FrameTable::from(&section, &|address| Some(WriteAddress::Constant(moved(address))))?;
        let mut out = EhFrame(EndianVec::new(LittleEndian));
        table.write_eh_frame(&mut out)?;
        Ok(out.0.into_vec())
    }

    fn search_table(&self, eh_frame: &[u8], places: Places) -> Result<Vec<u8>, Error> {
        let mut section = gimli::EhFrame::new(eh_frame, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(places.eh_frame);
        let mut found = Vec::new();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next()? {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(gimli::EhFrame::cie_from_offset)?;
            found.push((fde.initial_address(), places.eh_frame + fde.offset() as u64));
        }
        found.sort_unstable();
        let relative = |to: u64, from: u64| (to.wrapping_sub(from) as u32).to_le_bytes();
        let mut out = vec![1, 0x1b, 0x03, 0x3b];
        out.extend(relative(places.eh_frame, places.hdr + 4));
        out.extend((found.len() as u32).to_le_bytes());
        for (start, fde) in found {
            out.extend(relative(start, places.hdr));
            out.extend(relative(fde, places.hdr));
        }
        Ok(out)
    }
}

/// What the first CIE says; LLVM gives all of an object the same encoding.
fn has_absolute_pointers(live: &[u8]) -> bool {
    let mut section = gimli::EhFrame::new(live, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(0);
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Cie(cie) = entry {
            let encoding = cie.fde_address_encoding().unwrap_or(DW_EH_PE_absptr);
            return encoding.application() == DwEhPe(DW_EH_PE_absptr.0);
        }
    }
    false
}
