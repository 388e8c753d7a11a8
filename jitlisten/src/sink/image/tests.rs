//! Images of real objects, checked with independent readers.

use gimli::write::{
    Address as WriteAddress, CallFrameInstruction, CommonInformationEntry, EndianVec, FrameDescriptionEntry, FrameTable,
};
use gimli::{
    BaseAddresses, DwEhPe, EhFrame, EhFrameHdr, Encoding, EndianSlice, Format, LittleEndian, UnwindContext,
    UnwindSection, UnwindTableRow,
};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{
    LittleEndian as LE, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget, elf,
};

use super::content::{Content, Part, page_runs};
use super::encode::{Encoded, encode};
use super::layout::UnwindSections;
use crate::loaded_object::external::{ReferenceKind, references};
use crate::name::{self, ReadableName};
use crate::options::NameStyle;
use crate::{Address, AddressRange, LineRows, LoadedObject, cfi};

const PAGE: u64 = 0x1000;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Object in memory, as relocated by LLVM.
struct LiveObject {
    debug_object: Vec<u8>,
    object: LoadedObject,
    names: Vec<ReadableName>,
    eh_frame: Vec<u8>,
}

impl LiveObject {
    fn load(file: &str) -> LiveObject {
        LiveObject::load_moved(file, |address| address)
    }

    /// Loads an object with section addresses chosen by `new_address`.
    fn load_moved(file: &str, new_address: impl Fn(u64) -> u64) -> LiveObject {
        let path = format!("{}/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut debug_object = std::fs::read(path).unwrap();
        let header = *elf::FileHeader64::<LE>::parse(&*debug_object).unwrap();
        for index in 0..usize::from(header.e_shnum(LE)) {
            let offset = header.e_shoff(LE) as usize + index * size_of::<elf::SectionHeader64<LE>>() + 16;
            let address = u64::from_le_bytes(debug_object[offset..offset + 8].try_into().unwrap());
            if address != 0 {
                debug_object[offset..offset + 8].copy_from_slice(&new_address(address).to_le_bytes());
            }
        }
        let object = LoadedObject::parse(&debug_object).unwrap();
        let functions = object.functions().iter();
        let names = functions.map(|function| name::readable(&function.linkage_name, None)).collect();
        let eh_frame = relocate_section(&debug_object, ".eh_frame");
        LiveObject { debug_object, object, names, eh_frame }
    }

    fn code(&self, pages: AddressRange) -> Vec<u8> {
        let file = ElfFile64::<LE>::parse(&*self.debug_object).unwrap();
        let mut code = vec![0; pages.size() as usize];
        for text in self.object.text().iter().filter(|text| pages.covers(text.range)) {
            let section = file.sections().find(|section| section.address() == text.range.start().0).unwrap();
            let offset = (text.range.start().0 - pages.start().0) as usize;
            code[offset..offset + text.range.size() as usize].copy_from_slice(section.data().unwrap());
        }
        code
    }

    fn part(&self) -> Part<'_> {
        Part {
            object: &self.object,
            names: &self.names,
            eh_frame: self.object.eh_frame().map(|range| (range, self.eh_frame.as_slice().into())),
            derived_rules: &[],
            debug_object: Some(&self.debug_object),
        }
    }

    fn encode(&self, pages: AddressRange, padding: u64) -> Encoded {
        let code = self.code(pages);
        let (style, build_id) = (NameStyle::Readable, [0x5a; 20]);
        encode(&Content { parts: vec![self.part()], style, pages, code: &code, padding, build_id }, PAGE).unwrap()
    }
}

