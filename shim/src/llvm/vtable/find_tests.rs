#![forbid(unsafe_code)]

use super::*;

const BIAS: u64 = 0x7000_0000_0000;
const NAMES: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];
const CONSTANTS: u64 = 0x1000;
const DATA: u64 = 0x8000;
const CODE: Range<u64> = 0x2000..0x3000;

/// Model of a library, with constants, data words and relocations.
struct LibraryModel {
    constants: Vec<u8>,
    data: Vec<u8>,
    relocations: Vec<Relocation>,
}

#[derive(Clone, Copy)]
enum Word {
    Plain(i64),
    Pointer(u64),
}
use Word::{Plain, Pointer};

fn relative() -> u64 {
    jitlisten::plumbing::RELATIVE
}

impl LibraryModel {
    fn new(constants: &[u8], words: &[Word], is_relocated: bool) -> LibraryModel {
        let mut model = LibraryModel { constants: constants.to_vec(), data: Vec::new(), relocations: Vec::new() };
        for (index, &word) in words.iter().enumerate() {
            let value = match word {
                Plain(value) => value as u64,
                Pointer(target) if is_relocated => target + BIAS,
                Pointer(target) => {
                    model.relocations.push([DATA + index as u64 * 8, relative(), target]);
                    0
                }
            };
            model.data.extend(value.to_ne_bytes());
        }
        model
    }

    fn view(&self) -> LibraryView<'_> {
        LibraryView {
            bias: BIAS,
            constants: vec![Segment { address: BIAS + CONSTANTS, bytes: &self.constants }],
            data: vec![Segment { address: BIAS + DATA, bytes: &self.data }],
            relocations: (!self.relocations.is_empty()).then_some(self.relocations.as_slice().into()),
            applied_relocations: &[],
            code: std::iter::once(BIAS + CODE.start..BIAS + CODE.end).collect(),
        }
    }
}

/// Builds data words with two typeinfos and their vtables. The second class is derived from the first.
fn words() -> Vec<Word> {
    vec![
        Plain(77),
        // The first class's typeinfo, at `DATA + 8`.
        Pointer(0x9000),
        Pointer(CONSTANTS + 1),
        // The second class's typeinfo, at `DATA + 24`, which refers to the first one.
        Pointer(0x9000),
        Pointer(CONSTANTS + 30),
        Pointer(DATA + 8),
        // The first class's vtable.
        Plain(0),
        Pointer(DATA + 8),
        Pointer(0x2000),
        Pointer(0x2010),
        Pointer(0x2020),
        // The second class's two vtables.
        Plain(0),
        Pointer(DATA + 24),
        Pointer(0x2100),
        Pointer(0x2110),
        Plain(-16),
        Pointer(DATA + 24),
        Pointer(0x2120),
        Plain(5),
    ]
}

fn constants() -> Vec<u8> {
    let mut constants = format!("\0{}\0", NAMES[0]).into_bytes();
    constants.resize(30, 0);
    constants.extend(format!("{}\0N4llvm14RuntimeDyldELFEX\0N4llvm14Runt", NAMES[1]).into_bytes());
    constants
}

fn vtable(class: usize, word_index: u64, offset_to_top: i64, slots: &[u64], is_bounded: bool) -> Vtable {
    let slots = slots.iter().map(|slot| BIAS + slot).collect();
    Vtable { class, address_point: BIAS + DATA + word_index * 8, offset_to_top, slots, is_bounded }
}

fn expected(is_bounded: bool) -> Vec<Vtable> {
    vec![
        vtable(0, 8, 0, &[0x2000, 0x2010, 0x2020], is_bounded),
        vtable(1, 13, 0, &[0x2100, 0x2110], is_bounded),
        vtable(1, 17, -16, &[0x2120], is_bounded),
    ]
}

#[test]
fn finds_vtables_by_type_name() {
    for is_relocated in [true, false] {
        let model = LibraryModel::new(&constants(), &words(), is_relocated);
        assert_eq!(vtables_by_type_name(&model.view(), &NAMES), expected(false), "relocated: {is_relocated}");
    }
}

/// In a program at a fixed address, the names are searched for first.
#[test]
fn finds_vtables_of_a_program_at_a_fixed_address() {
    let mut model = LibraryModel::new(&constants(), &words(), true);
    for word in model.data.chunks_exact_mut(8) {
        let value = u64::from_ne_bytes(word.try_into().expect("a word"));
        let file_address = if (BIAS..BIAS << 1).contains(&value) { value - BIAS } else { value };
        word.copy_from_slice(&file_address.to_ne_bytes());
    }
    let mut view = model.view();
    (view.bias, view.constants[0].address, view.data[0].address) = (0, CONSTANTS, DATA);
    view.code = std::iter::once(CODE).collect();
    let without_bias = |vtable: Vtable| Vtable {
        address_point: vtable.address_point - BIAS,
        slots: vtable.slots.iter().map(|slot| slot - BIAS).collect(),
        ..vtable
    };
    assert_eq!(vtables_by_type_name(&view, &NAMES), expected(false).into_iter().map(without_bias).collect::<Vec<_>>());
}

