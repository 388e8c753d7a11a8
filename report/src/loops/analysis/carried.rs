//! Values that a loop carries from one round to the next.

use rustc_hash::FxHashMap;

use super::accesses::reads_earlier_results;
use crate::loops::facts::Facts;
use crate::loops::hot_loop::Entry;
use crate::machine::{FIRST_VECTOR, Instruction, Memory, Operation, Registers};

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
pub(super) fn classify_carried_values(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
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
pub(in crate::loops) fn classify_entry(body: &[&Instruction], rest: &[&Instruction]) -> Entry {
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

/// Returns the latency in cycles of the longest chain of integer operations from one iteration to the next, as in a
/// random number generator. The carried registers are those that the next iteration reads.
pub(super) fn integer_latency(body: &[&Instruction], carried: Registers) -> u32 {
    const MULTIPLICATION: u32 = 3;
    const LOAD: u32 = 4;
    let carried = carried.and(!Registers::VECTORS);
    // Cycles after which each register that depends on a carried one is known.
    let mut known_after: FxHashMap<u8, u32> = carried.numbers().map(|register| (register, 0)).collect();
    for instruction in body {
        let inputs = instruction.read.numbers().filter_map(|register| known_after.get(&register));
        let latency = match instruction.memory {
            Some(memory) if !memory.is_store => LOAD,
            _ if instruction.multiplies_integers => MULTIPLICATION,
            _ => 1,
        };
        let result = inputs.max().map(|cycles| cycles + latency);
        for target in instruction.written.and(!Registers::VECTORS).numbers() {
            match result {
                Some(cycles) => known_after.insert(target, cycles),
                None => known_after.remove(&target),
            };
        }
    }
    carried.numbers().filter_map(|register| known_after.get(&register).copied()).max().unwrap_or(0)
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
