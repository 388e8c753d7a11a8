//! Any bytes as a live `.eh_frame`: what is made of them for perf says what they say, and the registry of unwinders
//! keeps its promises.

#![no_main]

use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection as _};
use jitlisten::plumbing::fuzzing;
use jitlisten::{Address, cfi};
use libfuzzer_sys::fuzz_target;
use unwind_register::{ByHost, Registry, Section};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Where the section lies.
const PLACE: u64 = 0x7f00_0010_0000;

fuzz_target!(|data: &[u8]| {
    let covered = cfi::covered(data, Address(PLACE)).unwrap_or_default();
    assert!(covered.is_sorted() && covered.iter().all(|range| !range.is_empty() && range.start() != Address(0)));
    for range in covered.iter().take(16) {
        jitdump(data, range.start().0, range.size());
    }
    jitdump(data, PLACE - 0x1000, 0x45);
    register(data, &covered.iter().map(|range| range.start().0 as usize..range.end().0 as usize).collect::<Vec<_>>());
});

/// perf finds one function in what we write, at the right place, with the rules of the live section.
fn jitdump(live: &[u8], start: u64, size: u64) {
    let (Some(place), Some(function)) = (fuzzing::range(PLACE, live.len() as u64), fuzzing::range(start, size)) else {
        return;
    };
    // perf has no record for a function that ends outside the address space, or one larger than an offset can say.
    if size == 0 || size > 1 << 30 || start.checked_add(size + 0x1_0000).is_none() {
        return;
    }
    let Some((tables, hdr_size, mapped_size)) = fuzzing::unwind_tables(live, place, function) else { return };
    assert!(mapped_size >= tables.len() as u64 && mapped_size % 16 == 0);
    let at = start + size.next_multiple_of(8);
    let (eh_frame, hdr) = tables.split_at(tables.len() - hdr_size as usize);
    let bases = BaseAddresses::default().set_eh_frame(at).set_eh_frame_hdr(at + eh_frame.len() as u64);
    let hdr = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).expect("a header");
    assert_eq!(hdr.eh_frame_ptr(), gimli::Pointer::Direct(at));
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let table = hdr.table().expect("a search table");
    let fde = table.fde_for_address(&section, &bases, start, EhFrame::cie_from_offset).expect("the function");
    assert_eq!((fde.initial_address(), fde.len(), fde.lsda(), fde.personality()), (start, size, None, None));
    // The rules at each end, where gimli can say what the live section's are.
    let mut original = EhFrame::new(live, LittleEndian);
    original.set_address_size(8);
    let live_bases = BaseAddresses::default().set_eh_frame(PLACE);
    let Some(live_fde) = first_fde(&original, &live_bases, start) else { return };
    for address in [start, start + size / 2, start + size - 1] {
        let expected = row(&original, &live_bases, &live_fde, address);
        if let Some(expected) = expected {
            assert_eq!(row(&section, &bases, &fde, address), Some(expected));
        }
    }
}

type Fde<'a> = gimli::FrameDescriptionEntry<Bytes<'a>>;

/// The first one in the order of the bytes, as our own reader takes it.
fn first_fde<'a>(section: &EhFrame<Bytes<'a>>, bases: &BaseAddresses, start: u64) -> Option<Fde<'a>> {
    let mut entries = section.entries(bases);
    while let Some(entry) = entries.next().ok()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).ok()?;
        if fde.initial_address() == start {
            return Some(fde);
        }
    }
    None
}

fn row(section: &EhFrame<Bytes<'_>>, bases: &BaseAddresses, fde: &Fde<'_>, address: u64) -> Option<String> {
    let mut context = gimli::UnwindContext::new();
    let row = fde.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    // Expressions are distinguished by where they stand, which differs.
    let rules = format!("{:?} {:?}", row.cfa(), row.registers().collect::<Vec<_>>());
    (!rules.contains("Expression")).then_some(rules)
}

fn register(live: &[u8], functions: &[Range<usize>]) {
    let section = Section::new(live, PLACE as usize).functions(functions).by_host(ByHost::Everything);
    // SAFETY: nothing walks a stack here, so no code is looked for at these addresses.
    let Ok(registration) = (unsafe { Registry::process().register(&section) }) else { return };
    let coverage = registration.coverage();
    assert!(coverage.synthesized == 0, "nothing was said of frame pointers");
    assert!(coverage.uncovered <= functions.len());
}
