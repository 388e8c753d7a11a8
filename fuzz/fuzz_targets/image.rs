//! Fuzz target that parses arbitrary bytes as a debug object. A strict reader must accept each image made from one.

#![no_main]

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, UnwindSection as _};
use jitlisten::options::NameStyle;
use jitlisten::plumbing::fuzzing::{Image, images};
use jitlisten::{LineRows, LoadedObject};
use libfuzzer_sys::fuzz_target;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Object as _, ObjectSymbol as _};

fuzz_target!(|data: &[u8]| {
    // The last byte selects padding and name style, because the first bytes are always the ELF magic number.
    let choice = data.last().copied().unwrap_or(0);
    let style = if choice & 0x80 == 0 { NameStyle::Readable } else { NameStyle::Linkage };
    for image in images(data, choice & 3, style) {
        check_segments(&image);
        check_sections(&image);
        check_symbols(&image);
        check_unwind_tables(&image);
        // Parsing the image again must terminate, regardless of its debug information.
        let _ = (LineRows::parse(&image.file), LoadedObject::parse(&image.file));
    }
});

/// Checks that a single segment maps exactly the bytes of the code, and nothing else.
fn check_segments(image: &Image) {
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let header = elf.elf_header();
    assert_eq!(header.e_type(LE), elf::ET_DYN);
    let programs = header.program_headers(LE, &*image.file).expect("program headers");
    let loads: Vec<_> = programs.iter().filter(|program| program.p_type(LE) == elf::PT_LOAD).collect();
    let [load] = loads[..] else { panic!("{} segments", loads.len()) };
    assert_eq!((load.p_offset(LE), load.p_vaddr(LE)), (image.mapped, image.mapped));
    assert_eq!(image.mapped + load.p_filesz(LE), image.code_end);
    assert_eq!(load.p_filesz(LE), load.p_memsz(LE));
    assert_eq!((image.mapped % 0x1000, image.code % 0x1000, image.code_end % 0x1000), (0, 0, 0));
    for text in &image.text {
        let file_offset = text.start().0.wrapping_sub(image.bias) as usize;
        let page_offset = (text.start().0 - (image.bias.wrapping_add(image.code))) as usize;
        let size = text.size() as usize;
        assert_eq!(
            image.file[file_offset..file_offset + size],
            image.pages[page_offset..page_offset + size],
            "code is what it was"
        );
    }
    for program in programs {
        let end = program.p_offset(LE).checked_add(program.p_filesz(LE)).expect("no overflow");
        assert!(end <= image.file.len() as u64);
    }
}

/// Checks that sections lie inside the file and do not overlap, and that the address of allocated sections equals their
/// offset.
fn check_sections(image: &Image) {
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let table = elf.elf_section_table();
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for section in table.iter().skip(1) {
        table.section_name(LE, section).expect("a name");
        let (offset, size) = (section.sh_offset(LE), section.sh_size(LE));
        let end = offset.checked_add(size).expect("no overflow");
        assert!(end <= image.file.len() as u64, "a section leaves the file");
        if section.sh_flags(LE).0 & elf::SHF_ALLOC.0 != 0 {
            assert_eq!(section.sh_addr(LE), offset);
            assert!(image.mapped <= offset && end <= image.code_end, "an allocated section is mapped");
        }
        if size > 0 {
            extents.push((offset, end));
        }
    }
    extents.sort_unstable();
    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "sections overlap: {extents:x?}");
    assert_eq!(elf.build_id().expect("a readable note"), Some(&[0x5a; 20][..]));
}

/// Checks that every function has a symbol with its display name, inside a text section and after the local symbols.
fn check_symbols(image: &Image) {
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let globals: Vec<_> = elf.symbols().filter(|symbol| symbol.is_global()).collect();
    assert_eq!(globals.len(), image.functions.len());
    for (symbol, (range, name)) in globals.iter().zip(&image.functions) {
        assert_eq!(symbol.address(), range.start().0.wrapping_sub(image.bias));
        assert_eq!((symbol.size(), symbol.name_bytes().expect("a name")), (range.size(), name.as_bytes()));
        let section =
            elf.elf_section_table().section(symbol.section_index().expect("a section")).expect("that section");
        let offset = symbol.address().checked_sub(section.sh_addr(LE)).expect("behind its start");
        assert!(offset + symbol.size() <= section.sh_size(LE));
    }
    let is_local: Vec<bool> = elf.elf_symbol_table().iter().map(|symbol| symbol.st_bind() == elf::STB_LOCAL).collect();
    assert!(is_local.is_sorted_by(|previous, next| previous >= next), "local symbols come first");
}

/// Checks that the search table is sorted, and that each of its entries leads to the rules of its function.
fn check_unwind_tables(image: &Image) {
    let Some((hdr_address, eh_frame_address)) = image.unwind else { return };
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let section_data = |name: &[u8]| {
        let table = elf.elf_section_table();
        let (_, section) = table.section_by_name(LE, name)?;
        Some(section.data(LE, &*image.file).expect("its bytes"))
    };
    let (Some(hdr), Some(eh_frame)) = (section_data(b".eh_frame_hdr"), section_data(b".eh_frame")) else { return };
    let bases = BaseAddresses::default().set_eh_frame(eh_frame_address).set_eh_frame_hdr(hdr_address);
    let hdr = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).expect("a header");
    assert_eq!(hdr.eh_frame_ptr(), gimli::Pointer::Direct(eh_frame_address));
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let mut fdes = 0;
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("every entry can be read") {
        fdes += usize::from(matches!(entry, CieOrFde::Fde(_)));
    }
    let Some(table) = hdr.table() else { return };
    let mut rows = table.iter(&bases);
    let (mut row_count, mut previous) = (0, None);
    while let Some((start, fde)) = rows.next().expect("a row") {
        let (gimli::Pointer::Direct(start), gimli::Pointer::Direct(fde)) = (start, fde) else { panic!("indirect") };
        let offset = gimli::EhFrameOffset((fde - eh_frame_address) as usize);
        let fde = section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).expect("an entry");
        assert_eq!(fde.initial_address(), start);
        assert!(image.code <= start && start < image.code_end, "an entry about other code");
        // The header stores distances as 32-bit numbers, which readers compare.
        let distance = start.wrapping_sub(hdr_address) as i32;
        assert!(previous.is_none_or(|previous| previous <= distance), "the search table is not sorted");
        previous = Some(distance);
        row_count += 1;
    }
    assert_eq!(row_count, fdes, "every entry is in the table");
}
