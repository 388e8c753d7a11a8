//! Rules for values that are carried from one round to the next: sums, counters, maxima, recurrences.

use super::{
    FAR_APART, contiguous_arrays, has_only_integers, is_matrix, is_short, is_small, is_sum, largest_gain_of_order,
};
use crate::loops::advice::{Advice, Dialect};
use crate::loops::facts::{Carried, Facts};
use crate::loops::hot_loop::{Entry, Loop, Rounds, Surroundings};

pub(super) fn fp_order(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { strided, spread, wraparounds, wide_products, stored_sums, .. } = hot_loop.facts;
    let Facts { recurrences, choices, conditional_sums, indirect, calls, .. } = hot_loop.facts;
    // A loop whose index may be negative advances by a step that is not constant if it has no spread. Values whose
    // index is a quotient or remainder are loaded one at a time in any order.
    let is_steady = spread != 0 && !hot_loop.facts.descends;
    // A counter of floats, which LLVM computes from the index once sums may be reordered.
    let counts_in_floats =
        hot_loop.is_one_at_a_time() && recurrences != 0 && calls == 0 && hot_loop.only_order_hinders_llvm();
    let is_any_sum = is_sum(hot_loop) || counts_in_floats && choices + conditional_sums + indirect == 0;
    if !is_any_sum || strided + wide_products != 0 || wraparounds != 0 && !is_steady {
        return None;
    }
    let result = describe_accumulator(hot_loop);
    if hot_loop.has_no_sum_for_llvm() {
        let cause = format!(
            "one value at a time: the {result} keeps its order, and options help only after another value that changes in \
             each round, such as an alternating sign, is computed from the index"
        );
        return Some(Advice::because("fp-order", cause));
    }
    if wraparounds != 0 {
        let cause =
            format!("one value at a time: the {result} keeps its order, and an index may be negative in each round");
        let change = format!("slices (a[k:] instead of a[i + k]) with {} allow several", dialect.reassociate());
        return (hot_loop.rounds() == Rounds::Many && dialect.is_python()).then(|| {
            let advice = Advice::because("fp-order", cause).change(change).gain(1.5, 14.0);
            advice.changing("rounding, and what negative indices read")
        });
    }
    let advice = Advice::because("fp-order", format!("one value at a time: the {result} keeps its order"));
    // Before Numba 0.68, a loop of Numba, such as that of np.sum, keeps options of its own.
    let is_inlined = dialect == Dialect::Numba && hot_loop.is_of_numba && hot_loop.first == hot_loop.last;
    let loop_words = if is_inlined { "a loop over the elements (of a slice, by its own index) with " } else { "" };
    let place = if stored_sums != 0 { "a local variable until after the loop, and " } else { "" };
    let change = format!("{place}{loop_words}{} allows several", dialect.reassociate());
    match (hot_loop.rounds(), spread) {
        // `few_rounds` and `strided_sum` are about these.
        (Rounds::Few, _) | (_, FAR_APART..) => None,
        (Rounds::Some, _) => {
            Some(advice.change(format!("{change}, from about 30 rounds on")).gain(1.1, 14.0).changing("rounding"))
        }
        (Rounds::Many, _) if counts_in_floats => Some(advice.change(change).gain(1.1, 14.0).changing("rounding")),
        (Rounds::Many, 2..) => Some(advice.change(change).gain(1.1, 6.0).changing("rounding")),
        (Rounds::Many, _) => Some(advice.change(change).gain(1.5, 18.0).changing("rounding")),
    }
}

