//! Images of real objects, read back by other readers.

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindContext, UnwindSection, UnwindTableRow,
};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian as LE, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, elf};

use super::content::{Content, runs};
use super::encode::{Encoded, encode};
use super::layout::UnwindPlace;
use crate::name::{self, ReadableName};
use crate::options::NameStyle;
use crate::{Address, AddressRange, LineRows, LoadedObject, cfi};

const PAGE: u64 = 0x1000;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// An object as it is in memory once LLVM has relocated it.
struct Live {
    debug_object: Vec<u8>,
    object: LoadedObject,
    names: Vec<ReadableName>,
    eh_frame: Vec<u8>,
}

impl Live {
    fn of(file: &str) -> Live {
        let path = format!("{}/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
        let debug_object = std::fs::read(path).unwrap();
        let object = LoadedObject::parse(&debug_object).unwrap();
        let functions = object.functions().iter();
        let names = functions.map(|function| name::readable(&function.linkage_name, None)).collect();
        let eh_frame = relocated(&debug_object, ".eh_frame");
        Live { debug_object, object, names, eh_frame }
    }

    fn code(&self, pages: AddressRange) -> Vec<u8> {
        let file = ElfFile64::<LE>::parse(&*self.debug_object).unwrap();
        let mut code = vec![0; pages.size() as usize];
        for text in self.object.text().iter().filter(|text| pages.covers(text.range)) {
            let section = file.sections().find(|section| section.address() == text.range.start().0).unwrap();
            let at = (text.range.start().0 - pages.start().0) as usize;
            code[at..at + text.range.size() as usize].copy_from_slice(section.data().unwrap());
        }
        code
    }

    fn encode(&self, pages: AddressRange, room: u64) -> Encoded {
        let code = self.code(pages);
        let content = Content {
            object: &self.object,
            names: &self.names,
            style: NameStyle::Readable,
            pages,
            code: &code,
            room,
            eh_frame: self.object.eh_frame().map(|range| (range, self.eh_frame.as_slice())),
            made_rules: &[],
            debug_object: Some(&self.debug_object),
            build_id: [0x5a; 20],
        };
        encode(&content, PAGE).unwrap()
    }
}

/// A section with the relocations that LLVM's `RuntimeDyld` applies to it.
fn relocated(debug_object: &[u8], name: &str) -> Vec<u8> {
    let file = ElfFile64::<LE>::parse(debug_object).unwrap();
    let Some(section) = file.section_by_name(name) else { return Vec::new() };
    let mut bytes = section.data().unwrap().to_vec();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else { panic!("no symbol") };
        let symbol = file.symbol_by_index(index).unwrap();
        let base = symbol.section_index().map_or(0, |index| file.section_by_index(index).unwrap().address());
        let value = base.wrapping_add(symbol.address()).wrapping_add(relocation.addend() as u64);
        let value = value.wrapping_sub(section.address() + at);
        let size = usize::from(relocation.size() / 8);
        let at = at as usize;
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

const OBJECTS: [&str; 8] = [
    "numba-0.57-llvm14-plain.o",
    "numba-0.60-llvm14-dwarf4.o",
    "numba-0.68-llvm22-dwarf4.o",
    "numba-0.68-llvm22-kernel-dwarf4.o",
    "lli-14-mcjit-dwarf4.o",
    "lli-22-mcjit-dwarf5-large.o",
    "lli-22-jitlink-dwarf5.o",
    "clang-22-aarch64-dwarf5.o",
];

/// Every object, every run of its pages, with room in front and without.
fn for_all(judge: impl Fn(&str, &Live, AddressRange, &Encoded)) {
    for file in OBJECTS {
        let live = Live::of(file);
        let runs = runs(&live.object, PAGE);
        assert!(!runs.is_empty(), "{file} has text");
        for pages in runs {
            for room in [0, PAGE] {
                judge(file, &live, pages, &live.encode(pages, room));
            }
        }
    }
}

#[test]
fn code_is_byte_for_byte_where_it_is_in_memory() {
    for_all(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let header = elf.elf_header();
        let loads = header.program_headers(LE, &*image.bytes).unwrap().iter();
        let loads: Vec<_> = loads.filter(|header| header.p_type(LE) == elf::PT_LOAD).collect();
        assert_eq!(loads.len(), 1, "{file}");
        assert_eq!(loads[0].p_offset(LE), loads[0].p_vaddr(LE), "{file}");
        let code = live.code(pages);
        for text in live.object.text().iter().filter(|text| pages.covers(text.range)) {
            let at = text.range.start().0.wrapping_sub(image.layout.bias);
            let section = elf.sections().find(|section| section.address() == at && section.size() > 0).unwrap();
            let inside = (text.range.start().0 - pages.start().0) as usize;
            assert_eq!(section.data().unwrap(), &code[inside..inside + text.range.size() as usize], "{file}");
        }
    });
}

#[test]
fn every_function_has_its_readable_name_first_and_its_linkage_name_too() {
    for_all(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let functions = live.object.functions().iter().zip(&live.names);
        for (function, readable) in functions.filter(|(function, _)| pages.covers(function.range)) {
            let at = function.range.start().0.wrapping_sub(image.layout.bias);
            let here: Vec<_> = elf.symbols().filter(|symbol| symbol.address() == at).collect();
            let global: Vec<_> = here.iter().filter(|symbol| symbol.is_global()).collect();
            assert_eq!(global.len(), 1, "{file}");
            assert_eq!(global[0].name().unwrap(), readable.text, "{file}");
            assert_eq!(global[0].size(), function.range.size(), "{file}");
            assert!(here.iter().any(|symbol| symbol.name() == Ok(&function.linkage_name)), "{file}");
        }
        assert_eq!(elf.build_id().unwrap().unwrap(), [0x5a; 20]);
    });
}

