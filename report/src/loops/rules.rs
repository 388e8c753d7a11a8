//! The rules: conditions on the measured facts of a loop, and the advice if they hold.
//!
//! Each rule has a stable id, which `docs/why-rules.md` lists. Gains are those of `records/why-speedups.tsv`;
//! `benches/why/kernels.py compare` fails if a kernel's gain is outside the range of its advice.

use super::advice::{Advice, Dialect};
use super::callees::{
    is_allocation, is_concatenation, is_dict, is_float_remainder, is_hypot, is_list_growth, is_math, is_object_mode,
    is_power, is_product, is_reference_count, is_string, is_thread_runtime,
};
use super::facts::Facts;
use super::hot_loop::Loop;

/// Size limit of a small loop. The time of a larger loop rarely has a single cause.
const MAX_SMALL_LOOP_INSTRUCTIONS: u32 = 100;
const DIVISION_COST_IN_INSTRUCTIONS: u32 = 40;

/// Returns the advice of a rule, if the rule applies.
type Rule = fn(&Loop, Dialect) -> Option<Advice>;

/// All rules, the most relevant first.
pub(super) const RULES: [Rule; 26] = [
    small_parallel,
    object_mode,
    list_growth,
    string_join,
    string_compare,
    row_product,
    allocation,
    typed_dict,
    float_remainder,
    hypot,
    power,
    math_call,
    reference_count,
    float_widening,
    integer_division,
    division_check,
    invariant_divisor,
    fp_order,
    strided_sum,
    zip,
    stride,
    conditional_sum,
    maximum,
    recurrence,
    exception_exit,
    gather,
];

fn small_parallel(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_below(is_thread_runtime);
    let cause = format!("{share:.0} % of it starts and ends parallel regions, which have too little to do");
    (share > 50.0).then(|| {
        Advice::because("small-parallel", cause)
            .change("leave parallel=True out, or make one region of many")
            .gain(2.0, 500.0)
    })
}

fn object_mode(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    (hot_loop.share_below(is_object_mode) > 5.0).then(|| {
        Advice::because("object-mode", "calls Python in each round")
            .change("move the objmode block out of the loop")
            .gain(50.0, 300.0)
    })
}

fn list_growth(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_list_growth);
    (share > 10.0).then(|| {
        Advice::because("list-growth", format!("{share:.0} % of it resizes a list"))
            .change("fill an array that is large enough by index")
            .gain(1.7, 10.0)
    })
}

fn string_join(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_concatenation);
    (share > 20.0).then(|| {
        Advice::because("string-join", format!("{share:.0} % of it copies strings to concatenate them"))
            .change("join a list of the parts once: ''.join(parts)")
            .gain(2.0, 4.0)
    })
}

fn string_compare(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_string);
    let is_character = hot_loop.calls.iter().any(|(name, _)| name.contains("unicode_getitem"));
    (share > 20.0 && is_character).then(|| {
        Advice::because("string-characters", format!("makes a string of each character ({share:.0} % of this loop)"))
            .change("for ASCII, pass np.frombuffer(text.encode(), np.uint8) and compare codes")
            .gain(10.0, 120.0)
    })
}

fn row_product(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let has_product = hot_loop.calls.iter().any(|(name, _)| is_product(name));
    let share = hot_loop.share_of_calls(is_reference_count) + hot_loop.share_of_calls(is_product);
    (has_product && share > 50.0).then(|| {
        Advice::because("row-product", format!("{share:.0} % of it prepares and calls np.dot for short rows"))
            .change("one np.dot of all rows, or a loop over the elements")
            .gain(4.0, 9.0)
            .changing("rounding")
    })
}

fn allocation(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_allocation);
    (share > 20.0 && !handles_strings(hot_loop)).then(|| {
        Advice::because("allocation", format!("{share:.0} % of it allocates and frees memory"))
            .change("make the array before the loop, or write the expression as a loop")
            .gain(3.5, 35.0)
    })
}

fn typed_dict(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_dict);
    (share > 20.0).then(|| {
        Advice::because("typed-dict", format!("{share:.0} % of it is in a typed dict"))
            .change("an array and an index, where keys allow it, avoid hashing")
            .gain(10.0, 60.0)
    })
}

fn float_remainder(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_float_remainder);
    let change = if dialect.is_python() { "`x - math.floor(x / c) * c` for `x % c`" } else { "`x - floor(x / c) * c`" };
    (share > 50.0).then(|| {
        Advice::because("float-remainder", format!("{share:.0} % of it is in fmod, which divides bit by bit"))
            .change(change)
            .gain(6.0, 18.0)
            .changing("rounding")
    })
}

