//! Unwind tables of one function, relocated to the addresses that perf expects.
//!
//! `perf inject` makes an ELF file from each function: the code, then the content of this record at the next multiple
//! of 8.
//!
//! ```text
//!   code_addr                    + ALIGN8(code_size)                                  + mapped_size
//!   | code .......... | padding | CIE | FDE | 0 | .eh_frame_hdr, one table row | ...... |
//!     ^----------------------------------pc_begin (pcrel)      |          |
//!     `-----------------------------------------------initial location    |
//!                                         ^---------------------------FDE address
//! ```
//!
//! perf extends the mapping of the function *in its view of the address space* by `mapped_size`, over whatever follows
//! the function. Therefore that space must be free: see [`UnwindingInfo::fits`].
//!
//! The live `.eh_frame` has the same rules, encoded for another address. We omit personality routines and LSDAs,
//! because only exceptions need them, and perf cannot follow them. Source: Linux Standard Base Core 5.0, chapter 10.6.

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, EndianSlice, LittleEndian,
    UnwindSection as _, constants as dw,
};
use jitlisten_unwinder::{Common, Entry, NewCommon, NewEntry, Pointers, Section};

use super::record::UnwindingInfo;
use crate::AddressRange;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Live `.eh_frame` of an object.
pub(in crate::sink) struct EhFrame<'a> {
    section: Section<'a>,
}

impl<'a> EhFrame<'a> {
    pub(in crate::sink) fn new(bytes: &'a [u8], range: AddressRange) -> Self {
        EhFrame { section: Section { bytes, address: range.start().0, data_base: None } }
    }

    /// Returns the tables of the function at `code`; `None` if the section does not cover the whole function, or cannot
    /// be parsed.
    pub(in crate::sink) fn function_tables(&self, code: AddressRange) -> Option<UnwindingInfo> {
        // Cache the last CIE, because most sections have only one.
        let mut cached_cie: Option<(usize, Common)> = None;
        for record in self.section.records(0) {
            let record = record.ok()?;
            let Some(cie_offset) = record.common else { continue };
            let common = match cached_cie.filter(|cached| cached.0 == cie_offset) {
                Some((_, common)) => common,
                None => self.section.common(cie_offset).ok()?,
            };
            cached_cie = Some((cie_offset, common));
            let entry = self.section.entry_of(record, common).ok()?;
            if entry.start == code.start().0 {
                let encoded = (entry.size >= code.size()).then(|| encode(&entry, code))?;
                return encoded.filter(is_decodable);
            }
        }
        None
    }
}

const PCREL_SDATA4: u8 = dw::DW_EH_PE_pcrel.0 | dw::DW_EH_PE_sdata4.0;
const DATAREL_SDATA4: u8 = dw::DW_EH_PE_datarel.0 | dw::DW_EH_PE_sdata4.0;

/// Encodes `.eh_frame` and `.eh_frame_hdr` for the address `ALIGN8(code_size)` bytes after the start of the function.
fn encode(entry: &Entry<'_>, code: AddressRange) -> Option<UnwindingInfo> {
    let common = NewCommon::copied(entry.section, &entry.common, 0)?;
    let (first, end) = entry.instructions;
    let instructions = entry.section.get(first..end)?;
    let mut out = Vec::with_capacity(256);
    // Distance from the function's start to `offset` in `out`; functions are far smaller than 2 GiB.
    let from_start = |offset: usize| code.size().next_multiple_of(8) as i32 + offset as i32;
    let common_offset = common.write(&mut out, Pointers::Relative);
    let start = code.size().next_multiple_of(8).wrapping_neg();
    let new_entry = NewEntry { start, size: code.size(), lsda: 0, instructions };
    let fde_offset = new_entry.write(&mut out, common_offset, &common, Pointers::Relative);
    push_i32(&mut out, 0);
    let header_offset = out.len();
    out.extend([1, PCREL_SDATA4, dw::DW_EH_PE_udata4.0, DATAREL_SDATA4]);
    let eh_frame_ptr_offset = out.len() as i32;
    push_i32(&mut out, -eh_frame_ptr_offset);
    push_i32(&mut out, 1);
    push_i32(&mut out, -from_start(header_offset));
    push_i32(&mut out, fde_offset as i32 - header_offset as i32);
    let mapped_size = out.len().next_multiple_of(16) as u64;
    let eh_frame_hdr_size = (out.len() - header_offset) as u64;
    Some(UnwindingInfo { data: out, eh_frame_hdr_size, mapped_size })
}

/// Returns true if gimli can decode the relocated tables and they do not contain `DW_CFA_set_loc`. That instruction
/// (which LLVM does not emit) cannot be relocated, because its operand is encoded like the pointers. An unknown
/// instruction may make a reader give up on the whole stack.
fn is_decodable(unwinding: &UnwindingInfo) -> bool {
    let mut section = gimli::EhFrame::new(&unwinding.data, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(0);
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let instructions = match entry {
            CieOrFde::Cie(cie) => cie.instructions(&section, &bases),
            CieOrFde::Fde(partial) => match partial.parse(gimli::EhFrame::cie_from_offset) {
                Ok(fde) => fde.instructions(&section, &bases),
                Err(_) => return false,
            },
        };
        if !are_relocatable(instructions) {
            return false;
        }
    }
    true
}

fn are_relocatable(mut instructions: CallFrameInstructionIter<'_, Bytes<'_>>) -> bool {
    loop {
        match instructions.next() {
            Ok(Some(CallFrameInstruction::SetLoc { .. })) | Err(_) => return false,
            Ok(Some(_)) => {}
            Ok(None) => return true,
        }
    }
}

