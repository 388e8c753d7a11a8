//! The rules: conditions on the measured facts of a loop, and the advice if they hold.
//!
//! Each rule has a stable id, which `docs/why-rules.md` lists. Gains are those of `benches/why/kernels.py compare` on
//! processors with AVX-512, AVX2 and SSE.

mod arithmetic;
mod calls;
mod memory;
mod sums;
#[cfg(test)]
mod tests;

pub(crate) use calls::SMALL_PARALLEL;

use super::advice::{Advice, Dialect};
use super::facts::Facts;
use super::hot_loop::Loop;

/// Size limit of a small loop. The time of a larger loop rarely has a single cause.
const MAX_SMALL_LOOP_INSTRUCTIONS: u32 = 100;

/// Minimum distance of consecutive values, in multiples of their size, from which gathering several of them may take
/// longer than one at a time: sums over fields of records gain 1.1 to 3.9 times at 4 values, 0.4 to 2.5 at 6 and more.
const FAR_APART: u32 = 4;

type Rule = fn(&Loop, Dialect) -> Option<Advice>;

/// All rules, the most relevant first.
const RULES: [Rule; 46] = [
    calls::small_parallel,
    calls::object_mode,
    calls::list_growth,
    calls::typed_list_growth,
    calls::array_growth,
    calls::string_join,
    calls::string_compare,
    calls::short_sort,
    calls::row_product,
    calls::interpolation,
    calls::small_matrix,
    calls::row_reduction,
    calls::allocation,
    calls::typed_dict,
    calls::integer_set,
    calls::float_remainder,
    calls::hypot,
    calls::power,
    calls::math_call,
    arithmetic::complex_division,
    calls::reference_count,
    arithmetic::float_widening,
    arithmetic::integer_division,
    arithmetic::division_check,
    arithmetic::invariant_divisor,
    sums::fp_order,
    sums::strided_sum,
    memory::repeated_load,
    memory::attribute_array,
    sums::gathered_sum,
    arithmetic::integer_power,
    sums::few_steps,
    sums::few_rounds,
    sums::few_updates,
    sums::sum_in_memory,
    memory::tuple_index,
    memory::wraparound,
    memory::zip,
    memory::stride,
    sums::conditional_sum,
    sums::branched_counts,
    sums::maximum,
    sums::recurrence,
    memory::exception_exit,
    memory::early_exit,
    memory::gather,
];

/// Returns the advice of the first rule that knows a change. Without one, returns the first reason, if there is any.
pub(super) fn advice(hot_loop: &Loop) -> Vec<Advice> {
    // An instruction that the decoder does not know may be the cause.
    if hot_loop.facts.unknown != 0 {
        return Vec::new();
    }
    let dialect = Dialect::of_function(&hot_loop.function, &hot_loop.loop_path);
    let matching: Vec<Advice> = RULES.iter().filter_map(|rule| rule(hot_loop, dialect)).collect();
    let best = matching.iter().position(|advice| advice.change.is_some()).unwrap_or(0);
    matching.into_iter().nth(best).into_iter().collect()
}

/// Returns true for an innermost loop with few instructions and no calls.
fn is_small(hot_loop: &Loop) -> bool {
    hot_loop.is_innermost && is_short(hot_loop)
}

fn is_short(hot_loop: &Loop) -> bool {
    hot_loop.facts.calls == 0 && hot_loop.facts.instructions < MAX_SMALL_LOOP_INSTRUCTIONS
}

/// Returns true for an innermost loop that neither computes floating-point values nor takes addresses from memory.
fn has_only_integers(hot_loop: &Loop) -> bool {
    let Facts { packed, scalar, unknown, indirect, .. } = hot_loop.facts;
    hot_loop.is_innermost && packed + scalar + unknown + indirect == 0
}

/// Returns true if the function takes an array of several dimensions.
fn is_matrix(hot_loop: &Loop) -> bool {
    [" 2d,", " 3d,", " 4d,"].iter().any(|dimensions| hot_loop.function.contains(dimensions))
}

fn is_sum(hot_loop: &Loop) -> bool {
    let Facts { accumulators, recurrences, choices, conditional_sums, indirect, .. } = hot_loop.facts;
    hot_loop.is_one_at_a_time() && accumulators != 0 && recurrences + choices + conditional_sums + indirect == 0
}

/// Returns the change that lets LLVM know that values are neighbours in memory.
fn contiguous_arrays(hot_loop: &Loop) -> &'static str {
    if hot_loop.is_gufunc {
        // 1.7 for a sum of 16 values, 10 of 1000. A copy in the kernel loses up to about 100 values.
        "an @njit function with loops over C-contiguous arrays (a kernel of guvectorize takes any stride; with a type \
         such as float64[::1], it reads wrong values where the stride is another)"
    } else if is_matrix(hot_loop) && !hot_loop.function.contains(", A)") && !hot_loop.surroundings.is_loop {
        // The rows of such a matrix have only a few values, which are taken without a loop.
        "C-contiguous arrays by index, one for each column (x[0, i] instead of x[i, 0])"
    } else if hot_loop.function.contains(", A)") {
        "arrays that are C-contiguous from the start (a copy for each pass gains nothing), by index, the last index in \
         the inner loop"
    } else {
        "C-contiguous arrays by index, the last index in the inner loop (if it has few values, an array for each)"
    }
}

/// Returns the largest gain by values that are neighbours in memory. Down a column of 512 values, each round reads another
/// line of the cache, and few of these fit.
fn largest_gain_of_order(hot_loop: &Loop) -> f64 {
    if is_matrix(hot_loop) { 100.0 } else { 30.0 }
}
