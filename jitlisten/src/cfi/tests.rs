//! Tests that compare derived unwind rules with compiler-generated ones.

use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection};

use super::*;
use crate::loaded_object::relocate::relocated_where;
use crate::{AddressRange, LoadedObject, Offset};

/// CFA rule from each address on; `None` for an expression.
type Rows = Vec<(u64, Option<Cfa>)>;

/// Text sections and `.eh_frame` of a file, with their addresses.
struct Image {
    text: Vec<(Address, Vec<u8>)>,
    eh_frame: (Address, Vec<u8>),
}

impl Image {
    fn code(&self, range: AddressRange) -> Option<&[u8]> {
        let (start, bytes) = self.text.iter().find(|(start, bytes)| {
            AddressRange::new(*start, bytes.len() as u64).is_some_and(|text| text.covers(range))
        })?;
        let offset = (range.start().0 - start.0) as usize;
        bytes.get(offset..offset + range.size() as usize)
    }

    fn covered(&self) -> Vec<AddressRange> {
        covered(&self.eh_frame.1, self.eh_frame.0).expect("a compiler's .eh_frame")
    }

    /// Compiler-generated rows of each function.
    fn rows(&self) -> Vec<(AddressRange, Rows)> {
        rows(&self.eh_frame.1, self.eh_frame.0)
    }
}

fn rows(eh_frame: &[u8], address: Address) -> Vec<(AddressRange, Rows)> {
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(gimli::Vendor::AArch64);
    let bases = BaseAddresses::default().set_eh_frame(address.0);
    let (mut context, mut functions) = (UnwindContext::new(), Vec::new());
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("an entry") {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("an FDE");
        let (mut table, mut function_rows) = (fde.rows(&section, &bases, &mut context).expect("rows"), Vec::new());
        while let Some(row) = table.next_row().expect("a row") {
            let cfa = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => Some(Cfa { register: register.0, offset: *offset }),
                CfaRule::Expression(_) => None,
            };
            function_rows.push((row.start_address(), cfa));
        }
        functions.push((AddressRange::new(Address(fde.initial_address()), fde.len()).expect("a range"), function_rows));
    }
    functions
}

fn cfa_at(rows: &[(u64, Option<Cfa>)], address: u64) -> Option<Cfa> {
    rows.iter().rfind(|(start, _)| *start <= address)?.1
}

fn fixture(name: &str) -> Image {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the object is in the repository");
    let object = LoadedObject::parse(&bytes).expect("an object");
    // Calls are not relocated for AArch64, because their targets do not affect unwinding.
    let is_wanted: fn(&[u8]) -> bool = match object.machine() {
        Machine::X86_64 => |name| name == b".eh_frame" || name.contains(&b't') && name.ends_with(b"text"),
        Machine::Aarch64 => |name| name == b".eh_frame",
    };
    let mut sections = relocated_where(&bytes, is_wanted).expect("relocations");
    let file = object::File::parse(&*bytes).expect("an object");
    sections.extend(
        file.sections()
            .filter(|s| s.kind() == object::SectionKind::Text)
            .map(|section| (section.name().expect("a name").into(), section.data().expect("bytes").into())),
    );
    let bytes_of =
        |name: &str| sections.iter().find(|(section_name, _)| **section_name == *name).map(|(_, b)| b.to_vec());
    let text = object.text().iter();
    Image {
        text: text.map(|t| (t.range.start(), bytes_of(&t.section).expect("bytes"))).collect(),
        eh_frame: (object.eh_frame().expect("one").start(), bytes_of(".eh_frame").expect("bytes")),
    }
}

fn this_program() -> Image {
    let file = std::fs::read(std::env::current_exe().expect("a path")).expect("a file");
    linked(&file)
}

fn linked(file: &[u8]) -> Image {
    let file = object::File::parse(file).expect("an ELF file");
    let section = |name: &str| {
        let section = file.section_by_name(name).expect("the section");
        (Address(section.address()), section.data().expect("bytes").to_vec())
    };
    Image { text: vec![section(".text")], eh_frame: section(".eh_frame") }
}

/// Result of comparing the CFA rules at every reachable instruction.
#[derive(Debug)]
struct Comparison {
    analysed: usize,
    functions: usize,
    instructions: usize,
    differences: Vec<String>,
}

