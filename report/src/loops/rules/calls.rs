//! Rules for loops whose time is in the functions that they call.

use super::is_short;
use crate::loops::advice::{Advice, Dialect};
use crate::loops::callees::{
    is_allocation, is_array_allocation, is_array_expression, is_array_function, is_array_growth, is_array_join,
    is_blas_kernel, is_concatenation, is_dict, is_elimination, is_float_remainder, is_hypot, is_interpolation,
    is_lapack_kernel, is_list_growth, is_math, is_matrix_product, is_memory_copy, is_norm, is_object_allocation,
    is_object_mode, is_ordered_reduction, is_parallel_loop, is_power, is_product, is_reference_count, is_slow_norm,
    is_sort, is_string, is_thread_runtime, is_typed_list_growth, is_typed_list_item, prepares, writes_typed_list,
};
use crate::loops::hot_loop::Loop;
use crate::profile::Count;

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

/// Minimum percentage of a loop's time in `hypot`. Calls take time in the loop, too: sums of squares of `abs(z)` have
/// 31 to 42 % in it and gain 2.5, larger sums 35 % and gain 1.6.
const MIN_HYPOT_PERCENT: f64 = 25.0;

/// Rule for parallel regions whose threads mostly wait.
pub(crate) const SMALL_PARALLEL: &str = "small-parallel";

pub(super) fn small_parallel(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let overhead = |(callee, leaf): &(String, String)| is_parallel_loop(callee) && is_thread_runtime(leaf);
    let share = hot_loop.share_where(overhead);
    let cause = format!("{share:.0} % of it starts parallel regions and waits for their threads");
    (share > 90.0).then(|| {
        Advice::because(SMALL_PARALLEL, cause)
            .change("without parallel=True, or with one region for many calls, nothing waits")
            .gain(3.0, 2000.0)
    })
}

pub(super) fn object_mode(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_below(is_object_mode);
    (share > 5.0).then(|| {
        Advice::because("object-mode", "calls Python in its rounds")
            .change("move the objmode block out of the loop")
            .gain_of_part(share, 20.0, 300.0)
    })
}

pub(super) fn list_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_list_growth);
    (share > 10.0).then(|| {
        Advice::because("list-growth", format!("{share:.0} % of it resizes a list"))
            .change("fill an array that is large enough by index")
            .gain_of_part(share, 2.5, 12.0)
    })
}

pub(super) fn typed_list_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let has_append = hot_loop.calls.iter().any(|(name, _)| is_typed_list_growth(name));
    let share = hot_loop.share_of_calls(is_typed_list_growth) + hot_loop.share_of_calls(is_reference_count);
    (has_append && share > 50.0).then(|| {
        Advice::because("list-growth", format!("{share:.0} % of it appends to a typed list"))
            .change("fill an array that is large enough by index")
            .gain(10.0, 100.0)
    })
}

pub(super) fn array_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

pub(super) fn string_join(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_concatenation);
    (share > 65.0).then(|| {
        Advice::because("string-join", format!("{share:.0} % of it copies strings to concatenate them"))
            .change("join a list of the parts once: ''.join(parts)")
            .gain(1.5, 80.0)
    })
}

pub(super) fn string_compare(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

pub(super) fn short_sort(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

pub(super) fn row_product(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn interpolation(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

pub(super) fn small_matrix(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_elimination);
    let kernels = hot_loop.share_where(|(callee, leaf)| is_elimination(callee) && is_lapack_kernel(leaf));
    (share > 50.0 && kernels < MAX_LAPACK_PERCENT && dialect.is_python()).then(|| {
        Advice::because("small-matrix", format!("{share:.0} % of it prepares and calls LAPACK for a small matrix"))
            .change("the formula for 2 x 2 or 3 x 3, or an elimination in loops, without new arrays")
            .gain(1.5, 200.0)
            .changing("rounding")
    })
}

pub(super) fn row_reduction(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn allocation(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

pub(super) fn typed_dict(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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
pub(super) fn integer_set(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let has = |text: &str| hot_loop.instructions.iter().any(|instruction| instruction.text.contains(text));
    // The second constant depends on the release of LLVM.
    let hashes = has("$0x3FFFFFFF,") && (has("$0x3D,") || has("0x3FFFFFFE(")) && is_short(hot_loop);
    (hashes && dialect.is_python()).then(|| {
        Advice::because("typed-dict", "hashes an integer in each round, as look-ups in a set do")
            .change("an array of bool by index, where keys allow it, avoids hashing")
            .gain(2.0, 30.0)
    })
}

pub(super) fn float_remainder(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn hypot(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn power(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn math_call(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
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

pub(super) fn reference_count(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
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

fn handles_strings(hot_loop: &Loop) -> bool {
    hot_loop.calls.iter().any(|(name, _)| name.starts_with("numba.cpython.unicode."))
        || hot_loop.lines.iter().any(|(path, _)| path.ends_with("numba/cpython/unicode.py"))
}
