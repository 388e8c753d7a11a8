//! Every FDE is decoded once by gimli before an in-process unwinder may see it.
//!
//! libunwind follows what it reads (an expression's length, an offset from a register) with plain loads, often inside a
//! signal handler of the host. Rules that do not decode would take the host down, so they never get there.
//! `DW_CFA_set_loc` is refused too: its operand is encoded like the FDE's pointers, and we changed that encoding. LLVM
//! and GCC do not write it.

use gimli::{BaseAddresses, CallFrameInstruction, EhFrame, LittleEndian, UnwindSection, Vendor};

/// Whether the FDE at `offset` of `bytes` (as `encode` wrote them) decodes to its end.
pub(super) fn decodes(bytes: &[u8], offset: usize) -> Result<(), gimli::Error> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    if cfg!(target_arch = "aarch64") {
        section.set_vendor(Vendor::AArch64);
    }
    let bases = BaseAddresses::default().set_eh_frame(0);
    let fde = section.fde_from_offset(&bases, gimli::EhFrameOffset(offset), EhFrame::cie_from_offset)?;
    let mut programs = [fde.cie().instructions(&section, &bases), fde.instructions(&section, &bases)];
    for program in &mut programs {
        while let Some(instruction) = program.next()? {
            if let CallFrameInstruction::SetLoc { .. } = instruction {
                return Err(gimli::Error::UnsupportedPointerEncoding(gimli::DW_EH_PE_absptr));
            }
        }
    }
    Ok(())
}