/// Applies the relocations of LLVM's `RuntimeDyld` to a section.
fn relocate_section(debug_object: &[u8], name: &str) -> Vec<u8> {
    let file = ElfFile64::<LE>::parse(debug_object).unwrap();
    let Some(section) = file.section_by_name(name) else { return Vec::new() };
    let mut bytes = section.data().unwrap().to_vec();
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else { panic!("no symbol") };
        let symbol = file.symbol_by_index(index).unwrap();
        let base = symbol.section_index().map_or(0, |index| file.section_by_index(index).unwrap().address());
        let value = base.wrapping_add(symbol.address()).wrapping_add(relocation.addend() as u64);
        let value = value.wrapping_sub(section.address() + offset);
        let size = match relocation.flags() {
            // The `object` crate reports no size for this relocation.
            RelocationFlags::Elf { r_type } if r_type == elf::R_X86_64_PC64 => 8,
            _ => usize::from(relocation.size() / 8),
        };
        assert_ne!(size, 0, "{relocation:?}");
        let offset = offset as usize;
        bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

const OBJECT_FILES: [&str; 16] = [
    "numba-0.57-llvm14-plain.o",
    "numba-0.60-llvm14-dwarf4.o",
    "numba-0.68-llvm22-dwarf4.o",
    "numba-0.68-llvm22-kernel-dwarf4.o",
    "lli-14-mcjit-dwarf4.o",
    "lli-22-mcjit-dwarf5-large.o",
    "lli-22-jitlink-dwarf5.o",
    "clang-22-aarch64-dwarf5.o",
    "zig-clang-12-dwarf4.o",
    "lli-13-mcjit-dwarf4.o",
    "lli-15-mcjit-dwarf5.o",
    "lli-16-mcjit-dwarf5.o",
    "zig-clang-17-dwarf5.o",
    "zig-clang-18-dwarf5.o",
    "lli-19-mcjit-dwarf5.o",
    "llvmlite-0.45-llvm20-dwarf5.o",
];

/// Calls `check` for each page run of each object, with and without header padding.
fn check_all_images(check: impl Fn(&str, &LiveObject, AddressRange, &Encoded)) {
    for file in OBJECT_FILES {
        let live = LiveObject::load(file);
        let all_runs = page_runs(&live.object, PAGE);
        assert!(!all_runs.is_empty(), "{file} has text");
        for pages in all_runs {
            for padding in [0, PAGE] {
                check(file, &live, pages, &live.encode(pages, padding));
            }
        }
    }
}

#[test]
fn code_has_the_same_bytes_and_addresses_as_in_memory() {
    check_all_images(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let header = elf.elf_header();
        let loads = header.program_headers(LE, &*image.bytes).unwrap().iter();
        let loads: Vec<_> = loads.filter(|header| header.p_type(LE) == elf::PT_LOAD).collect();
        assert_eq!(loads.len(), 1, "{file}");
        assert_eq!(loads[0].p_offset(LE), loads[0].p_vaddr(LE), "{file}");
        let code = live.code(pages);
        for text in live.object.text().iter().filter(|text| pages.covers(text.range)) {
            let section_address = text.range.start().0.wrapping_sub(image.layout.bias);
            let section =
                elf.sections().find(|section| section.address() == section_address && section.size() > 0).unwrap();
            let offset = (text.range.start().0 - pages.start().0) as usize;
            assert_eq!(section.data().unwrap(), &code[offset..offset + text.range.size() as usize], "{file}");
        }
    });
}

#[test]
fn every_function_has_its_readable_and_linkage_names() {
    check_all_images(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let functions = live.object.functions().iter().zip(&live.names);
        for (function, readable) in functions.filter(|(function, _)| pages.covers(function.range)) {
            let address = function.range.start().0.wrapping_sub(image.layout.bias);
            let symbols: Vec<_> = elf.symbols().filter(|symbol| symbol.address() == address).collect();
            let global: Vec<_> = symbols.iter().filter(|symbol| symbol.is_global()).collect();
            assert_eq!(global.len(), 1, "{file}");
            assert_eq!(global[0].name().unwrap(), readable.text, "{file}");
            assert_eq!(global[0].size(), function.range.size(), "{file}");
            assert!(symbols.iter().any(|symbol| symbol.name() == Ok(&function.linkage_name)), "{file}");
        }
        assert_eq!(elf.build_id().unwrap().unwrap(), [0x5a; 20]);
    });
}

