//! Divisors that stay the same, that are shared, or that are checked for zero.

use crate::loops::facts::Facts;
use crate::machine::{Class, Instruction, Operation, Registers};

/// Counts divisions by a register that the loop does not write, or by a value on the stack.
pub(super) fn count_invariant_divisions(facts: &mut Facts, body: &[&Instruction], changed: Registers) {
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

/// Counts divisions of single values by a divisor that the same iteration has divided by before.
pub(super) fn count_shared_divisions(body: &[&Instruction], changed: Registers) -> u32 {
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

/// Counts divisions by a register that the loop also compares, as in a check for a zero divisor.
pub(super) fn count_checked_divisions(body: &[&Instruction]) -> u32 {
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