fn hypot(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_hypot);
    let change = match dialect {
        Dialect::Numba | Dialect::Stencil => "math.sqrt(z.real * z.real + z.imag * z.imag) for abs(z)",
        Dialect::C | Dialect::Julia | Dialect::Other => "the square root of the sum of squares",
    };
    (share > 50.0).then(|| {
        Advice::because("hypot", format!("{share:.0} % of it is in hypot, for each value by itself"))
            .change(change)
            .gain(1.9, 8.5)
            .changing("rounding, and overflows from 1e154 on")
    })
}

fn power(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_power);
    let change = match dialect {
        Dialect::Numba | Dialect::Stencil => "fastmath=True for a constant exponent such as 1.5",
        Dialect::C | Dialect::Julia | Dialect::Other => "products and square roots for a constant exponent such as 1.5",
    };
    (share > 50.0).then(|| {
        Advice::because("math-call", format!("pow is called for each value ({share:.0} % of this loop)"))
            .change(change)
            .gain(10.0, 19.0)
            .changing("rounding")
    })
}

fn math_call(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let share = hot_loop.share_of_calls(is_math);
    let name = hot_loop.largest_call(is_math).unwrap_or_default();
    let name = if name.starts_with('[') { "a function of libm" } else { name };
    let remark = match dialect {
        Dialect::Numba | Dialect::Stencil => {
            "up to Numba 0.61, `pip install icc_rt` has vector functions, but wheels since 0.62 cannot use them"
        }
        Dialect::C | Dialect::Julia | Dialect::Other => "LLVM's option -vector-library has vector functions",
    };
    (share > 20.0).then(|| {
        Advice::because("math-call", format!("{name} is called for each value ({share:.0} % of this loop); {remark}"))
    })
}

fn reference_count(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let is_freed = hot_loop.share_of_calls(is_allocation) > 5.0;
    let counts_references = hot_loop.facts.atomics != 0
        && hot_loop.facts.instructions < 200
        && hot_loop.self_count.percent_of(hot_loop.total) > 50.0;
    let share = hot_loop.share_of_calls(is_reference_count);
    let is_short = |name: &str| is_reference_count(name) || name.starts_with("numba_list_");
    let does_little_else = hot_loop.facts.instructions < 40 && hot_loop.calls.iter().all(|(name, _)| is_short(name));
    // Numba 0.57 does not inline the function that reads an item of a typed list.
    let is_item = |(name, _): &(String, _)| name.starts_with("numba.typed.listobject.");
    let takes_items = hot_loop.facts.calls == 1 && hot_loop.calls.iter().all(is_item);
    let share_of_items = if takes_items { hot_loop.share_below(is_reference_count) } else { 0.0 };
    let applies =
        counts_references || share > 60.0 && !is_freed || share > 25.0 && does_little_else || share_of_items > 25.0;
    applies.then(|| {
        Advice::because("reference-count", "counts references to an object in each round")
            .change("take it out of its container before the loop, or use an array for numbers")
            .gain(5.0, 30.0)
    })
}

fn float_widening(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { conversions, narrowings, packed, scalar, .. } = hot_loop.facts;
    (narrowings != 0 && narrowings < conversions && conversions * 4 >= packed.max(scalar)).then(|| {
        let cause = "float32 becomes float64 and back, because a literal or another operand is float64";
        Advice::because("float-widening", cause)
            .change(format!("{} keeps it", dialect.float32_literal()))
            .gain(1.1, 2.8)
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
            .gain(1.4, 12.0)
    })
}

fn division_check(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    (hot_loop.is_one_at_a_time() && is_small(hot_loop) && hot_loop.facts.checked_divisions != 0).then(|| {
        let cause = match dialect {
            Dialect::Numba | Dialect::Stencil => "one value at a time: a division by zero must raise",
            Dialect::C | Dialect::Julia | Dialect::Other => "one value at a time: each division checks for zero",
        };
        Advice::because("division-check", cause)
            .change(dialect.unchecked_division())
            .gain(1.9, 5.2)
            .changing("a division by zero")
    })
}

fn invariant_divisor(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    (is_small(hot_loop) && hot_loop.facts.invariant_divisions != 0).then(|| {
        Advice::because("invariant-divisor", "divides by a value that the loop does not change")
            .change(format!("{}, or a product with its reciprocal, divides once", dialect.reciprocal()))
            .gain(1.3, 4.5)
            .changing("rounding")
    })
}

fn fp_order(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    (is_sum(hot_loop) && hot_loop.facts.strided == 0).then(|| {
        Advice::because("fp-order", "one value at a time: the sum keeps its order")
            .change(format!("{} allows several", dialect.reassociate()))
            .gain(2.4, 11.5)
            .changing("rounding")
    })
}

