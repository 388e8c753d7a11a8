//! Facts of a loop, from its instructions.

use std::ops::Range;

use super::facts::{Elements, Facts};
use crate::graph::NaturalLoop;
use crate::machine::{Class, Does, Flow, Instruction, Memory, Registers, VECTOR};

pub(super) fn facts(instructions: &[Instruction], of: &NaturalLoop) -> Facts {
    let mut facts = Facts { exits: of.exits.len() as u32, ..Facts::default() };
    let mut elements = Elements::default();
    let own: Vec<&Instruction> = of.instructions().map(|at| &instructions[at]).collect();
    for instruction in &own {
        count(&mut facts, &mut elements, instruction);
    }
    facts.element = elements.commonest();
    facts.checked_divisions = if of.exits.len() > 1 { checked_divisions(&own) } else { 0 };
    facts.exceptions = of.exits.iter().filter(|exit| raises(instructions, **exit)).count() as u32;
    facts.indirect = indirect(&own);
    // Every register that the loop changes.
    let changed = own.iter().fold(Registers::default(), |all, instruction| all | instruction.written);
    facts.strided = strided(&own, changed);
    invariant_divisions(&mut facts, &own, changed);
    facts.counted_exits = counted_exits(of, instructions);
    // Values are followed through one block only: what another path does to them is not known.
    if let [_] = of.own.as_slice() {
        carried(&mut facts, &own, changed);
    }
    facts
}

/// Whether code that a loop leaves to is seen to return 1, with which a function of Numba raises.
fn raises(instructions: &[Instruction], mut at: usize) -> bool {
    /// More of it is not looked at.
    const FAR: usize = 64;
    let mut status = None;
    for _ in 0..FAR {
        let Some(instruction) = instructions.get(at) else { return false };
        status = instruction.status.unwrap_or(status);
        at = match instruction.step.flow {
            Flow::Next => at + 1,
            Flow::Jump(Some(target)) => {
                match instructions.binary_search_by_key(&target, |instruction| instruction.step.address) {
                    Ok(target) => target,
                    Err(_) => return false,
                }
            }
            Flow::Leave => return status == Some(1),
            Flow::Jump(None) | Flow::Branch(_) => return false,
        };
    }
    false
}

fn count(facts: &mut Facts, elements: &mut Elements, instruction: &Instruction) {
    facts.instructions += 1;
    match instruction.class {
        Class::Packed(bits, element) => {
            facts.packed += 1;
            facts.width = facts.width.max(bits);
            element.into_iter().for_each(|element| elements.add(element));
        }
        Class::Scalar => facts.scalar += 1,
        Class::Other => {}
    }
    match instruction.does {
        Does::Unknown => facts.unknown += 1,
        Does::Gather => facts.gathers += 1,
        Does::Scatter => facts.scatters += 1,
        Does::Divide(_) => facts.divisions += 1,
        Does::DivideInteger(_) => facts.integer_divisions += 1,
        Does::SquareRoot => facts.square_roots += 1,
        Does::Widen => facts.conversions += 1,
        Does::Narrow => {
            facts.conversions += 1;
            facts.narrowings += 1;
        }
        Does::ChooseInteger => facts.integer_choices += 1,
        Does::Call => facts.calls += 1,
        Does::Other | Does::Move | Does::Add(_) | Does::Multiply(_) | Does::Choose | Does::Compare => {}
    }
    let Some(memory) = instruction.memory else { return };
    facts.atomics += u32::from(memory.is_atomic);
    match (instruction.does, memory.is_stack) {
        (Does::Call, _) => {}
        (_, true) => facts.spills += 1,
        (_, false) => facts.memory += 1,
    }
}

/// Divisions by what no instruction of the loop writes: a register, or a value that was spilled.
fn invariant_divisions(facts: &mut Facts, own: &[&Instruction], changed: Registers) {
    for instruction in own {
        let (divisor, counter) = match instruction.does {
            Does::Divide(divisor) => (divisor, &mut facts.invariant_divisions),
            Does::DivideInteger(divisor) => (divisor, &mut facts.invariant_integer_divisions),
            _ => continue,
        };
        *counter += u32::from(match divisor {
            Some(divisor) => !changed.has(divisor),
            None => instruction.memory.is_some_and(|memory| memory.is_stack),
        });
    }
}