/// Compares the derived CFA with the compiler's. Function fragments (GCC's `.cold`) are omitted, because they are not
/// entered by a call.
fn compare(image: &Image) -> Comparison {
    let (mut analysed, mut instructions) = (0, 0);
    let mut functions = image.rows();
    let at_entry = Some(Cfa { register: x86_64::RSP, offset: 8 });
    functions.retain(|(_, rows)| rows.first().is_some_and(|(_, cfa)| *cfa == at_entry));
    let mut differences = Vec::new();
    for (range, rows) in &functions {
        let Some(code) = image.code(*range) else { continue };
        let Some(states) = x86_64::states(code, range.start()) else { continue };
        analysed += 1;
        for (offset, state) in states {
            let address = range.start().0 + offset;
            let Some(expected) = cfa_at(rows, address) else { continue };
            instructions += 1;
            if !state.agrees(expected) {
                differences.push(format!("{range} at {address:#x}: compiler {expected:?}, here {state:?}"));
            }
        }
    }
    Comparison { analysed, functions: functions.len(), instructions, differences }
}

/// LLVM's tables are inaccurate around `push` and `add rsp`, because a row may start an instruction late. In libLLVM-14
/// this affects 255 of 11.9 million instructions, in 137 places; in each of them the derived rule is right.
#[test]
fn agrees_with_rustc_about_this_program() {
    let compare: fn(&Image) -> Comparison = if cfg!(target_arch = "aarch64") { compare_aarch64 } else { compare };
    let comparison = compare(&this_program());
    assert!(comparison.analysed > comparison.functions / 2 && comparison.instructions > 10_000, "{comparison:?}");
    // On AArch64, rustc writes empty entries for functions that never return.
    let max_difference_ratio = if cfg!(target_arch = "aarch64") { 1_000 } else { 10_000 };
    assert!(comparison.differences.len() * max_difference_ratio <= comparison.instructions, "{comparison:#?}");
}

