//! Rules for loads, stores, and exits from the loop.

use super::{FAR_APART, contiguous_arrays, has_only_integers, is_matrix, is_small, largest_gain_of_order};
use crate::loops::advice::{Advice, Dialect};
use crate::loops::facts::{Carried, Facts};
use crate::loops::hot_loop::{Loop, Rounds};

/// Size limit of a loop that only compares values.
const MAX_CHECK_INSTRUCTIONS: u32 = 20;

/// Instructions of a loop for each access to an array that is looked up again: 8 to 10 with arrays of any stride.
const MAX_INSTRUCTIONS_PER_RELOAD: u32 = 12;

pub(super) fn attribute_array(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { reloads, indirect, pointers, stores, recurrences, accumulators, wraparounds, .. } = hot_loop.facts;
    // A loop that is not small may be unrolled.
    let is_size_known = is_small(hot_loop) || reloads * MAX_INSTRUCTIONS_PER_RELOAD >= hot_loop.facts.instructions;
    // Not for numbers that are attributes.
    let has_arrays = reloads > pointers && reloads == indirect;
    let applies = hot_loop.is_one_at_a_time() && is_size_known && has_arrays;
    let is_independent = stores != 0 && recurrences + accumulators + wraparounds == 0;
    let change = if dialect.is_python() { "`x = self.x` before the loop" } else { "a local copy of the pointer" };
    (applies && is_independent && hot_loop.facts.exits == 1 && hot_loop.rounds() != Rounds::Few).then(|| {
        let cause = "one value at a time: an array that is an attribute is looked up in each round";
        Advice::because("attribute-array", cause).change(change).gain(1.5, 12.0)
    })
}

/// A value that stays the same, and that a store might change, is loaded in each round, and what follows from it is
/// computed again.
pub(super) fn repeated_load(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { repeated_loads, repeated_rows, repeated_offsets, packed, calls, exits, strided, spread, .. } =
        hot_loop.facts;
    let Facts { sums_in_memory, accumulators, carried, carries_floats, wraparounds, .. } = hot_loop.facts;
    let is_independent = carried != Some(Carried::Others) && !carries_floats && sums_in_memory + accumulators == 0;
    let applies = repeated_loads != 0 && packed + calls == 0 && exits == 1 && is_independent;
    if !applies || !hot_loop.is_innermost || strided != 0 || hot_loop.rounds() == Rounds::Few || !dialect.is_python() {
        return None;
    }
    let effect = "results only if a round changes the value";
    if repeated_rows != 0 {
        let cause = "one value at a time: the place of a row is loaded and computed again in each round, because a \
                     store might change it";
        let change = "a local variable before the loop, as k = index[i], or the row itself, as row = m[index[i]]";
        let advice = Advice::because("repeated-load", cause).change(change).gain(1.3, 20.0);
        return Some(advice.changing(effect));
    }
    // AMD's processors store by a mask of AVX2 as slowly as one value at a time.
    let is_masked = hot_loop.versions.iter().any(|version| version.facts.masked_stores != 0);
    // Without a vector version, LLVM says whether it is for this reason.
    let is_hindered = hot_loop.facts.scalar != 0
        && hot_loop.surroundings.is_loop
        && carried == Some(Carried::Nothing)
        && hot_loop.facts.indirect + wraparounds == 0
        && ["UnsafeDep", "UnsafeMemDep"].iter().any(|name| hot_loop.has_remark(name));
    if (hot_loop.has_idle_vector_version() || is_hindered) && is_matrix(hot_loop) && spread < 2 && !is_masked {
        let cause = "one value at a time: what it writes may be in the row that it reads, or change the value that \
                     each round loads again";
        let change = "local variables for values that stay the same (x = d[i, k]), and a copy of another row of the \
                      same matrix (row = d[k].copy()), before the loops allow several";
        let advice = Advice::because("repeated-load", cause).change(change).gain(1.4, 35.0);
        return Some(advice.changing(effect));
    }
    (repeated_offsets != 0).then(|| {
        let cause = "one value at a time: part of an index is loaded again in each round, because a store might change \
                     it; a local variable before the loop may help (up to 2 times)";
        Advice::because("repeated-load", cause)
    })
}

pub(super) fn tuple_index(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    // An array of the tuple needs elements that are numbers.
    let has_tuple = hot_loop.function.contains("Tuple(") && !hot_loop.function.contains("Tuple(array(");
    (hot_loop.facts.table_jumps != 0 && has_tuple && hot_loop.is_innermost && hot_loop.facts.calls == 0).then(|| {
        Advice::because("tuple-index", "a variable index of a tuple jumps to the code of each element")
            .change("make an array of the tuple before the loop")
            .gain(6.0, 14.0)
    })
}