/// Exits by a comparison of integers that were not loaded in the same block.
fn counted_exits(of: &NaturalLoop, instructions: &[Instruction]) -> u32 {
    let is_counted = |range: &Range<usize>| {
        let mut loaded = Registers::default();
        let mut counted = false;
        for instruction in &instructions[range.clone()] {
            let is_from_memory = instruction.memory.is_some() || instruction.read.meets(loaded);
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
        let Some(last) = range.end.checked_sub(1).map(|at| instructions[at].step) else { return false };
        let is_inside = |address: u64| of.instructions().any(|at| instructions[at].step.address == address);
        match last.flow {
            Flow::Branch(target) => !(target.is_some_and(is_inside) && is_inside(last.end)),
            _ => false,
        }
    };
    of.own.iter().filter(leaves).filter(|range| is_counted(range)).count() as u32
}

/// Divisions by a register that is compared in the loop, too: a divisor that must not be zero.
fn checked_divisions(own: &[&Instruction]) -> u32 {
    let comparisons = own.iter().filter(|instruction| instruction.does == Does::Compare && instruction.sets_flags);
    let compared = comparisons.fold(Registers::default(), |all, instruction| all | instruction.read);
    let is_checked =
        |instruction: &&&Instruction| matches!(instruction.does, Does::Divide(Some(by)) if compared.has(by));
    own.iter().filter(is_checked).count() as u32
}

/// Accesses whose address was loaded in the same round, not from the stack.
fn indirect(own: &[&Instruction]) -> u32 {
    let mut loaded = Registers::default();
    let mut found = 0;
    for instruction in own {
        if instruction.memory.is_some_and(|memory| memory.address.meets(loaded)) {
            found += 1;
        }
        let is_load = instruction.memory.is_some_and(|memory| !memory.is_stack);
        // Through additions, masks and selections of an index.
        let is_from_loaded = instruction.memory.is_none() && instruction.read.meets(loaded);
        loaded = loaded.and(!instruction.written);
        if is_load || is_from_loaded {
            loaded |= instruction.loaded().and(Registers::GENERAL);
        }
    }
    found
}

/// Accesses of vector registers whose address grows in each round by a register that the loop does not change.
fn strided(own: &[&Instruction], changed: Registers) -> u32 {
    let grown = own.iter().filter_map(|instruction| instruction.grows).filter(|(_, by)| !changed.has(*by));
    let grown: Registers = grown.map(|(target, _)| target).collect();
    let is_strided = |instruction: &&&Instruction| {
        instruction.has_vectors() && instruction.memory.is_some_and(|memory| memory.address.meets(grown))
    };
    own.iter().filter(is_strided).count() as u32
}

/// What a vector register holds, as far as it comes from the registers at the beginning of the round: a bit for each.
#[derive(Clone, Copy, Default)]
struct Value {
    /// Every register that it depends on.
    from: u32,
    /// Those that a chosen value depends on, those that something was added to, and those that went through anything
    /// else.
    chosen: u32,
    added: u32,
    other: u32,
    /// The one whose value it is, changed by additions or multiplications only.
    sum_of: Option<usize>,
    changes: u32,
    /// Whether these were multiplications, and additions.
    is_multiplied: bool,
    is_added: bool,
}

/// Values that a loop of one block carries from one round to the next.
fn carried(facts: &mut Facts, own: &[&Instruction], changed: Registers) {
    // What the loop does not change is a constant.
    let mut values: [Value; VECTOR as usize] = std::array::from_fn(|at| match changed.has(VECTOR + at as u8) {
        true => Value { from: 1 << at, sum_of: Some(at), ..Value::default() },
        false => Value::default(),
    });
    // What is stored or compared depends on these.
    let (mut escaped, mut compared) = (0_u32, 0_u32);
    let mut used_otherwise = 0_u32;
    for instruction in own {
        let read: Vec<usize> = instruction.read.vectors().collect();
        let all = |bits: fn(&Value) -> u32| read.iter().fold(0, |sum, at| sum | bits(&values[*at]));
        let from = all(|value| value.from);
        let written: Vec<usize> = instruction.written.vectors().collect();
        let [target] = written[..] else {
            // A sum that is stored in the same place each round is read after the loop only.
            if is_at_one_place(instruction, changed) {
                continue;
            }
            used_otherwise |= all(sum_bit);
            if instruction.does == Does::Compare {
                compared |= from;
            } else {
                escaped |= from;
            }
            written.into_iter().for_each(|target| values[target] = Value { from, other: from, ..Value::default() });
            continue;
        };
        let (chosen, added, other) = (all(|value| value.chosen), all(|value| value.added), all(|value| value.other));
        let mut value = Value { from, chosen, added, other, ..Value::default() };
        if let (Does::Move, [source]) = (instruction.does, &read[..]) {
            value = values[*source];
        } else if let Some((addend, is_product)) = addend(instruction, target, &values) {
            let before = values[addend];
            (value.sum_of, value.changes) = (before.sum_of, before.changes + 1);
            value.is_multiplied = before.is_multiplied || is_product;
            value.is_added = before.is_added || !is_product;
            let others = read.iter().filter(|at| **at != addend);
            let others = others.fold((0, 0), |(sums, from), at| {
                let value = &values[*at];
                (sums | sum_bit(value), from | value.from)
            });
            used_otherwise |= others.0;
            if is_product {
                value.other |= from;
            } else {
                value.added |= before.from;
                value.other |= others.1;
            }
        } else {
            used_otherwise |= all(sum_bit);
            if instruction.does == Does::Choose {
                value.chosen |= from;
            } else {
                value.other |= from;
            }
        }
        values[target] = value;
    }
    for (at, value) in values.iter().enumerate() {
        let bit = 1_u32 << at;
        if value.from & bit == 0 || value.sum_of == Some(at) && value.changes == 0 {
            continue;
        }
        let is = |bits: u32| bits & bit != 0;
        let is_mixed = value.is_multiplied && value.is_added;
        if value.sum_of == Some(at) && !is(used_otherwise) && !is_mixed {
            facts.accumulators += 1;
        } else if is(escaped) || is(value.other) || !is(value.chosen) {
            facts.recurrences += 1;
        } else if !is(value.added) {
            facts.choices += 1;
        } else if !is(compared) {
            facts.conditional_sums += 1;
        } else {
            facts.recurrences += 1;
        }
    }
}

/// Whether a store goes to an address that the loop does not change; the stack holds values of the same round.
fn is_at_one_place(instruction: &Instruction, changed: Registers) -> bool {
    let is_of_one_place = |memory: Memory| memory.is_store && !memory.is_stack && !memory.address.meets(changed);
    instruction.memory.is_some_and(is_of_one_place)
}

/// The register whose running sum a value is.
fn sum_bit(value: &Value) -> u32 {
    value.sum_of.map_or(0, |of| 1 << of)
}

/// Of an addition, a multiplication or a fused one, the operand that an accumulator would be; and whether it is a
/// multiplication.
fn addend(instruction: &Instruction, target: usize, values: &[Value]) -> Option<(usize, bool)> {
    let (operands, is_product) = match instruction.does {
        Does::Add(operands) => (operands, false),
        Does::Multiply(operands) => (operands, true),
        _ => return None,
    };
    // Of two registers, the one with a value from before the round; of two of those, the one that the result replaces.
    let known = operands.into_iter().flatten().map(|register| usize::from(register - VECTOR));
    let mut carried = known.clone().filter(|at| values[*at].from != 0);
    let found = carried.clone().find(|at| *at == target).or_else(|| carried.next()).or_else(|| known.clone().next())?;
    Some((found, is_product))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph;
    use crate::machine::Machine;

    /// The facts of the only loop of some code.
    fn facts_of(bytes: &[u8]) -> Facts {
        let instructions = Machine::X86_64.instructions(bytes, 0x1000);
        let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
        let [natural] = &graph::loops(&steps)[..] else { panic!("one loop: {instructions:?}") };
        facts(&instructions, natural)
    }

    #[test]
    fn a_sum_is_an_accumulator() {
        // addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
        assert_eq!((found.scalar, found.accumulators, found.recurrences, found.exits), (1, 1, 0, 1));
        assert!(!found.is_vectorised());
    }

    #[test]
    fn a_running_sum_that_is_stored_is_a_recurrence() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx+rax*8], xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x04\xc2\x48\xff\xc0\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((found.accumulators, found.recurrences), (0, 1));
    }

    #[test]
    fn a_sum_in_one_element_is_an_accumulator_and_a_polynomial_is_none() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.accumulators, found.recurrences), (1, 0));
        // movsd xmm2, [rdi+rax*8]; addsd xmm2, xmm1; mulsd xmm2, xmm2; addsd xmm2, xmm0; movsd xmm0, [rdi+rax*8];
        // addsd xmm0, xmm2; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(
            b"\xf2\x0f\x10\x14\xc7\xf2\x0f\x58\xd1\xf2\x0f\x59\xd2\xf2\x0f\x58\xd0\xf2\x0f\x10\x04\xc7\xf2\x0f\x58\xc2\
              \x48\xff\xc0\x48\x39\xf0\x7c\xde\xc3",
        );
        assert_eq!((found.accumulators, found.recurrences), (1, 0));
        // mulsd xmm0, xmm1; addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x59\xc1\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.accumulators, found.recurrences), (0, 1));
    }

    #[test]
    fn divisions_by_what_the_loop_does_not_change() {
        // vmovupd ymm1, [rdi+rax*8]; vdivpd ymm1, ymm1, ymm0; add rax, 4; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfd\x10\x0c\xc7\xc5\xf5\x5e\xc8\x48\x83\xc0\x04\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((found.divisions, found.invariant_divisions, found.counted_exits), (1, 1, 1));
        // mov rax, [rdi]; cqo; idiv rcx; mov rcx, rdx; add rdi, 8; cmp rdi, rsi; jl; ret
        let found = facts_of(b"\x48\x8b\x07\x48\x99\x48\xf7\xf9\x48\x89\xd1\x48\x83\xc7\x08\x48\x39\xf7\x7c\xec\xc3");
        assert_eq!((found.integer_divisions, found.invariant_integer_divisions), (1, 0));
    }

    #[test]
    fn a_maximum_is_a_choice_and_a_sum_of_some_is_conditional() {
        // vmovsd xmm1, [rdi+rax*8]; vmaxsd xmm0, xmm1, xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfb\x10\x0c\xc7\xc5\xf3\x5f\xc0\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.choices, found.conditional_sums, found.recurrences, found.accumulators), (1, 0, 0, 0));
        // vmovsd xmm1, [rdi+rax*8]; vaddsd xmm2, xmm0, xmm1; vblendvpd xmm0, xmm2, xmm0, xmm3; inc rax; cmp rax, rsi;
        // jl; ret
        let found = facts_of(
            b"\xc5\xfb\x10\x0c\xc7\xc5\xfb\x58\xd1\xc4\xe3\x69\x4b\xc0\x30\x48\xff\xc0\x48\x39\xf0\x7c\xe9\xc3",
        );
        assert_eq!((found.choices, found.conditional_sums, found.recurrences, found.accumulators), (0, 1, 0, 0));
    }

    #[test]
    fn packed_additions_have_a_width_and_lanes() {
        // vaddpd ymm0, ymm0, [rdi+rax*8]; add rax, 4; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfd\x58\x04\xc7\x48\x83\xc0\x04\x48\x39\xf0\x7c\xf2\xc3");
        assert_eq!((found.width, found.lanes(), found.packed), (256, 4, 1));
        assert!(found.is_vectorised());
    }

    #[test]
    fn an_index_from_an_array_is_indirect() {
        // mov rcx, [rdx+rax*8]; sqrtsd xmm0, [rdi+rcx*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\x48\x8b\x0c\xc2\xf2\x0f\x51\x04\xcf\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.indirect, found.square_roots, found.accumulators), (1, 1, 0));
    }

    #[test]
    fn an_address_that_grows_by_a_register_is_strided() {
        // addsd xmm0, [rdi]; add rdi, rdx; dec rsi; jne; ret
        let found = facts_of(b"\xf2\x0f\x58\x07\x48\x01\xd7\x48\xff\xce\x75\xf4\xc3");
        assert_eq!((found.strided, found.accumulators), (1, 1));
        // addsd xmm0, [rdi]; add rdi, 8; dec rsi; jne; ret
        let found = facts_of(b"\xf2\x0f\x58\x07\x48\x83\xc7\x08\x48\xff\xce\x75\xf3\xc3");
        assert_eq!((found.strided, found.accumulators), (0, 1));
    }
}
