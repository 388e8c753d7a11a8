//! Analysis of a loop's instructions: counts, addresses, and values carried between iterations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::facts::{Carried, Elements, Facts};
use super::hot_loop::Entry;
use crate::machine::graph::NaturalLoop;
use crate::machine::{Class, FIRST_VECTOR, Flow, Instruction, Memory, Operation, Registers};

pub(super) fn loop_facts(instructions: &[Instruction], natural_loop: &NaturalLoop) -> Facts {
    let mut facts = Facts { exits: natural_loop.exits.len() as u32, ..Facts::default() };
    let mut elements = Elements::default();
    let body: Vec<&Instruction> = natural_loop.instructions().map(|index| &instructions[index]).collect();
    for instruction in &body {
        count_instruction(&mut facts, &mut elements, instruction);
    }
    facts.element = elements.most_common();
    facts.checked_divisions = if natural_loop.exits.len() > 1 { count_checked_divisions(&body) } else { 0 };
    facts.exceptions = natural_loop.exits.iter().filter(|exit| raises_exception(instructions, **exit)).count() as u32;
    // Registers that the loop writes.
    let changed = body.iter().fold(Registers::default(), |registers, instruction| registers | instruction.written);
    count_loaded_addresses(&mut facts, &body, changed);
    let repeated = count_repeated_loads(&mut facts, &body, changed);
    facts.descends = descends(&body, changed);
    count_strided(&mut facts, &body, changed, repeated);
    count_invariant_divisions(&mut facts, &body, changed);
    facts.counted_exits = count_counted_exits(natural_loop, instructions);
    facts.constant_arguments = count_constant_arguments(instructions, natural_loop, changed);
    // Values are tracked only in loops with a single path, because the effect of another path is unknown.
    if let [_] = natural_loop.own_blocks.as_slice() {
        classify_carried_values(&mut facts, &body, changed);
        facts.carried = Some(facts.classify_carried());
    } else if natural_loop.is_innermost && has_single_path(instructions, natural_loop) {
        let mut carried = Facts::default();
        classify_carried_values(&mut carried, &body, changed);
        facts.carried = Some(carried.classify_carried());
    }
    let is_small = natural_loop.own_blocks.len() <= MAX_COUNTING_BLOCKS;
    // Jumps through a table look like loops of their own.
    if (natural_loop.is_innermost || facts.table_jumps != 0) && is_small {
        let carried = carried_registers(instructions, natural_loop).and(changed);
        if facts.carried.is_none() {
            facts.branched_counts = count_branched_counts(instructions, natural_loop, carried);
            facts.branched_sums = count_branched_sums(&body, carried);
            facts.carries_floats = carried.intersects(Registers::VECTORS);
        }
        facts.only_reads_in_order = only_reads_in_order(&body, carried);
    }
    if reads_earlier_results(&body) {
        facts.carried = facts.carried.map(|_| Carried::Others);
    }
    facts.narrow = count_narrow_accesses(&body, facts.width);
    facts.is_single = accesses_single_values(&body);
    (facts.spread, facts.unrolled) = measure_spread(&body, facts.additions);
    facts.sums_in_memory = count_sums_in_memory(&body, changed);
    facts.counts_in_memory = count_counts_in_memory(&body, changed);
    // Elsewhere, a division may be on another path, as in the division of complex numbers.
    facts.shared_divisions = if facts.carried.is_some() { count_shared_divisions(&body, changed) } else { 0 };
    facts
}

/// Returns true if the code at a loop exit returns 1, the status of a Numba function that raises an exception.
fn raises_exception(instructions: &[Instruction], mut index: usize) -> bool {
    const MAX_EXIT_INSTRUCTIONS: usize = 64;
    let mut status = None;
    for _ in 0..MAX_EXIT_INSTRUCTIONS {
        let Some(instruction) = instructions.get(index) else { return false };
        status = instruction.status.unwrap_or(status);
        index = match instruction.step.flow {
            Flow::Next => index + 1,
            Flow::Jump(Some(target)) => {
                match instructions.binary_search_by_key(&target, |instruction| instruction.step.address) {
                    Ok(target) => target,
                    Err(_) => return false,
                }
            }
            Flow::Leave => return status == Some(1),
            Flow::Jump(None) | Flow::Switch | Flow::Branch(_) => return false,
        };
    }
    false
}

fn count_instruction(facts: &mut Facts, elements: &mut Elements, instruction: &Instruction) {
    facts.instructions += 1;
    facts.wraparounds += u32::from(instruction.spreads_sign);
    facts.wide_products += u32::from(instruction.multiplies_wide);
    facts.packed_products += u32::from(instruction.multiplies_packed);
    facts.masked_stores += u32::from(instruction.stores_by_mask);
    facts.table_jumps += u32::from(matches!(instruction.step.flow, Flow::Switch | Flow::Jump(None)));
    facts.has_avx |= instruction.is_avx;
    match instruction.class {
        Class::Packed(bits, element) => {
            facts.packed += 1;
            facts.width = facts.width.max(bits);
            element.into_iter().for_each(|element| elements.add(element));
        }
        Class::Scalar => facts.scalar += 1,
        Class::Other => {}
    }
    match instruction.operation {
        Operation::Unknown => facts.unknown += 1,
        Operation::Gather => facts.gathers += 1,
        Operation::Scatter => facts.scatters += 1,
        Operation::Divide(_) => facts.divisions += 1,
        Operation::DivideInteger(_) => facts.integer_divisions += 1,
        Operation::SquareRoot => facts.square_roots += 1,
        Operation::Widen => facts.conversions += 1,
        Operation::Narrow => {
            facts.conversions += 1;
            facts.narrowings += 1;
        }
        Operation::ChooseInteger => facts.integer_choices += 1,
        Operation::Choose => facts.selections += 1,
        Operation::Call => facts.calls += 1,
        Operation::Other
        | Operation::Move
        | Operation::Add(_)
        | Operation::AddInMemory
        | Operation::Multiply(_)
        | Operation::Compare => {}
    }
    let Some(memory) = instruction.memory else { return };
    facts.atomics += u32::from(memory.is_atomic);
    match (instruction.operation, memory.is_stack) {
        (Operation::Call, _) => {}
        (_, true) => facts.spills += 1,
        (_, false) => {
            facts.memory += 1;
            facts.stores += u32::from(memory.is_store);
        }
    }
}

/// Maximum number of blocks of a loop whose counters are counted: the analysis may take a pass for each block.
const MAX_COUNTING_BLOCKS: usize = 64;

/// Counts integers that some paths of an iteration increment, in a loop that carries no floating-point values.
fn count_branched_counts(instructions: &[Instruction], natural_loop: &NaturalLoop, carried: Registers) -> u32 {
    // A counter that decides a branch is that of the loop.
    let decides =
        |index: usize| instructions.get(index + 1).is_some_and(|next| matches!(next.step.flow, Flow::Branch(_)));
    let is_count = |register: &u8| {
        let uses = |index: &usize| (instructions[*index].read | instructions[*index].written).contains(*register);
        let mut all = natural_loop.instructions().filter(uses);
        all.all(|index| instructions[index].advance == Some((*register, 1)) && !decides(index))
    };
    let counts = carried.and(!Registers::VECTORS).numbers().filter(is_count).count() as u32;
    if carried.intersects(Registers::VECTORS) { 0 } else { counts }
}

/// Counts floating-point values that some paths of an iteration add to. Returns 0 if others are carried, too.
fn count_branched_sums(body: &[&Instruction], carried: Registers) -> u32 {
    let is_sum = |register: u8| {
        let mut uses = body.iter().filter(|instruction| (instruction.read | instruction.written).contains(register));
        uses.all(|instruction| match instruction.operation {
            Operation::Add(operands) => {
                let own = operands.into_iter().filter(|operand| *operand == Some(register)).count();
                own == 1 && instruction.class == Class::Scalar && instruction.written.contains(register)
            }
            _ => false,
        })
    };
    let vectors = carried.and(Registers::VECTORS);
    if vectors.numbers().all(is_sum) { vectors.numbers().count() as u32 } else { 0 }
}

