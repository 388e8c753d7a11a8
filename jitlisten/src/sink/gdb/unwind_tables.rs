//! Unwind tables for the debug objects in our list: a copy of a debug object whose `.eh_frame` is the one in memory.
//!
//! ```text
//!   derived rules      for functions that the table in memory lacks
//!   live .eh_frame     relocated, at its own address, because its pointers are relative
//! ```
//!
//! Debug objects of the C API have an `.eh_frame` without contents, and debug objects of LLVM one with relocations.
//! Without contents, gdb cannot leave a function that lacks a frame pointer. To see the result:
//! `(gdb) maint print objfiles`, or `readelf --debug-dump=frames` on the debug object.

use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, SectionFlags, SectionHeader64};
use object::pod::bytes_of_slice;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::cfi::{self, FunctionRules};
use crate::{Address, AddressRange, Machine};

/// Size of the zero word at the end of an encoded table.
const TERMINATOR_BYTES: usize = 4;
/// Offsets of `e_shoff` and `e_shnum` in the file header.
const E_SHOFF: usize = 40;
const E_SHNUM: usize = 60;

/// Encoded unwind tables and the address that their pointers are relative to.
pub(super) struct UnwindTables {
    bytes: Vec<u8>,
    address: Address,
}

impl UnwindTables {
    /// Joins the `.eh_frame` in memory and derived rules. Returns `None` if there are neither. A malformed `.eh_frame`
    /// is omitted.
    pub(super) fn new(
        live: Option<(AddressRange, &[u8])>,
        derived: &[FunctionRules],
        machine: Machine,
    ) -> Option<Self> {
        let live = live.filter(|(range, bytes)| cfi::covered(bytes, range.start()).is_ok_and(|code| !code.is_empty()));
        if derived.is_empty() {
            let (range, bytes) = live?;
            return Some(UnwindTables { bytes: bytes.to_vec(), address: range.start() });
        }
        let Some((range, live_bytes)) = live else {
            let address = cfi::address_after(derived);
            return Some(UnwindTables { bytes: cfi::encode(derived, machine, address).ok()?, address });
        };
        // The size does not depend on the address.
        let size = cfi::encode(derived, machine, range.end()).ok()?.len() - TERMINATOR_BYTES;
        let address = Address(range.start().0.checked_sub(size as u64)?);
        let mut bytes = cfi::encode(derived, machine, address).ok()?;
        bytes.truncate(size);
        bytes.extend_from_slice(live_bytes);
        Some(UnwindTables { bytes, address })
    }

    /// Returns a copy of `debug_object` with these tables as its only `.eh_frame`; `None` if its section table cannot
    /// be parsed.
    ///
    /// The section is not loaded (no `SHF_ALLOC`), because with derived rules it may overlap other code.
    pub(super) fn add_to(&self, debug_object: &[u8]) -> Option<Vec<u8>> {
        // The ELF reader requires aligned structures.
        let aligned = debug_object.to_vec();
        let header = FileHeader64::<LE>::parse(&*aligned).ok()?;
        let sections = header.sections(LE, &*aligned).ok()?;
        let mut headers: Vec<SectionHeader64<LE>> = sections.iter().copied().collect();
        let mut out = debug_object.to_vec();
        let existing = sections.iter().position(|section| sections.section_name(LE, section) == Ok(b".eh_frame"));
        let index = match existing {
            Some(index) => index,
            None => {
                let names = headers.get_mut(header.shstrndx(LE, &*aligned).ok()? as usize)?;
                let mut section_names = names.data(LE, &*aligned).ok()?.to_vec();
                let sh_name = u32::try_from(section_names.len()).ok()?;
                section_names.extend_from_slice(b".eh_frame\0");
                names.sh_offset.set(LE, append(&mut out, &section_names));
                names.sh_size.set(LE, section_names.len() as u64);
                let mut eh_frame = *names;
                eh_frame.sh_name.set(LE, sh_name);
                headers.push(eh_frame);
                headers.len() - 1
            }
        };
        let offset = append(&mut out, &self.bytes);
        for section in &mut headers {
            let is_relocation = matches!(section.sh_type(LE), elf::SHT_RELA | elf::SHT_REL);
            if is_relocation && section.sh_info(LE) as usize == index {
                section.sh_type.set(LE, elf::SHT_NULL);
            }
        }
        let eh_frame = headers.get_mut(index)?;
        eh_frame.sh_type.set(LE, elf::SHT_PROGBITS);
        eh_frame.sh_flags.set(LE, SectionFlags(0));
        eh_frame.sh_addr.set(LE, self.address.0);
        eh_frame.sh_offset.set(LE, offset);
        eh_frame.sh_size.set(LE, self.bytes.len() as u64);
        let count = u16::try_from(headers.len()).ok().filter(|&count| count < elf::SHN_LORESERVE)?;
        let table = append(&mut out, bytes_of_slice(&headers));
        out.get_mut(E_SHOFF..E_SHOFF + 8)?.copy_from_slice(&table.to_le_bytes());
        out.get_mut(E_SHNUM..E_SHNUM + 2)?.copy_from_slice(&count.to_le_bytes());
        Some(out)
    }
}