#[test]
fn lines_equal_those_of_the_object() {
    check_all_images(|file, live, pages, image| {
        let expected = LineRows::parse(&live.debug_object).unwrap();
        let actual = LineRows::parse(&image.bytes).unwrap();
        assert_eq!(expected.rows().len(), actual.rows().len(), "{file}");
        for row in expected.rows().iter().filter(|row| pages.contains(row.address) && !row.end_sequence) {
            let address = Address(row.address.0.wrapping_sub(image.layout.bias));
            assert_eq!(actual.find(address), expected.find(row.address), "{file} {}", row.address);
        }
    });
}

/// Returns the start of the function at an address, and the unwind row for the address.
fn unwind_row<'a>(
    section: &EhFrame<Slice<'a>>,
    bases: &BaseAddresses,
    table: Option<&gimli::ParsedEhFrameHdr<Slice<'a>>>,
    address: u64,
) -> Option<(u64, UnwindTableRow<usize>)> {
    let cie = |section: &EhFrame<_>, bases: &BaseAddresses, offset| section.cie_from_offset(bases, offset);
    let fde = match table {
        Some(table) => table.table()?.fde_for_address(section, bases, address, cie),
        None => section.fde_for_address(bases, address, cie),
    };
    let fde = fde.ok()?;
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    Some((fde.initial_address(), row.clone()))
}

#[test]
fn the_search_table_finds_the_live_rules_at_every_byte() {
    check_all_images(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let Some(range) = live.object.eh_frame() else { return };
        let expected_section = EhFrame::new(&live.eh_frame, LittleEndian);
        let expected_bases = BaseAddresses::default().set_eh_frame(range.start().0);
        let section = elf.section_by_name(".eh_frame").unwrap();
        let image_section = EhFrame::new(section.data().unwrap(), LittleEndian);
        let UnwindSections::Mapped { hdr, eh_frame } = image.layout.unwind else { panic!("{file}: no place") };
        let image_bases = BaseAddresses::default().set_eh_frame(eh_frame).set_eh_frame_hdr(hdr);
        let table = elf.section_by_name(".eh_frame_hdr").unwrap();
        let table = EhFrameHdr::new(table.data().unwrap(), LittleEndian).parse(&image_bases, 8).unwrap();
        let mut compared = 0;
        for function in live.object.functions().iter().filter(|function| pages.covers(function.range)) {
            for address in function.range.start().0..function.range.end().0 {
                let Some((start, expected)) = unwind_row(&expected_section, &expected_bases, None, address) else {
                    continue;
                };
                let offset = address.wrapping_sub(image.layout.bias);
                let (actual_start, actual) = unwind_row(&image_section, &image_bases, Some(&table), offset).unwrap();
                assert_eq!(actual_start, start.wrapping_sub(image.layout.bias), "{file}");
                assert_eq!(actual.cfa(), expected.cfa(), "{file} {address:#x}");
                assert_eq!(actual.registers().collect::<Vec<_>>(), expected.registers().collect::<Vec<_>>(), "{file}");
                compared += 1;
            }
        }
        let covered = cfi::covered(&live.eh_frame, range.start()).unwrap();
        assert!(compared > 0 && covered.iter().any(|fde| pages.covers(*fde)), "{file}");
    });
}

#[test]
fn unmapped_unwind_tables_have_no_program_header() {
    let live = LiveObject::load("lli-14-mcjit-dwarf4.o");
    let pages = page_runs(&live.object, PAGE)[0];
    let mut code = live.code(pages);
    // A non-zero last byte leaves no space for unwind tables after the text.
    *code.last_mut().unwrap() = 0xcc;
    let parts = vec![Part { debug_object: None, ..live.part() }];
    let content = Content { parts, style: NameStyle::Linkage, pages, code: &code, padding: 0, build_id: [1; 20] };
    let image = encode(&content, PAGE).unwrap();
    assert!(matches!(image.layout.unwind, UnwindSections::FileOnly { .. }));
    let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
    assert!(elf.section_by_name(".eh_frame").is_some());
    assert!(elf.section_by_name(".eh_frame_hdr").is_none());
    assert_eq!(image.bytes[image.layout.code_end as usize - 1], 0xcc);
}

