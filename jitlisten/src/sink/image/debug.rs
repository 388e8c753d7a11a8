//! The DWARF of a debug object, with its relocations applied for the addresses of an image.

#![forbid(unsafe_code)]

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::FileHeader as _;

use crate::Error;
use crate::loaded_object::relocate::relocated_sections;

/// A `.debug_*` section.
pub(crate) struct DebugSection {
    pub(crate) name: Box<str>,
    pub(crate) bytes: Vec<u8>,
}

/// Offset of `sh_addr` in a section header.
const SH_ADDR: usize = 16;

/// Every `.debug_*` section, with addresses that have lost `bias`.
///
/// # Errors
/// When the object cannot be read, or has a relocation of unknown type.
pub(crate) fn sections(debug_object: &[u8], bias: u64) -> Result<Vec<DebugSection>, Error> {
    // Every relocation is a sum over `sh_addr`, so it is `sh_addr` that loses it.
    let mut moved = debug_object.to_vec();
    let header = *elf::FileHeader64::<LE>::parse(&*moved)?;
    let start = usize::try_from(header.e_shoff(LE)).unwrap_or(usize::MAX);
    for index in 0..usize::from(header.e_shnum(LE)) {
        let at = start.saturating_add(index * size_of::<elf::SectionHeader64<LE>>() + SH_ADDR);
        let Some(field) = at.checked_add(8).and_then(|end| moved.get_mut(at..end)) else { break };
        let address = u64::from_le_bytes(field.try_into().unwrap_or_default());
        if address != 0 {
            field.copy_from_slice(&address.wrapping_sub(bias).to_le_bytes());
        }
    }
    let sections = relocated_sections(&moved)?.into_iter();
    Ok(sections.map(|(name, bytes)| DebugSection { name, bytes: bytes.into_owned() }).collect())
}