pub(super) fn strided_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { strided, spread, wraparounds, wide_products, conditional_sums, recurrences, indirect, .. } =
        hot_loop.facts;
    let has_few = hot_loop.rounds() == Rounds::Few;
    let is_conditional =
        hot_loop.is_one_at_a_time() && conditional_sums != 0 && strided != 0 && recurrences + indirect == 0;
    let is_any_sum = is_sum(hot_loop) || is_conditional;
    let descends = wraparounds != 0 && hot_loop.facts.descends;
    if !is_any_sum || strided == 0 && spread < FAR_APART && !descends && (wraparounds == 0 || spread != 0 && has_few) {
        return None;
    }
    // The code computes the index itself, takes columns of a matrix without a loop over its rows, or takes values of
    // a contiguous array by steps of a loop around it.
    let has_contiguous_arrays = hot_loop.function.contains(" 1d, C)") && !hot_loop.function.contains(", A)");
    let has_steps = has_contiguous_arrays && hot_loop.surroundings.is_loop && !hot_loop.is_inlined;
    if descends {
        let cause = "one value at a time: an index that runs backwards may be negative; a copy in reverse order, if it \
                     is used often, helps more than options";
        return Some(Advice::because("strided-sum", cause));
    }
    let is_fixed = spread >= FAR_APART
        || wraparounds + wide_products != 0
        || if is_matrix(hot_loop) { !hot_loop.surroundings.is_loop } else { has_steps };
    if is_fixed || has_few {
        let cause = "one value at a time, from places far apart in memory; options gain little";
        return Some(Advice::because("strided-sum", cause));
    }
    // Options permit another order of the sum.
    if hot_loop.vector_version_did_not_run() {
        let cause = "one value at a time, although there is a vector version: its values are not known to be \
                     neighbours in memory";
        let change = format!("{}, help", contiguous_arrays(hot_loop));
        return Some(Advice::because("strided-sum", cause).change(change).gain(1.5, largest_gain_of_order(hot_loop)));
    }
    let result = describe_accumulator(hot_loop);
    let cause = format!(
        "one value at a time: the {result} keeps its order, and its values are not known to be neighbours in memory"
    );
    let operand = if is_conditional { format!("{}, and", dialect.conditional_operand()) } else { "and".to_owned() };
    let change = format!("{}, {operand}", contiguous_arrays(hot_loop));
    Some(
        Advice::because("strided-sum", cause)
            .change(format!("{change} {}", dialect.reassociate()))
            .gain(1.5, largest_gain_of_order(hot_loop))
            .changing("rounding"),
    )
}

pub(super) fn gathered_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { accumulators, recurrences, choices, indirect, pointers, has_avx, .. } = hot_loop.facts;
    let is_sum = accumulators != 0 && recurrences + choices == 0 && hot_loop.is_one_at_a_time();
    let is_table = indirect != 0 && pointers == 0;
    (is_sum && is_table && has_avx && is_small(hot_loop) && hot_loop.rounds() == Rounds::Many).then(|| {
        // From memory, several at a time take 0.8 to 1.3 times as long.
        let cause = "one value at a time: the sum keeps its order, and its addresses come from an array; only if the \
                     loop has many rounds and the table fits the cache,";
        Advice::because("gather", format!("{cause} {} may help (up to 3 times)", dialect.reassociate()))
    })
}

pub(super) fn few_steps(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { recurrences, calls, exits, counted_exits, memory, .. } = hot_loop.facts;
    let is_counted = exits == 1 && counted_exits == 1;
    let Surroundings { is_loop, is_slow, entry, .. } = hot_loop.surroundings;
    // Otherwise the rounds of the loop around it need each other, too.
    let is_plain = is_loop && !is_slow && entry != Entry::Continues && calls == 0 && memory < 2;
    let applies = hot_loop.is_one_at_a_time() && is_small(hot_loop) && recurrences != 0 && is_counted && is_plain;
    (applies && hot_loop.rounds() == Rounds::Few && dialect.is_python()).then(|| {
        let cause = "each of a few rounds needs the one before, and their number is not a constant";
        Advice::because("few-rounds", cause)
            .change("a constant number, as range(6), lets the loop around it compute several")
            .gain(1.5, 18.0)
    })
}

