//! Malformed objects: parsing returns an error or a consistent result, and never panics.

use jitlisten::{LineRows, LoadedObject};

const PLAIN_OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/lli-14-mcjit-plain.o");
const DWARF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/lli-22-mcjit-dwarf5-large.o");

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// File offsets of the section headers with this type (`sh_type`).
fn headers(bytes: &[u8], sh_type: u32) -> Vec<usize> {
    let start = u64_at(bytes, 40) as usize;
    let count = u16::from_le_bytes([bytes[60], bytes[61]]) as usize;
    let headers = (0..count).map(|index| start + index * 64);
    headers.filter(|header| bytes[header + 4..header + 8] == sh_type.to_le_bytes()).collect()
}

/// File offset of each symbol.
fn symbols(bytes: &[u8]) -> Vec<usize> {
    let table = headers(bytes, 2)[0];
    let (offset, size) = (u64_at(bytes, table + 24) as usize, u64_at(bytes, table + 32) as usize);
    (0..size / 24).map(|index| offset + index * 24).collect()
}

fn check_invariants(bytes: &[u8]) {
    let Ok(object) = LoadedObject::parse(bytes) else { return };
    for pair in object.functions().windows(2) {
        assert!(pair[0].range.end() <= pair[1].range.start());
    }
    for function in object.functions() {
        assert!(!function.range.is_empty());
        assert!(object.text().iter().any(|text| text.range.covers(function.range)));
    }
    for pair in object.text().windows(2) {
        assert!(pair[0].range.end() <= pair[1].range.start());
    }
    if let Ok(lines) = LineRows::parse(bytes) {
        assert!(lines.rows().is_sorted_by_key(|row| row.address));
    }
}

#[test]
fn cut_off_anywhere() {
    for name in [PLAIN_OBJECT, DWARF] {
        let bytes = std::fs::read(name).expect("the object");
        for end in 0..bytes.len() {
            check_invariants(&bytes[..end]);
        }
    }
}

#[test]
fn every_byte_changed() {
    for name in [PLAIN_OBJECT, DWARF] {
        let mut bytes = std::fs::read(name).expect("the object");
        for position in 0..bytes.len() {
            for bit in [0x01, 0x80, 0xff] {
                bytes[position] ^= bit;
                check_invariants(&bytes);
                bytes[position] ^= bit;
            }
        }
    }
}

#[test]
fn sizes_that_lie_are_cut() {
    let mut bytes = std::fs::read(PLAIN_OBJECT).expect("the object");
    let original = LoadedObject::parse(&bytes).expect("an object");
    for symbol in symbols(&bytes) {
        bytes[symbol + 16..symbol + 24].fill(0xff);
    }
    let oversized = LoadedObject::parse(&bytes).expect("still an object");
    assert_eq!(original.functions().len(), oversized.functions().len());
    check_invariants(&bytes);
    for symbol in symbols(&bytes) {
        bytes[symbol + 16..symbol + 24].fill(0);
    }
    assert_eq!(LoadedObject::parse(&bytes).expect("still an object").functions(), oversized.functions());
}

#[test]
fn labels_count_where_nothing_says_function() {
    let mut bytes = std::fs::read(PLAIN_OBJECT).expect("the object");
    let original = LoadedObject::parse(&bytes).expect("an object");
    for symbol in symbols(&bytes) {
        if bytes[symbol + 4] & 15 == 2 {
            bytes[symbol + 4] &= 0xf0;
        }
    }
    assert_eq!(LoadedObject::parse(&bytes).expect("an object"), original);
}

#[test]
fn text_without_symbols_is_still_text() {
    let mut bytes = std::fs::read(PLAIN_OBJECT).expect("the object");
    let original = LoadedObject::parse(&bytes).expect("an object");
    let table = headers(&bytes, 2)[0];
    bytes[table + 4] = 1;
    let stripped = LoadedObject::parse(&bytes).expect("an object");
    assert_eq!((stripped.functions().len(), stripped.text()), (0, original.text()));
}

#[test]
fn what_is_found_is_named() {
    let mut bytes = std::fs::read(PLAIN_OBJECT).expect("the object");
    bytes[18] = 243;
    let error = LoadedObject::parse(&bytes).expect_err("RISC-V");
    assert_eq!(error.to_string(), "object of another machine: e_machine 243");
    bytes[18] = 62;
    bytes[16] = 4;
    let error = LoadedObject::parse(&bytes).expect_err("a core file");
    assert_eq!(error.to_string(), "neither relocatable nor linked: e_type 4");
}

#[test]
fn unaligned_bytes_are_read_too() {
    let bytes = std::fs::read(DWARF).expect("the object");
    let shifted: Vec<u8> = std::iter::once(0).chain(bytes.iter().copied()).collect();
    assert_eq!(LoadedObject::parse(&shifted[1..]).expect("an object"), LoadedObject::parse(&bytes).expect("an object"));
    assert_eq!(LineRows::parse(&shifted[1..]).expect("lines"), LineRows::parse(&bytes).expect("lines"));
}

/// Many symbols that share one long name would need more memory than the machine has.
#[test]
fn one_long_name_for_many_symbols() {
    let mut bytes = std::fs::read(PLAIN_OBJECT).expect("the object");
    let table = headers(&bytes, 2)[0];
    let link = u32::from_le_bytes(bytes[table + 40..table + 44].try_into().expect("four bytes")) as usize;
    let strings = u64_at(&bytes, 40) as usize + link * 64;
    let function = symbols(&bytes).into_iter().rfind(|symbol| bytes[symbol + 4] & 15 == 2).expect("a function");
    let function = bytes[function..function + 24].to_vec();
    let append_section_data = |bytes: &mut Vec<u8>, header: usize, data: &[u8]| {
        while !bytes.len().is_multiple_of(8) {
            bytes.push(0);
        }
        let offset = bytes.len() as u64;
        bytes.extend(data);
        bytes[header + 24..header + 32].copy_from_slice(&offset.to_le_bytes());
        bytes[header + 32..header + 40].copy_from_slice(&(data.len() as u64).to_le_bytes());
    };
    let mut symbol_table = vec![0; 24];
    for _ in 0..4000 {
        symbol_table.extend([&[1, 0, 0, 0], &function[4..]].concat());
    }
    append_section_data(&mut bytes, table, &symbol_table);
    append_section_data(&mut bytes, strings, &[vec![0], vec![b'x'; 100_000], vec![0]].concat());
    let error = LoadedObject::parse(&bytes).expect_err("400 megabytes of names");
    assert!(error.to_string().starts_with("object asks for more than"), "{error}");
}
