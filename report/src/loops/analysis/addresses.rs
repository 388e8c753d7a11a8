//! Addresses that a loop loads.

use std::collections::BTreeSet;

use super::accesses::adds;
use crate::loops::facts::Facts;
use crate::machine::{Flow, Instruction, Memory, Operation, Registers};

/// Counts memory accesses whose address was loaded in the same iteration: all, those at a loaded pointer, and those
/// whose address is loaded from the same place each time. Addresses loaded from the stack do not count.
pub(super) fn count_loaded_addresses(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
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
pub(super) fn count_repeated_loads(facts: &mut Facts, body: &[&Instruction], changed: Registers) -> Registers {
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
