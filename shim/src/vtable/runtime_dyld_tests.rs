#![forbid(unsafe_code)]

use super::*;

fn vtable(class: usize, slots: &[u64], bounded: bool) -> Vtable {
    Vtable { class, address_point: 0x1000 * (class as u64 + 1), offset_to_top: 0, slots: slots.to_vec(), bounded }
}

/// `slots` functions, the last four shared and the rest of their own.
fn pair(slots: u64) -> (Vec<u64>, Vec<u64>) {
    let elf: Vec<u64> = (0..slots).map(|slot| 0x100 + slot).collect();
    let own = |(index, &slot): (usize, &u64)| if index as u64 + 4 < slots { slot + 0x1000 } else { slot };
    let mips = elf.iter().enumerate().map(own).collect();
    (elf, mips)
}

#[test]
fn load_object_is_the_fourth_from_the_end() {
    for (slots, expected) in [(16, 12), (17, 13), (19, 15)] {
        let (elf, mips) = pair(slots);
        let bounded = [vtable(0, &elf, true)];
        assert_eq!(load_object(&bounded, None).map(|found| found.1), Ok(expected));
        let unbounded = [vtable(1, &mips, false), vtable(0, &elf, false)];
        assert_eq!(load_object(&unbounded, None).map(|found| found.1), Ok(expected));
        // Folded destructors.
        let folded = [vtable(1, &elf, false), vtable(0, &elf, false)];
        assert_eq!(load_object(&folded, None).unwrap_err(), Refusal::Unbounded);
        let sibling = [&folded[..], &[vtable(2, &mips, false)]].concat();
        assert_eq!(load_object(&sibling, None).map(|found| found.1), Ok(expected));
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let (elf, mips) = pair(17);
    assert_eq!(load_object(&[], None).unwrap_err(), Refusal::Missing);
    assert_eq!(load_object(&[vtable(0, &elf, false)], None).unwrap_err(), Refusal::Unbounded);
    // Functions of something else right behind the vtable: 19 slots as it seems, but the ends differ.
    let (longer, other) = ([&elf[..], &[1, 2]].concat(), [&mips[..], &[3, 4]].concat());
    assert_eq!(
        load_object(&[vtable(0, &longer, false), vtable(1, &mips, false)], None).unwrap_err(),
        Refusal::Unbounded
    );
    assert_eq!(
        load_object(&[vtable(0, &longer, false), vtable(1, &other, false)], None).unwrap_err(),
        Refusal::Unbounded
    );
    // The same functions behind both: their destructors are not where they should be.
    let other = [&mips[..], &[1, 2]].concat();
    assert_eq!(
        load_object(&[vtable(0, &longer, false), vtable(1, &other, false)], None).unwrap_err(),
        Refusal::Unbounded
    );
    let (elf, _) = pair(18);
    assert_eq!(load_object(&[vtable(0, &elf, true)], None).unwrap_err(), Refusal::UnknownSlots(18));
    let twice = [vtable(0, &pair(16).0, true), Vtable { address_point: 0x9000, ..vtable(0, &pair(16).0, true) }];
    assert_eq!(load_object(&twice, None).unwrap_err(), Refusal::Ambiguous);
}

/// The number of slots of another release is none of this one: it may be the vtable of something else.
#[test]
fn the_number_of_slots_is_that_of_the_release() {
    for (release, expected) in [(10, 16), (15, 16), (16, 17), (19, 17), (21, 19), (22, 19), (23, 19)] {
        for slots in [16, 17, 19] {
            let found = load_object(&[vtable(0, &pair(slots as u64).0, true)], Some(release)).map(|found| found.1);
            let right = if slots == expected { Ok(slots - LAST_SLOTS) } else { Err(Refusal::UnknownSlots(slots)) };
            assert_eq!(found, right, "{release}");
        }
    }
}
