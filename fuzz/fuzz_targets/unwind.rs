//! Fuzz target that uses arbitrary bytes as a live `.eh_frame`. The tables derived for perf must contain the same
//! rules, and the unwinder registry must keep its documented invariants.

#![no_main]

use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection as _};
use jitlisten::Address;
use jitlisten::plumbing::{cfi, fuzzing};
use libfuzzer_sys::fuzz_target;
use unwind_register::{ByHost, Registry, Section};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Address at which the section appears to be loaded.
const SECTION_ADDRESS: u64 = 0x7f00_0010_0000;

fuzz_target!(|data: &[u8]| {
    let covered = cfi::covered(data, Address(SECTION_ADDRESS)).unwrap_or_default();
    assert!(covered.is_sorted() && covered.iter().all(|range| !range.is_empty() && range.start() != Address(0)));
    for range in covered.iter().take(16) {
        check_jitdump(data, range.start().0, range.size());
    }
    check_jitdump(data, SECTION_ADDRESS - 0x1000, 0x45);
    check_registration(
        data,
        &covered.iter().map(|range| range.start().0 as usize..range.end().0 as usize).collect::<Vec<_>>(),
    );
});

/// Checks that perf finds exactly one function in our tables, at the right address and with the rules of the live
/// section.
fn check_jitdump(live: &[u8], start: u64, size: u64) {
    let (Some(section_range), Some(function_range)) =
        (fuzzing::range(SECTION_ADDRESS, live.len() as u64), fuzzing::range(start, size))
    else {
        return;
    };
    // perf's records cannot describe a function that ends outside the address space, or that is too large for a 32-bit
    // offset.
    if size == 0 || size > 1 << 30 || start.checked_add(size + 0x1_0000).is_none() {
        return;
    }
    let Some((tables, hdr_size, mapped_size)) = fuzzing::unwind_tables(live, section_range, function_range) else {
        return;
    };
    assert!(mapped_size >= tables.len() as u64 && mapped_size % 16 == 0);
    let tables_address = start + size.next_multiple_of(8);
    let (eh_frame, hdr) = tables.split_at(tables.len() - hdr_size as usize);
    let bases =
        BaseAddresses::default().set_eh_frame(tables_address).set_eh_frame_hdr(tables_address + eh_frame.len() as u64);
    let hdr = EhFrameHdr::new(hdr, LittleEndian).parse(&bases, 8).expect("a header");
    assert_eq!(hdr.eh_frame_ptr(), gimli::Pointer::Direct(tables_address));
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let table = hdr.table().expect("a search table");
    let fde = table.fde_for_address(&section, &bases, start, EhFrame::cie_from_offset).expect("the function");
    assert_eq!((fde.initial_address(), fde.len(), fde.lsda(), fde.personality()), (start, size, None, None));
    // Compare the rules at both ends and in the middle, wherever gimli can evaluate the live section.
    let mut live_section = EhFrame::new(live, LittleEndian);
    live_section.set_address_size(8);
    let live_bases = BaseAddresses::default().set_eh_frame(SECTION_ADDRESS);
    let Some(live_fde) = first_fde(&live_section, &live_bases, start) else { return };
    for address in [start, start + size / 2, start + size - 1] {
        let expected = unwind_row(&live_section, &live_bases, &live_fde, address);
        if let Some(expected) = expected {
            assert_eq!(unwind_row(&section, &bases, &fde, address), Some(expected));
        }
    }
}

type Fde<'a> = gimli::FrameDescriptionEntry<Bytes<'a>>;

/// Finds the first FDE in file order, which our own reader also uses.
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

fn unwind_row(section: &EhFrame<Bytes<'_>>, bases: &BaseAddresses, fde: &Fde<'_>, address: u64) -> Option<String> {
    let mut context = gimli::UnwindContext::new();
    let row = fde.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    // Ignore offsets of expressions, which differ between the sections.
    let rules = format!("{:?} {:?}", row.cfa(), row.registers().collect::<Vec<_>>());
    (!rules.contains("Expression")).then_some(rules)
}

fn check_registration(live: &[u8], functions: &[Range<usize>]) {
    let section = Section::new(live, SECTION_ADDRESS as usize).functions(functions).by_host(ByHost::Everything);
    // SAFETY: no stack is walked in this process, so no unwinder follows these rules.
    let Ok(registration) = (unsafe { Registry::process().register(&section) }) else { return };
    let coverage = registration.coverage();
    assert!(coverage.synthesized == 0, "nothing was said of frame pointers");
    assert!(coverage.uncovered <= functions.len());
}
