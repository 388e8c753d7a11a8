//! Any bytes as a debug object: the image made of it, if one is, satisfies a strict reader.

#![no_main]

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, UnwindSection as _};
use jitlisten::plumbing::fuzzing::{Image, images};
use jitlisten::options::NameStyle;
use jitlisten::{LineRows, LoadedObject};
use libfuzzer_sys::fuzz_target;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Object as _, ObjectSymbol as _};

fuzz_target!(|data: &[u8]| {
    // The object's own first bytes are always the same, so the last one chooses.
    let choice = data.last().copied().unwrap_or(0);
    let style = if choice & 0x80 == 0 { NameStyle::Readable } else { NameStyle::Linkage };
    for image in images(data, choice & 3, style) {
        segments(&image);
        sections(&image);
        symbols(&image);
        unwind(&image);
        // Whatever the debug information was, reading it again ends.
        let _ = (LineRows::parse(&image.file), LoadedObject::parse(&image.file));
    }
});

/// One linear segment with the code byte for byte, and nothing else that is mapped.
fn segments(image: &Image) {
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
        let at = text.start().0.wrapping_sub(image.bias) as usize;
        let inside = (text.start().0 - (image.bias.wrapping_add(image.code))) as usize;
        let size = text.size() as usize;
        assert_eq!(image.file[at..at + size], image.pages[inside..inside + size], "code is what it was");
    }
    for program in programs {
        let end = program.p_offset(LE).checked_add(program.p_filesz(LE)).expect("no overflow");
        assert!(end <= image.file.len() as u64);
    }
}

/// Inside the file, sorted by address where they have one, none over another.
fn sections(image: &Image) {
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

/// Every function by its shown name, inside a text section; local symbols first.
fn symbols(image: &Image) {
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let globals: Vec<_> = elf.symbols().filter(|symbol| symbol.is_global()).collect();
    assert_eq!(globals.len(), image.functions.len());
    for (symbol, (range, name)) in globals.iter().zip(&image.functions) {
        assert_eq!(symbol.address(), range.start().0.wrapping_sub(image.bias));
        assert_eq!((symbol.size(), symbol.name_bytes().expect("a name")), (range.size(), name.as_bytes()));
        let section =
            elf.elf_section_table().section(symbol.section_index().expect("a section")).expect("that section");
        let inside = symbol.address().checked_sub(section.sh_addr(LE)).expect("behind its start");
        assert!(inside + symbol.size() <= section.sh_size(LE));
    }
    let binds: Vec<bool> = elf.elf_symbol_table().iter().map(|symbol| symbol.st_bind() == elf::STB_LOCAL).collect();
    assert!(binds.is_sorted_by(|one, other| one >= other), "local symbols come first");
}

/// The search table is sorted, and each entry leads to the rules it promises.
fn unwind(image: &Image) {
    let Some((hdr_at, eh_frame_at)) = image.unwind else { return };
    let elf = ElfFile64::<LE>::parse(&*image.file).expect("an ELF file");
    let bytes = |name: &[u8]| {
        let table = elf.elf_section_table();
        let (_, section) = table.section_by_name(LE, name)?;
        Some(section.data(LE, &*image.file).expect("its bytes"))
    };
    let (Some(hdr), Some(eh_frame)) = (bytes(b".eh_frame_hdr"), bytes(b".eh_frame")) else { return };
    let bases = BaseAddresses::default().set_eh_frame(eh_frame_at).set_eh_frame_hdr(hdr_at);
    let hdr = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).expect("a header");
    assert_eq!(hdr.eh_frame_ptr(), gimli::Pointer::Direct(eh_frame_at));
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let mut fdes = 0;
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("every entry can be read") {
        fdes += usize::from(matches!(entry, CieOrFde::Fde(_)));
    }
    let Some(table) = hdr.table() else { return };
    let mut rows = table.iter(&bases);
    let (mut count, mut last) = (0, None);
    while let Some((start, fde)) = rows.next().expect("a row") {
        let (gimli::Pointer::Direct(start), gimli::Pointer::Direct(fde)) = (start, fde) else { panic!("indirect") };
        let offset = gimli::EhFrameOffset((fde - eh_frame_at) as usize);
        let fde = section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).expect("an entry");
        assert_eq!(fde.initial_address(), start);
        assert!(image.code <= start && start < image.code_end, "an entry about other code");
        // By distance from the header, as a 32-bit number: that is how it is searched.
        let distance = start.wrapping_sub(hdr_at) as i32;
        assert!(last.is_none_or(|last| last <= distance), "the search table is not sorted");
        last = Some(distance);
        count += 1;
    }
    assert_eq!(count, fdes, "every entry is in the table");
}
