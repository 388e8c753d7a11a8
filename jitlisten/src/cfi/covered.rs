//! Code ranges covered by an `.eh_frame`.

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindContext, UnwindSection,
};

use crate::{Address, AddressRange, Error, TableProblem};

/// Returns the code ranges of all FDEs in `eh_frame`, sorted. `address` is the address of the first byte of `eh_frame`.
/// Empty ranges, and ranges of discarded code (start 0), are omitted. Stops at the terminator or at the end of the
/// bytes.
///
/// # Errors
/// If an entry is malformed.
pub fn covered(eh_frame: &[u8], address: Address) -> Result<Vec<AddressRange>, Error> {
    Ok(ranges(eh_frame, address, |_, _, _| Ok(()))?)
}

/// Same as [`covered`], but also evaluates the rules of every FDE.
///
/// # Errors
/// If an entry or an instruction is malformed.
pub(crate) fn validate(eh_frame: &[u8], address: Address) -> Result<Vec<AddressRange>, TableProblem> {
    let mut context = UnwindContext::new();
    Ok(ranges(eh_frame, address, |fde, section, bases| {
        let mut rows = fde.rows(section, bases, &mut context)?;
        while rows.next_row()?.is_some() {}
        Ok(())
    })?)
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;

fn ranges<'a>(
    eh_frame: &'a [u8],
    address: Address,
    mut check: impl FnMut(&FrameDescriptionEntry<Reader<'a>>, &EhFrame<Reader<'a>>, &BaseAddresses) -> gimli::Result<()>,
) -> gimli::Result<Vec<AddressRange>> {
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(address.0);
    let mut ranges = Vec::new();
    let mut entries = section.entries(&bases);
    // Usually all FDEs share one CIE, so cache the last one parsed.
    let mut last_cie: Option<CommonInformationEntry<Reader<'_>>> = None;
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = last_cie.as_ref().filter(|cie| cie.offset() == offset.0) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            last_cie = Some(cie.clone());
            Ok(cie)
        })?;
        check(&fde, &section, &bases)?;
        let range = AddressRange::new(Address(fde.initial_address()), fde.len());
        ranges.extend(range.filter(|range| !range.is_empty() && range.start() != Address(0)));
    }
    ranges.sort();
    Ok(ranges)
}