fn strided_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    (is_sum(hot_loop) && hot_loop.facts.strided != 0).then(|| {
        let cause =
            "one value at a time: the sum keeps its order, and its values are not known to be neighbours in memory";
        Advice::because("strided-sum", cause)
            .change(format!(
                "{} helps only with a C-contiguous array by index, the last index in the inner loop",
                dialect.reassociate()
            ))
            .gain(3.0, 30.0)
            .changing("rounding")
    })
}

fn zip(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let Facts { exits, counted_exits, strided, scalar, .. } = hot_loop.facts;
    let applies = hot_loop.is_one_at_a_time()
        && is_small(hot_loop)
        && exits == 2
        && counted_exits == 2
        && strided >= 2
        && scalar != 0;
    applies.then(|| {
        Advice::because("zip", "one value at a time: zip asks in each round which array ends first")
            .change("an index over C-contiguous arrays asks once")
            .gain(1.5, 6.0)
    })
}

fn stride(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let applies = hot_loop.is_one_at_a_time()
        && hot_loop.vector_version_did_not_run()
        && hot_loop.facts.calls == 0
        && hot_loop.facts.exits < 2;
    applies.then(|| {
        let cause = "one value at a time, although there is a vector version: the stride is not known to be 1 before \
                     it runs, or the loop is short";
        Advice::because("stride", cause)
            .change("C-contiguous arrays by index, the last index in the inner loop, help")
            .gain(1.1, 21.0)
    })
}

fn conditional_sum(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { conditional_sums, recurrences, strided, indirect, .. } = hot_loop.facts;
    (hot_loop.is_one_at_a_time() && conditional_sums != 0 && recurrences + strided + indirect == 0).then(|| {
        Advice::because("conditional-sum", "one value at a time: a sum that only some rounds add to")
            .change(format!("{} with {} allows several", dialect.conditional_operand(), dialect.reassociate()))
            .gain(4.0, 14.0)
            .changing("rounding")
    })
}

fn maximum(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    // Four accumulators do not help if the loop also tracks a position. Four selections (two each for a maximum and a
    // minimum) mean that the advice has already been followed.
    let Facts { choices, recurrences, conditional_sums, integer_choices, .. } = hot_loop.facts;
    let other_carried = recurrences + conditional_sums + integer_choices;
    (hot_loop.is_one_at_a_time() && (1..=2).contains(&choices) && other_carried == 0).then(|| {
        Advice::because("maximum", "one value at a time: each round keeps the larger or smaller")
            .change("keep 4 and join them after the loop (options do not help)")
            .gain(2.0, 4.0)
            .changing("the order in which NaN are met")
    })
}

fn recurrence(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    (hot_loop.is_one_at_a_time() && hot_loop.facts.recurrences != 0).then(|| {
        Advice::because("recurrence", "one value at a time: each round needs the one before; options do not help")
    })
}

fn exception_exit(hot_loop: &Loop, dialect: Dialect) -> Option<Advice> {
    let Facts { exits, counted_exits, exceptions, checked_divisions, .. } = hot_loop.facts;
    let applies = hot_loop.is_one_at_a_time() && is_small(hot_loop) && exceptions != 0 && checked_divisions == 0;
    applies.then(|| {
        if counted_exits < exits {
            let origin =
                if dialect.is_python() { "raise, or an index with boundscheck=True" } else { "or a check of an index" };
            Advice::because(
                "exception-exit",
                format!("one value at a time: an exception may leave the loop ({origin})"),
            )
            .change("check in a loop before this one")
            .gain(1.4, 2.0)
            .changing("what is written before the exception")
        } else {
            // The loop checks only an index, not a value.
            let origin = if dialect.is_python() { " (of a list, or with boundscheck=True)" } else { "" };
            Advice::because("exception-exit", format!("one value at a time: an index is checked in each round{origin}"))
                .change("an array without that check can compute several")
        }
    })
}

fn gather(hot_loop: &Loop, _: Dialect) -> Option<Advice> {
    let Facts { gathers, scatters, indirect, .. } = hot_loop.facts;
    if !is_small(hot_loop) {
        return None;
    }
    if gathers + scatters != 0 {
        return Some(
            Advice::because("gather", "each value is fetched by itself (gather)")
                .change("neighbours in memory are faster: of a[i, j], j should be the inner loop's"),
        );
    }
    let cause = "one value at a time: an address comes from an array; nothing to gain by options";
    (hot_loop.is_one_at_a_time() && indirect != 0).then(|| Advice::because("gather", cause))
}

/// Returns true for an innermost loop with few instructions and no calls.
fn is_small(hot_loop: &Loop) -> bool {
    hot_loop.is_innermost && hot_loop.facts.calls == 0 && hot_loop.facts.instructions < MAX_SMALL_LOOP_INSTRUCTIONS
}

