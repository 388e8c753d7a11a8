//! The rules: conditions on the measured facts of a loop, and the advice if they hold.
//!
//! Each rule has a stable id, which `docs/why-rules.md` lists. Gains are those of `benches/why/kernels.py compare` on
//! processors with AVX-512, AVX2 and SSE.

use super::advice::{Advice, Dialect};
use super::callees::{
    is_allocation, is_array_allocation, is_array_expression, is_array_function, is_array_growth, is_array_join,
    is_blas_kernel, is_concatenation, is_dict, is_elimination, is_float_remainder, is_hypot, is_interpolation,
    is_lapack_kernel, is_list_growth, is_math, is_matrix_product, is_memory_copy, is_norm, is_object_allocation,
    is_object_mode, is_ordered_reduction, is_parallel_loop, is_power, is_product, is_reference_count, is_slow_norm,
    is_sort, is_string, is_thread_runtime, is_typed_list_growth, is_typed_list_item, prepares, writes_typed_list,
};
use super::facts::{Carried, Facts};
use super::hot_loop::{Entry, Loop, Rounds, Surroundings};
use crate::profile::Count;

/// Size limit of a small loop. The time of a larger loop rarely has a single cause.
const MAX_SMALL_LOOP_INSTRUCTIONS: u32 = 100;
const DIVISION_COST_IN_INSTRUCTIONS: u32 = 40;
/// Minimum distance of consecutive values, in multiples of their size, from which gathering several of them may take
/// longer than one at a time: sums over fields of records gain 1.1 to 3.9 times at 4 values, 0.4 to 2.5 at 6 and more.
const FAR_APART: u32 = 4;

/// Maximum percentage of a loop's time in the kernels of BLAS for its rows to count as short: 10 to 22 % for rows of 16
/// to 256 values in the cache, 34 to 42 % for 512, and 22 to 26 % for 64 from memory, 33 to 44 % for 128. A product of
/// longer rows gains up to 1.5 times, or loses.
const MAX_BLAS_PERCENT: f64 = 26.0;
/// The same percentage for products of two matrices: 17 to 30 % for 4 x 4, which gain 1.9 to 5.3 times. The share does
/// not tell the size: it is 25 to 30 % for 6 x 6, too, which lose.
const MAX_MATRIX_BLAS_PERCENT: f64 = 35.0;
/// The percentage up to which nearly all of the time is saved.
const MAX_FEW_BLAS_PERCENT: f64 = 12.0;

/// Minimum percentage of a loop's time in its own instructions and in preparations for a function of NumPy, for its rows
/// to count as short: 33 to 79 % for rows of 3 and 4.
const MIN_FUNCTION_PREPARATION_PERCENT: f64 = 25.0;

/// Maximum percentage of a loop's time in the kernels of LAPACK for its matrices to count as small: 4 to 26 % for up to
/// 8 rows, 40 to 50 % for 16.
const MAX_LAPACK_PERCENT: f64 = 30.0;

/// Minimum percentage of a loop's time in preparations for a sort, such as a copy of the row, for its rows to count as
/// short: 42 to 82 % for up to 9 values, 17 to 43 % for 25; on an AMD processor 33 to 51 % for 3, 27 to 34 % for 9,
/// 25 % for 15, where the change gains 1.7, and 7 to 21 % for 25, where it gains 1.4 to 2.3.
const MIN_SHORT_SORT_PERCENT: f64 = 24.0;

/// Minimum percentage of a loop's time in preparations for joining arrays, for these to count as short: 23 to 27 % for
/// rows of 12, up to 6 % for 4,000 values.
const MIN_JOIN_PERCENT: f64 = 14.0;

/// Size limit of a loop over the characters of a string whose time is in the functions that make them.
const MAX_STRING_INSTRUCTIONS: u32 = 200;

/// Size limit of a loop whose references are those of one container.
const MAX_CONTAINER_INSTRUCTIONS: u32 = 200;

/// Size limit of a loop that only compares values.
const MAX_CHECK_INSTRUCTIONS: u32 = 20;

/// Minimum percentage of a loop's time in `hypot`. Calls take time in the loop, too: sums of squares of `abs(z)` have
/// 31 to 42 % in it and gain 2.5, larger sums 35 % and gain 1.6.
const MIN_HYPOT_PERCENT: f64 = 25.0;

/// Instructions of a loop for each division by the same value, from which the others take most of the time, such as
/// conversions of integers: such a loop gains 0.99 to 1.04 times at 18 and more, 2.1 at 9.
const MAX_INSTRUCTIONS_PER_DIVISION: u32 = 16;

/// Instructions of a loop for each access to an array that is looked up again: 8 to 10 with arrays of any stride.
const MAX_INSTRUCTIONS_PER_RELOAD: u32 = 12;

type Rule = fn(&Loop, Dialect) -> Option<Advice>;

/// All rules, the most relevant first.
const RULES: [Rule; 46] = [
    small_parallel,
    object_mode,
    list_growth,
    typed_list_growth,
    array_growth,
    string_join,
    string_compare,
    short_sort,
    row_product,
    interpolation,
    small_matrix,
    row_reduction,
    allocation,
    typed_dict,
    integer_set,
    float_remainder,
    hypot,
    power,
    math_call,
    complex_division,
    reference_count,
    float_widening,
    integer_division,
    division_check,
    invariant_divisor,
    fp_order,
    strided_sum,
    repeated_load,
    attribute_array,
    gathered_sum,
    integer_power,
    few_steps,
    few_rounds,
    few_updates,
    sum_in_memory,
    tuple_index,
    wraparound,
    zip,
    stride,
    conditional_sum,
    branched_counts,
    maximum,
    recurrence,
    exception_exit,
    early_exit,
    gather,
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

/// Rule for parallel regions whose threads mostly wait.
pub(crate) const SMALL_PARALLEL: &str = "small-parallel";

fn small_parallel(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let overhead = |(callee, leaf): &(String, String)| is_parallel_loop(callee) && is_thread_runtime(leaf);
    let share = hot_loop.share_where(overhead);
    let cause = format!("{share:.0} % of it starts parallel regions and waits for their threads");
    (share > 90.0).then(|| {
        Advice::because(SMALL_PARALLEL, cause)
            .change("without parallel=True, or with one region for many calls, nothing waits")
            .gain(3.0, 2000.0)
    })
}

fn object_mode(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_below(is_object_mode);
    (share > 5.0).then(|| {
        Advice::because("object-mode", "calls Python in its rounds")
            .change("move the objmode block out of the loop")
            .gain_of_part(share, 20.0, 300.0)
    })
}

fn list_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_list_growth);
    (share > 10.0).then(|| {
        Advice::because("list-growth", format!("{share:.0} % of it resizes a list"))
            .change("fill an array that is large enough by index")
            .gain_of_part(share, 2.5, 12.0)
    })
}

fn typed_list_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let has_append = hot_loop.calls.iter().any(|(name, _)| is_typed_list_growth(name));
    let share = hot_loop.share_of_calls(is_typed_list_growth) + hot_loop.share_of_calls(is_reference_count);
    (has_append && share > 50.0).then(|| {
        Advice::because("list-growth", format!("{share:.0} % of it appends to a typed list"))
            .change("fill an array that is large enough by index")
            .gain(10.0, 100.0)
    })
}

fn array_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_array_growth);
    if share > 50.0 {
        let cause = format!("{share:.0} % of it copies an array to append to it");
        let advice = Advice::because("allocation", cause).change("fill an array that is large enough by index");
        return Some(advice.gain(5.0, 300.0));
    }
    let joins = hot_loop.share_of_calls(is_array_join);
    let around = hot_loop.share_of_calls(prepares);
    // Long arrays take as long to copy into an array that exists.
    let is_short = around + hot_loop.share_of_preparations(is_array_join) > MIN_JOIN_PERCENT;
    (joins > 40.0 && is_short && joins + around > 80.0).then(|| {
        Advice::because("allocation", format!("{joins:.0} % of it joins arrays in a new one, as np.concatenate does"))
            .change("fill an array that is made before the loop, by index or slices")
            .gain(1.5, 300.0)
    })
}

fn string_join(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_concatenation);
    (share > 65.0).then(|| {
        Advice::because("string-join", format!("{share:.0} % of it copies strings to concatenate them"))
            .change("join a list of the parts once: ''.join(parts)")
            .gain(1.5, 80.0)
    })
}