/// C++ code far from its runtime has 64-bit pointers to the personality routine and to each function's LSDA.
#[test]
fn distant_personality_routines_do_not_prevent_tables() {
    let mut live = LiveObject::load("lli-14-mcjit-dwarf4.o");
    let far_address = WriteAddress::Constant(0x10_0000);
    let mut cie = build_cie();
    cie.personality = Some((gimli::DW_EH_PE_absptr, far_address));
    cie.lsda_encoding = Some(gimli::DW_EH_PE_absptr);
    let functions: Vec<AddressRange> = live.object.functions().iter().map(|function| function.range).collect();
    live.eh_frame = build_eh_frame(&live, cie, &functions, Some(far_address));
    let (bias, actual) = read_search_table(&live);
    let expected: Vec<_> = functions.iter().map(|range| (range.start().0.wrapping_sub(bias), RETURN_ADDRESS)).collect();
    assert_eq!(actual, expected);
}

/// In CIE version 1, the return address register is a single byte, not LEB128.
#[test]
fn the_return_address_register_is_kept() {
    let mut live = LiveObject::load("lli-14-mcjit-dwarf4.o");
    let functions: Vec<AddressRange> = live.object.functions().iter().map(|function| function.range).collect();
    live.eh_frame = build_eh_frame(&live, build_cie(), &functions, None);
    // The register follows length, CIE ID, version, "zR" and the two factors. (gimli's writer emits LEB128 even here.)
    assert_eq!(live.eh_frame[8..15], [1, b'z', b'R', 0, 1, 0x78, 16]);
    live.eh_frame[14] = 200;
    let (_, actual) = read_search_table(&live);
    assert_eq!(actual.len(), functions.len());
    assert!(actual.iter().all(|(_, actual)| actual.0 == 200), "{actual:?}");
}

/// Entries that start before the pages or end after them do not describe code in the pages.
#[test]
fn entries_for_other_code_are_omitted() {
    let mut live = LiveObject::load("lli-14-mcjit-dwarf4.o");
    let pages = page_runs(&live.object, PAGE)[0];
    let function = live.object.functions()[0].range;
    let range = |start: u64, size| AddressRange::new(Address(start), size).unwrap();
    let starts_before = range(pages.start().0 - 0x10, 0x20);
    let starts_far_before = range(pages.start().0 - 0x7000_0000, 0x7000_0010);
    let ends_after = range(pages.end().0 - 0x10, 0x20);
    live.eh_frame = build_eh_frame(&live, build_cie(), &[starts_before, function, starts_far_before, ends_after], None);
    let (bias, actual) = read_search_table(&live);
    assert_eq!(actual, [(function.start().0.wrapping_sub(bias), RETURN_ADDRESS)]);
}

#[test]
fn functions_outside_of_the_image_have_their_names() {
    let callees = |file: &str| {
        let live = LiveObject::load(file);
        let pages = page_runs(&live.object, PAGE)[0];
        let mut code = live.code(pages);
        for reference in references(&live.debug_object).unwrap() {
            let offset = (reference.field.0 - pages.start().0) as usize;
            if reference.kind == ReferenceKind::Address {
                code[offset..offset + 8].copy_from_slice(&0x7f12_3456_u64.to_le_bytes());
            }
        }
        let (parts, style) = (vec![live.part()], NameStyle::Readable);
        let content = Content { parts, style, pages, code: &code, padding: PAGE, build_id: [7; 20] };
        let encoded = encode(&content, PAGE).unwrap();
        let image = ElfFile64::<LE>::parse(&*encoded.bytes).unwrap();
        let section = image.section_by_name(".jitlisten.callees").unwrap().data().unwrap();
        let text = String::from_utf8(section.to_vec()).unwrap();
        assert_eq!(text.lines().count(), text.lines().collect::<std::collections::BTreeSet<_>>().len());
        (text, encoded)
    };
    let (text, _) = callees("numba-0.68-llvm22-plain.o");
    assert!(text.lines().any(|line| line == "to 7f123456 PyErr_SetString"), "{text}");
    let (text, encoded) = callees("lli-22-jitlink-dwarf5.o");
    let raise = text.lines().find_map(|line| line.strip_prefix("at ")?.strip_suffix(" raise"));
    let field = usize::from_str_radix(raise.unwrap(), 16).unwrap();
    // Opcode of a call.
    assert_eq!(encoded.bytes[field - 1], 0xe8, "{text}");
}