/// A pointer to a name is not part of a typeinfo if it is in a table of strings, or if the previous word is not a
/// vtable pointer.
#[test]
fn ignores_name_pointers_outside_typeinfos() {
    for is_relocated in [true, false] {
        let mut words = words();
        words[0] = Pointer(CONSTANTS + 1);
        words.extend([
            Plain(1),
            Pointer(CONSTANTS + 1),
            Pointer(CONSTANTS + 1),
            Pointer(0x2000),
            Pointer(CONSTANTS + 1),
        ]);
        let model = LibraryModel::new(&constants(), &words, is_relocated);
        assert_eq!(vtables_by_type_name(&model.view(), &NAMES), expected(false), "relocated: {is_relocated}");
    }
}

#[test]
fn finds_vtables_by_symbol_without_type_names() {
    let mut words = words();
    // Without RTTI the typeinfo pointers are 0.
    (words[7], words[12], words[16]) = (Plain(0), Plain(0), Plain(0));
    let symbols = [
        Symbol { class: 0, address: BIAS + DATA + 6 * 8, size: 5 * 8 },
        Symbol { class: 1, address: BIAS + DATA + 11 * 8, size: 7 * 8 },
    ];
    for is_relocated in [true, false] {
        let model = LibraryModel::new(b"", &words, is_relocated);
        assert_eq!(vtables_by_symbol(&model.view(), &symbols), expected(true));
    }
}

#[test]
fn symbol_size_bounds_the_slots() {
    let mut words = words();
    // Place a table of functions right after the vtable.
    words[11] = Pointer(0x2030);
    let model = LibraryModel::new(&constants(), &words, true);
    let symbol = Symbol { class: 0, address: BIAS + DATA + 6 * 8, size: 5 * 8 };
    assert_eq!(vtables_by_symbol(&model.view(), &[symbol])[0].slots.len(), 3);
    assert_eq!(vtables_by_type_name(&model.view(), &NAMES)[0].slots.len(), 4);
}

#[test]
fn slots_end_at_the_first_word_that_is_not_code() {
    let mut words = words();
    words[9] = Pointer(0x4000);
    let model = LibraryModel::new(&constants(), &words, true);
    assert_eq!(vtables_by_type_name(&model.view(), &NAMES)[0].slots, [BIAS + 0x2000]);
    words[8] = Pointer(0x4000);
    let model = LibraryModel::new(&constants(), &words, true);
    assert!(vtables_by_type_name(&model.view(), &NAMES).iter().all(|vtable| vtable.class == 1));
}

#[test]
fn slot_with_unknown_relocation_is_not_code() {
    let mut model = LibraryModel::new(&constants(), &words(), false);
    let slot = model.relocations.iter_mut().find(|relocation| relocation[2] == 0x2010).expect("the slot");
    slot[1] = 1 << 32 | 1;
    assert_eq!(vtables_by_type_name(&model.view(), &NAMES)[0].slots, [BIAS + 0x2000]);
}

/// The slot's function is defined by another library of the same product, so its relocation has a symbol and no addend.
#[test]
fn slot_may_belong_to_another_library() {
    let import = (0..=u64::from(u16::MAX)).find(|&info| is_import(info, 0)).expect("a type") | 7 << 32;
    let mut model = LibraryModel::new(&constants(), &words(), false);
    let slot = model.relocations.iter_mut().find(|relocation| relocation[2] == 0x2010).expect("the slot");
    (slot[1], slot[2]) = (import, 0);
    let vtables = vtables_by_type_name(&model.view(), &NAMES);
    assert_eq!(vtables[0].slots, [BIAS + 0x2000, 0, BIAS + 0x2020]);
    // Model the vtable after relocation.
    let mut words = words();
    words[9] = Pointer(0x10_0000);
    let loaded = LibraryModel::new(&constants(), &words, true);
    let applied_relocations = [[DATA + 9 * 8, import, 0]];
    let view = LibraryView { applied_relocations: &applied_relocations, ..loaded.view() };
    assert_eq!(vtables_by_type_name(&view, &NAMES)[0].slots, [BIAS + 0x2000, BIAS + 0x10_0000, BIAS + 0x2020]);
}

/// Random bytes cause neither a panic nor an endless loop.
#[test]
fn random_bytes_cause_no_panic() {
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 33
    };
    for round in 0..2000 {
        let mut model = LibraryModel::new(&constants(), &words(), round % 2 == 0);
        for _ in 0..4 {
            let offset = random() as usize % model.data.len();
            model.data[offset] = random() as u8;
            if let Some(relocation) = model.relocations.get_mut(random() as usize % 16) {
                relocation[random() as usize % 3] = [random(), u64::MAX, 0, BIAS][random() as usize % 4];
            }
        }
        model.data.truncate(random() as usize % 160);
        let mut view = model.view();
        view.data[0].address = view.data[0].address.wrapping_add([0, 1, 7, u64::MAX / 2][random() as usize % 4]);
        let vtables = vtables_by_type_name(&view, &NAMES);
        let symbols: Vec<Symbol> = (0..4)
            .map(|_| Symbol { class: 0, address: BIAS + DATA + random() % 200, size: random() % 4 * (u64::MAX / 3) })
            .collect();
        let all = vtables.into_iter().chain(vtables_by_symbol(&view, &symbols));
        for vtable in all {
            assert!(vtable.slots.iter().all(|&slot| view.is_code(slot) || slot == 0));
        }
    }
}
