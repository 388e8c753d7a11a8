//! Compares the parser and the encoder with gimli on this test program's `.eh_frame`, and tests malformed bytes.

use super::{Fde, RuleChecker, encode, entries, parse};
use crate::error::Error;
use crate::frame_pointer::Machine;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, Pointer, UnwindContext, UnwindSection};
use jitlisten_unwinder::NewCommon;
use object::{Object, ObjectSection};

type FrameEntry<'a> = gimli::FrameDescriptionEntry<gimli::EndianSlice<'a, LittleEndian>>;

/// Returns a fake value for the word that an indirect pointer refers to.
fn read_slot(address: u64) -> u64 {
    address.wrapping_mul(3)
}

fn resolve(pointer: Option<Pointer>) -> u64 {
    match pointer {
        None => 0,
        Some(Pointer::Direct(address)) => address,
        Some(Pointer::Indirect(address)) => read_slot(address),
    }
}

/// Parses all FDEs with gimli, except those without an address.
fn parse_with_gimli<'a>(
    section: &EhFrame<gimli::EndianSlice<'a, LittleEndian>>,
    bases: &BaseAddresses,
) -> Vec<FrameEntry<'a>> {
    let mut fdes = Vec::new();
    let mut entries = section.entries(bases);
    while let Some(entry) = entries.next().expect("a good section") {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).expect("a good FDE");
            if fde.initial_address() != 0 && fde.len() != 0 {
                fdes.push(fde);
            }
        }
    }
    fdes
}

/// Formats the unwind rows of an FDE as text.
fn rows(
    section: &EhFrame<gimli::EndianSlice<'_, LittleEndian>>,
    bases: &BaseAddresses,
    fde: &FrameEntry<'_>,
) -> String {
    let mut context = UnwindContext::new();
    let mut table = fde.rows(section, bases, &mut context).expect("rules");
    let mut text = String::new();
    while let Some(row) = table.next_row().expect("a row") {
        let registers: Vec<_> = row.registers().map(|(register, rule)| format!("{register:?}{rule:?}")).collect();
        // Ignore the offset of an expression, which differs between the copies.
        let cfa = format!("{:?}", row.cfa());
        let cfa = cfa.split("offset: UnitOffset").next().unwrap_or_default().to_owned();
        text += &format!(
            "{:x} {} {}\n",
            row.start_address(),
            if cfa.contains("Expression") { "E" } else { &cfa },
            registers.len()
        );
    }
    text
}

#[test]
fn this_program_read_and_written_means_the_same() {
    if cfg!(miri) {
        return; // reads a large file
    }
    let file = std::fs::read(std::env::current_exe().expect("a path")).expect("readable");
    let file = object::File::parse(&*file).expect("an ELF file");
    let section = file.section_by_name(".eh_frame").expect("Rust programs have one");
    let (bytes, address) = (section.data().expect("data"), section.address());
    let (cies, fdes) = parse(bytes, address, &|address| Some(read_slot(address))).expect("a good section");

    let bases = BaseAddresses::default().set_eh_frame(address);
    let original = EhFrame::new(bytes, LittleEndian);
    let expected = parse_with_gimli(&original, &bases);
    assert!(expected.len() > 500 && fdes.len() == expected.len(), "{} {}", fdes.len(), expected.len());
    for (fde, gimli_fde) in fdes.iter().zip(&expected) {
        let cie = &cies[fde.cie];
        assert_eq!((fde.start, fde.end), (gimli_fde.initial_address(), gimli_fde.end_address()));
        assert_eq!((cie.personality, fde.lsda), (resolve(gimli_fde.personality()), resolve(gimli_fde.lsda())));
    }

    let labelled: Vec<(Fde<'_>, u32)> = fdes.iter().enumerate().map(|(i, fde)| (fde.clone(), i as u32 / 100)).collect();
    let encoded = encode(&cies, &labelled, RuleChecker::default());
    assert_eq!((encoded.refused.len(), encoded.groups.len()), (0, labelled.len().div_ceil(100)));
    let encoded_entries: Vec<_> = entries(&encoded.bytes).collect();
    assert!(encoded_entries.iter().map(|(_, range)| range.clone()).eq(fdes.iter().map(|fde| fde.start..fde.end)));
    let copy = EhFrame::new(&encoded.bytes, LittleEndian);
    let copy_bases = BaseAddresses::default().set_eh_frame(0);
    for ((offset, _), gimli_fde) in encoded_entries.iter().zip(&expected) {
        let fde =
            copy.fde_from_offset(&copy_bases, gimli::EhFrameOffset(*offset), EhFrame::cie_from_offset).expect("an FDE");
        assert_eq!(
            (resolve(fde.personality()), resolve(fde.lsda())),
            (resolve(gimli_fde.personality()), resolve(gimli_fde.lsda()))
        );
        assert_eq!(rows(&copy, &copy_bases, &fde), rows(&original, &bases, gimli_fde), "{:#x}", fde.initial_address());
    }
}

/// Encodes a CIE with augmentation `zR` and the given pointer encoding, and one FDE with the given body.
fn section(encoding: u8, fde_body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, encoding, 0, 0, 0];
    bytes.extend((fde_body.len() as u32 + 4).to_le_bytes());
    bytes.extend(24u32.to_le_bytes());
    bytes.extend(fde_body);
    bytes
}

