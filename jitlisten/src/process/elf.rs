//! ELF structures of this machine, read without allocation from bytes that may be unaligned or malformed. Fields and
//! constants are those of [`object::elf`].

use object::LittleEndian;
use object::elf::{
    Dyn64, ET_DYN, ET_EXEC, FileHeader64, Machine, NoteHeader32, PT_INTERP, ProgramHeader64, SectionHeader64, Sym64,
};
use object::pod::{self, Pod};

/// `Elf64_Ehdr`; this and the other structures are little-endian.
pub type FileHeader = FileHeader64<LittleEndian>;
/// `Elf64_Phdr`
pub type ProgramHeader = ProgramHeader64<LittleEndian>;
/// `Elf64_Shdr`
pub type SectionHeader = SectionHeader64<LittleEndian>;
/// `Elf64_Sym`
pub type Symbol = Sym64<LittleEndian>;
/// `Elf64_Dyn`
pub type Dynamic = Dyn64<LittleEndian>;
/// `Elf64_Nhdr`, identical to `Elf32_Nhdr`.
pub type NoteHeader = NoteHeader32<LittleEndian>;

/// Endianness argument for reading the fields.
pub const LE: LittleEndian = LittleEndian;

/// Machine of this build, as an `e_machine` value.
pub const THIS_MACHINE: Machine =
    if cfg!(target_arch = "aarch64") { object::elf::EM_AARCH64 } else { object::elf::EM_X86_64 };

/// Reads the structure at offset `at`. No structure may be larger than a file header.
pub fn structure<T: Pod>(bytes: &[u8], offset: usize) -> Option<T> {
    let mut aligned_words = [0_u64; size_of::<FileHeader>() / size_of::<u64>()];
    let copy = pod::bytes_of_slice_mut(&mut aligned_words).get_mut(..size_of::<T>())?;
    copy.copy_from_slice(bytes.get(offset..offset.checked_add(size_of::<T>())?)?);
    pod::from_bytes::<T>(copy).ok().map(|(value, _)| *value)
}

/// Reads the header of a 64-bit little-endian file.
pub fn file_header(bytes: &[u8]) -> Option<FileHeader> {
    bytes.starts_with(b"\x7fELF\x02\x01\x01").then(|| structure(bytes, 0))?
}

/// Reads consecutive structures; an incomplete last one is skipped.
pub fn structures<T: Pod>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).filter_map(|bytes| structure(bytes, 0))
}

/// Returns the path of the loader that a program names (`PT_INTERP`); empty if it names none, as a static program does.
/// `None` if `first_bytes` lacks the program headers or the path, or if the file is not a program.
pub fn loader_path(first_bytes: &[u8]) -> Option<&[u8]> {
    let header = file_header(first_bytes).filter(|header| matches!(header.e_type.get(LE), ET_EXEC | ET_DYN))?;
    let (offset, count) = (usize::try_from(header.e_phoff.get(LE)).ok()?, usize::from(header.e_phnum.get(LE)));
    let table = first_bytes.get(offset..offset.checked_add(count * size_of::<ProgramHeader>())?)?;
    let Some(entry) = structures::<ProgramHeader>(table).find(|entry| entry.p_type.get(LE) == PT_INTERP) else {
        return (count > 0).then_some(&[]);
    };
    let (start, size) = (usize::try_from(entry.p_offset.get(LE)).ok()?, usize::try_from(entry.p_filesz.get(LE)).ok()?);
    first_bytes.get(start..start.checked_add(size)?)?.strip_suffix(b"\0")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use object::elf::DT_STRTAB;

    use super::*;

    #[test]
    fn structures_are_read_at_any_offset_and_only_whole() {
        let mut bytes = vec![0; 1];
        bytes.extend(pod::bytes_of(&Dynamic { d_tag: DT_STRTAB.into(), d_val: 7.into() }));
        let read = structure::<Dynamic>(&bytes, 1).map(|entry| (entry.d_tag.get(LE), entry.d_val.get(LE)));
        assert_eq!(read, Some((DT_STRTAB, 7)));
        assert!(structure::<Dynamic>(&bytes, 2).is_none() && structure::<Dynamic>(&bytes, usize::MAX).is_none());
        assert_eq!(structures::<Dynamic>(&bytes).count(), 1);
        assert!(file_header(b"\x7fELF\x02\x01\x01").is_none());
    }

    #[test]
    fn a_program_names_its_loader() {
        let own_program = fs::read("/proc/self/exe").unwrap();
        let loader = loader_path(&own_program).unwrap();
        assert!(loader.starts_with(b"/") && loader.windows(4).any(|part| part == b"/ld-"));
        // The same program without the entry, with another type, and cut off.
        let table = file_header(&own_program).unwrap().e_phoff.get(LE) as usize;
        let index =
            structures::<ProgramHeader>(&own_program[table..]).position(|entry| entry.p_type.get(LE) == PT_INTERP);
        let entry = table + index.unwrap() * size_of::<ProgramHeader>();
        let changed = |offset: usize, value: u8| {
            let mut program = own_program.clone();
            program[offset] = value;
            program
        };
        assert_eq!(loader_path(&changed(entry, 0)), Some(&[][..]), "static");
        assert_eq!(loader_path(&changed(16, 1)), None, "an object file");
        assert_eq!(loader_path(&own_program[..entry]), None);
        assert_eq!(loader_path(b"#!/bin/sh\n"), None);
    }
}
