//! Code ranges covered by an `.eh_frame`.

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindSection,
};
use unwind_register::RuleChecker;

use crate::{Address, AddressRange, Error, TableProblem};

/// Returns the code ranges of all FDEs in `eh_frame`, sorted. `address` is the address of the first byte of `eh_frame`.
/// Empty ranges, and ranges of discarded code (start 0), are omitted. Stops at the terminator or at the end of the
/// bytes.
///
/// # Errors
/// If an entry is malformed.
pub fn covered(eh_frame: &[u8], address: Address) -> Result<Vec<AddressRange>, Error> {
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    Ok(ranges(section, address, |_, _, _| Ok(()))?)
}

/// Same as [`covered`], but also checks that unwinders can follow the rules of every FDE. Includes empty ranges.
///
/// # Errors
/// If an entry or a rule is malformed or unsupported.
pub(crate) fn validate(eh_frame: &[u8], address: Address) -> Result<Vec<AddressRange>, TableProblem> {
    let (mut checker, mut empty) = (RuleChecker::default(), Vec::new());
    let section = checker.section(eh_frame);
    let mut covered = ranges(section, address, |fde, section, bases| {
        let version = fde.cie().version();
        // Version 4 has other fields in `.eh_frame` than in `.debug_frame`, and unwinders do not agree on them.
        if !matches!(version, 1 | 3) {
            return Err(gimli::Error::UnknownVersion(version.into()));
        }
        if fde.cie().fde_address_encoding().is_some_and(gimli::DwEhPe::is_indirect) {
            return Err(gimli::Error::UnsupportedIndirectPointer);
        }
        let range = AddressRange::new(Address(fde.initial_address()), fde.len());
        let range = range.ok_or(gimli::Error::AddressOverflow)?;
        empty.extend(range.is_empty().then_some(range));
        checker.check(fde, section, bases)
    })?;
    covered.append(&mut empty);
    covered.sort();
    Ok(covered)
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Fde<'a> = FrameDescriptionEntry<Reader<'a>>;

fn ranges<'a>(
    section: EhFrame<Reader<'a>>,
    address: Address,
    mut check: impl FnMut(&Fde<'a>, &EhFrame<Reader<'a>>, &BaseAddresses) -> gimli::Result<()>,
) -> gimli::Result<Vec<AddressRange>> {
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
