//! Encoder for unwind rows as an `.eh_frame` section.
//!
//! ```text
//!   CIE   "zR", pointers DW_EH_PE_pcrel | DW_EH_PE_sdata8     one
//!   FDE   start, length, DW_CFA_*                             one for each function
//!   0000                                                      terminator
//! ```
//! Pointers are 64 bits wide, as in LLVM's large code model, so the section may be mapped anywhere.
//!
//! Format: Linux Standard Base Core 5.0, 10.6; DWARF 5, 6.4.2.

use gimli::write::{
    Address as WriteAddress, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, FrameDescriptionEntry,
    FrameTable,
};
use gimli::{DW_EH_PE_pcrel, DW_EH_PE_sdata8, DwEhPe, Encoding, Format, LittleEndian, Register};

use super::rows::{SavedRegister, UnwindRow};
use crate::{Address, AddressRange, Error, Machine};

/// Unwind rules of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRules {
    /// Code range of the whole function.
    pub range: AddressRange,
    /// Unwind rows, as returned by [`synthesise`](super::synthesise).
    pub rows: Vec<UnwindRow>,
}

/// Returns a section address for encoding `functions` (sorted by address) when the section is only copied and never
/// mapped. This is the first aligned address after the last function.
///
/// The section must not overlap the functions, because a pc-relative pointer that happens to be 0 would be read as null
/// by libgcc and similar readers. They would then skip the function.
pub fn address_after(functions: &[FunctionRules]) -> Address {
    let end = functions.last().map_or(0, |function| function.range.end().0);
    Address(end.next_multiple_of(8))
}

/// Encodes an `.eh_frame` section for `functions`, to be mapped at `section`, which must not overlap any of them; see
/// [`address_after`].
///
/// # Errors
/// If an offset does not fit the encoding; impossible for functions smaller than 4 GiB.
pub fn encode(functions: &[FunctionRules], machine: Machine, section: Address) -> Result<Vec<u8>, Error> {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie(machine));
    for function in functions {
        // The writer assumes that the section is mapped at 0, so make addresses relative to its actual address.
        let start = function.range.start().0.wrapping_sub(section.0);
        let length = u32::try_from(function.range.size()).map_err(|_| gimli::write::Error::ValueTooLarge)?;
        let mut fde = FrameDescriptionEntry::new(WriteAddress::Constant(start), length);
        instructions(&mut fde, &function.rows, machine)?;
        table.add_fde(cie, fde);
    }
    let mut bytes = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut bytes)?;
    let mut bytes = bytes.0.into_vec();
    bytes.extend([0; 4]);
    Ok(bytes)
}

fn cie(machine: Machine) -> CommonInformationEntry {
    let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
    let (code_alignment, return_address) = match machine {
        Machine::X86_64 => (1, super::x86_64::RETURN_ADDRESS),
        Machine::Aarch64 => (4, super::aarch64::X30),
    };
    let mut cie = CommonInformationEntry::new(encoding, code_alignment, -8, Register(return_address));
    cie.fde_address_encoding = DwEhPe(DW_EH_PE_pcrel.0 | DW_EH_PE_sdata8.0);
    match machine {
        Machine::X86_64 => {
            cie.add_instruction(CallFrameInstruction::Cfa(Register(super::x86_64::RSP), 8));
            cie.add_instruction(CallFrameInstruction::Offset(Register(return_address), -8));
        }
        Machine::Aarch64 => cie.add_instruction(CallFrameInstruction::Cfa(Register(super::aarch64::SP), 0)),
    }
    cie
}

fn instructions(fde: &mut FrameDescriptionEntry, rows: &[UnwindRow], machine: Machine) -> Result<(), Error> {
    let initial = match machine {
        Machine::X86_64 => (super::x86_64::RSP, 8),
        Machine::Aarch64 => (super::aarch64::SP, 0),
    };
    let (mut cfa, mut saved): (_, &[SavedRegister]) = (initial, &[]);
    for row in rows {
        let offset_in_function = u32::try_from(row.offset.0).map_err(|_| gimli::write::Error::ValueTooLarge)?;
        let offset = i32::try_from(row.cfa.offset).map_err(|_| gimli::write::Error::ValueTooLarge)?;
        if cfa != (row.cfa.register, offset) {
            cfa = (row.cfa.register, offset);
            fde.add_instruction(offset_in_function, CallFrameInstruction::Cfa(Register(cfa.0), cfa.1));
        }
        for dropped in saved.iter().filter(|old| row.saved.iter().all(|new| new.register != old.register)) {
            fde.add_instruction(offset_in_function, CallFrameInstruction::Restore(Register(dropped.register)));
        }
        for new in row.saved.iter().filter(|new| !saved.contains(new)) {
            let offset = i32::try_from(new.offset).map_err(|_| gimli::write::Error::ValueTooLarge)?;
            fde.add_instruction(offset_in_function, CallFrameInstruction::Offset(Register(new.register), offset));
        }
        saved = &row.saved;
    }
    Ok(())
}