/// Few rounds that do not add up, as over the three coordinates of a point.
pub(super) fn few_updates(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { stores, packed, divisions, square_roots, selections, integer_choices, exits, carried, .. } =
        hot_loop.facts;
    let is_plain = carried == Some(Carried::Nothing)
        && exits == 1
        && packed + divisions + square_roots + selections + integer_choices == 0;
    // One value at a time, the rest that is left of a loop that LLVM prepared for many rounds.
    let is_rest = (1..=2).contains(&stores) && hot_loop.wider_versions_did_not_run();
    let is_inner = hot_loop.surroundings.is_loop && !hot_loop.surroundings.is_slow && is_matrix(hot_loop);
    let applies = is_small(hot_loop) && is_plain && is_rest && is_inner && dialect.is_python();
    (applies && hot_loop.rounds() == Rounds::Few).then(|| {
        Advice::because("few-rounds", "the loop has few rounds each time, and their number is not a constant")
            .change("a constant number, as range(3), if it is always the same")
            .gain(1.1, 5.0)
    })
}

pub(super) fn few_rounds(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let is_scalar_sum = is_sum(hot_loop) && hot_loop.facts.strided == 0;
    (is_scalar_sum && hot_loop.rounds() == Rounds::Few).then(|| {
        let is_minor = hot_loop.surroundings.is_slow;
        // Otherwise the number of rounds may differ each time, as for lists of different lengths.
        let has_rows = is_matrix(hot_loop);
        // A constant number gains little from about 8 rounds on, which LLVM unrolls.
        let Facts { unrolled, wraparounds, .. } = hot_loop.facts;
        let is_known = unrolled == 1 && wraparounds == 0 && hot_loop.unrolled_version_did_not_run();
        if !is_known || is_minor || !has_rows || !dialect.is_python() {
            // LLVM unrolls by 8 rounds, which are enough for options to gain up to 2 times.
            let cause = if unrolled >= 8 {
                format!(
                    "the loop has few rounds each time; {} may gain a little, a constant number of rounds more",
                    dialect.reassociate()
                )
            } else {
                "the loop has few rounds each time; options gain little, a constant number of rounds may help more"
                    .to_owned()
            };
            return Advice::because("few-rounds", cause);
        }
        Advice::because("few-rounds", "the loop has few rounds each time, and their number is not a constant")
            .change("a constant number, as range(3), if it is always the same")
            .gain(1.5, 8.0)
    })
}

pub(super) fn sum_in_memory(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let has_many = hot_loop.rounds() == Rounds::Many;
    if !is_small(hot_loop) || hot_loop.rounds() == Rounds::Few {
        return None;
    }
    let change = "a local variable until after the loop";
    if hot_loop.is_one_at_a_time() && hot_loop.facts.sums_in_memory != 0 && has_many {
        let cause =
            "one value at a time: a sum is loaded and stored in each round, as an attribute or an array element";
        let Facts { divisions, square_roots, exits, has_avx, .. } = hot_loop.facts;
        // Two of them in each round take longer than the memory accesses, and another way out keeps them at one at a
        // time: 1.0 to 1.04. One division gains 2.4. Without AVX, several square roots take as long as one at a time.
        let is_slow = exits > 1 && divisions + square_roots > 1 || !has_avx && square_roots != 0;
        if is_slow {
            let cause = format!("{cause}, but divisions or square roots take most of the time");
            return Some(Advice::because("sum-in-memory", cause));
        }
        let advice = Advice::because("sum-in-memory", cause).gain(1.5, 60.0).changing("rounding");
        return Some(advice.change(format!("{change}, and {}", dialect.reassociate())));
    }
    let Facts { counts_in_memory, exits, indirect, pointers, reloads, stores, .. } = hot_loop.facts;
    let is_object = reloads != 0 && pointers == reloads && reloads == indirect && stores != 0 && exits == 1;
    if is_object && hot_loop.is_one_at_a_time() && has_many {
        let cause = "one value at a time: attributes of an object are looked up, loaded and stored in each round";
        return Some(Advice::because("sum-in-memory", cause).change(change).gain(1.5, 60.0));
    }
    (counts_in_memory != 0 && exits == 1 && indirect == 0 && !hot_loop.facts.is_vectorised()).then(|| {
        // Rows of 16 to 64 values gain 1.9 to 6, on SSE 1.3 to 2.1. Where branches are predictable, processors that
        // forward stores to loads without delay (AMD's since 2019) gain 1.14 to 1.3, others 2 and more.
        Advice::because("sum-in-memory", "one value at a time: counts in an array element or attribute in each round")
            .change(change)
            .gain(1.1, 60.0)
    })
}

