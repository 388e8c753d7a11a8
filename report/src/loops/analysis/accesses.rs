//! Loads and stores: how far apart, how wide, and whether a round reads what it wrote.

use std::collections::{BTreeMap, BTreeSet};

use crate::loops::facts::Facts;
use crate::machine::{Instruction, Memory, Operation, Registers};

/// Returns true if the loop stores floating-point values to an array and loads others of its elements, as in
/// `a[i] = a[i - 1] / b[i]`.
pub(super) fn reads_earlier_results(body: &[&Instruction]) -> bool {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack));
    let (stores, loads): (Vec<Memory>, Vec<Memory>) = accesses.partition(|memory| memory.is_store);
    let stored: BTreeSet<_> = stores.iter().map(|memory| (memory.parts, memory.offset)).collect();
    let is_other = |load: &Memory| !stored.contains(&(load.parts, load.offset));
    let is_known = |load: &Memory| load.parts != [None; 2];
    loads.iter().any(|load| is_known(load) && is_other(load) && stores.iter().any(|store| store.parts == load.parts))
}

/// Counts sums that each iteration loads from the same address, adds to, and stores there again.
pub(super) fn count_sums_in_memory(body: &[&Instruction], changed: Registers) -> u32 {
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

/// Counts gathers whose addresses are the same in each iteration. A condition may skip such a value, so LLVM does not
/// load it before the loop.
pub(super) fn count_fixed_gathers(body: &[&Instruction], changed: Registers) -> u32 {
    let is_fixed = |instruction: &&&Instruction| {
        instruction.operation == Operation::Gather
            && instruction.memory.is_some_and(|memory| !memory.address.intersects(changed))
    };
    body.iter().filter(is_fixed).count() as u32
}

/// Counts additions to an integer in memory whose address is the same in each iteration.
pub(super) fn count_counts_in_memory(body: &[&Instruction], changed: Registers) -> u32 {
    let is_count = |instruction: &&&Instruction| {
        instruction.operation == Operation::AddInMemory
            && instruction.memory.is_some_and(|memory| !memory.is_stack && !memory.address.intersects(changed))
    };
    body.iter().filter(is_count).count() as u32
}

/// Counts accesses of vector registers that are narrower than the widest packed operation.
pub(super) fn count_narrow_accesses(body: &[&Instruction], width: u32) -> u32 {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack));
    accesses.filter(|memory| memory.bytes != 0 && memory.bytes * 8 < width).count() as u32
}

/// Returns true if the loop accesses floating-point arrays, by 4 bytes at a time.
pub(super) fn accesses_single_values(body: &[&Instruction]) -> bool {
    let values = body.iter().filter(|instruction| instruction.has_vectors());
    let mut accesses = values.filter_map(|instruction| instruction.memory.filter(|memory| !memory.is_stack)).peekable();
    accesses.peek().is_some() && accesses.all(|memory| memory.bytes == 4)
}

/// Measures arrays whose addresses advance by constants. Returns the largest distance between the values of consecutive
/// source iterations, in multiples of their size, and the smallest number of values per iteration; 0 if unknown. A sum
/// takes `additions` values per iteration; fewer than it loads if each source iteration loads several, as of a record.
pub(super) fn measure_spread(body: &[&Instruction], additions: u32) -> (u32, u32) {
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

/// Returns true if the loop decreases a register that it also uses otherwise, or subtracts several indices from a
/// constant. A counter of the iterations left is at most compared.
pub(super) fn descends(body: &[&Instruction], changed: Registers) -> bool {
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
pub(super) fn count_strided(facts: &mut Facts, body: &[&Instruction], changed: Registers, computed: Registers) {
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

/// Returns true for an addition to an integer in memory.
pub(super) fn adds(instruction: &Instruction) -> bool {
    instruction.operation == Operation::AddInMemory
}