/// Compilers may choose any section name for code. A reader that looks up unwind tables by section name must not find
/// such code.
#[test]
fn text_sections_have_no_reserved_name() {
    let mut live = LiveObject::load("lli-14-mcjit-dwarf4.o");
    let hot = b".text.hot\0";
    let offset = live.debug_object.windows(hot.len()).position(|bytes| bytes == hot).unwrap();
    live.debug_object[offset..offset + hot.len()].copy_from_slice(b".eh_frame\0");
    live.object = LoadedObject::parse(&live.debug_object).unwrap();
    assert!(live.object.text().iter().any(|text| &*text.section == ".eh_frame"));
    let image = live.encode(page_runs(&live.object, PAGE)[0], PAGE);
    let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
    let text = elf.sections().filter(|section| section.kind() == object::SectionKind::Text);
    assert_eq!(text.map(|section| section.name().unwrap()).collect::<Vec<_>>(), [".text", ".text"]);
}

/// Return address column of x86-64.
const RETURN_ADDRESS: gimli::Register = gimli::Register(16);

fn build_cie() -> CommonInformationEntry {
    let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
    let mut cie = CommonInformationEntry::new(encoding, 1, -8, RETURN_ADDRESS);
    cie.fde_address_encoding = DwEhPe(gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata8.0);
    cie.add_instruction(CallFrameInstruction::Cfa(gimli::Register(7), 8));
    cie
}

/// Encodes an `.eh_frame` with one FDE per function, for the address of the object's own section.
fn build_eh_frame(
    live: &LiveObject,
    cie: CommonInformationEntry,
    functions: &[AddressRange],
    lsda: Option<WriteAddress>,
) -> Vec<u8> {
    let address = live.object.eh_frame().unwrap().start().0;
    let mut frame_table = FrameTable::default();
    let cie = frame_table.add_cie(cie);
    for range in functions {
        // The writer assumes that the section is at address 0.
        let start = WriteAddress::Constant(range.start().0.wrapping_sub(address));
        let mut fde = FrameDescriptionEntry::new(start, range.size() as u32);
        fde.lsda = lsda;
        fde.add_instruction(1, CallFrameInstruction::CfaOffset(16));
        frame_table.add_fde(cie, fde);
    }
    let mut section = gimli::write::EhFrame(EndianVec::new(LittleEndian));
    frame_table.write_eh_frame(&mut section).unwrap();
    section.0.into_vec()
}

/// Returns the bias of the image and its search table: the start of each function with its return address register.
fn read_search_table(live: &LiveObject) -> (u64, Vec<(u64, gimli::Register)>) {
    let image = live.encode(page_runs(&live.object, PAGE)[0], PAGE);
    let UnwindSections::Mapped { hdr, eh_frame } = image.layout.unwind else { panic!("there is padding") };
    let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
    let Some(header) = elf.section_by_name(".eh_frame_hdr") else { return (image.layout.bias, Vec::new()) };
    let section = elf.section_by_name(".eh_frame").unwrap();
    let bases = BaseAddresses::default().set_eh_frame(eh_frame).set_eh_frame_hdr(hdr);
    let header = EhFrameHdr::new(header.data().unwrap(), LittleEndian).parse(&bases, 8).unwrap();
    let section = EhFrame::new(section.data().unwrap(), LittleEndian);
    let search_table = header.table().unwrap();
    let mut rows = search_table.iter(&bases);
    let mut functions = Vec::new();
    while let Some((start, fde)) = rows.next().unwrap() {
        let (gimli::Pointer::Direct(start), gimli::Pointer::Direct(fde)) = (start, fde) else { panic!("indirect") };
        let offset = gimli::EhFrameOffset((fde - eh_frame) as usize);
        let fde = section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).unwrap();
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, start + 1).unwrap();
        let cfa = gimli::CfaRule::RegisterAndOffset { register: gimli::Register(7), offset: 16 };
        assert_eq!((fde.initial_address(), row.cfa()), (start, &cfa));
        functions.push((start, fde.cie().return_address_register()));
    }
    (image.layout.bias, functions)
}