fn is_sum(hot_loop: &Loop) -> bool {
    let Facts { accumulators, recurrences, choices, conditional_sums, indirect, .. } = hot_loop.facts;
    hot_loop.is_one_at_a_time() && accumulators != 0 && recurrences + choices + conditional_sums + indirect == 0
}

/// Returns true if the loop handles strings. Each new string has to be allocated.
fn handles_strings(hot_loop: &Loop) -> bool {
    hot_loop.calls.iter().any(|(name, _)| name.starts_with("numba.cpython.unicode."))
        || hot_loop.lines.iter().any(|(path, _)| path.ends_with("numba/cpython/unicode.py"))
}

#[cfg(test)]
mod tests {
    use super::super::advice::advice;
    use super::*;
    use crate::profile::Count;

    /// Loops that get advice by their facts or their calls alone.
    fn advised_loops(loop_path: &str) -> Vec<Loop> {
        let scalar = Facts { scalar: 1, ..Facts::default() };
        let facts = [
            Facts { narrowings: 1, conversions: 2, ..scalar.clone() },
            Facts { checked_divisions: 1, ..scalar.clone() },
            Facts { invariant_divisions: 1, ..scalar.clone() },
            Facts { accumulators: 1, ..scalar.clone() },
            Facts { accumulators: 1, strided: 1, ..scalar.clone() },
            Facts { conditional_sums: 1, ..scalar.clone() },
            Facts { choices: 1, ..scalar.clone() },
            Facts { recurrences: 1, ..scalar.clone() },
            Facts { exits: 2, exceptions: 1, counted_exits: 1, ..scalar.clone() },
            Facts { exits: 2, exceptions: 1, counted_exits: 2, ..scalar },
        ];
        let with_path = |hot_loop: Loop| Loop { loop_path: loop_path.to_owned(), ..hot_loop };
        let by_facts = facts.into_iter().map(|facts| with_path(Loop::from_facts(facts)));
        let by_callee = ["exp", "pow", "fmod", "hypot", "malloc"].into_iter().map(|callee| {
            let count = Count { weight: 100, samples: 100 };
            let calls = vec![(callee.to_owned(), count)];
            with_path(Loop { calls, total: count, ..Loop::from_facts(Facts { calls: 1, ..Facts::default() }) })
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
            for word in ["Numba", "np.", "fastmath=", "error_model", "boundscheck", "icc_rt", "njit"] {
                assert!(!texts(path).contains(word), "{path}: {word}");
            }
        }
        assert!(texts("sum.py").contains("np.float32(0.1)") && texts("sum.jl").contains("0.1f0"));
        assert!(texts("sum.cpp").contains("reassociate(on)"));
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
        let count = |samples| Count { weight: samples, samples };
        let packed = Facts { packed: 4, width: 256, element: 64, ..Facts::default() };
        let hot_loop = |facts: &Facts, self_count, callee: &str| Loop {
            self_count: count(self_count),
            total: count(100),
            calls: vec![(callee.to_owned(), count(100 - self_count))],
            ..Loop::from_facts(facts.clone())
        };
        assert_eq!(hot_loop(&packed, 100, "").verdict(), Verdict::Packed);
        assert_eq!(hot_loop(&packed, 4, "concat").verdict(), Verdict::Callee("concat", 96.0));
        assert_eq!(hot_loop(&packed, 80, "concat").verdict(), Verdict::Unexplained);
        assert_eq!(hot_loop(&Facts { scalar: 4, ..packed.clone() }, 100, "").verdict(), Verdict::Unexplained);
        assert_eq!(hot_loop(&Facts::default(), 100, "").verdict(), Verdict::Unexplained);
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
        let count = |samples| Count { weight: samples, samples };
        let rules = |callee: &str| {
            let below = ["NRT_incref", "handle_index"].map(|leaf| ((callee.to_owned(), leaf.to_owned()), count(40)));
            let facts = Facts { scalar: 1, calls: 1, instructions: 18, ..Facts::default() };
            let calls = vec![(callee.to_owned(), count(80))];
            let hot_loop = Loop { calls, below: below.to_vec(), total: count(100), ..Loop::from_facts(facts) };
            advice(&hot_loop).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules("numba.typed.listobject.impl_getitem"), ["reference-count"]);
        assert!(rules("prog.of_arrays").is_empty());
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
    }

    #[test]
    fn loops_of_numba_itself_get_no_advice() {
        let facts = Facts { scalar: 1, accumulators: 1, ..Facts::default() };
        let rules = |loop_path: &str| {
            let hot_loop = Loop { loop_path: loop_path.to_owned(), ..Loop::from_facts(facts.clone()) };
            advice(&hot_loop).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules("/home/me/numba/prog.py"), ["fp-order"]);
        assert!(rules("/venv/lib/python3.11/site-packages/numba/np/arraymath.py").is_empty());
    }
}
