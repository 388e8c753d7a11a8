//! The code that a live `.eh_frame` covers.

use gimli::{BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, LittleEndian, UnwindSection};

use crate::{Address, AddressRange, Error};

/// The ranges of all FDEs in `eh_frame`, whose first byte is mapped at `address`; sorted, empty ones and those of code
/// that was dropped (start 0) left out. Ends at the terminator or where the bytes do.
///
/// # Errors
/// When an entry cannot be read.
pub fn covered(eh_frame: &[u8], address: Address) -> Result<Vec<AddressRange>, Error> {
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(address.0);
    let mut found = Vec::new();
    let mut entries = section.entries(&bases);
    // Mostly there is one, for all.
    let mut latest: Option<CommonInformationEntry<EndianSlice<'_, LittleEndian>>> = None;
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(known) = latest.as_ref().filter(|known| known.offset() == offset.0) {
                return Ok(known.clone());
            }
            let found = section.cie_from_offset(bases, offset)?;
            latest = Some(found.clone());
            Ok(found)
        })?;
        let range = AddressRange::new(Address(fde.initial_address()), fde.len());
        found.extend(range.filter(|range| !range.is_empty() && range.start() != Address(0)));
    }
    found.sort();
    Ok(found)
}