pub(super) fn wraparound(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { wraparounds, indirect, accumulators, recurrences, choices, calls, unrolled, .. } = hot_loop.facts;
    let divisions = hot_loop.facts.integer_divisions + hot_loop.facts.wide_products;
    let has_choices = hot_loop.facts.carried.is_none() || hot_loop.facts.integer_choices != 0;
    let needs_last_round = accumulators + choices != 0 || recurrences != 0 && hot_loop.is_one_at_a_time();
    let is_plain = hot_loop.facts.exits < 2 && !hot_loop.facts.descends && hot_loop.rounds() != Rounds::Few;
    let applies = wraparounds != 0
        && unrolled != 0
        && is_plain
        && indirect + calls + divisions == 0
        && hot_loop.is_innermost
        && !needs_last_round
        && !has_choices;
    (applies && dialect.is_python()).then(|| {
        Advice::because("wraparound", "each round checks whether an index is negative, which counts from the end")
            .change("slices instead of differences: out[k:] and a[:-k] instead of a[i - k]")
            .gain(1.4, 4.0)
            .changing("what negative indices read")
    })
}

pub(super) fn zip(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { exits, counted_exits, strided, scalar, carried, .. } = hot_loop.facts;
    let applies = hot_loop.is_one_at_a_time()
        && is_small(hot_loop)
        && exits == 2
        && counted_exits == 2
        && strided >= 2
        && scalar != 0;
    let cause = "one value at a time: zip asks in each round which array ends first";
    let advice = Advice::because("zip", cause);
    applies.then(|| match carried {
        Some(Carried::Nothing) => advice.change("an index over C-contiguous arrays asks once").gain(1.5, 6.0),
        Some(Carried::Accumulators) => {
            let change = format!("an index over C-contiguous arrays, and {}", dialect.reassociate());
            advice.change(change).gain(2.0, 18.0).changing("rounding")
        }
        _ => advice,
    })
}

pub(super) fn stride(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    // Other versions are those of another loop if this one needs its values in order. Broadcasting selects indices,
    // with contiguous arrays, too.
    let Facts { carried, carries_floats, integer_choices, strided, strided_integers, memory, spread, .. } =
        hot_loop.facts;
    let Facts { wraparounds, stores, strided_stores, .. } = hot_loop.facts;
    // Vector versions for bytes may only copy and invert, which do not count as operations.
    let is_for_bytes = || hot_loop.has_remark("Vectorized") && hot_loop.no_version_ran();
    let is_of_integers =
        has_only_integers(hot_loop) && strided_integers != 0 && (hot_loop.has_idle_vector_version() || is_for_bytes());
    // AVX2 cannot load and store several values at a time that are not neighbours.
    let has_no_version = strided != 0
        && strided == memory
        && stores != 0
        && wraparounds == 0
        && carried == Some(Carried::Nothing)
        && hot_loop.is_one_at_a_time()
        && hot_loop.versions.iter().all(|version| !version.facts.is_vectorised())
        && hot_loop.function.contains(", A)");
    let applies = (hot_loop.vector_version_did_not_run() || is_of_integers || has_no_version)
        && hot_loop.facts.calls == 0
        && hot_loop.facts.exits < 2
        && carried != Some(Carried::Others)
        && !carries_floats
        && integer_choices == 0
        && hot_loop.rounds() != Rounds::Few;
    applies.then(|| {
        let strided = strided + strided_integers;
        if strided == 0 && spread == 1 {
            let cause =
                "one value at a time, although there is a vector version: what it writes may overlap what it reads";
            return Advice::because("stride", cause);
        }
        // The stride is a constant other than 1, as that of colours in an image, which contiguous arrays have, too.
        // In a transposition, the other order of loops reads neighbours, but does not write them: 0.4 times as fast.
        let is_transposition = is_matrix(hot_loop) && hot_loop.surroundings.is_loop && stores > strided_stores;
        if strided == 0 || is_transposition {
            let cause = "one value at a time, although there is a vector version: values are not neighbours in memory";
            return Advice::because("stride", cause);
        }
        let cause = if has_no_version {
            "one value at a time: an array is not known to be contiguous"
        } else {
            "one value at a time, although there is a vector version: the stride is not known to be 1 before it runs"
        };
        let advice = Advice::because("stride", cause).change(format!("{}, help", contiguous_arrays(hot_loop)));
        advice.gain(1.1, largest_gain_of_order(hot_loop))
    })
}

