//! Validation of encoded FDEs: gimli decodes each one before any in-process unwinder can read it.
//!
//! libunwind dereferences whatever an FDE tells it to (the length of an expression, an offset from a register), often
//! inside a signal handler of the host. Rules that fail to decode could crash the host, so they are never registered.
//! `DW_CFA_set_loc` is rejected, too: its operand has the pointer encoding of the FDE, which our copy changes. LLVM and
//! GCC do not emit it.

use gimli::{BaseAddresses, CallFrameInstruction, EhFrame, LittleEndian, UnwindSection, Vendor};

/// Checks that the FDE at `offset` in `bytes` (as written by `encode`) decodes completely.
pub(super) fn check_fde(bytes: &[u8], offset: usize) -> Result<(), gimli::Error> {
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
