//! Rules for divisions, powers and conversions.

use super::{MAX_SMALL_LOOP_INSTRUCTIONS, is_matrix, is_small, is_sum};
use crate::loops::advice::{Advice, Dialect};
use crate::loops::facts::{Carried, Facts};
use crate::loops::hot_loop::{Loop, Rounds};

const DIVISION_COST_IN_INSTRUCTIONS: u32 = 40;

/// Cycles from the start of a division to that of the next.
const DIVISION_CYCLES: u32 = 4;

/// Instructions of a loop for each division by the same value, from which the others take most of the time, such as
/// conversions of integers: such a loop gains 0.99 to 1.04 times at 18 and more, 2.1 at 9.
const MAX_INSTRUCTIONS_PER_DIVISION: u32 = 16;

pub(super) fn complex_division(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { divisions, exceptions, calls, .. } = hot_loop.facts;
    // Numba divides by the larger part of the divisor first, on two paths, and checks both for zero.
    let divides = divisions > exceptions && exceptions >= 2 && calls == 0 && handles_complex(hot_loop);
    (divides && hot_loop.is_innermost && hot_loop.is_one_at_a_time() && dialect.is_python()).then(|| {
        let cause = "one value at a time: a division of complex numbers branches by the divisor's larger part";
        Advice::because("complex-division", cause)
            .change(
                "z * w.conjugate() * (1.0 / (w.real * w.real + w.imag * w.imag)) for z / w, and z * (1.0 / x) for a \
                 real x; the less regular the parts, the more it gains",
            )
            .gain(1.05, 5.0)
            .changing("rounding, and overflows from 1e154 on")
    })
}

pub(super) fn float_widening(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { conversions, narrowings, packed, scalar, calls, .. } = hot_loop.facts;
    // Calls take longer than conversions.
    (calls == 0 && narrowings != 0 && narrowings < conversions && conversions * 4 >= packed.max(scalar)).then(|| {
        let cause = "float32 becomes float64 and back, because a literal or another operand is float64";
        Advice::because("float-widening", cause)
            .change(format!("{} keeps it", dialect.float32_literal()))
            .gain(1.1, 4.0)
            .changing("rounding")
    })
}

pub(super) fn integer_division(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let Facts { calls, invariant_integer_divisions: count, instructions, .. } = hot_loop.facts;
    let applies = calls == 0 && hot_loop.is_innermost && count * DIVISION_COST_IN_INSTRUCTIONS >= instructions.max(1);
    let divisions = if count == 1 { "1 integer division".to_owned() } else { format!("{count} integer divisions") };
    applies.then(|| {
        Advice::because("integer-division", format!("{divisions} by a variable"))
            .change("a constant divisor, best a power of two, or a counter that wraps around")
            .gain(1.2, 17.0)
    })
}

pub(super) fn division_check(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts {
        checked_divisions,
        carried,
        square_roots,
        strided,
        spread,
        indirect,
        exits,
        exceptions,
        calls,
        instructions,
        repeated_loads,
        ..
    } = hot_loop.facts;
    // Another branch or a carried value may also keep the loop from several values at a time.
    let carried = carried.filter(|carried| *carried != Carried::Others)?;
    // A sum in memory is carried, too: without the check alone, a division and a square root gain nothing.
    let is_in_memory = hot_loop.facts.sums_in_memory != 0;
    let carried = if is_in_memory { Carried::Accumulators } else { carried };
    // LLVM does not tell one element of a matrix from another that a round writes.
    let may_repeat = repeated_loads != 0 && is_matrix(hot_loop);
    let place = match (is_in_memory, may_repeat) {
        (true, _) => "a local variable until after the loop and ",
        (false, true) => "local variables before the loop for values that stay the same (x = m[i, i]) and ",
        (false, false) => "",
    };
    // Values that are not neighbours gain nothing. Without AVX, several square roots take nearly as long as one at a
    // time.
    let is_dense = strided + indirect == 0 && spread < 2 && (square_roots == 0 || hot_loop.facts.has_avx);
    // Other ways out remain without the check.
    let is_only_way_out = exits <= 1 + exceptions.max(1);
    let applies = is_dense && is_only_way_out && checked_divisions != 0;
    // LLVM unrolls a constant number of rounds.
    let is_mostly_division = hot_loop.is_innermost && calls == 0 && instructions <= 8 * checked_divisions;
    (hot_loop.is_one_at_a_time() && (is_small(hot_loop) || is_mostly_division) && applies).then(|| {
        let cause = match dialect {
            Dialect::Numba | Dialect::Stencil => "one value at a time: a division by zero must raise",
            Dialect::C | Dialect::Julia | Dialect::Other => "one value at a time: each division checks for zero",
        };
        let advice = Advice::because("division-check", cause);
        let change = dialect.unchecked_division();
        let effect = if carried == Carried::Nothing { "a division by zero" } else { "rounding and a division by zero" };
        let change = match carried {
            Carried::Nothing => format!("{place}{change}"),
            _ => format!("{change}, and with {place}{} it allows several", dialect.reassociate()),
        };
        // An AMD processor executes the outer loop during the divisions, so it has no samples, even if each time has
        // three rounds. Two or three rounds gain nothing, 4 and more 1.7 to 3.7, float32 from 8 on.
        if hot_loop.surroundings.is_loop {
            let condition = ", where each time has about 8 rounds or more: fewer gain little or nothing";
            let may_gain = !hot_loop.may_have_few_slow_rounds();
            return if may_gain { advice.change(change + condition).changing(effect) } else { advice };
        }
        // Without the check, a sum still keeps its order. The division is a small part of a larger loop.
        let lower = match square_roots {
            _ if carried != Carried::Nothing && hot_loop.facts.instructions > 20 * checked_divisions => 1.05,
            0 => 1.9,
            _ => 1.3,
        };
        let upper = match carried {
            Carried::Nothing => 8.0,
            _ if is_in_memory => 10.0,
            _ => 6.0,
        };
        advice.change(change).gain(lower, upper).changing(effect)
    })
}