/// Returns true if the loop only reads memory, and the loaded values decide neither addresses nor later iterations.
fn only_reads_in_order(body: &[&Instruction], carried: Registers) -> bool {
    let mut accesses = body.iter().filter_map(|instruction| instruction.memory).peekable();
    // Registers that may hold a loaded value or one computed from it, at any place in the loop.
    let mut loaded = Registers::default();
    loop {
        let is_loaded =
            |instruction: &&&Instruction| instruction.memory.is_some() || instruction.read.intersects(loaded);
        let all = body.iter().filter(is_loaded).fold(loaded, |all, instruction| all | instruction.written);
        if all == loaded {
            break;
        }
        loaded = all;
    }
    let is_plain = |memory: Memory| !memory.is_store && !memory.is_stack && !memory.address.intersects(loaded);
    accesses.peek().is_some() && !carried.intersects(loaded) && accesses.all(is_plain)
}

/// Returns the registers that are live at the header of the loop, without regard to the code after it.
fn carried_registers(instructions: &[Instruction], natural_loop: &NaturalLoop) -> Registers {
    let blocks = &natural_loop.own_blocks;
    let by_start: FxHashMap<u64, usize> =
        blocks.iter().enumerate().map(|(block, range)| (instructions[range.start].step.address, block)).collect();
    let successors = |range: &Range<usize>| {
        let step = instructions[range.end - 1].step;
        let targets = match step.flow {
            Flow::Next => [Some(step.end), None],
            Flow::Jump(target) => [target, None],
            Flow::Branch(target) => [target, Some(step.end)],
            // The table is not read: any block may be next.
            Flow::Switch => return (0..blocks.len()).collect(),
            Flow::Leave => [None; 2],
        };
        targets.into_iter().flatten().filter_map(|target| by_start.get(&target).copied()).collect::<Vec<_>>()
    };
    let successors: Vec<Vec<usize>> = blocks.iter().map(successors).collect();
    let mut live = vec![Registers::default(); blocks.len()];
    loop {
        let before = live.clone();
        for (block, range) in blocks.iter().enumerate().rev() {
            let after = successors[block].iter().fold(Registers::default(), |all, next| all | live[*next]);
            let body = instructions[range.clone()].iter().rev();
            live[block] = body.fold(after, |live, instruction| live.and(!instruction.written) | instruction.read);
        }
        if live == before {
            break;
        }
    }
    by_start.get(&instructions[natural_loop.header].step.address).map_or(Registers::default(), |header| live[*header])
}

/// Counts divisions by a register that the loop does not write, or by a value on the stack.
fn count_invariant_divisions(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
    for instruction in body {
        let (divisor, counter) = match instruction.operation {
            Operation::Divide(divisor) => (divisor, &mut facts.invariant_divisions),
            Operation::DivideInteger(divisor) => (divisor, &mut facts.invariant_integer_divisions),
            _ => continue,
        };
        *counter += u32::from(match divisor {
            Some(divisor) => !changed.contains(divisor),
            None => instruction.memory.is_some_and(|memory| memory.is_stack),
        });
    }
}

/// Counts exits decided by an integer comparison whose operands were not loaded in the same block.
fn count_counted_exits(natural_loop: &NaturalLoop, instructions: &[Instruction]) -> u32 {
    let is_counted = |range: &Range<usize>| {
        let mut loaded = Registers::default();
        let mut counted = false;
        for instruction in &instructions[range.clone()] {
            let is_from_memory = instruction.memory.is_some() || instruction.read.intersects(loaded);
            if instruction.sets_flags {
                counted = !is_from_memory && !instruction.has_vectors();
            }
            loaded = loaded.and(!instruction.written);
            if is_from_memory {
                loaded |= instruction.loaded();
            }
        }
        counted
    };
    let leaves = |range: &&Range<usize>| {
        let Some(last) = range.end.checked_sub(1).map(|index| instructions[index].step) else { return false };
        let is_inside =
            |address: u64| natural_loop.instructions().any(|index| instructions[index].step.address == address);
        match last.flow {
            Flow::Branch(target) => !(target.is_some_and(is_inside) && is_inside(last.end)),
            _ => false,
        }
    };
    natural_loop.own_blocks.iter().filter(leaves).filter(|range| is_counted(range)).count() as u32
}

/// Returns true if every iteration passes the same blocks, in the order of their addresses. Blocks that only branch, as
/// for the second half of a comparison, may be skipped.
fn has_single_path(instructions: &[Instruction], natural_loop: &NaturalLoop) -> bool {
    let start = |block: &Range<usize>| instructions[block.start].step.address;
    let only_branches = |block: &Range<usize>| {
        let mut body = instructions[block.clone()].iter();
        body.all(|instruction| instruction.written == Registers::default() && instruction.memory.is_none())
    };
    let is_inside = |address: &u64| natural_loop.own_blocks.iter().any(|block| start(block) == *address);
    let blocks: Vec<&Range<usize>> = natural_loop.own_blocks.iter().filter(|block| !only_branches(block)).collect();
    let is_skipped = |address: &u64| is_inside(address) && !blocks.iter().any(|block| start(block) == *address);
    let leads_to = |block: &Range<usize>, next: u64| {
        let Some(step) = block.end.checked_sub(1).map(|last| instructions[last].step) else { return false };
        let targets = match step.flow {
            Flow::Next => [Some(step.end), None],
            Flow::Jump(target) => [target, None],
            Flow::Branch(target) => [target, Some(step.end)],
            Flow::Switch | Flow::Leave => return false,
        };
        let inside: Vec<u64> = targets.into_iter().flatten().filter(is_inside).collect();
        !inside.is_empty() && inside.iter().all(|target| *target == next || is_skipped(target))
    };
    let nexts = blocks.iter().skip(1).chain(blocks.first());
    blocks.iter().zip(nexts).all(|(block, next)| leads_to(block, start(next)))
}

/// Returns true if the loop stores floating-point values to an array and loads others of its elements, as in
/// `a[i] = a[i - 1] / b[i]`.
fn reads_earlier_results(body: &[&Instruction]) -> bool {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack));
    let (stores, loads): (Vec<Memory>, Vec<Memory>) = accesses.partition(|memory| memory.is_store);
    let stored: BTreeSet<_> = stores.iter().map(|memory| (memory.parts, memory.offset)).collect();
    let is_other = |load: &Memory| !stored.contains(&(load.parts, load.offset));
    let is_known = |load: &Memory| load.parts != [None; 2];
    loads.iter().any(|load| is_known(load) && is_other(load) && stores.iter().any(|store| store.parts == load.parts))
}

/// Counts sums that each iteration loads from the same address, adds to, and stores there again.
fn count_sums_in_memory(body: &[&Instruction], changed: Registers) -> u32 {
    // Address of a floating-point value that is the same in each iteration.
    let place = |instruction: &Instruction| {
        let memory = instruction.memory.filter(|_| instruction.has_vectors())?;
        let is_fixed = !memory.is_stack && memory.parts != [None; 2] && !memory.address.intersects(changed);
        is_fixed.then_some((memory.parts, memory.offset))
    };
    let is_store = |instruction: &Instruction| instruction.memory.is_some_and(|memory| memory.is_store);
    let loads = body.iter().filter(|instruction| !is_store(instruction));
    let loaded: BTreeSet<_> = loads.filter_map(|instruction| place(instruction)).collect();
    // Registers whose value is the result of an addition.
    let mut added = Registers::default();
    let mut sums = 0;
    for instruction in body {
        let is_sum = is_store(instruction) && instruction.read.intersects(added);
        if is_sum && place(instruction).is_some_and(|place| loaded.contains(&place)) {
            sums += 1;
        }
        added = added.and(!instruction.written);
        if let Operation::Add(_) = instruction.operation {
            added |= instruction.written;
        }
    }
    sums
}