fn string_compare(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_string);
    let is_character = hot_loop.calls.iter().any(|(name, _)| name.contains("unicode_getitem"));
    // LLVM inlines parts of these functions.
    let inlined =
        if hot_loop.facts.instructions < MAX_STRING_INSTRUCTIONS { hot_loop.self_count } else { Count::default() };
    let is_most = share + inlined.percent_of(hot_loop.total) > 80.0;
    (is_character && (share > 20.0 || share > 5.0 && is_most)).then(|| {
        Advice::because("string-characters", "makes a string of each character")
            .change("for ASCII, pass np.frombuffer(text.encode(), np.uint8) and compare codes")
            .gain(10.0, 200.0)
    })
}

fn short_sort(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let (sorts, around) = (hot_loop.share_of_calls(is_sort), hot_loop.share_of_calls(prepares));
    let share = sorts + around;
    let copies = hot_loop.share_where(|(callee, leaf)| is_sort(callee) && is_memory_copy(leaf));
    let overhead = around + copies + hot_loop.share_of_preparations(is_sort);
    (sorts > 50.0 && share > 80.0 && overhead > MIN_SHORT_SORT_PERCENT).then(|| {
        let cause =
            format!("{share:.0} % of it sorts a few values by a function, {overhead:.0} % only prepares for that");
        Advice::because("short-sort", cause)
            .change("sort them by insertion in the loop, or up to 9 of them by min and max")
            .gain(1.6, 300.0)
    })
}

fn row_product(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let has_product = hot_loop.calls.iter().any(|(name, _)| is_product(name));
    let (products, norms) = (hot_loop.share_of_calls(is_product), hot_loop.share_of_calls(is_norm));
    let references = hot_loop.share_of_calls(is_reference_count);
    let is_function = |name: &str| is_array_function(name) && !is_sort(name);
    let functions = hot_loop.share_of_calls(is_function);
    let around = hot_loop.share_of_calls(prepares) + hot_loop.self_count.percent_of(hot_loop.total);
    let interpolations = hot_loop.share_of_calls(is_interpolation);
    // Part of the time that a function spends in BLAS itself.
    let kernel_share =
        hot_loop.share_where(|(callee, leaf)| (is_product(callee) || is_norm(callee)) && is_blas_kernel(leaf));
    let multiplies_matrices = hot_loop.share_of_calls(is_matrix_product) > products / 2.0;
    let is_short = kernel_share < if multiplies_matrices { MAX_MATRIX_BLAS_PERCENT } else { MAX_BLAS_PERCENT };
    let (cause, lower) = if has_product && products + references > 50.0 && is_short {
        let lower = if kernel_share <= MAX_FEW_BLAS_PERCENT { 1.9 } else { 1.2 };
        let operands = if multiplies_matrices { "small matrices" } else { "short rows" };
        (format!("{:.0} % of it prepares and calls np.dot for {operands}", products + references), lower)
    } else if norms > 50.0 && is_short {
        (format!("{norms:.0} % of it prepares and calls BLAS for the norm of a short row"), 3.0)
    } else if norms > 50.0 && hot_loop.share_below(is_slow_norm) >= MAX_BLAS_PERCENT {
        (format!("{norms:.0} % of it is in OpenBLAS for the norm of a row, one value at a time"), 1.3)
    } else if interpolations == 0.0
        && functions > 20.0
        && around + hot_loop.share_of_preparations(is_function) > MIN_FUNCTION_PREPARATION_PERCENT
        && functions + around > 80.0
    {
        ("calls a function of NumPy for a short row in each round".to_owned(), 2.0)
    } else {
        return None;
    };
    let advice = Advice::because("row-product", cause);
    let size = if multiplies_matrices { "for up to 4 x 4, " } else { "" };
    let change = format!("{size}a loop over the elements with {}", dialect.reassociate());
    let changes_results = if norms > 50.0 { "rounding, and overflows from 1e154 on" } else { "rounding" };
    Some(advice.change(change).gain(lower, 100.0).changing(changes_results))
}

fn interpolation(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_interpolation);
    (share > 50.0).then(|| {
        Advice::because(
            "interpolation",
            format!("{share:.0} % of it is in np.interp, which starts anew for each value"),
        )
        .change("one call for an array of all values")
        .gain(1.3, 30.0)
    })
}

fn small_matrix(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_elimination);
    let kernels = hot_loop.share_where(|(callee, leaf)| is_elimination(callee) && is_lapack_kernel(leaf));
    (share > 50.0 && kernels < MAX_LAPACK_PERCENT && dialect.is_python()).then(|| {
        Advice::because("small-matrix", format!("{share:.0} % of it prepares and calls LAPACK for a small matrix"))
            .change("the formula for 2 x 2 or 3 x 3, or an elimination in loops, without new arrays")
            .gain(1.5, 200.0)
            .changing("rounding")
    })
}

fn row_reduction(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_ordered_reduction);
    (share > 80.0).then(|| {
        Advice::because(
            "row-product",
            format!("{share:.0} % of it is in np.std or np.var of a row, which adds in order"),
        )
        .change(format!("a loop over the elements with {}", dialect.reassociate()))
        .gain(1.5, 20.0)
        .changing("rounding")
    })
}

fn allocation(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_allocation);
    let share_of_arrays = hot_loop.share_of_calls(is_array_expression);
    if share_of_arrays > 50.0 {
        let cause = format!("{share_of_arrays:.0} % of it makes an array, as np.where does");
        let advice =
            Advice::because("allocation", cause).change("write the expression as a loop, with a conditional value");
        return Some(advice.gain(3.0, 60.0));
    }
    let cause = format!("{share:.0} % of it allocates and frees memory");
    if hot_loop.share_of_calls(is_object_allocation) > hot_loop.share_of_calls(is_array_allocation) {
        let cause = format!("{cause}, as of strings that str(i) makes");
        return (share > 20.0 && !handles_strings(hot_loop)).then(|| Advice::because("allocation", cause));
    }
    (share > 20.0 && !handles_strings(hot_loop)).then(|| {
        Advice::because("allocation", cause)
            .change("make the array before the loop, or write the expression as a loop")
            .gain(1.0 / (1.0 - 0.7 * share.min(100.0) / 100.0), 100.0)
    })
}

fn typed_dict(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_dict);
    // Characters of a string are made and hashed for each key.
    let upper = if handles_strings(hot_loop) { 250.0 } else { 60.0 };
    (share > 20.0).then(|| {
        Advice::because("typed-dict", format!("{share:.0} % of it is in a typed dict"))
            .change("an array and an index, where keys allow it, avoid hashing")
            .gain(5.0, upper)
    })
}

/// Sets have no functions: LLVM inlines the hash of an integer, its remainder by 2**61 - 1, and the search.
fn integer_set(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let has = |text: &str| hot_loop.instructions.iter().any(|instruction| instruction.text.contains(text));
    // The second constant depends on the release of LLVM.
    let hashes = has("$0x3FFFFFFF,") && (has("$0x3D,") || has("0x3FFFFFFE(")) && is_short(hot_loop);
    (hashes && dialect.is_python()).then(|| {
        Advice::because("typed-dict", "hashes an integer in each round, as look-ups in a set do")
            .change("an array of bool by index, where keys allow it, avoids hashing")
            .gain(2.0, 30.0)
    })
}

fn float_remainder(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_float_remainder);
    let change = if dialect.is_python() {
        "`math.floor(x / c)` for `x // c`, and `x - math.floor(x / c) * c` for `x % c`"
    } else {
        "`x - floor(x / c) * c`"
    };
    (share > 50.0).then(|| {
        Advice::because("float-remainder", format!("{share:.0} % of it is in fmod, which divides bit by bit"))
            .change(change)
            .gain_of_part(share, 6.0, 30.0)
            .changing("rounding")
    })
}

fn hypot(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_hypot);
    // An early exit keeps the loop at one value at a time.
    let can_be_packed = hot_loop.facts.has_avx && hot_loop.facts.exits < 2;
    let change = match dialect {
        Dialect::Numba | Dialect::Stencil => "math.sqrt(x * x + y * y), of z.real and z.imag for abs(z)",
        Dialect::C | Dialect::Julia | Dialect::Other => "the square root of the sum of squares",
    };
    (share > MIN_HYPOT_PERCENT).then(|| {
        Advice::because("hypot", format!("{share:.0} % of it is in hypot, for each value by itself"))
            .change(change)
            .gain_of_part(share, if can_be_packed { 4.0 } else { 1.8 }, 20.0)
            .changing("rounding, and overflows from 1e154 on")
    })
}

