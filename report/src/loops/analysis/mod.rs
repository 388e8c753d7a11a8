//! Analysis of a loop's instructions: counts, addresses, and values carried between iterations.

mod accesses;
mod addresses;
mod branches;
mod carried;
mod constants;
mod control_flow;
mod divisions;
#[cfg(test)]
mod tests;

pub(super) use carried::classify_entry;

use crate::loops::facts::{Carried, Elements, Facts};
use crate::machine::graph::NaturalLoop;
use crate::machine::{Class, Flow, Instruction, Operation, Registers};

pub(super) fn loop_facts(instructions: &[Instruction], natural_loop: &NaturalLoop) -> Facts {
    let mut facts = Facts { exits: natural_loop.exits.len() as u32, ..Facts::default() };
    let mut elements = Elements::default();
    let body: Vec<&Instruction> = natural_loop.instructions().map(|index| &instructions[index]).collect();
    for instruction in &body {
        count_instruction(&mut facts, &mut elements, instruction);
    }
    facts.element = elements.most_common();
    facts.checked_divisions = if natural_loop.exits.len() > 1 { divisions::count_checked_divisions(&body) } else { 0 };
    facts.exceptions =
        natural_loop.exits.iter().filter(|exit| control_flow::raises_exception(instructions, **exit)).count() as u32;
    // Registers that the loop writes.
    let changed = body.iter().fold(Registers::default(), |registers, instruction| registers | instruction.written);
    addresses::count_loaded_addresses(&mut facts, &body, changed);
    let repeated = addresses::count_repeated_loads(&mut facts, &body, changed);
    facts.descends = accesses::descends(&body, changed);
    accesses::count_strided(&mut facts, &body, changed, repeated);
    divisions::count_invariant_divisions(&mut facts, &body, changed);
    facts.counted_exits = control_flow::count_counted_exits(natural_loop, instructions);
    facts.constant_arguments = constants::count_constant_arguments(instructions, natural_loop, changed);
    // Values are tracked only in loops with a single path, because the effect of another path is unknown.
    if let [_] = natural_loop.own_blocks.as_slice() {
        carried::classify_carried_values(&mut facts, &body, changed);
        facts.carried = Some(facts.classify_carried());
    } else if natural_loop.is_innermost && control_flow::has_single_path(instructions, natural_loop) {
        let mut carried = Facts::default();
        carried::classify_carried_values(&mut carried, &body, changed);
        facts.carried = Some(carried.classify_carried());
    }
    let is_small = natural_loop.own_blocks.len() <= branches::MAX_COUNTING_BLOCKS;
    // Jumps through a table look like loops of their own.
    if (natural_loop.is_innermost || facts.table_jumps != 0) && is_small {
        let carried = branches::carried_registers(instructions, natural_loop).and(changed);
        if facts.carried.is_none() {
            facts.branched_counts = branches::count_branched_counts(instructions, natural_loop, carried);
            facts.branched_sums = branches::count_branched_sums(&body, carried);
            facts.carries_floats = carried.intersects(Registers::VECTORS);
        }
        facts.integer_latency = if facts.carried.is_some() { carried::integer_latency(&body, carried) } else { 0 };
        facts.only_reads_in_order = branches::only_reads_in_order(&body, carried);
    }
    if accesses::reads_earlier_results(&body) {
        facts.carried = facts.carried.map(|_| Carried::Others);
    }
    facts.narrow = accesses::count_narrow_accesses(&body, facts.width);
    facts.is_single = accesses::accesses_single_values(&body);
    (facts.spread, facts.unrolled) = accesses::measure_spread(&body, facts.additions);
    facts.fixed_gathers = accesses::count_fixed_gathers(&body, changed);
    facts.sums_in_memory = accesses::count_sums_in_memory(&body, changed);
    facts.counts_in_memory = accesses::count_counts_in_memory(&body, changed);
    // Elsewhere, a division may be on another path, as in the division of complex numbers.
    facts.shared_divisions =
        if facts.carried.is_some() { divisions::count_shared_divisions(&body, changed) } else { 0 };
    facts
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