/// Three objects from two compilers on one page: DWARF 4 from Numba and clang, DWARF 5 from clang.
#[test]
fn an_image_contains_all_objects_on_its_page() {
    let first = LiveObject::load("numba-0.60-llvm14-dwarf4.o");
    let pages = page_runs(&first.object, PAGE)[0];
    let moved_to =
        |offset| move |address: u64| address.wrapping_sub(0x7fff_f7fb_e000).wrapping_add(pages.start().0 + offset);
    let objects = [
        first,
        LiveObject::load_moved("lli-14-mcjit-dwarf4.o", moved_to(0x600)),
        LiveObject::load_moved("lli-22-mcjit-dwarf5-large.o", moved_to(0x800)),
    ];
    let mut code = vec![0; pages.size() as usize];
    for live in &objects {
        assert_eq!(page_runs(&live.object, PAGE), [pages]);
        code.iter_mut().zip(live.code(pages)).for_each(|(byte, object_byte)| *byte |= object_byte);
    }
    let (parts, style) = (objects.iter().map(LiveObject::part).collect(), NameStyle::Readable);
    let content = Content { parts, style, pages, code: &code, padding: PAGE, build_id: [7; 20] };
    let image = encode(&content, PAGE).unwrap();
    let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
    assert_eq!(image.bytes[image.layout.code_start as usize..image.layout.code_end as usize], code);
    let lines = LineRows::parse(&image.bytes).unwrap();
    let UnwindSections::Mapped { hdr, eh_frame } = image.layout.unwind else { panic!("there is padding") };
    let bases = BaseAddresses::default().set_eh_frame(eh_frame).set_eh_frame_hdr(hdr);
    let (table, section) = (elf.section_by_name(".eh_frame_hdr").unwrap(), elf.section_by_name(".eh_frame").unwrap());
    let table = EhFrameHdr::new(table.data().unwrap(), LittleEndian).parse(&bases, 8).unwrap();
    let section = EhFrame::new(section.data().unwrap(), LittleEndian);
    let (mut units, mut rows) = (0, 0);
    for live in &objects {
        let expected = LineRows::parse(&live.debug_object).unwrap();
        units += ElfFile64::<LE>::parse(&*live.debug_object).unwrap().section_by_name(".debug_info").unwrap().size();
        let live_section = EhFrame::new(&live.eh_frame, LittleEndian);
        let live_bases = BaseAddresses::default().set_eh_frame(live.object.eh_frame().unwrap().start().0);
        for (function, readable) in live.object.functions().iter().zip(&live.names) {
            let image_address = |address: u64| address.wrapping_sub(image.layout.bias);
            let has_name = |symbol: &object::read::elf::ElfSymbol64<'_, '_, LE>| symbol.name() == Ok(&readable.text);
            assert!(
                elf.symbols()
                    .any(|symbol| has_name(&symbol) && symbol.address() == image_address(function.range.start().0))
            );
            for address in function.range.start().0..function.range.end().0 {
                let offset = image_address(address);
                assert_eq!(lines.find(Address(offset)), expected.find(Address(address)), "{address:#x}");
                rows += usize::from(lines.find(Address(offset)).is_some());
                let (_, expected_row) = unwind_row(&live_section, &live_bases, None, address).unwrap();
                let (start, actual_row) = unwind_row(&section, &bases, Some(&table), offset).unwrap();
                assert_eq!(
                    (start, actual_row.cfa()),
                    (image_address(function.range.start().0), expected_row.cfa()),
                    "{address:#x}"
                );
            }
        }
    }
    assert!(rows > 100, "{rows}");
    assert_eq!(elf.section_by_name(".debug_info").unwrap().size(), units, "every compilation unit is there");
    check_dwarf(&image.bytes);
}