fn power(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_power);
    let change = match dialect {
        Dialect::Numba | Dialect::Stencil => "fastmath=True, if the exponent is a multiple of 0.5 such as 1.5",
        Dialect::C | Dialect::Julia | Dialect::Other => {
            "products and square roots, if the exponent is a multiple of 0.5 such as 1.5"
        }
    };
    (share > 50.0 && hot_loop.facts.constant_arguments != 0).then(|| {
        let cause = format!("pow is called for each value, with a constant ({share:.0} % of this loop)");
        Advice::because("math-call", cause).change(change).gain_of_part(share, 4.5, 25.0).changing("rounding")
    })
}

fn math_call(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_math);
    let name = hot_loop.largest_call(is_math).unwrap_or_default();
    let name = if name.starts_with('[') { "a function of libm" } else { name };
    // Numba's wheels since 0.62 have no vector functions.
    let remark = match dialect {
        Dialect::Numba | Dialect::Stencil => "",
        Dialect::C | Dialect::Julia | Dialect::Other => "; LLVM's option -vector-library has vector functions",
    };
    (share > 20.0).then(|| {
        Advice::because("math-call", format!("{name} is called for each value ({share:.0} % of this loop){remark}"))
    })
}

fn complex_division(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn reference_count(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let is_freed = hot_loop.share_of_calls(is_allocation) > 5.0;
    let counts_references = hot_loop.facts.atomics != 0
        && hot_loop.facts.instructions < MAX_CONTAINER_INSTRUCTIONS
        && hot_loop.self_count.percent_of(hot_loop.total) > 50.0;
    let share = hot_loop.share_of_calls(is_reference_count);
    let is_short = |name: &str| is_reference_count(name) || name.starts_with("numba_list_");
    let does_little_else = hot_loop.facts.instructions < 40 && hot_loop.calls.iter().all(|(name, _)| is_short(name));
    // Numba does not inline the function that reads a list from a typed list; 0.57 none that reads an item.
    let takes_items = hot_loop.calls.iter().all(|(name, _)| is_typed_list_item(name) || is_short(name));
    let share_of_items = if takes_items { hot_loop.share_below(is_reference_count) } else { 0.0 };
    // Numba 0.57 reads them by calls, too.
    let writes_items =
        hot_loop.share_of_calls(writes_typed_list) > 15.0 && hot_loop.share_of_calls(is_typed_list_item) > 40.0;
    let part = if counts_references || writes_items { 100.0 } else { share.max(share_of_items) };
    let applies = counts_references
        || writes_items
        || share > 60.0 && !is_freed && hot_loop.facts.instructions < MAX_CONTAINER_INSTRUCTIONS
        || share > 25.0 && does_little_else
        || share_of_items > 25.0;
    // References to rows, which a product or norm needs.
    let takes_rows = hot_loop.calls.iter().any(|(name, _)| is_product(name) || is_norm(name));
    // Elsewhere, most references are those of the rows that the loops inside take.
    (applies && hot_loop.is_innermost && !takes_rows && !handles_strings(hot_loop)).then(|| {
        let cause = if writes_items {
            "writes items of a typed list by calls, which count references"
        } else {
            "counts references to an object in each round"
        };
        Advice::because("reference-count", cause)
            .change("take it out of its container before the loop if it stays the same, or use one array for numbers")
            .gain_of_part(part, 5.0, 30.0)
    })
}

fn float_widening(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn integer_division(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let Facts { calls, invariant_integer_divisions: count, instructions, .. } = hot_loop.facts;
    let applies = calls == 0 && hot_loop.is_innermost && count * DIVISION_COST_IN_INSTRUCTIONS >= instructions.max(1);
    let divisions = if count == 1 { "1 integer division".to_owned() } else { format!("{count} integer divisions") };
    applies.then(|| {
        Advice::because("integer-division", format!("{divisions} by a variable"))
            .change("a constant divisor, best a power of two, or a counter that wraps around")
            .gain(1.2, 17.0)
    })
}

fn division_check(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn invariant_divisor(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { invariant_divisions, shared_divisions, divisions, element, width, packed, scalar, .. } = hot_loop.facts;
    // Wide divisions of float32 take little longer than the memory accesses, and other operations hide a division.
    let is_fast = width > 128 && element == 32 || packed > 6 * invariant_divisions;
    let is_hidden = hot_loop.facts.is_vectorised() && is_fast
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

fn fp_order(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn strided_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn attribute_array(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn gathered_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn few_steps(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

/// A value that stays the same, and that a store might change, is loaded in each round, and what follows from it is
/// computed again.
fn repeated_load(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

/// Few rounds that do not add up, as over the three coordinates of a point.
fn few_updates(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn few_rounds(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn integer_power(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn tuple_index(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    // An array of the tuple needs elements that are numbers.
    let has_tuple = hot_loop.function.contains("Tuple(") && !hot_loop.function.contains("Tuple(array(");
    (hot_loop.facts.table_jumps != 0 && has_tuple && hot_loop.is_innermost && hot_loop.facts.calls == 0).then(|| {
        Advice::because("tuple-index", "a variable index of a tuple jumps to the code of each element")
            .change("make an array of the tuple before the loop")
            .gain(6.0, 14.0)
    })
}

fn wraparound(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn zip(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn stride(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

fn sum_in_memory(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn conditional_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn branched_counts(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn maximum(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

fn recurrence(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn exception_exit(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

fn early_exit(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

fn gather(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { gathers, scatters, indirect, width, packed_products, .. } = hot_loop.facts;
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

/// Returns the word for the value that the loop accumulates.
fn describe_accumulator(hot_loop: &Loop) -> &'static str {
    let Facts { accumulators, products, .. } = hot_loop.facts;
    if products != 0 && products == accumulators { "product" } else { "sum" }
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

/// Returns true if the function takes an array of records.
fn takes_records(hot_loop: &Loop) -> bool {
    hot_loop.function.contains("(Record(")
}

/// Returns true if the function takes or returns complex arrays.
fn handles_complex(hot_loop: &Loop) -> bool {
    hot_loop.function.contains("(complex")
}

fn handles_strings(hot_loop: &Loop) -> bool {
    hot_loop.calls.iter().any(|(name, _)| name.starts_with("numba.cpython.unicode."))
        || hot_loop.lines.iter().any(|(path, _)| path.ends_with("numba/cpython/unicode.py"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::hot_loop::Remark;

    fn count(samples: u64) -> Count {
        Count { weight: samples, samples }
    }

    /// Samples by callee.
    fn calls_of<const N: usize>(calls: [(&str, u64); N]) -> Vec<(String, Count)> {
        calls.map(|(callee, samples)| (callee.to_owned(), count(samples))).to_vec()
    }

    /// Loop that only calls one function, with the samples of the functions below it.
    fn loop_below<const N: usize>(facts: Facts, callee: &str, leaves: [(&str, u64); N]) -> Loop {
        let below = leaves.map(|(leaf, samples)| ((callee.to_owned(), leaf.to_owned()), count(samples))).to_vec();
        let calls = calls_of([(callee, leaves.iter().map(|(_, samples)| samples).sum())]);
        Loop { calls, below, total: count(100), ..Loop::from_facts(facts) }
    }

    fn rules_of(hot_loop: &Loop) -> Vec<&'static str> {
        advice(hot_loop).iter().map(|advice| advice.rule).collect()
    }

    /// Facts of a loop over contiguous values whose branch checks a divisor.
    fn cut_off(facts: Facts) -> Facts {
        let exceptions = 1;
        Facts { checked_divisions: 1, divisions: 1, exits: 2, exceptions, spread: 1, has_avx: true, ..facts }
    }

    /// Loops that get advice by their facts or their calls alone.
    fn advised_loops(loop_path: &str) -> Vec<Loop> {
        let scalar = Facts { scalar: 1, ..Facts::default() };
        let facts = [
            Facts { narrowings: 1, conversions: 2, ..scalar.clone() },
            Facts { checked_divisions: 1, carried: Some(Carried::Nothing), ..scalar.clone() },
            Facts { invariant_divisions: 1, ..scalar.clone() },
            Facts { accumulators: 1, ..scalar.clone() },
            Facts { accumulators: 1, strided: 1, ..scalar.clone() },
            Facts { conditional_sums: 1, ..scalar.clone() },
            Facts { choices: 1, ..scalar.clone() },
            Facts { recurrences: 1, ..scalar.clone() },
            Facts { exits: 2, exceptions: 1, counted_exits: 1, ..scalar.clone() },
            Facts { exits: 2, exceptions: 1, counted_exits: 2, ..scalar.clone() },
            Facts { branched_sums: 1, ..cut_off(scalar) },
        ];
        let with_path = |hot_loop: Loop| Loop { loop_path: loop_path.to_owned(), ..hot_loop };
        let by_facts = facts.into_iter().map(|facts| with_path(Loop::from_facts(facts)));
        let by_callee = ["exp", "pow", "fmod", "hypot", "malloc"].into_iter().map(|callee| {
            let count = Count { weight: 100, samples: 100 };
            let calls = vec![(callee.to_owned(), count)];
            let facts = Facts { calls: 1, constant_arguments: 1, ..Facts::default() };
            with_path(Loop { calls, total: count, ..Loop::from_facts(facts) })
        });
        by_facts.chain(by_callee).collect()
    }

    #[test]
    fn each_language_has_its_own_words() {
        let texts = |loop_path: &str| {
            let advised = advised_loops(loop_path);
            let texts = advised.iter().map(|hot_loop| advice(hot_loop)[0].text()).collect::<Vec<_>>();
            texts.join("\n")
        };
        for path in ["sum.cpp", "sum.jl", "sum.f90"] {
            for word in ["Numba", "np.", "fastmath=", "error_model", "boundscheck", "njit"] {
                assert!(!texts(path).contains(word), "{path}: {word}");
            }
        }
        assert!(texts("sum.py").contains("np.float32(0.1)") && texts("sum.jl").contains("0.1f0"));
        assert!(texts("sum.cpp").contains("reassociate(on)"));
        assert!(texts("sum.cpp").contains("vector functions") && !texts("sum.py").contains("vector functions"));
    }

    #[test]
    fn an_advice_is_composed_of_its_parts() {
        let advice = Advice::because("rule", "it is slow").change("do less").gain(1.5, 10.0).changing("rounding");
        assert_eq!(advice.text(), "it is slow; do less (usually 1.5 to 10 times faster; changes rounding)");
        assert_eq!(Advice::because("rule", "it is slow").text(), "it is slow");
        let gain = advice.gain.unwrap();
        assert_eq!([0, 300, 3_000_000_000].map(|time| gain.saved(time)), [0, 100, 1_000_000_000]);
    }

    #[test]
    fn only_packed_loops_have_nothing_against_them() {
        use crate::loops::Verdict;
        let packed = Facts { packed: 4, width: 256, element: 64, ..Facts::default() };
        let hot_loop = |facts: &Facts, self_count, callee: &str| Loop {
            self_count: count(self_count),
            total: count(100),
            calls: calls_of([(callee, 100 - self_count)]),
            ..Loop::from_facts(facts.clone())
        };
        assert_eq!(hot_loop(&packed, 100, "").verdict(), Verdict::Packed);
        assert_eq!(hot_loop(&packed, 4, "concat").verdict(), Verdict::Callee("concat", 96.0));
        assert_eq!(hot_loop(&packed, 80, "concat").verdict(), Verdict::Unexplained);
        for facts in [
            Facts { scalar: 4, ..packed.clone() },
            Facts { spills: 1, ..packed.clone() },
            Facts { narrow: 1, ..packed.clone() },
            Facts { instructions: 12, ..packed.clone() },
        ] {
            assert_eq!(hot_loop(&facts, 100, "").verdict(), Verdict::Unexplained, "{facts:?}");
        }
        // A sum within a loop may be that of a moving window.
        let surroundings = Surroundings { is_loop: true, ..Surroundings::default() };
        let inner = |stores| {
            let facts = Facts { stores, ..packed.clone() };
            Loop { surroundings, ..hot_loop(&facts, 100, "") }.verdict() == Verdict::Packed
        };
        assert!(inner(1) && !inner(0));
        assert_eq!(hot_loop(&Facts::default(), 100, "").verdict(), Verdict::Unexplained);
    }

    #[test]
    fn a_change_is_advised_only_where_it_applies() {
        let changes = |facts: Facts, callee: &str| {
            let count = Count { weight: 100, samples: 100 };
            let calls = vec![(callee.to_owned(), count)];
            let hot_loop = Loop { calls, total: count, ..Loop::from_facts(facts) };
            advice(&hot_loop).iter().find_map(|advice| advice.change.clone()).unwrap_or_default()
        };
        let pow = |constant_arguments| Facts { calls: 1, constant_arguments, ..Facts::default() };
        assert!(changes(pow(1), "pow").contains("fastmath=True") && changes(pow(0), "pow").is_empty());
        let checked = |carried| Facts { scalar: 1, checked_divisions: 1, carried, ..Facts::default() };
        let reassociates = |carried| changes(checked(Some(carried)), "").contains("reassoc");
        assert!(!reassociates(Carried::Nothing) && reassociates(Carried::Accumulators));
        let in_memory = Facts { sums_in_memory: 1, ..checked(Some(Carried::Nothing)) };
        assert!(changes(in_memory, "").contains("a local variable until after the loop and fastmath={'reassoc'}"));
        for carried in [None, Some(Carried::Others)] {
            assert!(changes(checked(carried), "").is_empty(), "{carried:?} keeps the loop scalar");
        }
    }

    #[test]
    fn an_index_check_is_not_a_value_check() {
        let text = |counted_exits| {
            let facts = Facts { scalar: 1, exits: 2, exceptions: 1, counted_exits, ..Facts::default() };
            let [advice] = &advice(&Loop::from_facts(facts))[..] else { panic!("one advice") };
            (advice.rule, advice.text().contains("an index is checked"))
        };
        assert_eq!((text(1), text(2)), (("exception-exit", false), ("exception-exit", true)));
    }

    #[test]
    fn advice_that_was_followed_is_not_repeated() {
        let count = |choices| advice(&Loop::from_facts(Facts { scalar: 8, choices, ..Facts::default() })).len();
        assert_eq!([0, 1, 2, 4].map(count), [0, 1, 1, 0]);
    }

    #[test]
    fn calls_on_a_typed_list_count_references() {
        let rules = |callee: &str| {
            let facts = Facts { scalar: 1, calls: 1, instructions: 18, ..Facts::default() };
            rules_of(&loop_below(facts, callee, [("NRT_incref", 40), ("handle_index", 40)]))
        };
        assert_eq!(rules("numba.typed.listobject.impl_getitem"), ["reference-count"]);
        assert!(rules("prog.of_arrays").is_empty());
    }

    #[test]
    fn a_list_in_a_typed_list_is_taken_with_references() {
        let rules = |others: &str| {
            let facts = Facts { scalar: 1, calls: 6, instructions: 38, ..Facts::default() };
            let item = loop_below(facts, "numba.typed.listobject.impl_getitem", [("NRT_incref", 45)]);
            let calls = [&item.calls[..], &calls_of([("NRT_decref", 15), (others, 1)])].concat();
            rules_of(&Loop { calls, ..item })
        };
        assert_eq!(rules("numba_list_base_ptr"), ["reference-count"]);
        assert!(rules("prog.of_row").is_empty());
    }

    #[test]
    fn a_remainder_by_a_prime_is_the_hash_of_a_set() {
        let rules = |texts: &[&str]| {
            let instruction = |text: &&str| crate::loops::hot_loop::Instruction {
                address: 0,
                line: 0,
                self_count: Count::default(),
                total: Count::default(),
                calls: Vec::new(),
                text: (*text).to_owned(),
            };
            let instructions = texts.iter().map(instruction).collect();
            rules_of(&Loop { instructions, ..Loop::from_facts(Facts { instructions: 79, ..Facts::default() }) })
        };
        assert_eq!(rules(&["and $0x3FFFFFFF,%r9d", "sar $0x3D,%r10"]), ["typed-dict"]);
        assert_eq!(rules(&["and $0x3FFFFFFF,%edx", "lea 0x3FFFFFFE(%rsi),%rax"]), ["typed-dict"]);
        assert!(rules(&["and $0x3FFFFFFF,%r9d", "sar $0x3,%r10"]).is_empty());
    }

    #[test]
    fn products_of_long_rows_get_no_advice() {
        let rules = |callee: &str, kernel: &str, in_kernel: u64| {
            let facts = Facts { calls: 1, ..Facts::default() };
            rules_of(&loop_below(facts, callee, [(kernel, in_kernel), (callee, 90 - in_kernel)]))
        };
        let norm = "numba.np.linalg._oneD_norm_2_impl.<locals>.impl";
        for (callee, kernel) in
            [(norm, "dnrm2_k_HASWELL"), ("numba_xxdot", "ddot_k_ZEN"), ("numba_xxgemv", "[libmkl_core.so]")]
        {
            assert_eq!(rules(callee, kernel, 20), ["row-product"], "{callee}");
            assert_eq!(rules(callee, kernel, 85).is_empty(), callee != norm, "{callee}");
        }
        assert!(rules(norm, "[libmkl_core.so]", 85).is_empty(), "only OpenBLAS computes norms one value at a time");
    }

    #[test]
    fn only_short_arrays_are_joined_in_an_array_that_exists() {
        let rules = |joins: u64| {
            let join = "numba.np.arrayobj.impl_np_concatenate.<locals>.impl";
            let calls = calls_of([(join, joins), ("NRT_decref", 99 - joins)]);
            let facts = Facts { calls: 6, instructions: 86, ..Facts::default() };
            rules_of(&Loop { calls, self_count: count(1), total: count(100), ..Loop::from_facts(facts) })
        };
        assert_eq!(rules(55), ["allocation"]);
        assert!(rules(95).is_empty());
        let rules_below = |prepares: u64| {
            let join = "numba.np.arrayobj.impl_np_concatenate.<locals>.impl";
            let leaves = [("_int_malloc", prepares), (join, 90 - prepares)];
            rules_of(&loop_below(Facts { calls: 6, ..Facts::default() }, join, leaves))
        };
        assert_eq!((rules_below(23), rules_below(6)), (vec!["allocation"], vec![]));
    }

    #[test]
    fn an_address_from_an_array_keeps_a_checked_loop_slow() {
        let has_change = |indirect| {
            let facts = Facts { scalar: 1, exits: 2, exceptions: 1, counted_exits: 1, indirect, ..Facts::default() };
            advice(&Loop::from_facts(facts)).iter().any(|advice| advice.change.is_some())
        };
        assert!(has_change(0) && !has_change(1));
    }

    #[test]
    fn a_checked_sum_needs_an_option_too() {
        let change = |facts: Facts| {
            let facts = Facts { scalar: 2, exits: 2, exceptions: 1, counted_exits: 1, ..facts };
            let hot_loop = Loop { self_count: count(100), total: count(100), ..Loop::from_facts(facts) };
            advice(&hot_loop).remove(0).change.map(|change| change.contains("reassoc"))
        };
        let sum = Facts { carried: Some(Carried::Accumulators), ..Facts::default() };
        assert_eq!(change(Facts { carried: Some(Carried::Nothing), ..Facts::default() }), Some(false));
        assert_eq!(change(sum.clone()), Some(true));
        for facts in [
            Facts { square_roots: 1, ..sum.clone() },
            Facts { strided: 1, ..sum.clone() },
            Facts { carried: Some(Carried::Others), ..sum.clone() },
            Facts { carried: None, carries_floats: true, ..sum },
        ] {
            assert_eq!(change(facts.clone()), None, "{facts:?}");
        }
    }

    #[test]
    fn only_short_rows_are_better_without_a_function_of_numpy() {
        let rules = |in_function: u64| {
            let function = "numba.np.arraymath.np_cross.<locals>.impl";
            let calls = calls_of([(function, in_function), ("NRT_decref", 90 - in_function)]);
            let facts = Facts { calls: 6, instructions: 86, ..Facts::default() };
            rules_of(&Loop { calls, self_count: count(10), total: count(100), ..Loop::from_facts(facts) })
        };
        assert_eq!(rules(60), ["row-product"]);
        assert!(rules(85).is_empty());
        let rules_below = |function: &str, prepares: u64| {
            let leaves = [("NRT_MemInfo_alloc_aligned", prepares), ("impl", 90 - prepares)];
            rules_of(&loop_below(Facts { calls: 6, ..Facts::default() }, function, leaves))
        };
        assert_eq!(rules_below("numba.np.linalg.outer_impl_none", 45), ["row-product"]);
        assert!(rules_below("numba.np.linalg.outer_impl_none", 10).is_empty());
    }

    #[test]
    fn only_arrays_can_be_allocated_before_a_loop() {
        let has_change = |allocator: &str| {
            let calls = calls_of([(allocator, 30), ("NRT_MemInfo_call_dtor", 40)]);
            let facts = Facts { calls: 3, ..Facts::default() };
            let [advice] = &advice(&Loop { calls, total: count(100), ..Loop::from_facts(facts) })[..] else {
                panic!("one advice")
            };
            assert_eq!(advice.rule, "allocation");
            advice.change.is_some()
        };
        assert!(has_change("NRT_MemInfo_alloc_aligned") && has_change("malloc") && !has_change("NRT_MemInfo_alloc"));
    }

    #[test]
    fn indices_that_are_quotients_get_no_change() {
        let has_change = |facts: &Facts| {
            let hot_loop = Loop { function: "prog.f".to_owned(), ..Loop::from_facts(facts.clone()) };
            advice(&hot_loop).iter().any(|advice| advice.change.is_some())
        };
        let sum = Facts { scalar: 1, accumulators: 1, carried: Some(Carried::Accumulators), ..Facts::default() };
        let values = Facts { scalar: 1, unrolled: 1, carried: Some(Carried::Nothing), ..Facts::default() };
        for facts in
            [Facts { spread: 1, ..sum.clone() }, Facts { strided: 1, ..sum }, Facts { wraparounds: 1, ..values }]
        {
            assert!(has_change(&facts), "{facts:?}");
            assert!(!has_change(&Facts { wide_products: 1, ..facts.clone() }), "{facts:?}");
        }
    }

    /// Returns the advice for a loop with samples, inside another loop of a function with these arguments.
    fn advice_in_loop(facts: Facts, arguments: &str, around: u64) -> Vec<Advice> {
        let surroundings = Surroundings { is_loop: true, self_count: count(around), ..Surroundings::default() };
        let function = format!("prog.f({arguments})");
        advice(&Loop { function, self_count: count(100), surroundings, ..Loop::from_facts(facts) })
    }

    fn wide() -> Facts {
        Facts { packed: 4, width: 256, element: 64, ..Facts::default() }
    }

    /// Loop in a loop, with a vector version that did not run.
    fn with_idle_vectors(version: Facts, facts: Facts, arguments: &str) -> Loop {
        let versions = vec![super::super::Version { facts: version, total: Count::default() }];
        let surroundings = Surroundings { is_loop: true, ..Surroundings::default() };
        let function = format!("prog.f({arguments})");
        Loop { function, surroundings, self_count: count(100), total: count(100), versions, ..Loop::from_facts(facts) }
    }

    #[test]
    fn only_a_few_counted_rounds_become_a_constant_number() {
        let rule = |exits, around, entry| {
            let facts = Facts { scalar: 2, recurrences: 1, exits, counted_exits: 1, ..Facts::default() };
            let surroundings =
                Surroundings { is_loop: true, self_count: count(around), entry, ..Surroundings::default() };
            let hot_loop = Loop { self_count: count(100), surroundings, ..Loop::from_facts(facts) };
            let advice = &advice(&hot_loop)[0];
            (advice.rule, advice.change.is_some())
        };
        assert_eq!(rule(1, 10, Entry::StartsAnew), ("few-rounds", true));
        for (exits, around, entry) in
            [(1, 0, Entry::StartsAnew), (2, 10, Entry::StartsAnew), (1, 10, Entry::Continues), (2, 0, Entry::Repeats)]
        {
            assert_eq!(rule(exits, around, entry), ("recurrence", false), "{exits}, {around}, {entry:?}");
        }
        assert_eq!(rule(1, 0, Entry::Repeats), ("recurrence", true), "the loops can be exchanged");
    }

    #[test]
    fn a_row_that_is_computed_again_is_taken_before_the_loop() {
        let has_change = |facts: Facts| {
            let [advice] = &advice_in_loop(Facts { exits: 1, ..facts }, "array(float64, 2d, C)", 0)[..] else {
                return None;
            };
            Some((advice.rule, advice.change.is_some()))
        };
        let row = Facts { repeated_loads: 1, repeated_rows: 2, indirect: 2, scalar: 1, ..Facts::default() };
        assert_eq!(has_change(row.clone()), Some(("repeated-load", true)));
        assert_eq!(has_change(Facts { scalar: 0, ..row.clone() }), Some(("repeated-load", true)), "integers");
        let offset = Facts { repeated_rows: 0, repeated_offsets: 2, ..row.clone() };
        assert_eq!(has_change(offset), Some(("repeated-load", false)));
        for facts in [
            Facts { strided: 1, ..row.clone() },
            Facts { calls: 1, ..row.clone() },
            Facts { sums_in_memory: 1, ..row.clone() },
            Facts { carried: Some(Carried::Others), ..row },
        ] {
            assert_ne!(has_change(facts.clone()), Some(("repeated-load", true)), "{facts:?}");
        }
    }

    #[test]
    fn a_row_of_the_same_matrix_is_copied_unless_masks_are_slow() {
        let rules = |repeated_loads, masked_stores, arguments: &str| {
            let facts = Facts { scalar: 4, exits: 1, spread: 1, repeated_loads, ..Facts::default() };
            rules_of(&with_idle_vectors(Facts { masked_stores, ..wide() }, facts, arguments))
        };
        assert_eq!(rules(1, 0, "array(float64, 2d, C)"), ["repeated-load"]);
        assert_eq!(rules(0, 0, "array(float64, 2d, C)"), ["stride"]);
        assert_eq!(rules(1, 1, "array(float64, 2d, C)"), ["stride"]);
        assert_eq!(rules(1, 0, "array(float64, 1d, C)"), ["stride"]);
    }

    #[test]
    fn a_store_may_change_a_value_that_stays_the_same() {
        let rules = |facts: Facts, remark: &str, arguments: &str| {
            let surroundings = Surroundings { is_loop: true, ..Surroundings::default() };
            let remarks = vec![Remark { line: 2, name: remark.to_owned(), text: String::new() }];
            let (function, self_count, total) = (format!("f({arguments})"), count(100), count(100));
            let hot_loop = Loop { function, surroundings, remarks, self_count, total, ..Loop::from_facts(facts) };
            rules_of(&hot_loop)
        };
        let carried = Some(Carried::Nothing);
        let facts = Facts { scalar: 8, exits: 1, spread: 1, repeated_loads: 4, stores: 4, carried, ..Facts::default() };
        assert_eq!(rules(facts.clone(), "UnsafeDep", "array(float64, 2d, C)"), ["repeated-load"]);
        assert_eq!(rules(facts.clone(), "UnsafeMemDep", "array(float64, 2d, C)"), ["repeated-load"], "LLVM 14");
        assert!(rules(facts.clone(), "Vectorized", "array(float64, 2d, C)").is_empty());
        assert!(rules(facts.clone(), "UnsafeDep", "array(float64, 1d, C)").is_empty());
        assert!(rules(Facts { carried: None, ..facts }, "UnsafeDep", "array(float64, 2d, C)").is_empty());
    }

    #[test]
    fn integers_down_a_column_have_a_stride() {
        let first = |facts: Facts, remark: &str| {
            let surroundings = Surroundings { is_loop: true, ..Surroundings::default() };
            let remarks = vec![Remark { line: 2, name: remark.to_owned(), text: String::new() }];
            let (function, self_count, total) = ("f(array(int64, 2d, C))".to_owned(), count(100), count(100));
            let hot_loop = Loop { function, surroundings, remarks, self_count, total, ..Loop::from_facts(facts) };
            advice(&hot_loop).first().map(|advice| (advice.rule, advice.change.is_some()))
        };
        let carried = Some(Carried::Nothing);
        let sum = Facts { memory: 8, strided_integers: 8, exits: 1, carried, ..Facts::default() };
        assert_eq!(first(sum.clone(), "Vectorized"), Some(("stride", true)));
        let update = Facts { stores: 4, strided_stores: 4, ..sum.clone() };
        assert_eq!(first(update.clone(), "Vectorized"), Some(("stride", true)));
        assert_eq!(first(update.clone(), "UnsafeDep"), Some(("recurrence", true)));
        let transposition = Facts { strided_stores: 0, strided_integers: 4, ..update };
        assert_eq!(first(transposition.clone(), "Vectorized"), Some(("stride", false)));
        assert_eq!(first(transposition, "UnsafeDep"), None);
        assert_eq!(first(Facts { indirect: 1, ..sum }, "Vectorized"), None);
    }

    #[test]
    fn an_array_of_any_layout_may_not_be_contiguous() {
        let rules = |facts: Facts, layout: &str| {
            let function = format!("f(array(float64, 1d, {layout}))");
            rules_of(&Loop { function, self_count: count(100), total: count(100), ..Loop::from_facts(facts) })
        };
        let carried = Some(Carried::Nothing);
        let facts = Facts { scalar: 4, memory: 8, strided: 8, stores: 4, exits: 1, carried, ..Facts::default() };
        assert_eq!(rules(facts.clone(), "A"), ["stride"]);
        assert!(rules(facts.clone(), "C").is_empty() && rules(Facts { strided: 4, ..facts }, "A").is_empty());
    }

    #[test]
    fn the_advice_names_a_product() {
        let text = |products| {
            let facts = Facts { scalar: 1, accumulators: 1, products, ..Facts::default() };
            advice_in_loop(facts, "", 0)[0].text()
        };
        assert!(text(1).contains("the product keeps its order") && text(0).contains("the sum keeps its order"));
    }

    #[test]
    fn sums_that_may_be_reordered_get_no_option() {
        let facts = Facts { scalar: 1, accumulators: 1, strided: 1, exits: 1, ..Facts::default() };
        let ordered = advice_in_loop(facts.clone(), "array(float64, 2d, C)", 0);
        let free = advice(&with_idle_vectors(wide(), facts, "array(float64, 2d, C)"));
        let change = |advice: &[Advice]| (advice[0].rule, advice[0].text().contains("reassoc"));
        assert_eq!((change(&ordered), change(&free)), (("strided-sum", true), ("strided-sum", false)));
    }

    #[test]
    fn columns_without_a_loop_around_them_become_arrays() {
        let text = |is_loop| {
            let facts = Facts { scalar: 4, strided: 3, exits: 1, carried: Some(Carried::Nothing), ..Facts::default() };
            let hot_loop = with_idle_vectors(wide(), facts, "array(float64, 2d, C)");
            let surroundings = Surroundings { is_loop, ..Surroundings::default() };
            advice(&Loop { surroundings, ..hot_loop })[0].text()
        };
        assert!(text(false).contains("one for each column") && text(true).contains("the last index in the inner loop"));
    }

    #[test]
    fn only_a_recurrence_down_a_column_gets_a_change() {
        let has_change = |strided, arguments| {
            let facts = Facts { scalar: 2, recurrences: 1, strided, ..Facts::default() };
            advice_in_loop(facts, arguments, 0)[0].change.is_some()
        };
        assert!(has_change(2, "array(float64, 2d, C)"));
        assert!(!has_change(0, "array(float64, 2d, C)") && !has_change(2, "array(float64, 1d, C)"));
        assert!(!has_change(2, "array(float64, 2d, A)"));
    }

    #[test]
    fn columns_that_are_updated_need_the_other_order() {
        let rules = |memory, arguments| {
            let carried = Some(Carried::Nothing);
            let facts = Facts { scalar: 2, strided: 3, memory, stores: 1, exits: 1, carried, ..Facts::default() };
            advice_in_loop(facts, arguments, 0).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules(3, "array(float64, 2d, C)"), ["recurrence"]);
        assert!(rules(4, "array(float64, 2d, C)").is_empty() && rules(3, "array(float64, 2d, F)").is_empty());
    }

    #[test]
    fn only_a_loop_that_can_be_packed_gains_much_from_a_square_root() {
        let lower = |exits| {
            let count = Count { weight: 100, samples: 100 };
            let calls = vec![("hypotf64".to_owned(), count)];
            let facts = Facts { calls: 1, has_avx: true, exits, ..Facts::default() };
            advice(&Loop { calls, total: count, ..Loop::from_facts(facts) })[0].gain.map(|gain| gain.lower)
        };
        assert_eq!((lower(1), lower(2)), (Some(4.0), Some(1.8)));
    }

    #[test]
    fn a_call_of_hypot_takes_time_in_the_loop_too() {
        let rule = |in_hypot| {
            let calls = calls_of([("hypot", in_hypot)]);
            let facts = Facts { calls: 1, exits: 1, has_avx: true, ..Facts::default() };
            let advice = advice(&Loop { calls, total: count(100), ..Loop::from_facts(facts) });
            advice.first().map(|advice| (advice.rule, advice.gain.map(|gain| gain.lower)))
        };
        assert_eq!(rule(31), Some(("hypot", Some(1.3))));
        assert_eq!(rule(22), Some(("math-call", None)));
    }

    #[test]
    fn a_counter_in_memory_is_not_a_histogram() {
        let rules = |indirect| {
            let facts = Facts { counts_in_memory: 1, exits: 1, indirect, ..Facts::default() };
            advice_in_loop(facts, "", 0).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!((rules(0), rules(1)), (vec!["sum-in-memory"], vec![]));
    }

    #[test]
    fn a_few_more_rounds_count_in_memory_than_add() {
        let rules = |facts: Facts, around| {
            let facts = Facts { scalar: 1, exits: 1, ..facts };
            advice_in_loop(facts, "", around).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        let counts = Facts { counts_in_memory: 1, ..Facts::default() };
        let sums = Facts { sums_in_memory: 1, ..Facts::default() };
        assert_eq!([0, 3, 20].map(|around| rules(counts.clone(), around).len()), [1, 1, 0]);
        assert_eq!([0, 3, 20].map(|around| rules(sums.clone(), around).len()), [1, 0, 0]);
    }

    #[test]
    fn slow_operations_hide_a_sum_in_memory() {
        let has_change = |facts: Facts| {
            let facts = Facts { scalar: 9, sums_in_memory: 1, ..facts };
            advice_in_loop(facts, "", 0)[0].change.is_some()
        };
        let checked = Facts { divisions: 1, checked_divisions: 1, exits: 2, exceptions: 1, ..Facts::default() };
        let checked = Facts { has_avx: true, ..checked };
        let roots = Facts { square_roots: 1, exits: 1, ..Facts::default() };
        assert!(has_change(checked.clone()) && !has_change(Facts { square_roots: 1, ..checked }));
        assert!(has_change(Facts { has_avx: true, ..roots.clone() }) && !has_change(roots));
    }

    #[test]
    fn only_contiguous_values_are_worth_adding_in_each_round() {
        let gain =
            |facts: Facts| advice_in_loop(facts, "array(float64, 2d, C)", 0).first().and_then(|advice| advice.gain);
        let lower = |facts| gain(facts).map(|gain| gain.lower);
        let sum = cut_off(Facts { scalar: 9, branched_sums: 1, memory: 3, ..Facts::default() });
        assert_eq!(lower(sum.clone()), Some(1.1));
        assert_eq!(lower(Facts { strided: 3, spread: 0, ..sum.clone() }), Some(1.1), "columns become arrays");
        for facts in [
            Facts { strided: 2, spread: 0, ..sum.clone() },
            Facts { spread: 3, ..sum.clone() },
            Facts { has_avx: false, ..sum.clone() },
            Facts { wraparounds: 1, ..sum.clone() },
            Facts { descends: true, ..sum.clone() },
            Facts { exits: 3, ..sum },
        ] {
            assert_eq!(lower(facts.clone()), None, "{facts:?}");
        }
        let selected = Facts { scalar: 9, conditional_sums: 1, has_avx: true, exits: 1, ..Facts::default() };
        let lengths = Facts { square_roots: 1, ..selected.clone() };
        assert_eq!((lower(selected), lower(lengths.clone())), (Some(4.0), Some(1.5)));
        assert_eq!(lower(Facts { has_avx: false, ..lengths }), None);
    }

    #[test]
    fn records_are_not_worth_adding_in_each_round() {
        let has_change = |facts: &Facts, arguments: &str| {
            advice_in_loop(facts.clone(), arguments, 0).iter().any(|advice| advice.change.is_some())
        };
        let sum = Facts { scalar: 9, conditional_sums: 1, has_avx: true, exits: 1, ..Facts::default() };
        assert!(has_change(&Facts { spread: 2, ..sum.clone() }, "array(complex128, 1d, C)"));
        assert!(!has_change(&Facts { spread: 6, ..sum.clone() }, "array(float64, 1d, C)"));
        assert!(!has_change(&Facts { spread: 1, ..sum }, "unaligned array(Record(2125), 1d, C)"));
    }

    #[test]
    fn steps_through_a_contiguous_array_get_no_change() {
        let has_change = |arguments: &str| {
            let carried = Some(Carried::Accumulators);
            let facts = Facts { scalar: 2, accumulators: 1, strided: 2, carried, ..Facts::default() };
            advice_in_loop(facts, arguments, 0)[0].change.is_some()
        };
        assert!(!has_change("readonly array(float64, 1d, C), int32"));
        assert!(has_change("array(float64, 1d, A)") && has_change("array(float64, 2d, C)"));
    }

    #[test]
    fn a_kernel_of_guvectorize_takes_any_stride() {
        let text = |is_gufunc| {
            let facts = Facts { scalar: 1, accumulators: 1, strided: 1, ..Facts::default() };
            let function = "prog.f(array(float64, 1d, A), array(float64, 1d, A)) [v2]".to_owned();
            advice(&Loop { function, is_gufunc, ..Loop::from_facts(facts) })[0].text()
        };
        assert!(text(true).contains("an @njit function") && !text(false).contains("@njit"));
    }

    #[test]
    fn integers_are_counted_and_checked_without_scalar_operations() {
        let rules = |facts| advice_in_loop(facts, "", 0).iter().map(|advice| advice.rule).collect::<Vec<_>>();
        let counts = Facts { branched_counts: 2, exits: 1, counted_exits: 1, ..Facts::default() };
        assert_eq!(rules(counts), ["branched-counts"]);
        let carried = Some(Carried::Nothing);
        let check = Facts { only_reads_in_order: true, exits: 2, counted_exits: 1, carried, ..Facts::default() };
        assert_eq!(rules(check.clone()), ["early-exit"]);
        for facts in [
            Facts { only_reads_in_order: false, ..check.clone() },
            Facts { exceptions: 1, ..check.clone() },
            Facts { counted_exits: 2, ..check },
        ] {
            assert!(!rules(facts.clone()).contains(&"early-exit"), "{facts:?}");
        }
    }

    #[test]
    fn only_small_matrices_are_better_without_lapack() {
        let rules = |in_kernel: u64| {
            let inverse = "numba.np.linalg.inv_impl.<locals>.inv_impl";
            let facts = Facts { calls: 3, ..Facts::default() };
            let leaves = [("dtrsm_kernel_LT_SKYLAKEX", in_kernel), ("pthread_mutex_lock", 90 - in_kernel)];
            rules_of(&loop_below(facts, inverse, leaves))
        };
        assert_eq!((rules(20), rules(40)), (vec!["small-matrix"], vec![]));
    }

    #[test]
    fn an_array_that_is_an_attribute_is_taken_before_the_loop() {
        let facts = Facts { scalar: 2, reloads: 2, indirect: 2, stores: 1, exits: 1, ..Facts::default() };
        let rules = |facts| advice_in_loop(facts, "", 0).iter().map(|advice| advice.rule).collect::<Vec<_>>();
        assert_eq!(rules(facts.clone()), ["attribute-array"]);
        assert_eq!(rules(Facts { indirect: 3, ..facts }), ["gather"]);
    }

    #[test]
    fn only_a_loop_with_one_way_out_gains_from_slices() {
        let facts = Facts { scalar: 2, wraparounds: 1, unrolled: 1, exits: 1, ..Facts::default() };
        let facts = Facts { carried: Some(Carried::Nothing), ..facts };
        let rules = |facts| advice_in_loop(facts, "", 0).iter().map(|advice| advice.rule).collect::<Vec<_>>();
        assert_eq!(rules(facts.clone()), ["wraparound"]);
        assert!(rules(Facts { descends: true, ..facts.clone() }).is_empty());
        assert!(rules(Facts { exits: 2, ..facts }).is_empty());
    }

    #[test]
    fn only_a_few_values_are_sorted_by_hand() {
        let rules = |prepares: u64| {
            let sort = "numba.np.arraymath.np_median.<locals>.median_impl";
            let facts = Facts { calls: 3, ..Facts::default() };
            let leaves = [("NRT_MemInfo_alloc_aligned", prepares), ("_partition", 90 - prepares)];
            rules_of(&loop_below(facts, sort, leaves))
        };
        assert_eq!((rules(26), rules(20)), (vec!["short-sort"], vec![]));
    }

    #[test]
    fn a_loop_that_needs_its_order_has_no_vector_version() {
        let rules = |carries_floats, carried| {
            let facts = Facts { scalar: 4, strided: 1, exits: 1, carries_floats, carried, ..Facts::default() };
            let versions = vec![super::super::Version { facts: wide(), total: Count::default() }];
            let hot_loop = Loop { versions, total: Count { weight: 9, samples: 9 }, ..Loop::from_facts(facts) };
            rules_of(&hot_loop)
        };
        assert_eq!(rules(false, Some(Carried::Nothing)), ["stride"]);
        assert!(rules(true, None).is_empty() && rules(false, Some(Carried::Others)).is_empty());
    }

    #[test]
    fn other_operations_hide_a_packed_division() {
        let has_advice = |packed| {
            let facts = Facts { packed, width: 256, element: 64, invariant_divisions: 1, ..Facts::default() };
            !advice(&Loop::from_facts(facts)).is_empty()
        };
        assert!(has_advice(2) && !has_advice(10));
    }

    #[test]
    fn a_sum_of_quotients_needs_both_options() {
        let change = |accumulators, strided| {
            let facts =
                Facts { scalar: 4, divisions: 1, invariant_divisions: 1, accumulators, strided, ..Facts::default() };
            let advice = advice(&Loop { self_count: count(100), total: count(100), ..Loop::from_facts(facts) });
            advice[0].change.clone().unwrap_or_default()
        };
        assert!(change(1, 0).contains("fastmath={'arcp', 'reassoc'}"));
        assert!(!change(0, 0).contains("reassoc") && !change(1, 1).contains("reassoc"));
    }

    #[test]
    fn gains_have_two_or_three_digits() {
        let advice = Advice::because("rule", "").gain(40.0 / 23.0, 400.0 / 23.0);
        assert_eq!(advice.gain.map(|gain| (gain.lower, gain.upper)), Some((1.74, 17.4)));
    }

    #[test]
    fn what_llvm_says_about_a_sum_decides_whether_its_order_matters() {
        let first = |facts: Facts, remark: &str| {
            let remarks = vec![Remark { line: 2, name: remark.to_owned(), text: String::new() }];
            let (self_count, total) = (count(100), count(100));
            advice(&Loop { remarks, self_count, total, ..Loop::from_facts(facts) }).remove(0)
        };
        let rule = |facts, remark| {
            let advice = first(facts, remark);
            (advice.rule, advice.change.is_some())
        };
        let sum = Facts { scalar: 8, accumulators: 1, ..Facts::default() };
        assert_eq!(rule(sum.clone(), "CantReorderFPOps"), ("fp-order", true));
        assert_eq!(rule(sum.clone(), "NonReductionValueUsedOutsideLoop"), ("fp-order", false));
        let with_counter = Facts { recurrences: 1, ..sum };
        assert_eq!(rule(with_counter.clone(), "CantReorderFPOps"), ("fp-order", true));
        assert_eq!(rule(with_counter, "NonReductionValueUsedOutsideLoop"), ("recurrence", false));
    }

    #[test]
    fn complex_numbers_are_divided_without_options() {
        let in_loop = |facts: Facts, arguments: &str| {
            let advice = advice(&Loop { function: format!("f({arguments})"), ..Loop::from_facts(facts) });
            advice.first().map(|advice| (advice.rule, advice.text().contains("arcp")))
        };
        let quotient = Facts { scalar: 22, divisions: 5, exceptions: 4, exits: 5, ..Facts::default() };
        assert_eq!(in_loop(quotient.clone(), "array(complex128, 1d, C)"), Some(("complex-division", false)));
        assert_ne!(in_loop(quotient, "array(float64, 1d, C)"), Some(("complex-division", false)));
        let scaled = Facts { packed: 5, width: 256, element: 64, invariant_divisions: 1, ..Facts::default() };
        assert_eq!(in_loop(scaled.clone(), "array(complex128, 1d, C)"), Some(("invariant-divisor", false)));
        assert_eq!(in_loop(scaled.clone(), "array(float64, 1d, C)"), Some(("invariant-divisor", true)));
        assert_eq!(in_loop(Facts { instructions: 21, ..scaled }, "array(float64, 1d, C)"), None);
    }

    #[test]
    fn a_constant_number_of_rounds_helps_plain_updates() {
        let rules = |facts: Facts, around: u64, wide: u64| {
            let wide =
                super::super::Version { facts: Facts { packed: 4, width: 256, ..facts.clone() }, total: count(wide) };
            let surroundings = Surroundings { is_loop: true, self_count: count(around), ..Surroundings::default() };
            let function = "f(array(float64, 2d, C))".to_owned();
            let (self_count, total, versions) = (count(80), count(80), vec![wide]);
            let hot_loop = Loop { function, surroundings, self_count, total, versions, ..Loop::from_facts(facts) };
            rules_of(&hot_loop)
        };
        let carried = Some(Carried::Nothing);
        let update = Facts { scalar: 1, memory: 3, stores: 1, exits: 1, carried, ..Facts::default() };
        assert_eq!(rules(update.clone(), 20, 0), ["few-rounds"]);
        for (facts, around, wide) in [
            (update.clone(), 1, 0),
            (update.clone(), 20, 20),
            (Facts { divisions: 1, ..update.clone() }, 20, 0),
            (Facts { selections: 1, ..update }, 20, 0),
        ] {
            assert!(!rules(facts.clone(), around, wide).contains(&"few-rounds"), "{facts:?}");
        }
    }

    #[test]
    fn a_checked_division_in_an_inner_loop_may_have_few_rounds() {
        let division = |facts: Facts, is_loop: bool, around: u64| {
            let surroundings = Surroundings { is_loop, self_count: count(around), ..Surroundings::default() };
            let (self_count, total, function) = (count(80), count(80), "f(array(float64, 2d, C))".to_owned());
            let hot_loop = Loop { surroundings, self_count, total, function, ..Loop::from_facts(facts) };
            advice(&hot_loop).into_iter().find(|advice| advice.rule == "division-check")
        };
        let lower = |facts| division(facts, false, 0).and_then(|advice| advice.gain).map(|gain| gain.lower);
        let inner = |facts, around| {
            let advice = division(facts, true, around).expect("a rule");
            assert_eq!(advice.gain, None, "a range only without a condition");
            advice.change.unwrap_or_default()
        };
        let carried = Some(Carried::Nothing);
        let quotient = Facts { scalar: 2, checked_divisions: 1, exits: 2, exceptions: 1, carried, ..Facts::default() };
        assert_eq!(lower(quotient.clone()), Some(1.9));
        assert!(inner(quotient.clone(), 0).contains("8 rounds") && inner(quotient.clone(), 20).is_empty());
        let of_same = Facts { repeated_loads: 1, ..quotient.clone() };
        assert!(inner(of_same, 0).contains("x = m[i, i]") && !inner(quotient.clone(), 0).contains("x = m[i, i]"));
        let of_root = Facts { square_roots: 1, ..quotient };
        assert_eq!(lower(of_root.clone()), None, "without AVX");
        assert_eq!(lower(Facts { has_avx: true, ..of_root }), Some(1.3));
    }

    #[test]
    fn only_a_product_of_an_index_goes_down_a_column() {
        let has_change = |packed_products| {
            let function = "prog.f(array(float64, 2d, C))".to_owned();
            let facts = Facts { gathers: 1, packed: 4, width: 512, element: 64, packed_products, ..Facts::default() };
            advice(&Loop { function, ..Loop::from_facts(facts) })[0].change.is_some()
        };
        assert!(has_change(1) && !has_change(0));
    }

    #[test]
    fn a_stencil_takes_no_options() {
        let text = |function: &str, facts: Facts| {
            let hot_loop = Loop { function: function.to_owned(), ..Loop::from_facts(facts) };
            advice(&hot_loop).remove(0).text()
        };
        let sum = Facts { scalar: 1, accumulators: 1, ..Facts::default() };
        assert!(text("stencil prog.py:9", sum.clone()).contains("a stencil takes no options"));
        assert!(!text("prog.stencil", sum).contains("stencil"));
        let running = Facts { scalar: 1, recurrences: 1, ..Facts::default() };
        assert!(!text("stencil prog.py:9", running).contains("stencil"));
        let gathers = Facts { gathers: 3, packed: 13, width: 512, ..Facts::default() };
        assert!(text("stencil prog.py:9", gathers.clone()).contains("@njit function (usually 3 to 10 times"));
        assert!(!text("prog.stencil", gathers).contains("@njit"));
    }
}