fn push_i32(out: &mut Vec<u8>, word: i32) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Minimum size of the tables: two entries without instructions, the terminator, and the header with its table, rounded
/// up.
const MIN_TABLE_BYTES: u64 = 80;

/// Returns true if the smallest tables could end at or before `limit`. This cheap check is made before tables are
/// encoded.
pub(super) fn may_fit(code: AddressRange, limit: u64) -> bool {
    limit.saturating_sub(code.end().0) >= MIN_TABLE_BYTES
}

impl UnwindingInfo {
    /// Returns true if the mapping that perf makes for the function at `code` ends at or before `limit`.
    pub(super) fn fits(&self, code: AddressRange, limit: u64) -> bool {
        let end = code.start().0.checked_add(code.size().next_multiple_of(8));
        end.and_then(|end| end.checked_add(self.mapped_size)).is_some_and(|end| end <= limit)
    }
}

#[cfg(test)]
mod tests {
    use gimli::{EhFrame as GimliEhFrame, EhFrameHdr};

    use super::*;
    use crate::Address;

    /// Output of `clang -O1 -fno-omit-frame-pointer`: a `zPLR` CIE with a personality routine and an LSDA, and one FDE
    /// for 0x45 bytes.
    fn section(address: u64, function: u64) -> Vec<u8> {
        let mut bytes = vec![0x1c, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'P', b'L', b'R', 0, 1, 0x78, 0x10, 7];
        bytes.extend([0x9b, 1, 2, 3, 4, 0x1b, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0]);
        bytes.extend([0x24, 0, 0, 0, 0x24, 0, 0, 0]);
        let pc_begin = function.wrapping_sub(address + bytes.len() as u64) as u32;
        bytes.extend(pc_begin.to_le_bytes());
        bytes.extend([0x45, 0, 0, 0, 4, 9, 9, 9, 9]);
        bytes.extend([0x41, 0x0e, 0x10, 0x86, 2, 0x43, 0x0d, 6, 0x02, 0x40, 0x0c, 7, 8, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 4]);
        bytes
    }

    fn range(start: u64, size: u64) -> AddressRange {
        AddressRange::new(Address(start), size).unwrap()
    }

    fn tables(code: AddressRange) -> Option<UnwindingInfo> {
        let bytes = section(0x9000, 0x5000);
        EhFrame::new(&bytes, range(0x9000, bytes.len() as u64)).function_tables(code)
    }

    #[test]
    fn an_independent_reader_finds_the_relocated_rules() {
        let code = range(0x5000, 0x45);
        let unwinding = tables(code).unwrap();
        let start = 0x5048;
        let header_size = unwinding.eh_frame_hdr_size as usize;
        let (eh_frame, header) = unwinding.data.split_at(unwinding.data.len() - header_size);
        let bases = BaseAddresses::default().set_eh_frame(start).set_eh_frame_hdr(start + eh_frame.len() as u64);
        let header = EhFrameHdr::new(header, LittleEndian);
        let header = header.parse(&bases, 8).unwrap();
        assert_eq!(header.eh_frame_ptr(), gimli::Pointer::Direct(start));
        let section = GimliEhFrame::new(eh_frame, LittleEndian);
        let table = header.table().unwrap();
        let fde = table.fde_for_address(&section, &bases, 0x5010, GimliEhFrame::cie_from_offset).unwrap();
        assert_eq!((fde.initial_address(), fde.len(), fde.lsda()), (0x5000, 0x45, None));
        let mut context = gimli::UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, 0x5010).unwrap();
        assert_eq!(*row.cfa(), gimli::CfaRule::RegisterAndOffset { register: gimli::X86_64::RBP, offset: 16 });
    }

    #[test]
    fn sizes_equal_those_that_perf_maps() {
        let code = range(0x5000, 0x45);
        let unwinding = tables(code).unwrap();
        assert_eq!(unwinding.mapped_size % 16, 0);
        assert!(unwinding.mapped_size >= MIN_TABLE_BYTES && unwinding.mapped_size >= unwinding.data.len() as u64);
        let end = 0x5048 + unwinding.mapped_size;
        assert!(unwinding.fits(code, end) && !unwinding.fits(code, end - 1));
        assert!(may_fit(code, end) && !may_fit(code, 0x5045 + MIN_TABLE_BYTES - 1));
    }

    #[test]
    fn rules_that_do_not_cover_the_function_are_rejected() {
        assert_eq!(tables(range(0x5000, 0x46)), None);
        assert_eq!(tables(range(0x5001, 0x10)), None);
        assert!(EhFrame::new(&[1, 2, 3], range(0x9000, 3)).function_tables(range(0x5000, 1)).is_none());
    }

    #[test]
    fn undecodable_or_unrelocatable_instructions_are_rejected() {
        let mut bytes = section(0x9000, 0x5000);
        let first_instruction = bytes.len() - 4 - 19;
        assert_eq!(bytes[first_instruction], 0x41);
        for instruction in [dw::DW_CFA_set_loc.0, 0x3f] {
            bytes[first_instruction] = instruction;
            let eh_frame = EhFrame::new(&bytes, range(0x9000, bytes.len() as u64));
            assert_eq!(eh_frame.function_tables(range(0x5000, 0x45)), None, "{instruction:#x}");
        }
    }

    #[test]
    fn truncated_sections_are_rejected() {
        let bytes = section(0x9000, 0x5000);
        for length in 0..bytes.len() - 4 {
            let eh_frame = EhFrame::new(&bytes[..length], range(0x9000, length as u64));
            assert_eq!(eh_frame.function_tables(range(0x5000, 0x45)), None, "{length}");
        }
    }
}