/// Appends `bytes` at the next multiple of 8. Returns their offset.
fn append(out: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    out.resize(out.len().next_multiple_of(8), 0);
    let offset = out.len() as u64;
    out.extend_from_slice(bytes);
    offset
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;
    use crate::cfi::{Cfa, UnwindRow};
    use crate::producer::raw::{self, Code, Function};
    use crate::{LoadedObject, Offset};

    fn rules(start: u64) -> Vec<FunctionRules> {
        let rows = vec![UnwindRow { offset: Offset(0), cfa: Cfa { register: 7, offset: 24 }, saved: Vec::new() }];
        vec![FunctionRules { range: AddressRange::new(Address(start), 0x20).unwrap(), rows }]
    }

    /// Code ranges that the `.eh_frame` of an object describes.
    fn described(object: &[u8]) -> Vec<u64> {
        let file = object::File::parse(object).unwrap();
        let sections: Vec<_> = file.sections().filter(|section| section.name() == Ok(".eh_frame")).collect();
        let [section] = &sections[..] else { panic!("{} sections", sections.len()) };
        assert_eq!(section.relocations().count(), 0);
        let described = cfi::covered(section.data().unwrap(), Address(section.address())).unwrap();
        described.iter().map(|range| range.start().0).collect()
    }

    #[test]
    fn the_live_table_and_derived_rules_replace_a_section_without_contents() {
        let live_range = AddressRange::new(Address(0x6000), 0x100).unwrap();
        let live = cfi::encode(&rules(0x5000), Machine::X86_64, live_range.start()).unwrap();
        let code = AddressRange::new(Address(0x5000), 0x40).unwrap();
        let functions = [Function::new(code, b"alpha")];
        let plain = raw::encode(&Code::new(Machine::X86_64, &functions)).unwrap();
        let with_table = raw::encode(&Code::new(Machine::X86_64, &functions).eh_frame(live_range)).unwrap();
        for object in [&plain, &with_table] {
            for (live, derived, expected) in [
                (Some((live_range, &live[..])), vec![], vec![0x5000]),
                (None, rules(0x5020), vec![0x5020]),
                (Some((live_range, &live[..])), rules(0x5020), vec![0x5000, 0x5020]),
                (Some((live_range, &[9; 40][..])), rules(0x5020), vec![0x5020]),
            ] {
                let tables = UnwindTables::new(live, &derived, Machine::X86_64).unwrap();
                let rewritten = tables.add_to(object).unwrap();
                assert_eq!(described(&rewritten), expected);
                assert_eq!(LoadedObject::parse(&rewritten).unwrap().functions().len(), 1);
            }
        }
        assert!(UnwindTables::new(Some((live_range, &[9; 40])), &[], Machine::X86_64).is_none());
        for length in 0..plain.len() {
            let tables = UnwindTables::new(None, &rules(0x5020), Machine::X86_64).unwrap();
            let _ = tables.add_to(&plain[..length]);
        }
    }

    #[test]
    fn relocations_of_llvms_table_are_dropped() {
        let object = include_bytes!("../../../testdata/numba-0.68-llvm22-plain.o");
        let tables = UnwindTables::new(None, &rules(0x5020), Machine::X86_64).unwrap();
        assert_eq!(described(&tables.add_to(object).unwrap()), [0x5020]);
    }
}
