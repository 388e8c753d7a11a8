#![forbid(unsafe_code)]

use super::*;

fn vtable(class: usize, slots: &[u64], is_bounded: bool) -> Vtable {
    Vtable { class, address_point: 0x1000 * (class as u64 + 1), offset_to_top: 0, slots: slots.to_vec(), is_bounded }
}

/// Builds the vtables of two classes with `slots` functions each. The last four functions are shared, and the others
/// differ.
fn vtable_pair(slots: u64) -> (Vec<u64>, Vec<u64>) {
    let elf: Vec<u64> = (0..slots).map(|slot| 0x100 + slot).collect();
    let mips_function = |(index, &slot): (usize, &u64)| if index as u64 + 4 < slots { slot + 0x1000 } else { slot };
    let mips = elf.iter().enumerate().map(mips_function).collect();
    (elf, mips)
}

#[test]
fn load_object_is_the_fourth_from_the_end() {
    for (slots, expected) in [(16, 12), (17, 13), (19, 15)] {
        let (elf, mips) = vtable_pair(slots);
        let is_bounded = [vtable(0, &elf, true)];
        assert_eq!(find_load_object(&is_bounded, &[]).map(|located| located.1), Ok(expected));
        let unbounded = [vtable(1, &mips, false), vtable(0, &elf, false)];
        assert_eq!(find_load_object(&unbounded, &[]).map(|located| located.1), Ok(expected));
        // Case: the linker has folded the destructors.
        let folded = [vtable(1, &elf, false), vtable(0, &elf, false)];
        assert_eq!(find_load_object(&folded, &[]).unwrap_err(), Refusal::Unbounded);
        let sibling = [&folded[..], &[vtable(2, &mips, false)]].concat();
        assert_eq!(find_load_object(&sibling, &[]).map(|located| located.1), Ok(expected));
    }
}

#[test]
fn refuses_unknown_vtable_layouts() {
    let (elf, mips) = vtable_pair(17);
    assert_eq!(find_load_object(&[], &[]).unwrap_err(), Refusal::Missing);
    assert_eq!(find_load_object(&[vtable(0, &elf, false)], &[]).unwrap_err(), Refusal::Unbounded);
    // Case: unrelated functions follow the vtable, so it seems to have 19 slots, but the last four functions differ.
    let (longer, other) = ([&elf[..], &[1, 2]].concat(), [&mips[..], &[3, 4]].concat());
    assert_eq!(
        find_load_object(&[vtable(0, &longer, false), vtable(1, &mips, false)], &[]).unwrap_err(),
        Refusal::Unbounded
    );
    assert_eq!(
        find_load_object(&[vtable(0, &longer, false), vtable(1, &other, false)], &[]).unwrap_err(),
        Refusal::Unbounded
    );
    // Case: the same functions follow both vtables, so the destructors are at the wrong position.
    let other = [&mips[..], &[1, 2]].concat();
    assert_eq!(
        find_load_object(&[vtable(0, &longer, false), vtable(1, &other, false)], &[]).unwrap_err(),
        Refusal::Unbounded
    );
    let (elf, _) = vtable_pair(18);
    assert_eq!(find_load_object(&[vtable(0, &elf, true)], &[]).unwrap_err(), Refusal::UnknownSlots(18));
    let duplicated =
        [vtable(0, &vtable_pair(16).0, true), Vtable { address_point: 0x9000, ..vtable(0, &vtable_pair(16).0, true) }];
    assert_eq!(find_load_object(&duplicated, &[]).unwrap_err(), Refusal::Ambiguous);
}

/// A slot count of another release is refused, because the vtable may belong to a different class.
#[test]
fn slot_count_must_match_the_release() {
    let load_object_slot = |slots: usize, version: &str| {
        let release = Release::parse(version).expect("a version");
        find_load_object(&[vtable(0, &vtable_pair(slots as u64).0, true)], &[release]).map(|located| located.1)
    };
    let versions = [("10", &[16][..]), ("15", &[16]), ("16", &[17]), ("19.1", &[17]), ("21", &[19]), ("22.1.0", &[19])];
    let development_versions =
        [("16.0.0git", &[16, 17][..]), ("20.0.0git", &[17, 19]), ("23.0.0git", &[19]), ("24.0.0git", &[19])];
    for (version, expected) in versions.into_iter().chain(development_versions) {
        for slots in [16, 17, 19] {
            let is_accepted = expected.contains(&slots);
            let expected_result =
                if is_accepted { Ok(slots - INHERITED_SLOTS) } else { Err(Refusal::UnknownSlots(slots)) };
            assert_eq!(load_object_slot(slots, version), expected_result, "{version}");
        }
    }
    for newer in ["25.0.0git", "25.1", "26.1.0"] {
        assert!(matches!(load_object_slot(19, newer), Err(Refusal::TooNew(25 | 26))), "{newer}");
    }
}