pub(super) fn exception_exit(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { exits, counted_exits, exceptions, checked_divisions, indirect, .. } = hot_loop.facts;
    let Facts { carried, carries_floats, strided, spread, divisions, square_roots, has_avx, .. } = hot_loop.facts;
    let applies = hot_loop.is_one_at_a_time() && is_small(hot_loop) && exceptions != 0 && checked_divisions == 0;
    // A value that the loop carries keeps its order without the check, too. Without AVX, several divisions or square
    // roots take as long as one at a time.
    let is_sum = carried == Some(Carried::Accumulators);
    let gains_by_order = strided == 0
        && spread < FAR_APART
        && (has_avx || divisions + square_roots == 0)
        && hot_loop.rounds() != Rounds::Few;
    let keeps_order =
        carried == Some(Carried::Others) || carries_floats && carried.is_none() || hot_loop.facts.sums_in_memory != 0;
    applies.then(|| {
        if counted_exits < exits && indirect != 0 {
            let cause = "one value at a time: an exception may leave the loop, and an address comes from an array";
            Advice::because("exception-exit", cause)
        } else if counted_exits < exits {
            let origin =
                if dialect.is_python() { "raise, or an index with boundscheck=True" } else { "or a check of an index" };
            let cause = format!("one value at a time: an exception may leave the loop ({origin})");
            // Without the option, a sum takes 0.9 to 1.3 times as long.
            if is_sum && gains_by_order {
                let change = format!(
                    "collect the condition in a loop before (bad |= x[i] < 0), ask once, and add with {}, from about \
                     100 rounds on",
                    dialect.reassociate()
                );
                let advice = Advice::because("exception-exit", cause).change(change).gain(1.2, 7.0);
                return advice.changing("rounding");
            }
            if is_sum || keeps_order {
                let cause = format!("{cause}, and it carries a value from one round to the next");
                return Advice::because("exception-exit", cause);
            }
            Advice::because("exception-exit", cause)
                .change("check in a loop before this one")
                .gain(1.3, 4.0)
                .changing("what is written before the exception")
        } else {
            // The loop checks only an index, not a value.
            let origin = if dialect.is_python() { " (of a list, or with boundscheck=True)" } else { "" };
            Advice::because("exception-exit", format!("one value at a time: an index is checked in each round{origin}"))
                .change("an array without that check can compute several")
        }
    })
}

pub(super) fn early_exit(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let Facts { exits, counted_exits, exceptions, carried, only_reads_in_order, wraparounds, instructions, .. } =
        hot_loop.facts;
    let leaves_by_value = exits == 2 && counted_exits == 1 && exceptions == 0;
    let carries_nothing = carried == Some(Carried::Nothing) && only_reads_in_order && wraparounds == 0;
    let applies = leaves_by_value && carries_nothing && instructions <= MAX_CHECK_INSTRUCTIONS;
    (applies && is_small(hot_loop) && !hot_loop.facts.is_vectorised() && hot_loop.rounds() != Rounds::Few).then(|| {
        Advice::because("early-exit", "one value at a time: each value may leave the loop")
            .change("if it seldom leaves early, collect the condition (bad |= x[i] < 0) and ask after the loop")
            .gain(1.2, 20.0)
    })
}

pub(super) fn gather(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { gathers, fixed_gathers, scatters, indirect, width, packed_products, .. } = hot_loop.facts;
    if !is_small(hot_loop) {
        return None;
    }
    if gathers + scatters != 0 && dialect == Dialect::Stencil {
        // 3.1 to 9.7 on processors with AVX-512, 1.4 to 5.9 with AVX2; a float32 stencil computes in float64.
        return Some(
            Advice::because("gather", "each value is fetched by itself (gather), as a stencil's index may be negative")
                .change("the same loops in an @njit function")
                .gain(if width == 512 { 3.0 } else { 1.4 }, 10.0),
        );
    }
    if gathers != 0 && gathers == fixed_gathers && indirect == 0 && dialect.is_python() {
        let cause = "a value that stays the same is fetched in each round (gather), because a condition may skip it";
        let change = "a local variable before the loop, as xi = x[i]";
        return Some(Advice::because("gather", cause).change(change).gain(1.1, 6.0));
    }
    if gathers + scatters != 0 && indirect == 0 {
        let advice = Advice::because("gather", "each value is fetched by itself (gather)");
        // Fields of records are not neighbours, whatever the order of loops.
        // An index that is a product with the row's length goes down a column; others may be remainders or selected.
        return Some(if is_matrix(hot_loop) && packed_products != 0 {
            advice.change("neighbours in memory are faster: of a[i, j], j should be the inner loop's")
        } else {
            advice
        });
    }
    let cause = "one value at a time: an address comes from an array; options do not help";
    (hot_loop.is_one_at_a_time() && indirect != 0).then(|| Advice::because("gather", cause))
}