fn parse_ranges(bytes: &[u8], address: u64) -> Result<Vec<(u64, u64)>, Error> {
    parse(bytes, address, &|_| None).map(|(_, fdes)| fdes.iter().map(|fde| (fde.start, fde.end)).collect())
}

#[test]
fn pointers_of_every_width() {
    let pcrel4 = section(0x1b, &[0, 1, 0, 0, 0x20, 0, 0, 0, 0]);
    assert_eq!(parse_ranges(&pcrel4, 0x1000), Ok(vec![(0x1000 + 28 + 0x100, 0x1000 + 28 + 0x120)]));
    let udata2 = section(0x02, &[0, 1, 0x20, 0, 0]);
    assert_eq!(parse_ranges(&udata2, 0), Ok(vec![(0x100, 0x120)]));
    assert_eq!(parse_ranges(&section(0x33, &[1; 9]), 0), Err(Error::PointerEncoding { offset: 20, encoding: 0x33 }));
}

#[test]
fn broken_bytes_are_errors_and_nothing_worse() {
    let valid = section(0x1b, &[0, 1, 0, 0, 0x20, 0, 0, 0, 0]);
    for end in 0..valid.len() {
        let _ = parse_ranges(&valid[..end], 0x1000);
    }
    for offset in 0..valid.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut malformed = valid.clone();
            malformed[offset] = byte;
            let _ = parse_ranges(&malformed, 0x1000);
        }
    }
    assert_eq!(parse_ranges(&valid[..valid.len() - 1], 0), Err(Error::Truncated { offset: 20 }));
    let mut modified = valid.clone();
    modified[24] = 23; // points one byte into the CIE
    assert!(parse_ranges(&modified, 0).is_err());
    modified = valid.clone();
    modified[8] = 2;
    assert_eq!(parse_ranges(&modified, 0), Err(Error::CieVersion { offset: 0, version: 2 }));
    modified = valid;
    modified[10] = b'X';
    assert_eq!(parse_ranges(&modified, 0), Err(Error::Augmentation { offset: 0, letter: b'X' }));
}

#[test]
fn dead_stripped_functions_are_left_out() {
    assert_eq!(parse_ranges(&section(0x03, &[0, 0, 0, 0, 0x20, 0, 0, 0, 0]), 0), Ok(vec![]));
    assert_eq!(parse_ranges(&section(0x03, &[4, 0, 0, 0, 0, 0, 0, 0, 0]), 0), Ok(vec![]));
}

#[test]
fn instructions_that_do_not_decode_are_refused() {
    let cie = NewCommon::plain(1, -8, 16, &[0x0c, 7, 8, 0x90, 1]);
    let fde = |start: u64, instructions| Fde { cie: 0, start, end: start + 16, lsda: 0, instructions };
    let set_loc: &[u8] = &[0x01, 0, 0, 0, 0, 0, 0, 0, 0];
    let fdes = [(fde(16, &[0x3e]), 1), (fde(32, &[0x0e, 16]), 1), (fde(48, set_loc), 1), (fde(64, &[0x3f]), 2)];
    let encoded = encode(&[cie], &fdes, RuleChecker::new(Machine::X86_64));
    let starts: Vec<u64> = entries(&encoded.bytes).map(|(_, range)| range.start).collect();
    assert_eq!(starts, [32]);
    assert_eq!(encoded.refused, [(16, 32), (48, 64), (64, 80)]);
    assert_eq!(encoded.groups.len(), 1, "a group without an FDE is not written");
}

