//! Compares our rows with gimli's, for every function of real libraries.

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection as _};
use object::{Object as _, ObjectSection as _};

use jitlisten_unwinder::{Cfa, Rule};

use super::*;

/// Returns true if our rule equals gimli's; panics if it does not.
fn assert_same_rule(ours: Rule, theirs: Option<RegisterRule<usize>>, register: u16) -> bool {
    match (ours, theirs.clone()) {
        (Rule::Same, None | Some(RegisterRule::SameValue)) => true,
        (Rule::Undefined, Some(RegisterRule::Undefined)) => true,
        // Without a rule, gimli returns the same value for both.
        (Rule::Same, Some(RegisterRule::Undefined)) => true,
        (Rule::Offset(ours), Some(RegisterRule::Offset(theirs))) => i64::from(ours) == theirs,
        (Rule::ValueOffset(ours), Some(RegisterRule::ValOffset(theirs))) => i64::from(ours) == theirs,
        (Rule::Register(ours), Some(RegisterRule::Register(theirs))) => u16::from(ours) == theirs.0,
        (Rule::Expression(_), Some(RegisterRule::Expression(_))) => true,
        (Rule::ValueExpression(_), Some(RegisterRule::ValExpression(_))) => true,
        _ => panic!("register {register}: {ours:?} and {theirs:?}"),
    }
}

fn compare_library(path: &str) -> usize {
    let Ok(file) = std::fs::read(path) else { return 0 };
    let file = object::File::parse(&*file).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let header = file.section_by_name(".eh_frame_hdr").unwrap();
    let data = section.data().unwrap();
    let table =
        FrameTable::with_header(data.to_vec().into(), section.address(), 0, header.data().unwrap(), header.address());
    let table = table.expect("a sorted table");
    let scanned = FrameTable::from_section(data.to_vec().into(), section.address(), 0);
    assert!(table.starts().eq(scanned.starts()), "{path}: the header's table is not what reading finds");
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut eh_frame = EhFrame::new(data, LittleEndian);
    if cfg!(target_arch = "aarch64") {
        eh_frame.set_vendor(gimli::Vendor::AArch64);
    }
    let mut context = UnwindContext::new();
    let mut rows = 0;
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut theirs = fde.rows(&eh_frame, &bases, &mut context).unwrap();
        while let Some(theirs) = theirs.next_row().unwrap() {
            let range = [theirs.start_address(), theirs.end_address().saturating_sub(1).min(fde.end_address() - 1)];
            for address in range {
                if fde.len() == 0 || address < theirs.start_address() {
                    continue;
                }
                let entry = table.find(address).unwrap_or_else(|| panic!("{path}: no entry for {address:#x}"));
                if entry.start != fde.initial_address() {
                    continue;
                }
                let ours = Row::find(&entry, address, machine::MACHINE)
                    .unwrap_or_else(|| panic!("{path}: no row for {address:#x}"));
                match (ours.cfa, theirs.cfa()) {
                    (Cfa::Register(register, offset), CfaRule::RegisterAndOffset { register: r, offset: o }) => {
                        assert_eq!((u16::from(register), i64::from(offset)), (r.0, *o), "{path} {address:#x}");
                    }
                    (Cfa::Expression(_), CfaRule::Expression(_)) => {}
                    (ours, theirs) => panic!("{path} {address:#x}: {ours:?} and {theirs:?}"),
                }
                for register in 0..REGISTERS as u16 {
                    let rule =
                        theirs.registers().find(|(number, _)| number.0 == register).map(|(_, rule)| rule.clone());
                    assert!(assert_same_rule(ours.rules[register as usize], rule, register));
                }
                rows += 1;
            }
        }
    }
    rows
}

#[test]
fn every_row_of_real_libraries_equals_gimlis() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libraries: std::collections::BTreeSet<&str> = maps
        .lines()
        .filter(|line| line.contains("r-xp"))
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .collect();
    let rows: usize = libraries.iter().filter(|path| path.contains(".so")).map(|path| compare_library(path)).sum();
    assert!(rows > 10_000, "only {rows} rows in {libraries:?}");
}

struct WordMemory(u64, Vec<u64>);

impl Memory for WordMemory {
    fn read(&mut self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.0)?;
        (offset % 8 == 0).then_some(())?;
        self.1.get(offset as usize / 8).copied()
    }
}

#[cfg(target_arch = "x86_64")]
struct TrampolineMap;