/// Checks that every name in every compilation unit can be resolved, and comes from the unit's own strings.
fn check_dwarf(image: &[u8]) {
    let elf = ElfFile64::<LE>::parse(image).unwrap();
    let section = |id: gimli::SectionId| {
        let data = elf.section_by_name(id.name()).map_or(&[][..], |section| section.data().unwrap());
        Ok::<_, gimli::Error>(EndianSlice::new(data, LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section).unwrap();
    let mut units = dwarf.units();
    let mut names = Vec::new();
    while let Some(header) = units.next().unwrap() {
        let unit = dwarf.unit(header).unwrap();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs().unwrap() {
            if let Some(name) = entry.attr_value(gimli::DW_AT_name) {
                names.push(dwarf.attr_string(&unit, name).unwrap().to_string_lossy().into_owned());
            }
            let _ = dwarf.die_ranges(&unit, entry).unwrap();
        }
    }
    for function in ["gamma_", "alpha", "beta", "main"] {
        assert_eq!(names.iter().filter(|name| *name == function).count(), 2, "{names:?}");
    }
}

/// The memory of an image, as a core file contains it, is an ELF file without sections that lists the functions.
#[test]
fn the_mapped_bytes_are_an_elf_file_with_a_dynamic_section() {
    check_all_images(|file, live, pages, image| {
        let mut memory = image.bytes[..image.layout.code_end as usize].to_vec();
        if image.layout.mapped_start > 0 {
            return assert!(image.core_header.is_empty(), "{file}: the header is not mapped");
        }
        let header = &image.core_header;
        assert!(!header.is_empty() && header.len() as u64 <= image.layout.code_start, "{file}");
        memory[..header.len()].copy_from_slice(header);
        let elf = ElfFile64::<LE>::parse(&*memory).unwrap();
        assert_eq!(elf.sections().count(), 0, "{file}");
        let headers = elf.elf_header().program_headers(LE, &*memory).unwrap();
        let dynamic = headers.iter().find_map(|header| header.dynamic(LE, &*memory).unwrap()).expect("PT_DYNAMIC");
        let value = |tag| dynamic.iter().find(|entry| entry.d_tag.get(LE) == tag).unwrap().d_val.get(LE) as usize;
        let count = u32::from_le_bytes(memory[value(elf::DT_HASH) + 4..][..4].try_into().unwrap()) as usize;
        let strings = &memory[value(elf::DT_STRTAB)..][..value(elf::DT_STRSZ)];
        let word = |offset: usize| u64::from_le_bytes(memory[offset..offset + 8].try_into().unwrap());
        let mut actual: Vec<(u64, u64, &[u8])> = (1..count)
            .map(|index| {
                let offset = value(elf::DT_SYMTAB) + index * value(elf::DT_SYMENT);
                let name = &strings[word(offset) as u32 as usize..];
                (word(offset + 8), word(offset + 16), name.split(|&byte| byte == 0).next().unwrap())
            })
            .collect();
        let functions = live.object.functions().iter().zip(&live.names);
        let in_pages = functions.filter(|(function, _)| pages.covers(function.range));
        let mut expected: Vec<(u64, u64, &[u8])> = in_pages
            .map(|(function, name)| {
                (image.layout.offset(function.range.start().0), function.range.size(), name.text.as_bytes())
            })
            .collect();
        actual.sort_unstable();
        expected.sort_unstable();
        assert_eq!(actual, expected, "{file}");
        // Without a hash table, elfutils computes the number of symbols from this distance.
        assert!(value(elf::DT_STRTAB) > value(elf::DT_SYMTAB), "{file}");
    });
}