/// Counts additions to an integer in memory whose address is the same in each iteration.
fn count_counts_in_memory(body: &[&Instruction], changed: Registers) -> u32 {
    let is_count = |instruction: &&&Instruction| {
        instruction.operation == Operation::AddInMemory
            && instruction.memory.is_some_and(|memory| !memory.is_stack && !memory.address.intersects(changed))
    };
    body.iter().filter(is_count).count() as u32
}

/// Counts divisions of single values by a divisor that the same iteration has divided by before.
fn count_shared_divisions(body: &[&Instruction], changed: Registers) -> u32 {
    let (mut divisors, mut shared) = (Registers::default(), 0);
    for instruction in body {
        let divisor = match instruction.operation {
            Operation::Divide(divisor) if instruction.class == Class::Scalar => divisor,
            _ => None,
        };
        let divisor = divisor.filter(|divisor| changed.contains(*divisor) && !instruction.written.contains(*divisor));
        shared += u32::from(divisor.is_some_and(|divisor| divisors.contains(divisor)));
        divisors = divisors.and(!instruction.written);
        divisors |= divisor.map(Registers::single).unwrap_or_default();
    }
    shared
}

/// Counts calls whose second floating-point argument is a constant.
fn count_constant_arguments(instructions: &[Instruction], natural_loop: &NaturalLoop, changed: Registers) -> u32 {
    const SECOND_ARGUMENT: u8 = FIRST_VECTOR + 1;
    let is_call = |index: &usize| instructions[*index].operation == Operation::Call;
    let calls: Vec<usize> = natural_loop.instructions().filter(is_call).collect();
    if calls.is_empty() {
        return 0;
    }
    let constants = Constants::new(instructions, natural_loop, changed);
    calls.into_iter().filter(|call| constants.holds(*call, SECOND_ARGUMENT, 0)).count() as u32
}

/// Search for constants in registers. It follows straight-line code backwards, and goes through the stack, where
/// compilers keep constants during calls. Where paths join, a register counts as variable.
struct Constants<'a> {
    instructions: &'a [Instruction],
    /// Targets of jumps and branches.
    targets: FxHashSet<u64>,
    stores: FxHashMap<Slot, Vec<usize>>,
    /// First instruction of an innermost loop, and the registers that the loop writes.
    innermost: Option<(usize, Registers)>,
}

/// Registers and constant of an address on the stack.
type Slot = ([Option<(u8, u32)>; 2], i64);

impl Constants<'_> {
    fn new<'a>(instructions: &'a [Instruction], natural_loop: &NaturalLoop, changed: Registers) -> Constants<'a> {
        let targets = instructions.iter().filter_map(|instruction| match instruction.step.flow {
            Flow::Jump(target) | Flow::Branch(target) => target,
            Flow::Next | Flow::Switch | Flow::Leave => None,
        });
        let mut stores: FxHashMap<Slot, Vec<usize>> = FxHashMap::default();
        // Code after a loop that no other loop contains does not lead back to it.
        let last = natural_loop.instructions().max().filter(|_| natural_loop.parent.is_none());
        let end = last.map_or(instructions.len(), |last| last + 1);
        for (index, instruction) in instructions[..end].iter().enumerate() {
            if let Some(memory) = instruction.memory.filter(|memory| memory.is_store && memory.is_stack) {
                stores.entry((memory.parts, memory.offset)).or_default().push(index);
            }
        }
        let first = natural_loop.own_blocks.first().filter(|_| natural_loop.is_innermost);
        let innermost = first.map(|block| (block.start, changed));
        Constants { instructions, targets: targets.collect(), stores, innermost }
    }

    /// Returns the instruction that set a register, if no other path leads to the given one.
    fn writer(&self, mut index: usize, register: u8) -> Option<usize> {
        loop {
            let is_unchanged = |(first, changed): (usize, Registers)| first == index && !changed.contains(register);
            let is_join = self.targets.contains(&self.instructions[index].step.address);
            if is_join && !self.innermost.is_some_and(is_unchanged) {
                return None;
            }
            index = index.checked_sub(1)?;
            let Instruction { step, operation, written, .. } = self.instructions[index];
            // A call may write any register.
            if operation == Operation::Call || !matches!(step.flow, Flow::Next | Flow::Branch(_)) {
                return None;
            }
            if written.contains(register) {
                return Some(index);
            }
        }
    }

    /// Returns true if a register holds a constant at an instruction.
    fn holds(&self, index: usize, register: u8, depth: u32) -> bool {
        const MAX_DEPTH: u32 = 4;
        const MAX_STORES: usize = 8;
        let Some(writer) = self.writer(index, register).filter(|_| depth < MAX_DEPTH) else { return false };
        let Instruction { operation, class, memory, read, .. } = self.instructions[writer];
        let hold_before =
            |index, registers: Registers| registers.numbers().all(|register| self.holds(index, register, depth + 1));
        match memory {
            // A constant in the instruction, or a copy.
            None => read == Registers::default() || operation == Operation::Move && hold_before(writer, read),
            // Arrays are read at more than one address, and therefore through an index or a register that changes.
            Some(_) if class != Class::Other || !matches!(operation, Operation::Move | Operation::Other) => false,
            Some(memory) if !memory.is_stack => hold_before(writer, memory.address),
            Some(slot) => self.stores.get(&(slot.parts, slot.offset)).is_some_and(|stores| {
                let is_constant = |index: &usize| {
                    let Instruction { read, .. } = self.instructions[*index];
                    hold_before(*index, read.and(!slot.address))
                };
                stores.len() <= MAX_STORES && stores.iter().all(is_constant)
            }),
        }
    }
}

/// Counts divisions by a register that the loop also compares, as in a check for a zero divisor.
fn count_checked_divisions(body: &[&Instruction]) -> u32 {
    let is_comparison =
        |instruction: &&&Instruction| instruction.sets_flags && instruction.written == Registers::default();
    let comparisons = body.iter().filter(is_comparison);
    let counters: Registers =
        body.iter().filter_map(|instruction| instruction.advance).map(|(register, _)| register).collect();
    let mut compared = comparisons.fold(Registers::default(), |all, instruction| all | instruction.read).and(!counters);
    // An integer divisor is converted after its comparison.
    for instruction in body.iter().filter(|instruction| instruction.memory.is_none()) {
        if instruction.read.and(!Registers::VECTORS).intersects(compared) {
            compared |= instruction.written.and(Registers::VECTORS);
        }
    }
    let is_checked = |instruction: &&&Instruction| {
        let Operation::Divide(Some(by)) = instruction.operation else { return false };
        compared.contains(by)
    };
    body.iter().filter(is_checked).count() as u32
}

/// Counts accesses of vector registers that are narrower than the widest packed operation.
fn count_narrow_accesses(body: &[&Instruction], width: u32) -> u32 {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack));
    accesses.filter(|memory| memory.bytes != 0 && memory.bytes * 8 < width).count() as u32
}

/// Returns true if the loop accesses floating-point arrays, by 4 bytes at a time.
fn accesses_single_values(body: &[&Instruction]) -> bool {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let mut accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack)).peekable();
    accesses.peek().is_some() && accesses.all(|memory| memory.bytes == 4)
}

/// Measures arrays whose addresses advance by constants. Returns the largest distance between the values of consecutive
/// source iterations, in multiples of their size, and the smallest number of values per iteration; 0 if unknown. A sum
/// takes `additions` values per iteration; fewer than it loads if each source iteration loads several, as of a record.
fn measure_spread(body: &[&Instruction], additions: u32) -> (u32, u32) {
    let mut advances: BTreeMap<u8, i64> = BTreeMap::new();
    for (register, constant) in body.iter().filter_map(|instruction| instruction.advance) {
        *advances.entry(register).or_default() += constant;
    }
    // Values per iteration of each array.
    let mut arrays = BTreeMap::new();
    for instruction in body.iter().filter(|instruction| instruction.has_vectors()) {
        let memory = instruction.memory.filter(|memory| !memory.is_stack && memory.bytes != 0);
        if let Some(Memory { parts, bytes, .. }) = memory {
            *arrays.entry((parts, bytes)).or_insert(0_u32) += 1;
        }
    }
    let (mut spread, mut unrolled) = (0, None);
    for ((parts, bytes), values) in arrays {
        let advance = |(register, factor): (u8, u32)| advances.get(&register).unwrap_or(&0) * i64::from(factor);
        let distance: i64 = parts.into_iter().flatten().map(advance).sum();
        let distance = u32::try_from(distance.unsigned_abs()).unwrap_or(u32::MAX);
        if distance != 0 {
            let rounds = if additions == 0 { values } else { values.min(additions) };
            spread = spread.max(distance / (bytes * rounds));
            unrolled = Some(unrolled.map_or(values, |unrolled: u32| unrolled.min(values)));
        }
    }
    (spread, unrolled.unwrap_or(0))
}