#[cfg(target_arch = "x86_64")]
impl CodeMap for TrampolineMap {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        match address {
            0x1000..0x2000 => Some(Code::Trampoline),
            0x2000..0x3000 => Some(Code::Bare),
            _ => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn trampolines_and_frame_pointers_are_followed_but_garbage_is_not() {
    let mut values = [0; REGISTERS];
    // Start in bare code. Its frame pointer leads to a trampoline, whose frame pointer leads to bare code again.
    (values[PROGRAM], values[STACK], values[FRAME]) = (0x2500, 0x10000, 0x10010);
    let stack = vec![0, 0, 0x10030, 0x1006, 0, 0x2600, 0x10028, 0x7777];
    let mut addresses = Vec::new();
    let mut push = |address, _| {
        addresses.push(address);
        true
    };
    let mut cache = RuleCache::default();
    let outcome = walk(Registers::new(values), &TrampolineMap, &mut WordMemory(0x10000, stack), &mut cache, &mut push);
    assert_eq!(addresses, [0x2500, 0x1006, 0x2600]);
    assert_eq!(outcome, Outcome::Broken, "0x7777 is no code");
}

/// Unwinding by the table and by the cached rule gives the same result.
#[test]
fn a_stack_ending_with_zero_is_complete_with_and_without_the_cache() {
    let program = std::fs::read("/proc/self/exe").unwrap();
    let file = object::File::parse(&*program).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let table = FrameTable::from_section(section.data().unwrap().to_vec().into(), section.address(), 0);
    // Choose a function at whose first instruction only the return address is on the stack or in its register. `_start`
    // has none.
    let is_plain = |start: &u64| {
        let row = table.find(*start).and_then(|entry| Row::find(&entry, *start, machine::MACHINE));
        row.is_some_and(|row| {
            row.cfa == Cfa::Register(STACK as u8, machine::MACHINE.distance_at_entry())
                && row.rules[RETURN_COLUMN] == if RETURN_COLUMN == PROGRAM { Rule::Offset(-8) } else { Rule::Same }
        })
    };
    let start = table.starts().filter(|&start| start != 0).find(is_plain).unwrap();
    let mut values = [0; REGISTERS];
    (values[PROGRAM], values[STACK]) = (start, 0x10000);
    let (mut stack, map, mut cache) = (WordMemory(0x10000, vec![0]), CorruptedTable(table), RuleCache::default());
    let mut outcome = || walk(Registers::new(values), &map, &mut stack, &mut cache, |_, _| true);
    assert_eq!([outcome(), outcome()], [Outcome::Complete; 2]);
    assert!(cache.get(start).is_some());
}

/// Finds the kernel's signal frame by the stack pointer or, if that is unknown, by the kernel's frame record. One of
/// the return addresses is signed.
#[cfg(target_arch = "aarch64")]
#[test]
fn a_walk_continues_from_a_signal_handler_to_the_program() {
    struct SignalReturnMap;
    impl CodeMap for SignalReturnMap {
        fn find(&self, address: u64) -> Option<Code<'_>> {
            (0x2000..0x3000).contains(&address).then_some(Code::Bare)
        }

        fn is_signal_return(&self, address: u64) -> bool {
            address == 0x4000
        }
    }
    let mut stack = vec![0; 1024];
    // A handler's frame record; then the kernel's frame with `x29`, `x30`, `sp` and the program counter; then the
    // kernel's record of `x29` and `x30`.
    let (kernel_frame, record) = (20, 20 + 4688 / 8);
    let address_of = |word: usize| 0x10000 + 8 * word as u64;
    (stack[10], stack[11]) = (address_of(record), 0x4000);
    (stack[kernel_frame + 39 + 29], stack[kernel_frame + 39 + 30]) = (address_of(700), 0x2999);
    (stack[kernel_frame + 39 + 31], stack[kernel_frame + 39 + 32]) = (address_of(690), 0x2500);
    (stack[record], stack[record + 1]) = (address_of(700), 0x2999);
    (stack[700], stack[701]) = (address_of(710), 0x12_0000_0000_2600);
    (stack[710], stack[711]) = (0, 0x2700);
    let walk_from = |program: u64, stack_index: usize, frame_index: usize, stack: &[u64]| {
        let mut values = [0; REGISTERS];
        (values[PROGRAM], values[STACK], values[FRAME]) = (program, address_of(stack_index), address_of(frame_index));
        let (mut addresses, mut cache) = (Vec::new(), RuleCache::default());
        let outcome = walk(
            Registers::new(values),
            &SignalReturnMap,
            &mut WordMemory(0x10000, stack.to_vec()),
            &mut cache,
            |address, _| {
                addresses.push(address);
                true
            },
        );
        assert_eq!(outcome, Outcome::Broken, "a frame record at 0");
        addresses
    };
    assert_eq!(walk_from(0x4000, kernel_frame, 0, &stack), [0x4000, 0x2500, 0x2600, 0x2700]);
    // After a step by frame record the stack pointer is unknown.
    assert_eq!(walk_from(0x2100, 5, 10, &stack), [0x2100, 0x4000, 0x2500, 0x2600, 0x2700]);
    stack[record + 1] = 0x2998;
    assert_eq!(walk_from(0x2100, 5, 10, &stack), [0x2100, 0x4000]);
}

struct CorruptedTable(FrameTable);

impl CodeMap for CorruptedTable {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        (address < 1 << 30).then_some(Code::Table(&self.0))
    }
}