pub(super) fn conditional_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts {
        conditional_sums, recurrences, strided, spread, memory, indirect, wraparounds, descends, has_avx, ..
    } = hot_loop.facts;
    let is_hindered = recurrences + indirect + wraparounds != 0 || descends;
    if !hot_loop.is_one_at_a_time() || is_hindered || hot_loop.rounds() == Rounds::Few {
        return None;
    }
    let Facts { accumulators, branched_sums, checked_divisions, divisions, square_roots, .. } = hot_loop.facts;
    let change = format!("{} with {} allows several", dialect.conditional_operand(), dialect.reassociate());
    let advice = Advice::because("conditional-sum", "one value at a time: a sum that only some rounds add to");
    // Fields of records are fetched one by one, with or without the change: it makes one or two fields of records of 8
    // to 32 bytes 0.8 to 1.0 times as fast, four fields 0.2 to 0.7 times. Parts of complex numbers gain 5 to 6.
    let is_apart = takes_records(hot_loop) || spread >= FAR_APART;
    if is_apart {
        let cause = "one value at a time, from records or places far apart in memory, and only some rounds add to a \
                     sum; options gain nothing";
        let applies = conditional_sums + branched_sums != 0 || accumulators == 0 && hot_loop.only_order_hinders_llvm();
        return (applies && is_small(hot_loop)).then(|| Advice::because("conditional-sum", cause));
    }
    let advice = advice.changing("rounding");
    // Twice as many values of float32 fit in a register.
    let upper = if hot_loop.facts.is_single { 30.0 } else { 15.0 };
    // Without AVX, several divisions or square roots take as long as one at a time.
    let is_slow = divisions + square_roots != 0;
    if conditional_sums != 0 && strided == 0 && (has_avx || !is_slow) {
        return Some(advice.change(change).gain(if is_slow { 1.5 } else { 4.0 }, upper));
    }
    // The branch remains, because a division in it may raise.
    let is_unchecked_otherwise = hot_loop.facts.exits == 1 + hot_loop.facts.exceptions && hot_loop.facts.stores == 0;
    let has_columns = strided != 0 && strided == memory && is_matrix(hot_loop);
    let is_dense = strided == 0 && spread == 1;
    if branched_sums != 0 && checked_divisions != 0 && is_unchecked_otherwise && has_avx && is_small(hot_loop) {
        let arrays = if has_columns { "an array for each column, " } else { "" };
        let change =
            format!("{arrays}{}, and {change}; the more rounds add, the more it gains", dialect.unchecked_division());
        let advice = advice.change(change).gain(1.1, 15.0).changing("rounding and a division by zero");
        return (has_columns || is_dense).then_some(advice);
    }
    // Values are not tracked through branches here, but LLVM does. Without AVX, LLVM keeps these branches.
    let cause = "one value at a time: a branch decides what is added to the sum, which keeps its order";
    (accumulators == 0 && strided == 0 && hot_loop.only_order_hinders_llvm() && has_avx && is_small(hot_loop))
        .then(|| Advice::because("conditional-sum", cause).change(change).gain(1.8, upper).changing("rounding"))
}