/// Counts memory accesses whose address was loaded in the same iteration: all, those at a loaded pointer, and those
/// whose address is loaded from the same place each time. Addresses loaded from the stack do not count.
fn count_loaded_addresses(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
    let mut loaded = Registers::default();
    // Registers that hold a loaded value unchanged, and those loaded from the same place in each iteration.
    let (mut pointers, mut reloaded) = (Registers::default(), Registers::default());
    for instruction in body {
        let is_table = matches!(instruction.step.flow, Flow::Switch);
        if !is_table && instruction.memory.is_some_and(|memory| memory.address.intersects(loaded)) {
            facts.indirect += 1;
        }
        if let Some(Memory { parts, address, .. }) = instruction.memory.filter(|_| !is_table) {
            let is_pointer = matches!(parts, [Some((register, 1)), None] if pointers.contains(register));
            facts.pointers += u32::from(is_pointer);
            facts.reloads += u32::from(address.intersects(reloaded));
        }
        let is_load = instruction.memory.is_some_and(|memory| !memory.is_stack);
        // A difference with a value in memory is no pointer.
        let is_fixed = |memory: Memory| {
            memory.parts != [None; 2] && !memory.address.intersects(changed) && instruction.read == memory.address
        };
        let is_reload = is_load && instruction.memory.is_some_and(is_fixed);
        // An index may pass through additions, masks and selections before its use as an address.
        let is_from_loaded =
            instruction.memory.is_none_or(|memory| memory.is_stack) && instruction.read.intersects(loaded);
        loaded = loaded.and(!instruction.written);
        if is_load || is_from_loaded {
            loaded |= instruction.loaded();
        }
        (pointers, reloaded) = (pointers.and(!instruction.written), reloaded.and(!instruction.written));
        if is_load {
            pointers |= instruction.loaded();
        }
        if is_reload {
            reloaded |= instruction.loaded();
        }
    }
}

/// Counts loads that yield the same value in each iteration, unless a store changes it, and the accesses whose address
/// depends on such values. Returns the registers that hold the address of a row.
fn count_repeated_loads(facts: &mut Facts, body: &[&Instruction], changed: Registers) -> Registers {
    let is_array = |memory: &Memory| !memory.is_stack && memory.parts != [None; 2];
    let stores =
        body.iter().filter(|instruction| adds(instruction) || instruction.memory.is_some_and(|memory| memory.is_store));
    let stored: BTreeSet<_> =
        stores.filter_map(|store| store.memory.filter(is_array)).map(|memory| (memory.parts, memory.offset)).collect();
    let mut rows = Registers::default();
    if stored.is_empty() {
        return rows;
    }
    let is_stored = |memory: &Memory| stored.contains(&(memory.parts, memory.offset));
    // Registers with the same value in each iteration, and those of them that depend on such a load.
    let (mut same, mut loaded) = (!changed, Registers::default());
    // Integers that depend on such a load, and those that depend on a product of such values.
    let (mut depending, mut products) = (Registers::default(), Registers::default());
    for instruction in body {
        let memory = instruction.memory;
        if let Some(memory) = memory.filter(is_array) {
            if memory.address.intersects(products) {
                facts.repeated_rows += 1;
            } else {
                facts.repeated_offsets += u32::from(memory.address.intersects(depending));
            }
        }
        let load =
            memory.filter(|memory| is_array(memory) && !memory.is_store && instruction.operation != Operation::Call);
        let is_repeated = load.is_some_and(|memory| {
            memory.address.and(same) == memory.address && !adds(instruction) && !is_stored(&memory)
        });
        facts.repeated_loads += u32::from(is_repeated);
        let inputs = instruction.read;
        let is_same = inputs.and(same) == inputs && memory.is_none_or(|memory| memory.is_stack || is_repeated);
        let is_computed = memory.is_none_or(|memory| memory.is_stack) && !instruction.has_vectors();
        let is_product = is_same && instruction.multiplies_integers && inputs.intersects(loaded);
        let is_loaded = is_same && (is_repeated || inputs.intersects(loaded));
        let depends = is_repeated && !instruction.has_vectors() || is_computed && inputs.intersects(depending);
        let is_row = is_product || is_computed && inputs.intersects(products);
        let update = |registers: Registers, is_member: bool| {
            let added = if is_member { instruction.written } else { Registers::default() };
            registers.and(!instruction.written) | added
        };
        (same, loaded) = (update(same, is_same), update(loaded, is_loaded));
        (depending, products) = (update(depending, depends), update(products, is_row));
        rows |= products;
    }
    rows
}

/// Returns true for an addition to an integer in memory.
fn adds(instruction: &Instruction) -> bool {
    instruction.operation == Operation::AddInMemory
}

/// Returns true if the loop decreases a register that it also uses otherwise, or subtracts several indices from a
/// constant. A counter of the iterations left is at most compared.
fn descends(body: &[&Instruction], changed: Registers) -> bool {
    let is_from_constant = |(minuend, subtrahend)| !changed.contains(minuend) && changed.contains(subtrahend);
    if body.iter().filter_map(|instruction| instruction.difference).any(is_from_constant) {
        return true;
    }
    let decreased = |instruction: &&Instruction| instruction.advance.filter(|(_, constant)| *constant < 0);
    let only_compares = |instruction: &Instruction| {
        instruction.sets_flags && instruction.written == Registers::default() && instruction.memory.is_none()
    };
    let is_used = |register: u8| {
        body.iter().any(|instruction| {
            instruction.read.contains(register)
                && instruction.advance.is_none_or(|(target, _)| target != register)
                && !only_compares(instruction)
        })
    };
    body.iter().filter_map(decreased).any(|(register, _)| is_used(register))
}

/// Counts loads and stores whose address advances by a loop-invariant register in each iteration: those of vector
/// registers, and all others. Each iteration computes some registers again.
fn count_strided(facts: &mut Facts, body: &[&Instruction], changed: Registers, computed: Registers) {
    let advancing_registers =
        body.iter().filter_map(|instruction| instruction.increment).filter(|(_, by)| !changed.contains(*by));
    let advancing_registers: Registers = advancing_registers.map(|(target, _)| target).collect();
    let advancing_registers = advancing_registers.and(!computed);
    for instruction in body {
        let Some(memory) = instruction.memory.filter(|memory| memory.address.intersects(advancing_registers)) else {
            continue;
        };
        facts.strided_stores += u32::from(memory.is_store || adds(instruction));
        if instruction.has_vectors() {
            facts.strided += 1;
        } else {
            facts.strided_integers += 1;
        }
    }
}

/// Provenance of a vector register's value. Each mask has a bit for every vector register whose value at the start of
/// the iteration contributed.
#[derive(Clone, Copy, Default)]
struct Value {
    /// All registers that contributed.
    from: u32,
    /// Registers that contributed through a selection.
    choice_inputs: u32,
    /// Registers that contributed through an addition.
    addition_inputs: u32,
    /// Registers that contributed through any other operation.
    other_inputs: u32,
    /// Register whose running sum or product this value is. Only additions and multiplications have changed it.
    sum_of: Option<usize>,
    changes: u32,
    is_multiplied: bool,
    is_added: bool,
}

/// Values of vector registers after a part of an iteration, and the use of those at its start. Masks have a bit for
/// every vector register.
struct CarriedValues {
    values: [Value; FIRST_VECTOR as usize],
    /// Registers that a stored value depends on.
    escaped: u32,
    /// Registers that a comparison depends on.
    compared: u32,
    /// Running sums that an operation other than their own addition reads.
    used_otherwise: u32,
    /// Running sums that are stored at a fixed address.
    stored: u32,
}