/// Corrupts bytes in the tables of a real library, with a stack of plausible words: each walk ends, and nothing panics.
#[test]
fn walks_survive_corrupt_tables() {
    let program = std::fs::read("/proc/self/exe").unwrap();
    let file = object::File::parse(&*program).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let data = section.data().unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % below
    };
    let mut frames = 0_u64;
    for _ in 0..3_000 {
        let size = data.len().min(1024);
        // Start at the beginning, where a CIE is.
        let mut bytes = data[..size].to_vec();
        for _ in 0..next(12) {
            bytes[next(size)] = next(256) as u8;
        }
        let table = FrameTable::from_section(bytes.to_vec().into(), section.address(), 0);
        let starts: Vec<u64> = table.starts().collect();
        let Some(&first) = starts.get(next(starts.len().max(1))) else { continue };
        let words =
            (0..512).map(|word| if word % 3 == 0 { starts[next(starts.len())] + 4 } else { 0x10000 + 8 * word });
        let mut stack = WordMemory(0x10000, words.collect());
        let mut values = [0x10040; REGISTERS];
        values[PROGRAM] = first + next(64) as u64;
        let mut cache = RuleCache::default();
        let map = CorruptedTable(table);
        walk(Registers::new(values), &map, &mut stack, &mut cache, |_, _| {
            frames += 1;
            true
        });
    }
    assert!(frames > 3_000, "walks got nowhere: {frames}");
}

#[cfg(target_arch = "x86_64")]
struct LibraryMap {
    table: FrameTable,
    uncovered_address: u64,
}

#[cfg(target_arch = "x86_64")]
impl CodeMap for LibraryMap {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        (address == self.uncovered_address || self.table.find(address).is_some()).then_some(Code::Table(&self.table))
    }
}

#[cfg(target_arch = "x86_64")]
struct SparseMemory(Vec<(u64, u64)>);

#[cfg(target_arch = "x86_64")]
impl Memory for SparseMemory {
    fn read(&mut self, address: u64) -> Option<u64> {
        self.0.iter().find(|(word_address, _)| *word_address == address).map(|(_, word)| *word)
    }
}

/// `dnrm2_k` of OpenBLAS lacks an entry, although its library has a table.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_function_without_entry_returns_to_the_top_of_stack_if_it_follows_a_call() {
    let file = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
    let file = object::File::parse(&*file).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let table = FrameTable::from_section(section.data().unwrap().to_vec().into(), section.address(), 0);
    let return_address = table.starts().next().unwrap() + 5;
    let library = LibraryMap { table, uncovered_address: 0x7000_0000 };
    let mut values = [0; REGISTERS];
    (values[STACK], values[PROGRAM]) = (0x9000, library.uncovered_address);
    let walk_two_frames = |return_address: u64, call: [u8; 8]| {
        let words = vec![(0x9000, return_address), (return_address - 8, u64::from_le_bytes(call))];
        let mut addresses = Vec::new();
        let registers = Registers::new(values);
        walk(registers, &library, &mut SparseMemory(words), &mut RuleCache::default(), |address, _| {
            addresses.push(address);
            addresses.len() < 2
        });
        addresses
    };
    let [relative, register, no_call] = [[0, 0, 0, 0xe8, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0xff, 0xd0], [0x90; 8]];
    assert_eq!(walk_two_frames(return_address, relative), [library.uncovered_address, return_address]);
    assert_eq!(walk_two_frames(return_address, register), [library.uncovered_address, return_address]);
    assert_eq!(walk_two_frames(return_address, no_call), [library.uncovered_address]);
    // There is no table at the return address.
    assert_eq!(walk_two_frames(0x8000_0000, relative), [library.uncovered_address]);
}