pub(super) fn branched_counts(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { branched_counts, stores, indirect, strided, exits, counted_exits, table_jumps, .. } = hot_loop.facts;
    // Jumps through a table look like loops of their own.
    let is_small = is_small(hot_loop) || table_jumps != 0 && is_short(hot_loop);
    let is_plain = stores + indirect + strided == 0 && exits == 1 && counted_exits == 1;
    let applies = is_small && !hot_loop.facts.is_vectorised() && is_plain && branched_counts > 1;
    (applies && dialect.is_python() && hot_loop.rounds() != Rounds::Few).then(|| {
        Advice::because("branched-counts", "one value at a time: branches decide which of several counters grows")
            .change(
                "where values come in no order, a sum of conditions for each counter (n += (x >= low) & (x < high)) \
                 instead of if and elif",
            )
            .gain(1.4, 30.0)
    })
}

pub(super) fn maximum(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    // Four accumulators do not help if the loop also tracks a position. Four selections (two each for a maximum and a
    // minimum) mean that the advice has already been followed.
    let Facts { choices, recurrences, conditional_sums, integer_choices, is_single, .. } = hot_loop.facts;
    let other_carried = recurrences + conditional_sums + integer_choices;
    let applies = (1..=2).contains(&choices) && other_carried == 0 && hot_loop.rounds() != Rounds::Few;
    (hot_loop.is_one_at_a_time() && applies).then(|| {
        Advice::because("maximum", "one value at a time: each round keeps the larger or smaller")
            .change("for 50 rounds or more, keep 4 and join them after the loop, as no option does")
            .gain(1.1, if is_single { 5.0 } else { 4.0 })
            .changing("the order in which NaN are met")
    })
}

pub(super) fn recurrence(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { recurrences, strided, strided_integers, memory, stores, carried, exits, counted_exits, .. } =
        hot_loop.facts;
    let is_of_integers = has_only_integers(hot_loop);
    let strided = if is_of_integers { strided_integers } else { strided };
    // Other layouts have strides in each direction.
    let is_contiguous = ![", A)", ", F)"].iter().any(|layout| hot_loop.function.contains(layout));
    let is_down_columns = strided >= 2
        && is_matrix(hot_loop)
        && is_contiguous
        && hot_loop.surroundings.is_loop
        && is_small(hot_loop)
        && hot_loop.rounds() != Rounds::Few;
    let advise_order = |cause: &str| {
        Advice::because("recurrence", cause)
            .change("the last index in the inner loop, if columns do not depend on each other, allows several")
            .gain(2.0, 150.0)
    };
    // Memory may carry a value, too: an element that one round writes and the next one reads.
    let updates_columns = stores != 0 && strided == memory && exits == 1 && carried.is_some();
    // Each round of the loop around it computes the same from another value.
    let can_be_exchanged = hot_loop.surroundings.entry == Entry::Repeats
        && is_small(hot_loop)
        && stores == 0
        && exits == 1
        && counted_exits == 1
        && dialect.is_python();
    match hot_loop.is_one_at_a_time() || is_of_integers {
        true if recurrences != 0 && can_be_exchanged => {
            let cause = "one value at a time: each round needs the one before, but the rounds of the loop around it do not \
                         need each other";
            let change = "the loops exchanged, with an array for what is carried (out[i] = out[i] * x[i] + c[k]), allow \
                          several; up to about 50 rounds, a constant number does, too";
            Some(Advice::because("recurrence", cause).change(change).gain(1.2, 25.0))
        }
        true if recurrences != 0 && is_down_columns => {
            Some(advise_order("one value at a time: each round needs the one before, down a column"))
        }
        true if recurrences != 0 => Some(Advice::because(
            "recurrence",
            "one value at a time: each round needs the one before; options seldom help",
        )),
        true if updates_columns && is_down_columns => {
            Some(advise_order("one value at a time: a column is updated in place or from others, element by element"))
        }
        _ => None,
    }
}

/// Returns the word for the value that the loop accumulates.
fn describe_accumulator(hot_loop: &Loop) -> &'static str {
    let Facts { accumulators, products, .. } = hot_loop.facts;
    if products != 0 && products == accumulators { "product" } else { "sum" }
}

/// Returns true if the function takes an array of records.
fn takes_records(hot_loop: &Loop) -> bool {
    hot_loop.function.contains("(Record(")
}
