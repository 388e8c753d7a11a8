//! Encodes rows as an `.eh_frame` section.
//!
//! ```text
//!   CIE   "zR", pointers DW_EH_PE_pcrel | DW_EH_PE_sdata8     one
//!   FDE   start, length, DW_CFA_*                             one for each function
//!   0000                                                      terminator
//! ```
//! 64-bit pointers, as LLVM writes in the large code model: the section may lie anywhere.
//!
//! Format: Linux Standard Base Core 5.0, 10.6; DWARF 5, 6.4.2.

use gimli::write::{
    Address as WriteAddress, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, FrameDescriptionEntry,
    FrameTable,
};
use gimli::{DW_EH_PE_pcrel, DW_EH_PE_sdata8, DwEhPe, Encoding, Format, LittleEndian, Register};

use super::rows::{SavedRegister, UnwindRow};
use crate::{Address, AddressRange, Error, Machine};

/// A function and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRules {
    /// All of its code.
    pub range: AddressRange,
    /// As [`synthesise`](super::synthesise) gives them.
    pub rows: Vec<UnwindRow>,
}

/// A place for the section of `functions`, sorted by address, that is copied at once and mapped nowhere: behind the
/// last of them.
///
/// It must not overlap them. A pointer relative to its own place that happens to be 0 is null to readers that read it
/// as libgcc does, and the function is left out.
pub fn place_behind(functions: &[FunctionRules]) -> Address {
    let end = functions.last().map_or(0, |function| function.range.end().0);
    Address(end.next_multiple_of(8))
}

/// An `.eh_frame` section for `functions` that will be mapped at `section`, which overlaps none of them: see
/// [`place_behind`].
///
/// # Errors
/// When an offset does not fit the encoding, which no function smaller than 4 GiB has.
pub fn encode(functions: &[FunctionRules], machine: Machine, section: Address) -> Result<Vec<u8>, Error> {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie(machine));
    for function in functions {
        // The writer believes that the section is at 0, so everything is relative to where it will be.
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
        let at = u32::try_from(row.offset.0).map_err(|_| gimli::write::Error::ValueTooLarge)?;
        let offset = i32::try_from(row.cfa.offset).map_err(|_| gimli::write::Error::ValueTooLarge)?;
        if cfa != (row.cfa.register, offset) {
            cfa = (row.cfa.register, offset);
            fde.add_instruction(at, CallFrameInstruction::Cfa(Register(cfa.0), cfa.1));
        }
        for gone in saved.iter().filter(|old| row.saved.iter().all(|new| new.register != old.register)) {
            fde.add_instruction(at, CallFrameInstruction::Restore(Register(gone.register)));
        }
        for new in row.saved.iter().filter(|new| !saved.contains(new)) {
            let offset = i32::try_from(new.offset).map_err(|_| gimli::write::Error::ValueTooLarge)?;
            fde.add_instruction(at, CallFrameInstruction::Offset(Register(new.register), offset));
        }
        saved = &row.saved;
    }
    Ok(())
}