/// Classifies the values that a loop of one block carries from one iteration to the next.
fn classify_carried_values(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
    let mut carried = CarriedValues::new(find_cyclic_registers(body, changed));
    for instruction in body {
        carried.execute(instruction, changed);
    }
    carried.count(facts);
}

impl CarriedValues {
    /// Values in registers that are not cyclic are constant during the loop, or loaded one iteration before their use.
    fn new(cyclic: u32) -> CarriedValues {
        let values = std::array::from_fn(|register| match cyclic & (1 << register) != 0 {
            true => Value { from: 1 << register, sum_of: Some(register), ..Value::default() },
            false => Value::default(),
        });
        CarriedValues { values, escaped: 0, compared: 0, used_otherwise: 0, stored: 0 }
    }

    fn execute(&mut self, instruction: &Instruction, changed: Registers) {
        let read: Vec<usize> = instruction.read.vectors().collect();
        let written: Vec<usize> = instruction.written.vectors().collect();
        match written[..] {
            [target] => self.values[target] = self.result(instruction, target, &read),
            // A sum that is stored to the same address in each iteration is assumed to be read only after the loop.
            _ if stores_to_fixed_address(instruction, changed) => self.stored |= self.combine(&read, sum_bit),
            _ => {
                let from = self.combine(&read, |value| value.from);
                self.used_otherwise |= self.combine(&read, sum_bit);
                match instruction.operation {
                    Operation::Compare => self.compared |= from,
                    _ => self.escaped |= from,
                }
                for target in written {
                    self.values[target] = Value { from, other_inputs: from, ..Value::default() };
                }
            }
        }
    }

    fn combine(&self, registers: &[usize], bits: fn(&Value) -> u32) -> u32 {
        registers.iter().fold(0, |sum, register| sum | bits(&self.values[*register]))
    }

    /// Returns the value that an instruction with one target computes.
    fn result(&mut self, instruction: &Instruction, target: usize, read: &[usize]) -> Value {
        if let (Operation::Move, [source]) = (instruction.operation, read) {
            return self.values[*source];
        }
        let from = self.combine(read, |value| value.from);
        let mut value = Value {
            from,
            choice_inputs: self.combine(read, |value| value.choice_inputs),
            addition_inputs: self.combine(read, |value| value.addition_inputs),
            other_inputs: self.combine(read, |value| value.other_inputs),
            ..Value::default()
        };
        if let Some((addend, is_product)) = accumulator_operand(instruction, target, &self.values) {
            let accumulator = self.values[addend];
            (value.sum_of, value.changes) = (accumulator.sum_of, accumulator.changes + 1);
            value.is_multiplied = accumulator.is_multiplied || is_product;
            value.is_added = accumulator.is_added || !is_product;
            let operands: Vec<usize> = read.iter().copied().filter(|register| *register != addend).collect();
            self.used_otherwise |= self.combine(&operands, sum_bit);
            if is_product {
                value.other_inputs |= from;
            } else {
                value.addition_inputs |= accumulator.from;
                value.other_inputs |= self.combine(&operands, |value| value.from);
            }
            return value;
        }
        self.used_otherwise |= self.combine(read, sum_bit);
        if instruction.operation == Operation::Choose {
            value.choice_inputs |= from;
            // A conditional sum selects between the sum before and after the addition. If only one alternative
            // contains the sum, the next iteration depends on the selection, as in `max(0, s + x)`.
            let (_, several) = read.iter().fold((0, 0), |(any, several), register| {
                let from = self.values[*register].from;
                (any | from, several | any & from)
            });
            value.other_inputs |= value.addition_inputs & !several;
        } else {
            value.other_inputs |= from;
        }
        value
    }

    /// Counts the values at the end of the iteration by kind.
    fn count(&self, facts: &mut Facts) {
        for (register, value) in self.values.iter().enumerate() {
            let bit = 1_u32 << register;
            if value.from & bit == 0 || value.sum_of == Some(register) && value.changes == 0 {
                continue;
            }
            let has_bit = |bits: u32| bits & bit != 0;
            let is_mixed = value.is_multiplied && value.is_added;
            if value.sum_of == Some(register) && !has_bit(self.used_otherwise) && !is_mixed {
                facts.accumulators += 1;
                facts.products += u32::from(value.is_multiplied);
                facts.stored_sums += u32::from(has_bit(self.stored));
                facts.additions = facts.additions.max(value.changes);
            } else if has_bit(self.escaped) || has_bit(value.other_inputs) || !has_bit(value.choice_inputs) {
                facts.recurrences += 1;
            } else if !has_bit(value.addition_inputs) {
                facts.choices += 1;
            } else if !has_bit(self.compared) {
                facts.conditional_sums += 1;
            } else {
                facts.recurrences += 1;
            }
        }
    }
}

/// Classifies the values with which a loop starts, from its instructions and those of the rest of the loop around it.
pub(super) fn classify_entry(body: &[&Instruction], rest: &[&Instruction]) -> Entry {
    let written = |instructions: &[&Instruction]| {
        instructions.iter().fold(Registers::default(), |registers, instruction| registers | instruction.written)
    };
    let (changed, changed_around) = (written(body), written(rest));
    let writers = |register: u8| rest.iter().filter(move |instruction| instruction.written.contains(register));
    // Registers that a round reads before it writes them.
    let (read, _) = body.iter().fold((Registers::default(), Registers::default()), |(read, written), instruction| {
        (read | instruction.read.and(!written), written | instruction.written)
    });
    // Vector registers with values from the loop, followed through the code around it from the loop's end to its start.
    let end = body.last().map_or(0, |instruction| instruction.step.address);
    let (before, after): (Vec<&Instruction>, Vec<&Instruction>) =
        rest.iter().copied().partition(|instruction| instruction.step.address < end);
    let results = after.iter().chain(&before).fold(changed.and(Registers::VECTORS), |results, instruction| {
        let vectors = if instruction.read.intersects(results) { instruction.written } else { Registers::default() };
        results.and(!instruction.written) | vectors.and(Registers::VECTORS)
    });
    if read.intersects(results) || reads_earlier_results(rest) {
        return Entry::Continues;
    }
    // Counters and addresses are set from registers that no round of the loop around it changes.
    let is_fixed = |instruction: &&Instruction| {
        instruction.memory.is_none_or(|memory| memory.is_stack)
            && !instruction.read.intersects(changed | changed_around)
    };
    let starts_same = |register: u8| match changed_around.contains(register) {
        true => writers(register).any(is_fixed),
        false => !changed.contains(register),
    };
    let all_same = read.and(!Registers::VECTORS).numbers().all(starts_same);
    if all_same { Entry::Repeats } else { Entry::StartsAnew }
}

/// Returns the vector registers whose value depends on their own value in an earlier iteration.
fn find_cyclic_registers(body: &[&Instruction], changed: Registers) -> u32 {
    // Registers whose value at the start of the iteration contributed to each register's value at its end.
    let mut from: [u32; FIRST_VECTOR as usize] =
        std::array::from_fn(|register| u32::from(changed.contains(FIRST_VECTOR + register as u8)) << register);
    for instruction in body {
        let sources = instruction.read.vectors().fold(0, |all, register| all | from[register]);
        instruction.written.vectors().for_each(|target| from[target] = sources);
    }
    let contributors = |registers: u32| {
        (0..from.len())
            .filter(|register| registers & (1 << register) != 0)
            .fold(0, |all, register| all | from[register])
    };
    let is_cyclic = |register: &usize| {
        let mut reached = from[*register];
        while contributors(reached) & !reached != 0 {
            reached |= contributors(reached);
        }
        reached & (1 << register) != 0
    };
    (0..from.len()).filter(is_cyclic).fold(0, |all, register| all | 1 << register)
}