/// Compares the derived rules for AArch64, where only functions with a frame pointer are supported. The compiler's
/// rules may still be based on `sp`; both must then agree on the stack slot of the caller's `x29`, to which `x29`
/// points.
fn compare_aarch64(image: &Image) -> Comparison {
    let mut section = EhFrame::new(&image.eh_frame.1, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(gimli::Vendor::AArch64);
    let bases = BaseAddresses::default().set_eh_frame(image.eh_frame.0.0);
    let (mut context, mut entries) = (UnwindContext::new(), section.entries(&bases));
    let mut comparison = Comparison { analysed: 0, functions: 0, instructions: 0, differences: Vec::new() };
    while let Some(entry) = entries.next().expect("an entry") {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("an FDE");
        let range = AddressRange::new(Address(fde.initial_address()), fde.len()).expect("a range");
        let Some(code) = image.code(range) else { continue };
        comparison.functions += 1;
        let Some(derived) = synthesise(code, range.start(), Machine::Aarch64) else { continue };
        let mut table = fde.rows(&section, &bases, &mut context).expect("rows");
        let mut is_first = true;
        while let Some(expected_row) = table.next_row().expect("a row") {
            let CfaRule::RegisterAndOffset { register, offset } = *expected_row.cfa() else { continue };
            let expected = Cfa { register: register.0, offset };
            // Skip function fragments, because they are not entered by a call.
            if std::mem::take(&mut is_first) {
                if expected != (Cfa { register: aarch64::SP, offset: 0 }) {
                    break;
                }
                comparison.analysed += 1;
            }
            let saved = match expected_row.register(gimli::Register(aarch64::X29)) {
                Some(gimli::RegisterRule::Offset(offset)) => Some(offset),
                _ => None,
            };
            for address in (expected_row.start_address()..expected_row.end_address()).step_by(4) {
                let offset = address - range.start().0;
                let row = derived.iter().rfind(|row| row.offset.0 <= offset).expect("a first row");
                let frame = row.saved.iter().find(|saved| saved.register == aarch64::X29).map(|saved| saved.offset);
                let from_frame = row.cfa.register == aarch64::X29 && expected.register == aarch64::SP && saved == frame;
                comparison.instructions += 1;
                if row.cfa != expected && !from_frame {
                    comparison
                        .differences
                        .push(format!("{range} at {address:#x}: compiler {expected:?}, {saved:?}, here {row:?}"));
                }
            }
        }
    }
    comparison
}

/// Compares the rules for any ELF file of either architecture:
/// `JITLISTEN_COMPARE=/lib/x86_64-linux-gnu/libm.so.6 cargo test -p jitlisten compare_file -- --nocapture --ignored`
#[test]
#[ignore = "needs JITLISTEN_COMPARE, a file to compare with"]
fn compare_file() {
    let path = std::env::var_os("JITLISTEN_COMPARE").expect("JITLISTEN_COMPARE");
    let file = std::fs::read(path).expect("a file");
    let compare: fn(&Image) -> Comparison = if file[18] == 183 { compare_aarch64 } else { compare };
    let mut comparison = compare(&linked(&file));
    let difference_count = comparison.differences.len();
    comparison.differences.truncate(10);
    panic!("{difference_count} differ: {comparison:#?}");
}

#[test]
fn agrees_with_llvm_about_jit_code() {
    for (name, functions) in [
        ("lli-14-mcjit-plain.o", 5),
        ("lli-22-mcjit-dwarf5-large.o", 5),
        ("lli-22-jitlink-dwarf5.o", 5),
        ("numba-0.56-llvm11-plain.o", 1),
        ("numba-0.60-llvm14-dwarf4.o", 4),
        ("numba-0.68-llvm22-plain.o", 2),
        ("numba-0.68-llvm22-parallel-plain.o", 5),
        ("numba-0.68-llvm22-kernel-plain.o", 4),
    ] {
        let comparison = compare(&fixture(name));
        assert_eq!((comparison.analysed, comparison.functions), (functions, functions), "{name}: {comparison:?}");
        assert!(comparison.differences.is_empty(), "{name}: {comparison:#?}");
    }
}

/// Derived rows survive encoding and parsing unchanged at every byte of the function.
#[test]
fn encoded_rows_read_back() {
    let image = fixture("numba-0.68-llvm22-plain.o");
    let section = Address(image.eh_frame.0.0 + 0x10_0000_0000);
    let rules: Vec<FunctionRules> = image.covered().into_iter().filter_map(|range| rules(&image, range)).collect();
    assert!(!rules.is_empty());
    let bytes = encode(&rules, Machine::X86_64, section).expect("encoded");
    assert_eq!(covered(&bytes, section).expect("readable"), rules.iter().map(|rule| rule.range).collect::<Vec<_>>());
    for (rule, (_, parsed)) in rules.iter().zip(rows(&bytes, section)) {
        for offset in 0..rule.range.size() {
            let row = rule.rows.iter().rfind(|row| row.offset.0 <= offset).expect("a first row");
            assert_eq!(cfa_at(&parsed, rule.range.start().0 + offset), Some(row.cfa));
        }
    }
}

fn rules(image: &Image, range: AddressRange) -> Option<FunctionRules> {
    let rows = synthesise(image.code(range)?, range.start(), Machine::X86_64)?;
    Some(FunctionRules { range, rows })
}

#[test]
fn agrees_with_llvm_about_aarch64() {
    let image = fixture("clang-22-aarch64-dwarf5.o");
    let mut analysed = 0;
    for (range, expected_rows) in image.rows() {
        let code = image.code(range).expect("code");
        let rows = synthesise(code, range.start(), Machine::Aarch64);
        assert_eq!(rows.is_some(), super::aarch64::keeps_frame_pointer(code));
        let Some(rows) = rows else { continue };
        analysed += 1;
        // LLVM switches back to sp when the epilogue begins, one instruction earlier than necessary.
        let last_sp_rule =
            expected_rows.iter().filter_map(|(_, cfa)| *cfa).take_while(|cfa| cfa.register == aarch64::SP).last();
        for offset in (0..range.size()).step_by(4) {
            let row = rows.iter().rfind(|row| row.offset.0 <= offset).expect("a first row");
            let expected = cfa_at(&expected_rows, range.start().0 + offset);
            let agrees = expected == Some(row.cfa) || row.cfa.register == aarch64::X29 && expected == last_sp_rule;
            assert!(agrees, "{range} at +{offset:#x}: {expected:?}, here {row:?}");
        }
    }
    assert_eq!(analysed, 3);
}

/// Three functions with frame pointers, compiled by LLVM 22 for AArch64: the first pushes a register before the frame
/// record, the second has stack space below the frame record, and the third has neither. All rules survive encoding and
/// parsing unchanged.
#[test]
fn encoded_rows_read_back_on_aarch64() {
    const GAMMA: &[u32] = &[0xfc1d_0fe8, 0xd280_0008, 0xa901_7bfd, 0x9100_43fd, 0xa941_7bfd, 0xfc43_07e8, 0xd65f_03c0];
    const BETA: &[u32] = &[
        0xa9be_7bfd,
        0xf900_0bfc,
        0x9100_03fd,
        0xd10c_83ff,
        0x9100_03e8,
        0x97ff_ffe7,
        0x910c_83ff,
        0xf940_0bfc,
        0xa8c2_7bfd,
        0xd65f_03c0,
    ];
    const ALPHA: &[u32] = &[0xa9bf_7bfd, 0x9100_03fd, 0x97ff_fff2, 0xa8c1_7bfd, 0xd65f_03c0];
    let mut address = Address(0x10_0000);
    let mut rules = Vec::new();
    for words in [GAMMA, BETA, ALPHA] {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let range = AddressRange::new(address, code.len() as u64).expect("a range");
        rules.push(FunctionRules { range, rows: synthesise(&code, address, Machine::Aarch64).expect("rows") });
        address = range.end();
    }
    let bytes = encode(&rules, Machine::Aarch64, Address(0x20_0000)).expect("encoded");
    let parsed = rows(&bytes, Address(0x20_0000));
    assert_eq!(parsed.len(), rules.len());
    for (rule, (range, parsed)) in rules.iter().zip(parsed) {
        assert_eq!(rule.range, range);
        for offset in (0..range.size()).step_by(4) {
            let row = rule.rows.iter().rfind(|row| row.offset.0 <= offset).expect("a first row");
            assert_eq!(cfa_at(&parsed, range.start().0 + offset), Some(row.cfa), "{range} at +{offset:#x}");
        }
    }
}

/// Registers of every kind may be pushed before the frame record; each push moves `sp`.
#[test]
fn what_is_pushed_first_on_aarch64_counts() {
    // str d8 / str q8 / str w19 / stp s8, s9 / stp w19, w20: [sp, #-N]!; stp x29, x30, [sp, #16]; add x29, sp, #16; ret
    for (push, size) in [(0xfc1d_0fe8, 48), (0x3c9d_0fe8, 48), (0xb81d_0ff3, 48), (0x2dba_27e8, 48), (0x29ba_53f3, 48)]
    {
        let words: [u32; 4] = [push, 0xa901_7bfd, 0x9100_43fd, 0xd65f_03c0];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let rows = synthesise(&code, Address(0x1000), Machine::Aarch64).expect("rows");
        let cfa: Vec<_> = rows.iter().map(|row| (row.offset.0, row.cfa.register, row.cfa.offset)).collect();
        assert_eq!(cfa, [(0, 31, 0), (4, 31, size), (8, 31, size), (12, 29, size - 16)], "{push:#x}");
    }
    // stp x29, x30, [sp, #-16]!; addvl sp, sp, #-1; add x29, sp, #0
    let words: [u32; 3] = [0xa9bf_7bfd, 0x043f_57ff, 0x9100_03fd];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(synthesise(&code, Address(0x1000), Machine::Aarch64), None, "the length of a vector is not known here");
}

fn x86(code: &[u8]) -> Option<Vec<(u64, u16, i64)>> {
    let rows = synthesise(code, Address(0x1000), Machine::X86_64)?;
    Some(rows.into_iter().map(|row| (row.offset.0, row.cfa.register, row.cfa.offset)).collect())
}

/// LLVM may schedule other instructions between `push rbp` and `mov rbp, rsp`. But if another push, a call or a branch
/// comes between the two, they do not set up a frame pointer.
#[test]
fn a_frame_pointer_is_set_up_before_the_first_call_or_branch() {
    let is_recognised = |instructions: &[u8]| {
        let code = [&[0x55][..], instructions, &[0x48, 0x89, 0xe5, 0x5d, 0xc3]].concat();
        sets_up_frame_pointer(&code, Machine::X86_64)
    };
    // mov rax, [rdi]; vmovups ymm0, [rsi]; movabs rcx, 1
    let scheduled = [0x48, 0x8b, 0x07, 0xc5, 0xfc, 0x10, 0x06, 0x48, 0xb9, 1, 0, 0, 0, 0, 0, 0, 0];
    assert!(is_recognised(&[]) && is_recognised(&scheduled));
    // push r15; sub rsp, 8; call rax; je; jmp; an invalid instruction
    let terminators: [&[u8]; 6] =
        [&[0x41, 0x57], &[0x48, 0x83, 0xec, 8], &[0xff, 0xd0], &[0x74, 0], &[0xeb, 0], &[0x06]];
    for instructions in terminators {
        assert!(!is_recognised(instructions), "{instructions:02x?}");
    }
    // test edi, edi; je +1; ret; push rbp; mov rbp, rsp
    assert!(sets_up_frame_pointer(&[0x85, 0xff, 0x74, 1, 0xc3, 0x55, 0x48, 0x89, 0xe5], Machine::X86_64));
    assert!(!sets_up_frame_pointer(&[0x90, 0x48, 0x89, 0xe5, 0xc3], Machine::X86_64), "nothing is saved");
}

#[test]
fn a_frame_pointer_gives_three_rules() {
    // push rbp; mov rbp, rsp; push rbx; nop; pop rbx; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x90, 0x5b, 0x5d, 0xc3];
    assert!(sets_up_frame_pointer(&code, Machine::X86_64));
    assert!(sets_up_frame_pointer(&[&[0xf3, 0x0f, 0x1e, 0xfa], &code[..]].concat(), Machine::X86_64));
    assert_eq!(x86(&code).expect("rows"), [(0, 7, 8), (1, 7, 16), (4, 6, 16), (5, 6, 16), (7, 6, 16), (8, 7, 8)]);
    let rows = synthesise(&code, Address(0x1000), Machine::X86_64).expect("rows");
    let saved = [SavedRegister { register: 3, offset: -24 }, SavedRegister { register: 6, offset: -16 }];
    assert_eq!((rows[3].offset, &rows[3].saved[..]), (Offset(5), &saved[..]));
}

#[test]
fn what_is_not_understood_has_no_rules() {
    let unsupported: [(&str, &[u8]); 9] = [
        ("nothing at all", &[]),
        ("jmp rax; pop rcx; ret: a case that does not fit", &[0xff, 0xe0, 0x59, 0xc3]),
        ("mov rsp, rax; ret", &[0x48, 0x89, 0xc4, 0xc3]),
        ("push rax; ret", &[0x50, 0xc3]),
        ("je +1; push rax; nop; ud2: two depths at one place", &[0x74, 0x01, 0x50, 0x90, 0x0f, 0x0b]),
        ("xor ebx, ebx; ret: the caller's value is lost", &[0x31, 0xdb, 0xc3]),
        ("nop, and the end", &[0x90]),
        ("call to itself + 5; pop rax; ret", &[0xe8, 0, 0, 0, 0, 0x58, 0xc3]),
        ("sub rsp, 8; jmp outside", &[0x48, 0x83, 0xec, 0x08, 0xe9, 0, 1, 0, 0]),
    ];
    for (description, code) in unsupported {
        assert_eq!(x86(code), None, "{description}");
    }
}

#[test]
fn loops_calls_and_tail_calls() {
    // sub rsp, 8; call outside; dec ecx; jne -9; add rsp, 8; jmp outside
    let code =
        [0x48, 0x83, 0xec, 0x08, 0xe8, 0, 1, 0, 0, 0xff, 0xc9, 0x75, 0xf7, 0x48, 0x83, 0xc4, 0x08, 0xe9, 0, 1, 0, 0];
    assert_eq!(x86(&code).expect("rows"), [(0, 7, 8), (4, 7, 16), (17, 7, 8)]);
}

#[test]
fn the_cases_of_a_switch_are_entered_as_it_is_left() {
    // push rax; jmp rcx; pop rax; ret; int3; pop rax; ret
    let code = [0x50, 0xff, 0xe1, 0x58, 0xc3, 0xcc, 0x58, 0xc3];
    assert_eq!(x86(&code).expect("rows"), [(0, 7, 8), (1, 7, 16), (4, 7, 8), (6, 7, 16), (7, 7, 8)]);
}

/// Random bytes are not a function, and must not cause a panic.
#[test]
fn any_bytes_at_all() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        let code: Vec<u8> = (0..24)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 56) as u8
            })
            .collect();
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let rows = synthesise(&code, Address(state), machine);
            assert!(rows.is_none_or(|rows| rows.first().is_some_and(|row| row.offset == Offset(0))));
            let _ = covered(&code, Address(state));
        }
    }
}