/// libgcc aborts, or never returns, when it evaluates one of these.
#[test]
fn rules_that_unwinders_cannot_follow_are_refused() {
    let encode_one = |return_column, initial: &[u8], instructions: &[u8]| {
        let cie = NewCommon::plain(1, -8, return_column, initial);
        let fde = Fde { cie: 0, start: 16, end: 32, lsda: 0, instructions };
        encode(&[cie], &[(fde, 0)], RuleChecker::new(Machine::X86_64)).refused.is_empty()
    };
    let initial = [0x0c, 7, 8, 0x90, 1];
    // A frame address and a saved register from expressions, as in a procedure linkage table; a vector register.
    for instructions in [
        &[0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22][..],
        &[0x10, 6, 2, 0x76, 0],
        &[0x16, 6, 2, 0x23, 8],
        &[0x05, 0x7f, 4],
        &[0x07, 16],
        &[0x48, 0x0e, 16],
    ] {
        assert!(encode_one(16, &initial, instructions), "{instructions:02x?}");
    }
    for (instructions, defect) in [
        (&[0x0c, 0x7f, 8][..], "frame address from an unknown register"),
        (&[0x09, 6, 0x7f], "register saved in an unknown register"),
        (&[0x0b], "restored state that was not saved"),
        (&[0x0f, 1, 0xff], "unknown operation"),
        (&[0x0f, 3, 0x92, 0x7f, 0], "operation with an unknown register"),
        (&[0x0f, 3, 0x2f, 0xfd, 0xff], "jump"),
        (&[0x0f, 3, 0x31, 0x30, 0x1b], "division"),
        (&[0x0f, 1, 0x06], "operation without an operand"),
        (&[0x0f, 0], "expression without a value"),
        (
            &[
                0x0f, 17, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31, 0x31,
                0x31, 0x31,
            ],
            "too many values",
        ),
        (&[0x08, 16], "return address that stays the same"),
    ] {
        assert!(!encode_one(16, &initial, instructions), "{defect}");
    }
    assert!(!encode_one(100, &initial, &[]), "unknown column of the return address");
    assert!(!encode_one(16, &[0x90, 1], &[]), "no frame address");
    assert!(!encode_one(16, &[0x0c, 7, 8], &[]), "no return address");
}

/// Rules of three AArch64 functions; the first saves a register below its frame record.
#[test]
fn rules_of_aarch64_are_kept() {
    let cies = [NewCommon::plain(4, -8, 30, &[0x0c, 31, 0])];
    let gamma: &[u8] =
        &[0x41, 0x0c, 0x1f, 0x30, 0x43, 0x9d, 4, 0x9e, 3, 0x43, 0x0c, 0x1d, 0x20, 0x4b, 0x0c, 0x1f, 0x30, 0xdd, 0xde];
    let beta: &[u8] =
        &[0x41, 0x0c, 0x1f, 0x20, 0x9d, 4, 0x9e, 3, 0x42, 0x0c, 0x1d, 0x20, 0x48, 0x0c, 0x1f, 0, 0xdd, 0xde];
    let fde = |start, end, instructions| (Fde { cie: 0, start, end, lsda: 0, instructions }, 0);
    let fdes = [fde(0x1000, 0x1050, gamma), fde(0x1050, 0x1080, beta), fde(0x1080, 0x10a0, beta)];
    let encoded = encode(&cies, &fdes, RuleChecker::new(Machine::Aarch64));
    assert_eq!(encoded.refused, []);
    assert_eq!(entries(&encoded.bytes).count(), 3);
    let (_, decoded) = parse(&encoded.bytes, 0, &|_| None).expect("readable");
    assert_eq!(decoded.len(), 3);
}