/// Returns true for a store to a loop-invariant address. Stack slots do not count, because they hold values of a single
/// iteration.
fn stores_to_fixed_address(instruction: &Instruction, changed: Registers) -> bool {
    let is_fixed = |memory: Memory| memory.is_store && !memory.is_stack && !memory.address.intersects(changed);
    instruction.memory.is_some_and(is_fixed)
}

/// Returns the bit of the register that accumulates the value; 0 if none does.
fn sum_bit(value: &Value) -> u32 {
    value.sum_of.map_or(0, |register| 1 << register)
}

/// Returns the likely accumulator among the operands of an addition, multiplication or fused operation. The flag is
/// true for a multiplication.
fn accumulator_operand(instruction: &Instruction, target: usize, values: &[Value]) -> Option<(usize, bool)> {
    let (operands, is_product) = match instruction.operation {
        Operation::Add(operands) => (operands, false),
        Operation::Multiply(operands) => (operands, true),
        _ => return None,
    };
    // Prefer an operand that carries a value from the previous iteration; if both do, prefer the destination register.
    let registers = operands.into_iter().flatten().map(|register| usize::from(register - FIRST_VECTOR));
    let mut carried_operands = registers.clone().filter(|register| values[*register].from != 0);
    let operand = carried_operands
        .clone()
        .find(|register| *register == target)
        .or_else(|| carried_operands.next())
        .or_else(|| registers.clone().next())?;
    Some((operand, is_product))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::machine::graph;

    /// Returns the facts of the only loop in the code.
    fn facts_of(bytes: &[u8]) -> Facts {
        let instructions = Machine::X86_64.instructions(bytes, 0x1000);
        let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
        let [natural_loop] = &graph::find_loops(&steps)[..] else { panic!("one loop: {instructions:?}") };
        loop_facts(&instructions, natural_loop)
    }

    #[test]
    fn a_sum_is_an_accumulator() {
        // addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
        assert_eq!((facts.scalar, facts.accumulators, facts.recurrences, facts.exits), (1, 1, 0, 1));
        assert!(!facts.is_vectorised());
    }

    #[test]
    fn a_row_is_computed_again_only_beside_a_store() {
        // mov rax, [rdx+rbx*8]; imul rax, r9; vmovsd xmm0, [rax+rcx*8]; vmovsd [rsi+rcx*8], xmm0; inc rcx; cmp r8, rcx;
        // jne; ret
        let row =
            b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\xc5\xfb\x10\x04\xc8\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\x39\xc8\x75\
              \xe6\xc3";
        // The same with add rax, rcx and [rdi+rax*8].
        let element =
            b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\x48\x01\xc8\xc5\xfb\x10\x04\xc7\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\
              \x39\xc8\x75\xe3\xc3";
        // mov r10, rcx and sub r10, rax instead of imul, and [rdi+r10*8].
        let offset =
            b"\x48\x8b\x04\xda\x49\x89\xca\x49\x29\xc2\xc4\xa1\x7b\x10\x04\xd7\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\
              \x39\xc8\x75\xe3\xc3";
        // As the first, with vaddsd xmm1, xmm1, xmm0 instead of the store.
        let sum =
            b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\xc5\xfb\x10\x04\xc8\xc5\xf3\x58\xc8\x48\xff\xc1\x49\x39\xc8\x75\xe7\
              \xc3";
        let counts = |code: &[u8]| {
            let facts = facts_of(code);
            (facts.repeated_loads, facts.repeated_rows, facts.repeated_offsets)
        };
        assert_eq!(
            [counts(row), counts(element), counts(offset), counts(sum)],
            [(1, 1, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0)]
        );
    }

    #[test]
    fn a_stride_may_be_on_the_stack() {
        // addsd xmm0, [rdi]; add rdi, [rbp-8]; dec rsi; jne; ret
        assert_eq!(facts_of(b"\xf2\x0f\x58\x07\x48\x03\x7d\xf8\x48\xff\xce\x75\xf3\xc3").strided, 1);
    }

    #[test]
    fn a_store_by_mask_is_a_store() {
        // vcmpltpd ymm6, ymm2, [rsi+rcx]; vmaskmovpd [rsi+rcx], ymm6, ymm2; add rcx, 32; cmp rdx, rcx; jne; ret
        let facts =
            facts_of(b"\xc5\xed\xc2\x34\x0e\x01\xc4\xe2\x4d\x2f\x14\x0e\x48\x83\xc1\x20\x48\x39\xca\x75\xeb\xc3");
        assert_eq!((facts.masked_stores, facts.stores), (1, 1));
    }

    #[test]
    fn a_product_is_an_accumulator_too() {
        // mulsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xf2\x0f\x59\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
        assert_eq!((facts.accumulators, facts.products), (1, 1));
    }

    #[test]
    fn a_loop_starts_anew_if_nothing_of_its_last_end_is_left() {
        let entry = |code: &[u8]| {
            let instructions = Machine::X86_64.instructions(code, 0x1000);
            let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
            let loops = graph::find_loops(&steps);
            let body = |index: usize| loops[index].instructions().map(|index| &instructions[index]).collect::<Vec<_>>();
            let inner = loops.iter().position(|natural_loop| natural_loop.is_innermost).unwrap();
            classify_entry(&body(inner), &body(loops[inner].parent.unwrap()))
        };
        // outer: vmovsd xmm0, [rdi+r11*8]; vxorpd xmm1, xmm1, xmm1; xor ebx, ebx; inner: vmulsd xmm1, xmm0, xmm1
        // vaddsd xmm1, xmm1, [rsi+rbx*8]; inc rbx; cmp r10, rbx; jne inner; vmovsd [rax+r11*8], xmm1; nop; inc r11
        // cmp r11, rdx; jne outer; ret
        let polynomial =
            b"\xc4\xa1\x7b\x10\x04\xdf\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\
              \x39\xda\x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd4\xc3";
        // Without vxorpd.
        let carried =
            b"\xc4\xa1\x7b\x10\x04\xdf\x90\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\x39\xda\x75\
              \xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd7\xc3";
        // vsubsd xmm0, xmm2, xmm1 instead of the load.
        let descent =
            b"\xc5\xeb\x5c\xc1\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\x39\xda\
              \x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd6\xc3";
        // add rsi, r9 instead of nop.
        let rows =
            b"\xc4\xa1\x7b\x10\x04\xdf\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\
              \x39\xda\x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x4c\x01\xce\x49\xff\xc3\x49\x39\xd3\x75\xd2\xc3";
        let entries = [&polynomial[..], carried, descent, rows].map(entry);
        assert_eq!(entries, [Entry::Repeats, Entry::Continues, Entry::Continues, Entry::StartsAnew]);
    }

    #[test]
    fn a_running_sum_that_is_stored_is_a_recurrence() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx+rax*8], xmm0; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x04\xc2\x48\xff\xc0\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((facts.accumulators, facts.recurrences), (0, 1));
    }

    #[test]
    fn a_sum_in_one_element_is_an_accumulator_and_a_polynomial_is_not() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
        // movsd xmm2, [rdi+rax*8]; addsd xmm2, xmm1; mulsd xmm2, xmm2; addsd xmm2, xmm0; movsd xmm0, [rdi+rax*8];
        // addsd xmm0, xmm2; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(
            b"\xf2\x0f\x10\x14\xc7\xf2\x0f\x58\xd1\xf2\x0f\x59\xd2\xf2\x0f\x58\xd0\xf2\x0f\x10\x04\xc7\xf2\x0f\x58\xc2\
              \x48\xff\xc0\x48\x39\xf0\x7c\xde\xc3",
        );
        assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
        // mulsd xmm0, xmm1; addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xf2\x0f\x59\xc1\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((facts.accumulators, facts.recurrences), (0, 1));
    }

    #[test]
    fn divisions_by_loop_invariant_values() {
        // vmovupd ymm1, [rdi+rax*8]; vdivpd ymm1, ymm1, ymm0; add rax, 4; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xc5\xfd\x10\x0c\xc7\xc5\xf5\x5e\xc8\x48\x83\xc0\x04\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((facts.divisions, facts.invariant_divisions, facts.counted_exits), (1, 1, 1));
        // mov rax, [rdi]; cqo; idiv rcx; mov rcx, rdx; add rdi, 8; cmp rdi, rsi; jl; ret
        let facts = facts_of(b"\x48\x8b\x07\x48\x99\x48\xf7\xf9\x48\x89\xd1\x48\x83\xc7\x08\x48\x39\xf7\x7c\xec\xc3");
        assert_eq!((facts.integer_divisions, facts.invariant_integer_divisions), (1, 0));
    }

    #[test]
    fn a_maximum_is_a_choice_and_a_filtered_sum_is_conditional() {
        // vmovsd xmm1, [rdi+rax*8]; vmaxsd xmm0, xmm1, xmm0; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xc5\xfb\x10\x0c\xc7\xc5\xf3\x5f\xc0\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((facts.choices, facts.conditional_sums, facts.recurrences, facts.accumulators), (1, 0, 0, 0));
        // vmovsd xmm1, [rdi+rax*8]; vaddsd xmm2, xmm0, xmm1; vblendvpd xmm0, xmm2, xmm0, xmm3; inc rax; cmp rax, rsi;
        // jl; ret
        let facts = facts_of(
            b"\xc5\xfb\x10\x0c\xc7\xc5\xfb\x58\xd1\xc4\xe3\x69\x4b\xc0\x30\x48\xff\xc0\x48\x39\xf0\x7c\xe9\xc3",
        );
        assert_eq!((facts.choices, facts.conditional_sums, facts.recurrences, facts.accumulators), (0, 1, 0, 0));
    }

    #[test]
    fn a_sum_that_is_bounded_in_each_round_is_a_recurrence() {
        // vaddsd xmm0, xmm0, [rdi+rax*8]; vmaxsd xmm0, xmm0, xmm1; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xc5\xfb\x58\x04\xc7\xc5\xfb\x5f\xc1\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((facts.conditional_sums, facts.recurrences, facts.carried), (0, 1, Some(Carried::Others)));
    }

    #[test]
    fn only_what_was_added_to_is_a_sum_in_memory() {
        // vmovsd xmm0, [rdi+rax*8]; vaddsd xmm0, xmm0, [rdx]; vmovsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
        let sum = b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x58\x02\xc5\xfb\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xeb\xc3";
        // The same with vmulsd.
        let product = b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x59\x02\xc5\xfb\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xeb\xc3";
        assert_eq!((facts_of(sum).sums_in_memory, facts_of(product).sums_in_memory), (1, 0));
    }

    #[test]
    fn an_argument_that_differs_between_rounds_is_not_constant() {
        // movabs r12, 8; xor ebx, ebx; vmovsd xmm1, [r12+rbx*8]; call rbp; inc rbx; cmp rbx, r13; jl; ret
        let by_index =
            b"\x49\xbc\x08\0\0\0\0\0\0\0\x31\xdb\xc4\xc1\x7b\x10\x0c\xdc\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xf0\xc3";
        // The same with vmovsd xmm1, [r12].
        let fixed =
            b"\x49\xbc\x08\0\0\0\0\0\0\0\x31\xdb\xc4\xc1\x7b\x10\x0c\x24\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xf0\xc3";
        assert_eq!((facts_of(by_index).constant_arguments, facts_of(fixed).constant_arguments), (0, 1));
        // movabs rax, 8; vmovsd xmm0, [rax]; call rbp; vmovapd xmm1, xmm0; call rbp; inc rbx; cmp rbx, r13; jl; ret
        let returned =
            b"\x48\xb8\x08\0\0\0\0\0\0\0\xc5\xfb\x10\x00\xff\xd5\xc5\xf9\x28\xc8\xff\xd5\x48\xff\xc3\x4c\x39\
            \xeb\x7c\xe2\xc3";
        assert_eq!(facts_of(returned).constant_arguments, 0);
        // mov [rsp+8], r12; then in the loop: mov rax, [rsp+8]; vmovsd xmm1, [rax]; call rbp; ...
        let spilled =
            b"\x4c\x89\x64\x24\x08\x48\x8b\x44\x24\x08\xc5\xfb\x10\x08\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xed\xc3";
        assert_eq!(facts_of(spilled).constant_arguments, 0);
    }

    #[test]
    fn a_result_that_is_read_again_is_carried() {
        // vmovsd xmm0, [rdi+rax*8]; vdivsd xmm0, xmm0, [rsi+rax*8]; vmovsd [rdi+rax*8], xmm0
        // inc rax; cmp rax, rdx; jl; ret
        let in_place =
            b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x5e\x04\xc6\xc5\xfb\x11\x04\xc7\x48\xff\xc0\x48\x39\xd0\x7c\xe9\xc3";
        // The same with [rdi+rax*8-8] loaded first.
        let running =
            b"\xc5\xfb\x10\x44\xc7\xf8\xc5\xfb\x5e\x04\xc6\xc5\xfb\x11\x04\xc7\x48\xff\xc0\x48\x39\xd0\x7c\xe8\xc3";
        assert_eq!(
            (facts_of(in_place).carried, facts_of(running).carried),
            (Some(Carried::Nothing), Some(Carried::Others))
        );
    }

    #[test]
    fn an_array_is_reloaded_or_pointed_to() {
        // mov rax, [rdi+8]; vmovsd xmm0, [rax+rcx*8]; inc rcx; cmp rcx, rsi; jl; ret
        let attribute = facts_of(b"\x48\x8b\x47\x08\xc5\xfb\x10\x04\xc8\x48\xff\xc1\x48\x39\xf1\x7c\xef\xc3");
        // The same with mov rax, [rdi+rcx*8], and [rax].
        let list = facts_of(b"\x48\x8b\x04\xcf\xc5\xfb\x10\x00\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
        let counts = |facts: Facts| (facts.indirect, facts.reloads, facts.pointers);
        assert_eq!((counts(attribute), counts(list)), ((1, 1, 0), (1, 0, 1)));
    }

    #[test]
    fn only_an_index_descends() {
        // vmovsd xmm0, [rdi+rcx*8]; add rcx, -1; cmp rcx, rsi; jg; ret
        let index = facts_of(b"\xc5\xfb\x10\x04\xcf\x48\x83\xc1\xff\x48\x39\xf1\x7f\xf2\xc3");
        // vmovsd xmm0, [rdi]; add rdi, 8; dec rcx; jne; ret
        let counter = facts_of(b"\xc5\xfb\x10\x07\x48\x83\xc7\x08\x48\xff\xc9\x75\xf3\xc3");
        assert_eq!((index.descends, counter.descends), (true, false));
        // vpsubq ymm1, ymm0, ymm2; vpaddq ymm2, ymm2, ymm3; inc rcx; cmp rcx, rsi; jl; ret
        let subtracted = facts_of(b"\xc5\xfd\xfb\xca\xc5\xed\xd4\xd3\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
        // The same with vpsubq ymm1, ymm2, ymm0.
        let reduced = facts_of(b"\xc5\xed\xfb\xc8\xc5\xed\xd4\xd3\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
        assert_eq!((subtracted.descends, reduced.descends), (true, false));
    }

    #[test]
    fn only_an_integer_at_one_address_is_counted_in_memory() {
        // inc qword [rax]; inc rcx; cmp rcx, rsi; jl; ret
        let counter = facts_of(b"\x48\xff\x00\x48\xff\xc1\x48\x39\xf1\x7c\xf5\xc3");
        // The same with inc qword [rax+rcx*8].
        let counters = facts_of(b"\x48\xff\x04\xc8\x48\xff\xc1\x48\x39\xf1\x7c\xf4\xc3");
        assert_eq!((counter.counts_in_memory, counters.counts_in_memory), (1, 0));
    }

    #[test]
    fn a_divisor_that_is_set_again_is_not_shared() {
        // movsd xmm0, [rdi+rcx*8]; divsd xmm1, xmm0; divsd xmm2, xmm0; inc rcx; cmp rcx, rsi; jl; ret
        let shared =
            facts_of(b"\xf2\x0f\x10\x04\xcf\xf2\x0f\x5e\xc8\xf2\x0f\x5e\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3");
        // The same with sqrtsd xmm0, xmm0 between the divisions.
        let separate = facts_of(
            b"\xf2\x0f\x10\x04\xcf\xf2\x0f\x5e\xc8\xf2\x0f\x51\xc0\xf2\x0f\x5e\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xe7\xc3",
        );
        assert_eq!((shared.shared_divisions, separate.shared_divisions), (1, 0));
    }

    #[test]
    fn fields_of_records_are_as_far_apart_as_the_records() {
        // vmovsd xmm1, [rdi]; vmulsd xmm1, xmm1, [rdi+8]; vaddsd xmm0, xmm0, xmm1; add rdi, 48; dec rsi; jne; ret
        let facts =
            facts_of(b"\xc5\xfb\x10\x0f\xc5\xf3\x59\x4f\x08\xc5\xfb\x58\xc1\x48\x83\xc7\x30\x48\xff\xce\x75\xea\xc3");
        assert_eq!((facts.accumulators, facts.additions, facts.spread, facts.unrolled), (1, 1, 6, 2));
    }

    #[test]
    fn counters_on_branches_are_counted() {
        // vucomisd xmm0, [rdi+rcx*8]; ja +5; inc rdx; jmp +3; inc rax; inc rcx; cmp rcx, rsi; jl; ret
        let code = b"\xc5\xf9\x2e\x04\xcf\x77\x05\x48\xff\xc2\xeb\x03\x48\xff\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
        assert_eq!((facts_of(code).branched_counts, facts_of(code).exits), (2, 1));
    }

    #[test]
    fn a_sum_on_a_branch_is_counted_if_nothing_else_is_carried() {
        // vmovsd xmm1, [rdi+rcx*8]; vucomisd xmm1, xmm2; jae +4; vaddsd xmm0, xmm1, xmm0
        // inc rcx; cmp rcx, rsi; jl; ret
        let sum = b"\xc5\xfb\x10\x0c\xcf\xc5\xf9\x2e\xca\x73\x04\xc5\xf3\x58\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
        // The same with vmulsd.
        let product =
            b"\xc5\xfb\x10\x0c\xcf\xc5\xf9\x2e\xca\x73\x04\xc5\xf3\x59\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
        let facts = [&sum[..], &product[..]].map(facts_of);
        assert_eq!(facts.clone().map(|facts| facts.branched_sums), [1, 0]);
        assert!(facts.iter().all(|facts| facts.carries_floats && facts.carried.is_none()));
    }

    #[test]
    fn what_is_read_decides_no_address_of_a_check() {
        // cmp rcx, rsi; je end; mov rdx, [rdi+rcx*8]; inc rcx; cmp rdx, rax; jne; ret
        let check = b"\x48\x39\xf1\x74\x0c\x48\x8b\x14\xcf\x48\xff\xc1\x48\x39\xc2\x75\xef\xc3";
        // The same with mov rcx, [rdi+rcx*8], as in a chain of a hash table.
        let chain = b"\x48\x39\xf1\x74\x0c\x48\x8b\x0c\xcf\x48\xff\xc1\x48\x39\xc2\x75\xef\xc3";
        assert_eq!([&check[..], &chain[..]].map(|code| facts_of(code).only_reads_in_order), [true, false]);
    }

    #[test]
    fn an_integer_divisor_is_checked_before_its_conversion() {
        // mov r10, [rdx+r9*8]; test r10, r10; je end; vcvtsi2sd xmm0, xmm15, r10; vmovsd xmm1, [r8+r9*8];
        // vdivsd xmm0, xmm1, xmm0; vmovsd [rcx+r9*8], xmm0; inc r9; cmp rax, r9; jne; ret
        let code = b"\x4e\x8b\x14\xca\x4d\x85\xd2\x74\x1d\xc4\xc1\x83\x2a\xc2\xc4\x81\x7b\x10\x0c\xc8\xc5\xf3\x5e\xc0\
            \xc4\xa1\x7b\x11\x04\xc9\x49\xff\xc1\x4c\x39\xc8\x75\xda\xc3";
        let facts = facts_of(code);
        assert_eq!((facts.divisions, facts.checked_divisions, facts.exits), (1, 1, 2));
    }

    #[test]
    fn a_value_of_the_round_before_is_no_recurrence() {
        // vmulsd xmm1, xmm1, xmm2; vaddsd xmm0, xmm1, xmm0; vmovsd xmm1, [rdi+rcx*8]; inc rcx; cmp rcx, rsi; jl; ret
        let code = b"\xc5\xf3\x59\xca\xc5\xf3\x58\xc0\xc5\xfb\x10\x0c\xcf\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3";
        let facts = facts_of(code);
        assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
    }

    #[test]
    fn packed_additions_have_a_width_and_lanes() {
        // vaddpd ymm0, ymm0, [rdi+rax*8]; add rax, 4; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\xc5\xfd\x58\x04\xc7\x48\x83\xc0\x04\x48\x39\xf0\x7c\xf2\xc3");
        assert_eq!((facts.width, facts.lanes(), facts.packed), (256, 4, 1));
        assert!(facts.is_vectorised());
    }

    #[test]
    fn an_index_from_an_array_is_indirect() {
        // mov rcx, [rdx+rax*8]; sqrtsd xmm0, [rdi+rcx*8]; inc rax; cmp rax, rsi; jl; ret
        let facts = facts_of(b"\x48\x8b\x0c\xc2\xf2\x0f\x51\x04\xcf\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((facts.indirect, facts.square_roots, facts.accumulators), (1, 1, 0));
    }

    #[test]
    fn products_of_several_indices_are_counted() {
        // vpmullq zmm10, zmm9, zmm0; vmovdqa64 zmm11, zmm10; inc rcx; cmp rcx, rsi; jl; ret
        let facts = facts_of(b"\x62\x72\xb5\x48\x40\xd0\x62\x51\xfd\x48\x6f\xda\x48\xff\xc1\x48\x39\xf1\x7c\xec\xc3");
        assert_eq!(facts.packed_products, 1);
    }

    #[test]
    fn a_division_by_a_constant_is_a_wide_product() {
        // mov rax, rcx; sar rax, 63; and rax, rdx; inc rcx; cmp rcx, rsi; jl; ret
        let index = facts_of(b"\x48\x89\xc8\x48\xc1\xf8\x3f\x48\x21\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xee\xc3");
        // The same with imul rdx before sar.
        let quotient =
            facts_of(b"\x48\x89\xc8\x48\xf7\xea\x48\xc1\xf8\x3f\x48\x21\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3");
        assert_eq!((index.wraparounds, index.wide_products), (1, 0));
        assert_eq!((quotient.wraparounds, quotient.wide_products), (1, 1));
    }

    #[test]
    fn an_address_that_grows_by_a_register_is_strided() {
        // addsd xmm0, [rdi]; add rdi, rdx; dec rsi; jne; ret
        let facts = facts_of(b"\xf2\x0f\x58\x07\x48\x01\xd7\x48\xff\xce\x75\xf4\xc3");
        assert_eq!((facts.strided, facts.accumulators), (1, 1));
        // add rax, [rdi]; add rdi, rdx; dec rsi; jne; ret
        let facts = facts_of(b"\x48\x03\x07\x48\x01\xd7\x48\xff\xce\x75\xf5\xc3");
        assert_eq!((facts.strided, facts.strided_integers, facts.strided_stores), (0, 1, 0));
        // mov [rdi], rax; add rdi, rdx; dec rsi; jne; ret
        let facts = facts_of(b"\x48\x89\x07\x48\x01\xd7\x48\xff\xce\x75\xf5\xc3");
        assert_eq!((facts.strided_integers, facts.strided_stores), (1, 1));
        // addsd xmm0, [rdi]; add rdi, 8; dec rsi; jne; ret
        let facts = facts_of(b"\xf2\x0f\x58\x07\x48\x83\xc7\x08\x48\xff\xce\x75\xf3\xc3");
        assert_eq!((facts.strided, facts.accumulators), (0, 1));
    }
}