pub(super) fn invariant_divisor(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { invariant_divisions, shared_divisions, divisions, element, width, packed, scalar, .. } = hot_loop.facts;
    // Wide divisions of float32 take little longer than the memory accesses, and other operations hide a division.
    let is_fast = width > 128 && element == 32 || packed > 6 * invariant_divisions;
    // The processor divides while it waits for integers that depend on those of the round before.
    let is_hidden = hot_loop.facts.is_vectorised() && is_fast
        || hot_loop.facts.integer_latency >= DIVISION_CYCLES * divisions.max(invariant_divisions)
        || hot_loop.facts.instructions > MAX_INSTRUCTIONS_PER_DIVISION * invariant_divisions;
    let (cause, lower, upper) = if invariant_divisions != 0 && !is_hidden {
        ("divides by a value that the loop does not change", 1.05, if width > 128 { 3.5 } else { 6.0 })
    } else if shared_divisions != 0 && scalar <= 6 * divisions {
        ("divides several values by the same one in each round", 1.2, 3.0)
    } else {
        return None;
    };
    // Options do not reach Numba's division of complex numbers.
    let change = if handles_complex(hot_loop) && dialect.is_python() {
        "a product with its reciprocal divides once".to_owned()
    } else {
        format!("{}, or a product with its reciprocal, divides once", dialect.reciprocal())
    };
    let advice = Advice::because("invariant-divisor", cause).changing("rounding");
    let Facts { strided, spread, wraparounds, .. } = hot_loop.facts;
    let is_dense = strided + wraparounds == 0 && spread < 2;
    if is_small(hot_loop)
        && invariant_divisions != 0
        && is_sum(hot_loop)
        && is_dense
        && hot_loop.rounds() == Rounds::Many
    {
        // The first alone gains 1.5 to 1.7.
        let change =
            format!("{}, also for the sum, divides once and allows several", dialect.reciprocal_and_reassociate());
        return Some(advice.change(change).gain(1.5, 18.0));
    }
    is_small(hot_loop).then(|| advice.change(change).gain(lower, upper))
}

pub(super) fn integer_power(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    // Exponentiation by squaring: a loop that squares, and multiplies where a bit of the exponent is set.
    let Facts { scalar, memory, packed, instructions, calls, .. } = hot_loop.facts;
    let shape = hot_loop.is_innermost && scalar == 2 && memory + packed + calls == 0 && instructions <= 12;
    let has = |text: &str| hot_loop.instructions.iter().any(|instruction| instruction.text.contains(text));
    // The loop around it calls `pow` from this exponent on.
    let is_around = has("$0x10001,") && hot_loop.calls.is_empty() && instructions < MAX_SMALL_LOOP_INSTRUCTIONS;
    // Numba 0.61 shifts with the sign.
    let halves = has("shr $1,") || has("sar $1,");
    ((shape && halves || is_around) && dialect.is_python()).then(|| {
        Advice::because("integer-power", "x ** n of a variable n squares and multiplies bit by bit")
            .change("products (x * x * x), or a constant n")
            .gain(2.5, 30.0)
            .changing("rounding")
    })
}

/// Returns true if the function takes or returns complex arrays.
fn handles_complex(hot_loop: &Loop) -> bool {
    hot_loop.function.contains("(complex")
}
