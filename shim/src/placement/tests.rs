use super::*;
use crate::memory::range;

const NUMBA: &[u8] = include_bytes!("../../../jitlisten/testdata/numba-0.68-llvm22-dwarf4.o");

const CODE: u64 = 0x7000_0000_1000;
const DATA: u64 = 0x7000_0010_0000;
const SIZE: usize = 1 << 16;

/// Links the object: the text goes into one piece of memory and all other sections into another, each after a gap of
/// `gap` bytes. Also returns the range of each section.
fn link(pattern: &Pattern, gap: usize) -> (Piece, Piece, Vec<(usize, AddressRange)>) {
    let mut pieces = [CODE, DATA].map(|start| Piece { start: Address(start), bytes: vec![0x90; SIZE] });
    let mut next_offsets = [gap; 2];
    let mut ranges = Vec::new();
    for section in &pattern.sections {
        let piece_index = usize::from(!section.is_text);
        let offset = next_offsets[piece_index].next_multiple_of(section.alignment as usize);
        next_offsets[piece_index] = offset + section.bytes.len();
        let address = Address(pieces[piece_index].start.0 + offset as u64);
        ranges.push((section.index, AddressRange::new(address, section.bytes.len() as u64).unwrap()));
    }
    for (section, &(_, range)) in pattern.sections.iter().zip(&ranges) {
        let piece = &mut pieces[usize::from(!section.is_text)];
        let offset = (range.start().0 - piece.start.0) as usize;
        let mut bytes = section.relocated_with(0xa5);
        for reference in &section.references {
            let target = ranges
                .iter()
                .find(|(index, _)| *index == reference.target)
                .map_or(0, |(_, target_range)| target_range.start().0);
            let base = if reference.relative { range.start().0 + reference.offset } else { 0 };
            let value = target.wrapping_add(reference.addend).wrapping_sub(base).to_le_bytes();
            let field = reference.offset as usize;
            bytes[field..field + reference.width].copy_from_slice(&value[..reference.width]);
        }
        piece.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    let [code, data] = pieces;
    (code, data, ranges)
}

fn locate(pattern: &Pattern, code: &Piece, data: &Piece, is_free: &dyn Fn(AddressRange) -> bool) -> Option<Placement> {
    let surroundings = vec![Piece { start: data.start, bytes: data.bytes.clone() }];
    let surroundings = Surroundings::new(Box::new(|| surroundings));
    let read = |range| data.get(range).map(<[u8]>::to_vec);
    pattern.locate(code, &surroundings, &read, is_free, false)
}

fn pattern() -> Pattern {
    Pattern::parse(NUMBA.to_vec()).expect("an object of this machine")
}

#[test]
#[cfg(target_arch = "x86_64")]
fn all_sections_are_located_correctly() {
    let pattern = pattern();
    for gap in [0, 48, 1024] {
        let (code, data, ranges) = link(&pattern, gap);
        let mut located = locate(&pattern, &code, &data, &|_| true).expect("it is there").sections;
        located.sort();
        assert!(located.len() >= 2, "{located:?}");
        let is_located = |index: usize| located.iter().any(|(located, _)| *located == index);
        let expected: Vec<_> = ranges.into_iter().filter(|(index, _)| is_located(*index)).collect();
        assert_eq!(located, expected);
        let eh_frame = pattern.sections.iter().find(|section| section.is_eh_frame).expect("it has a table");
        assert!(
            is_located(eh_frame.index)
                && pattern.sections.iter().all(|section| !section.is_text || is_located(section.index))
        );
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn ambiguous_or_altered_sections_are_not_located() {
    let pattern = pattern();
    let (mut code, data, ranges) = link(&pattern, 64);
    assert!(locate(&pattern, &code, &data, &|_| false).is_none(), "another object's memory");
    let text: Vec<AddressRange> =
        ranges.iter().map(|(_, range)| *range).filter(|range| range.start().0 < DATA).collect();
    // Append a copy of the text.
    let end = (text.iter().map(|range| range.end().0).max().unwrap() - CODE) as usize;
    let text_copy = code.bytes[..end].to_vec();
    let copy_offset = end.next_multiple_of(4096);
    code.bytes[copy_offset..copy_offset + end].copy_from_slice(&text_copy);
    assert!(locate(&pattern, &code, &data, &|_| true).is_none());
    let is_before_copy = |range: AddressRange| range.start().0 < CODE + copy_offset as u64;
    assert!(locate(&pattern, &code, &data, &is_before_copy).is_some());
    // Change a byte that no relocation covers.
    let section = pattern.sections.iter().filter(|section| section.is_text).max_by_key(|section| section.bytes.len());
    let section = section.unwrap();
    let (_, range) = ranges.iter().find(|(index, _)| *index == section.index).unwrap();
    code.bytes[(range.start().0 - CODE) as usize + section.anchor.0] ^= 1;
    let located = locate(&pattern, &code, &data, &is_before_copy);
    assert!(located.is_none_or(|located| located.sections.iter().all(|(index, _)| *index != section.index)));
}

/// Builds a piece of memory that holds each text section at its offset.
fn with_texts(texts: &[(usize, &[u8])]) -> Piece {
    let end = texts.iter().map(|(offset, text)| offset + text.len()).max().unwrap_or_default();
    let mut bytes = vec![0; end.max(256)];
    for (offset, text) in texts {
        bytes[*offset..offset + text.len()].copy_from_slice(text);
    }
    Piece { start: Address(CODE), bytes }
}

/// Returns the offsets of the located sections, with their indices in the section table.
fn locate_offsets(pattern: &Pattern, code: &Piece) -> Option<Vec<(usize, u64)>> {
    let placement = pattern.locate(code, &Surroundings::new(Box::new(Vec::new)), &|_| None, &|_| true, true)?;
    Some(placement.sections.iter().map(|(index, range)| (*index, range.start().0 - CODE)).collect())
}

/// A five-byte `jmp` whose four-byte operand is relocated.
const JUMP: (&[u8], std::ops::Range<usize>) = (&[0xe9, 0, 0, 0, 0], 1..5);

#[test]
fn a_jump_that_was_left_out_is_not_found_inside_a_function() {
    let mut large: Vec<u8> = (0x10..0x50).collect();
    large[16] = 0xe9;
    let pattern = Pattern::from_texts(&[JUMP, (&large, 0..0), JUMP]);
    assert_eq!(locate_offsets(&pattern, &with_texts(&[(32, &large)])), Some(vec![(1, 32)]));
    // The jump must not match inside a function that exists twice, either.
    let other: Vec<u8> = (0x80..0xc0).collect();
    let pattern = Pattern::from_texts(&[JUMP, (&large, 0..0), (&large, 0..0), (&other, 0..0)]);
    for code in [with_texts(&[(32, &large), (96, &other)]), with_texts(&[(32, &large), (96, &other), (160, &large)])] {
        assert_eq!(locate_offsets(&pattern, &code), Some(vec![(3, 96)]));
    }
}

/// The omitted function is `mov eax, 1; ret`. Another function ends with the same bytes, and relocations change all the
/// bytes before them.
#[test]
fn omitted_function_is_not_found_at_the_end_of_one_with_equal_weight() {
    let small: Vec<u8> = (0x10..0x20).collect();
    let large = [&[0xe8; 16][..], &small].concat();
    let pattern = Pattern::from_texts(&[(&small, 0..0), (&large, 0..16)]);
    assert_eq!(locate_offsets(&pattern, &with_texts(&[(32, &large)])), Some(vec![(1, 32)]));
}

/// The number of equal functions does not matter, because any of them may belong to an unknown object.
#[test]
fn omitted_jump_is_not_found_inside_one_of_many_equal_functions() {
    let mut equal: Vec<u8> = (0x10..0x30).collect();
    equal[16] = 0xe9;
    let other: Vec<u8> = (0x80..0xc0).collect();
    let pattern = Pattern::from_texts(&[(&equal, 0..0), (&other, 0..0), (&equal, 0..0), JUMP]);
    for count in [2, 129, MAX_MATCHES, MAX_MATCHES + 1] {
        let mut texts: Vec<(usize, &[u8])> = (0..count).map(|number| (64 + number * 32, &equal[..])).collect();
        texts.insert(0, (0, &other));
        assert_eq!(locate_offsets(&pattern, &with_texts(&texts)), Some(vec![(1, 0)]), "{count}");
    }
}

#[test]
fn one_of_two_equal_functions_that_is_there_is_neither() {
    let (equal, other): (Vec<u8>, Vec<u8>) = ((0x10..0x30).collect(), (0x80..0xc0).collect());
    let pattern = Pattern::from_texts(&[(&equal, 4..8), (&other, 0..0), (&equal, 4..8)]);
    assert_eq!(locate_offsets(&pattern, &with_texts(&[(32, &equal), (96, &other)])), Some(vec![(1, 96)]));
    let pattern = Pattern::from_texts(&[(&equal, 4..8), (&equal, 4..8)]);
    assert_eq!(locate_offsets(&pattern, &with_texts(&[(32, &equal)])), None);
}

/// Builds an `.eh_frame` at `DATA` for functions of `size` bytes at these offsets. Also returns the offsets of the
/// address fields.
fn build_eh_frame(size: u32, offsets: &[u64]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = [&[16, 0, 0, 0, 0, 0, 0, 0], &b"\x01zR\0\x01\x78\x10\x01\x1b\0\0\0"[..]].concat();
    let mut fields = Vec::new();
    for offset in offsets {
        let (cie, field) = (bytes.len() as u32 + 4, bytes.len() + 8);
        let distance = (CODE + offset).wrapping_sub(DATA + field as u64) as u32;
        [16, cie, distance, size, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        fields.push(field);
    }
    (bytes, fields)
}

/// Links the `present` functions, of 32 bytes each, one after another, and searches for the object. Checks the
/// addresses of the located functions and returns these functions.
fn located_functions(functions: &[&[u8]], present: &[usize]) -> Vec<usize> {
    let mut pattern = Pattern::from_texts(&functions.iter().map(|&text| (text, 0..0)).collect::<Vec<_>>());
    let (bytes, fields) = build_eh_frame(32, &vec![0; functions.len()]);
    pattern.add_table(bytes, &fields);
    let offset_of = |function: usize| 32 + 32 * function as u64;
    let texts: Vec<(usize, &[u8])> =
        present.iter().map(|&function| (offset_of(function) as usize, functions[function])).collect();
    let offsets: Vec<u64> = present.iter().map(|&function| offset_of(function)).collect();
    // Append bytes that do not belong to the table.
    let bytes = [build_eh_frame(32, &offsets).0, vec![0; 8], vec![7; 256]].concat();
    let surroundings = Surroundings::new(Box::new(|| vec![Piece { start: Address(DATA), bytes }]));
    let Some(placement) = pattern.locate(&with_texts(&texts), &surroundings, &|_| None, &|_| true, true) else {
        return Vec::new();
    };
    let mut located = Vec::new();
    for (function, range) in placement.sections.into_iter().filter(|(_, range)| range.start().0 < DATA) {
        assert_eq!(range.start().0 - CODE, offset_of(function), "function {function} of {present:?}");
        assert!(present.contains(&function), "function {function} of {present:?}");
        located.push(function);
    }
    located.sort_unstable();
    located
}

#[test]
fn table_is_ambiguous_if_one_of_several_equal_functions_is_omitted() {
    let (equal, other): (Vec<u8>, Vec<u8>) = ((0x10..0x30).collect(), (0x80..0xa0).collect());
    let located = |present: &[usize]| located_functions(&[&equal, &equal, &equal, &other, &equal], present);
    assert_eq!(located(&[0, 1, 2, 3, 4]), [0, 1, 2, 3, 4]);
    for present in [&[1, 2, 3, 4][..], &[0, 2, 3, 4], &[0, 1, 3, 4], &[1, 3, 4]] {
        assert_eq!(located(present), [3, 4], "{present:?}");
    }
    // The order of the entries reveals which function is missing.
    assert_eq!(located(&[0, 1, 2, 3]), [0, 1, 2, 3]);
}

/// Models two C++ classes with equal destructors: both variants of `~A`, then those of `~B`. The destructors of `A`
/// were taken from another object.
#[test]
fn table_is_ambiguous_if_one_of_two_equal_groups_is_omitted() {
    let [main, first, second]: [Vec<u8>; 3] = [0x10, 0x40, 0x80].map(|byte| (byte..byte + 32).collect());
    let functions = [&main[..], &first, &second, &first, &second];
    assert_eq!(located_functions(&functions, &[0, 3, 4]), [0]);
    assert_eq!(located_functions(&functions, &[0, 1, 2]), [0]);
    assert_eq!(located_functions(&functions, &[0, 2, 3]), [0, 2, 3]);
    assert_eq!(located_functions(&functions, &[0, 2, 3, 4]), [0, 2, 3, 4]);
    assert_eq!(located_functions(&functions, &[0, 1, 2, 3, 4]), [0, 1, 2, 3, 4]);
}

/// No function is located at a wrong address, whichever functions were omitted.
#[test]
fn functions_are_located_correctly_whichever_are_omitted() {
    let texts: [Vec<u8>; 4] = [0x10_u8, 0x40, 0x80, 0xc0].map(|byte| (byte..byte + 32).collect());
    for order in [[0, 1, 2, 1, 2, 3, 1], [1, 1, 2, 0, 2, 2, 1], [1, 2, 3, 0, 1, 2, 3], [1, 2, 1, 2, 1, 2, 0]] {
        let functions = order.map(|text: usize| texts[text].as_slice());
        for subset in 1..1_u32 << order.len() {
            let present: Vec<usize> = (0..order.len()).filter(|function| subset & (1 << function) != 0).collect();
            let located = located_functions(&functions, &present);
            let is_complete = present.len() == order.len();
            assert!(!is_complete || located == present, "{order:?}: {located:?}");
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn debug_object_contains_the_section_addresses() {
    let pattern = pattern();
    let (code, data, _) = link(&pattern, 0);
    let placement = locate(&pattern, &code, &data, &|_| true).unwrap();
    let object = pattern.into_debug_object(&placement.sections);
    let parsed = jitlisten::LoadedObject::parse(&object).unwrap();
    let text: Vec<AddressRange> = parsed.text().iter().map(|text| text.range).collect();
    assert_eq!(text, placement.text);
    assert!(!parsed.functions().is_empty() && parsed.eh_frame().is_some());
    assert!(jitlisten::LineRows::parse(&object).is_ok());
}

#[test]
fn corrupted_objects_cause_no_panic() {
    for cut in (0..NUMBA.len()).step_by(61) {
        let _ = Pattern::parse(NUMBA[..cut].to_vec());
        let mut corrupted = NUMBA.to_vec();
        corrupted[cut] ^= 0xff;
        let Some(pattern) = Pattern::parse(corrupted) else { continue };
        let (code, data, _) = unlinked(&pattern);
        let _ = locate(&pattern, &code, &data, &|_| true);
    }
}

/// Lays out all sections one after another, without relocating them.
fn unlinked(pattern: &Pattern) -> (Piece, Piece, ()) {
    let bytes: Vec<u8> = pattern.sections.iter().flat_map(|section| section.bytes.clone()).collect();
    let piece = |start| Piece { start: Address(start), bytes: bytes.clone() };
    (piece(CODE), piece(DATA), ())
}

fn placement_at(texts: &[(u64, u64)]) -> Placement {
    let text = texts.iter().map(|&(start, end)| range(start, end)).collect();
    Placement { sections: Vec::new(), text, is_small: false, is_certain: true }
}

fn unambiguous(placements: &[Placement]) -> Vec<usize> {
    let certain = find_unambiguous(placements.iter());
    (0..placements.len()).filter(|&index| certain[index]).collect()
}

#[test]
fn object_that_covers_all_shared_text_is_unambiguous() {
    let whole = placement_at(&[(0x1000, 0x1100), (0x1100, 0x1180), (0x1200, 0x1300)]);
    let (partial, inside) = (placement_at(&[(0x1000, 0x1100), (0x1200, 0x1300)]), placement_at(&[(0x1010, 0x1018)]));
    let elsewhere = placement_at(&[(0x3000, 0x3100)]);
    assert_eq!(unambiguous(&[partial, whole, inside, elsewhere]), [1, 3]);
    let equal = || placement_at(&[(0x1000, 0x1100)]);
    assert_eq!(unambiguous(&[equal(), equal()]), [0_usize; 0]);
    let other = placement_at(&[(0x1080, 0x1280)]);
    assert_eq!(unambiguous(&[equal(), other]), [0_usize; 0]);
    assert_eq!(unambiguous(&[equal()]), [0]);
}

#[test]
fn other_object_may_match_if_it_contains_all_located_text() {
    let memory = [[0x11_u8; 32], [0x22; 32]].concat();
    let start = CODE;
    let placement = placement_at(&[(start, start + 32), (start + 32, start + 64)]);
    let read = |range: AddressRange| memory.get((range.start().0 - start) as usize..(range.end().0 - start) as usize);
    let read = |range| read(range).map(<[u8]>::to_vec);
    let fits =
        |texts: &[(&[u8], std::ops::Range<usize>)]| Pattern::from_texts(texts).may_match_placement(&placement, &read);
    let (first, second) = ([0x11_u8; 32], [0x22_u8; 32]);
    assert!(fits(&[(&second, 0..0), (&first, 0..0)]));
    assert!(fits(&[(&first, 0..0), (&[0x33; 32], 4..32), (&[0x22; 32], 0..0)]));
    assert!(!fits(&[(&first, 0..0)]), "it has less");
    assert!(!fits(&[(&first, 0..0), (&[0x22; 31], 0..0)]));
    assert!(
        Pattern::from_texts(&[(&first, 0..0)]).may_match_placement(&placement_at(&[(CODE, CODE + 32)]), &|_| None),
        "it cannot be read"
    );
}