#[test]
fn lines_are_those_of_the_object() {
    for_all(|file, live, pages, image| {
        let expected = LineRows::parse(&live.debug_object).unwrap();
        let found = LineRows::parse(&image.bytes).unwrap();
        assert_eq!(expected.rows().len(), found.rows().len(), "{file}");
        for row in expected.rows().iter().filter(|row| pages.contains(row.address) && !row.end_sequence) {
            let at = Address(row.address.0.wrapping_sub(image.layout.bias));
            assert_eq!(found.find(at), expected.find(row.address), "{file} {}", row.address);
        }
    });
}

/// The rules at an address, and where the function they are of begins.
fn rules<'a>(
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
fn the_search_table_leads_to_the_rules_of_the_live_section_at_every_byte() {
    for_all(|file, live, pages, image| {
        let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
        let Some(range) = live.object.eh_frame() else { return };
        let expected_section = EhFrame::new(&live.eh_frame, LittleEndian);
        let expected_bases = BaseAddresses::default().set_eh_frame(range.start().0);
        let section = elf.section_by_name(".eh_frame").unwrap();
        let found_section = EhFrame::new(section.data().unwrap(), LittleEndian);
        let UnwindPlace::Mapped { hdr, eh_frame } = image.layout.unwind else { panic!("{file}: no place") };
        let found_bases = BaseAddresses::default().set_eh_frame(eh_frame).set_eh_frame_hdr(hdr);
        let table = elf.section_by_name(".eh_frame_hdr").unwrap();
        let table = EhFrameHdr::new(table.data().unwrap(), LittleEndian).parse(&found_bases, 8).unwrap();
        let mut compared = 0;
        for function in live.object.functions().iter().filter(|function| pages.covers(function.range)) {
            for address in function.range.start().0..function.range.end().0 {
                let Some((start, expected)) = rules(&expected_section, &expected_bases, None, address) else {
                    continue;
                };
                let offset = address.wrapping_sub(image.layout.bias);
                let (found_start, found) = rules(&found_section, &found_bases, Some(&table), offset).unwrap();
                assert_eq!(found_start, start.wrapping_sub(image.layout.bias), "{file}");
                assert_eq!(found.cfa(), expected.cfa(), "{file} {address:#x}");
                assert_eq!(found.registers().collect::<Vec<_>>(), expected.registers().collect::<Vec<_>>(), "{file}");
                compared += 1;
            }
        }
        let covered = cfi::covered(&live.eh_frame, range.start()).unwrap();
        assert_eq!(compared > 0, covered.iter().any(|fde| pages.covers(*fde)), "{file}");
    });
}

#[test]
fn without_a_mapped_place_no_header_promises_one() {
    let live = Live::of("lli-14-mcjit-dwarf4.o");
    let pages = runs(&live.object, PAGE)[0];
    let mut code = live.code(pages);
    // Somebody's bytes behind the text: no zeros to write into.
    *code.last_mut().unwrap() = 0xcc;
    let content = Content {
        object: &live.object,
        names: &live.names,
        style: NameStyle::Linkage,
        pages,
        code: &code,
        room: 0,
        eh_frame: live.object.eh_frame().map(|range| (range, live.eh_frame.as_slice())),
        made_rules: &[],
        debug_object: None,
        build_id: [1; 20],
    };
    let image = encode(&content, PAGE).unwrap();
    assert!(matches!(image.layout.unwind, UnwindPlace::FileOnly { .. }));
    let elf = ElfFile64::<LE>::parse(&*image.bytes).unwrap();
    assert!(elf.section_by_name(".eh_frame").is_some());
    assert!(elf.section_by_name(".eh_frame_hdr").is_none());
    assert_eq!(image.bytes[image.layout.code_end as usize - 1], 0xcc);
}
