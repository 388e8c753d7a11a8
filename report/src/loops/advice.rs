//! Advice: a table of rules based on the measured facts of a loop.
//!
//! A rule has a stable id (listed in `docs/why-rules.md`), a condition, and a sentence. The sentence names the change,
//! says whether the change affects results, and gives the range of speed-ups that `benches/why` measured for its
//! kernels. That range is not a promise. A loop gets the first two rules of the table that apply.

use std::path::Path;

use super::facts::Facts;
use super::hot_loop::{Advice, Loop};

struct Rule {
    id: &'static str,
    applies: fn(&Loop) -> bool,
    text: fn(&Loop) -> String,
}

/// Size limit of a small loop. The time of a larger loop rarely has a single cause.
const MAX_SMALL_LOOP_INSTRUCTIONS: u32 = 100;
const DIVISION_COST_IN_INSTRUCTIONS: u32 = 40;
const MAX_ADVICE_PER_LOOP: usize = 2;

pub(super) fn advice(hot_loop: &Loop) -> Vec<Advice> {
    if is_numba_source(&hot_loop.loop_path) {
        return Vec::new();
    }
    // No rule applies if the decoder does not know all instructions, because an unknown one may be the cause.
    let rules = RULES.iter().filter(|rule| hot_loop.facts.unknown == 0 && (rule.applies)(hot_loop));
    // The file name of a notebook cell may have no extension.
    let is_python = Path::new(&hot_loop.loop_path).extension().is_none_or(|extension| extension == "py");
    let text = |rule: &Rule| match (is_python, (rule.text)(hot_loop)) {
        (true, text) if hot_loop.function.starts_with("stencil ") && mentions_option(&text) => text + STENCIL_NOTE,
        (true, text) => text,
        (false, text) => generic_text(text),
    };
    rules.map(|rule| Advice { rule: rule.id, text: text(rule) }).take(MAX_ADVICE_PER_LOOP).collect()
}

/// Phrases in advice that refer to Numba, with their replacements for other languages.
const GENERIC_WORDING: [(&str, &str); 8] = [
    ("fastmath={'reassoc'}", "LLVM's flag reassoc"),
    ("fastmath={'arcp'}", "LLVM's flag arcp"),
    (
        "up to Numba 0.61, `pip install icc_rt` gives vector functions",
        "LLVM's option -vector-library has vector functions",
    ),
    ("; wheels since 0.62 have none", ""),
    (
        "a division by zero must raise; error_model='numpy' returns inf or nan instead",
        "each division checks for zero; without the check, it returns inf or nan",
    ),
    ("(raise, or an index with boundscheck=True)", "(or a check of an index)"),
    (" (of a list, or with boundscheck=True)", ""),
    ("np.float32(0.1) keeps it", "a literal of that type keeps it"),
];

/// Suffix of advice on stencils, which Numba always compiles with default options.
const STENCIL_NOTE: &str = "; a stencil takes no options: write it as a loop in an @njit function";

fn mentions_option(text: &str) -> bool {
    ["fastmath=", "error_model="].iter().any(|option| text.contains(option))
}

fn generic_text(text: String) -> String {
    GENERIC_WORDING.iter().fold(text, |text, (numba_words, generic_words)| text.replace(numba_words, generic_words))
}

/// Describes the effect of the matching calls, with their share of the loop's samples.
fn call_share(hot_loop: &Loop, matches: fn(&str) -> bool, effect: &str) -> String {
    format!("{:.0} % of it {effect}", hot_loop.share_of_calls(matches))
}

const RULES: [Rule; 19] = [
    Rule {
        id: "object-mode",
        applies: |hot_loop| hot_loop.share_below(is_object_mode) > 5.0,
        text: |_| "calls Python in each round; move the objmode block out of the loop".to_owned(),
    },
    Rule {
        id: "list-growth",
        applies: |hot_loop| hot_loop.share_of_calls(is_list_growth) > 10.0,
        text: |hot_loop| {
            call_share(
                hot_loop,
                is_list_growth,
                "resizes a list; fill an array that is large enough by index (usually 8 times faster)",
            )
        },
    },
    Rule {
        id: "allocation",
        applies: |hot_loop| hot_loop.share_of_calls(is_allocation) > 20.0 && !handles_strings(hot_loop),
        text: |hot_loop| {
            call_share(
                hot_loop,
                is_allocation,
                "allocates and frees memory; make the array before the loop, or write the expression as a \
                 loop (usually 4 to 30 times faster)",
            )
        },
    },
    Rule {
        id: "typed-dict",
        applies: |hot_loop| hot_loop.share_of_calls(is_dict) > 20.0,
        text: |hot_loop| {
            call_share(
                hot_loop,
                is_dict,
                "is in a typed dict; an array and an index, where keys allow it, avoid hashing",
            )
        },
    },
    Rule {
        id: "math-call",
        applies: |hot_loop| hot_loop.share_of_calls(is_math) > 20.0,
        text: |hot_loop| {
            let (name, share) = (hot_loop.largest_call(is_math).unwrap_or_default(), hot_loop.share_of_calls(is_math));
            let name = if name.starts_with('[') { "a function of libm" } else { name };
            format!(
                "{name} is called for each value ({share:.0} % of this loop): one value at a time; up to Numba 0.61, \
                 `pip install icc_rt` gives vector functions (usually 2 to 4 times faster, up to 4 ulp off); wheels \
                 since 0.62 have none"
            )
        },
    },
    Rule {
        id: "reference-count",
        applies: |hot_loop| {
            let is_freed = hot_loop.share_of_calls(is_allocation) > 5.0;
            let counts_references = hot_loop.facts.atomics != 0
                && hot_loop.facts.instructions < 200
                && hot_loop.self_count.percent_of(hot_loop.total) > 50.0;
            let share = hot_loop.share_of_calls(is_reference_count);
            let is_short = |name: &str| is_reference_count(name) || name.starts_with("numba_list_");
            let does_little_else =
                hot_loop.facts.instructions < 40 && hot_loop.calls.iter().all(|(name, _)| is_short(name));
            // Numba 0.57 does not inline the function that reads an item of a typed list.
            let is_item = |(name, _): &(String, _)| name.starts_with("numba.typed.listobject.");
            let takes_items = hot_loop.facts.calls == 1 && hot_loop.calls.iter().all(is_item);
            let share_of_items = if takes_items { hot_loop.share_below(is_reference_count) } else { 0.0 };
            counts_references || share > 60.0 && !is_freed || share > 25.0 && does_little_else || share_of_items > 25.0
        },
        text: |_| {
            "counts references to an object in each round; take it out of its container before the loop, or use an \
             array for numbers"
                .to_owned()
        },
    },
    Rule {
        id: "float-widening",
        applies: |hot_loop| {
            let Facts { conversions, narrowings, packed, scalar, .. } = hot_loop.facts;
            narrowings != 0 && narrowings < conversions && conversions * 4 >= packed.max(scalar)
        },
        text: |_| {
            "float32 becomes float64 and back, because a literal or another operand is float64; np.float32(0.1) keeps \
             it (up to 2 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "integer-division",
        applies: |hot_loop| {
            hot_loop.facts.calls == 0
                && hot_loop.is_innermost
                && hot_loop.facts.invariant_integer_divisions * DIVISION_COST_IN_INSTRUCTIONS
                    >= hot_loop.facts.instructions.max(1)
        },
        text: |hot_loop| {
            let count = hot_loop.facts.invariant_integer_divisions;
            let divisions =
                if count == 1 { "1 integer division".to_owned() } else { format!("{count} integer divisions") };
            format!("{divisions} by a variable; by a constant it is 2 to 11 times faster")
        },
    },
    Rule {
        id: "division-check",
        applies: |hot_loop| hot_loop.is_one_at_a_time() && is_small(hot_loop) && hot_loop.facts.checked_divisions != 0,
        text: |_| {
            "one value at a time: a division by zero must raise; error_model='numpy' returns inf or nan instead \
             (usually 2 to 4 times faster)"
                .to_owned()
        },
    },
    Rule {
        id: "invariant-divisor",
        applies: |hot_loop| is_small(hot_loop) && hot_loop.facts.invariant_divisions != 0,
        text: |_| {
            "divides by a value that the loop does not change; fastmath={'arcp'}, or a product with its reciprocal, \
             divides once (usually 2 to 3 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "fp-order",
        applies: |hot_loop| is_sum(hot_loop) && hot_loop.facts.strided == 0,
        text: |_| {
            "one value at a time: the sum keeps its order; fastmath={'reassoc'} allows several (usually 2 to 10 times \
             faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "strided-sum",
        applies: |hot_loop| is_sum(hot_loop) && hot_loop.facts.strided != 0,
        text: |_| {
            "one value at a time: the sum keeps its order, and its values are not known to be neighbours in memory; \
             fastmath={'reassoc'} helps only with a C-contiguous array by index, the last index in the inner loop \
             (then usually 3 to 12 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "zip",
        applies: |hot_loop| {
            let Facts { exits, counted_exits, strided, scalar, .. } = hot_loop.facts;
            hot_loop.is_one_at_a_time()
                && is_small(hot_loop)
                && exits == 2
                && counted_exits == 2
                && strided >= 2
                && scalar != 0
        },
        text: |_| {
            "one value at a time: zip asks in each round which array ends first; an index over C-contiguous arrays \
             asks once (usually 1.5 to 3 times faster)"
                .to_owned()
        },
    },
    Rule {
        id: "stride",
        applies: |hot_loop| {
            hot_loop.is_one_at_a_time()
                && hot_loop.vector_version_did_not_run()
                && hot_loop.facts.calls == 0
                && hot_loop.facts.exits < 2
        },
        text: |_| {
            "one value at a time, although there is a vector version: the stride is not known to be 1 before it runs, \
             or the loop is short; C-contiguous arrays by index, the last index in the inner loop, help"
                .to_owned()
        },
    },
    Rule {
        id: "conditional-sum",
        applies: |hot_loop| {
            let Facts { conditional_sums, recurrences, strided, indirect, .. } = hot_loop.facts;
            hot_loop.is_one_at_a_time() && conditional_sums != 0 && recurrences + strided + indirect == 0
        },
        text: |_| {
            "one value at a time: a sum that only some rounds add to; `s += x if wanted else 0.0` with \
             fastmath={'reassoc'} allows several (usually 9 to 13 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "maximum",
        applies: |hot_loop| {
            // Four accumulators do not help if the loop also tracks a position. Four selections (two each for a maximum
            // and a minimum) mean that the advice has already been followed.
            let Facts { choices, recurrences, conditional_sums, integer_choices, .. } = hot_loop.facts;
            let other_carried = recurrences + conditional_sums + integer_choices;
            hot_loop.is_one_at_a_time() && (1..=2).contains(&choices) && other_carried == 0
        },
        text: |_| {
            "one value at a time: each round keeps the larger or smaller; keep 4 and join them after the loop (usually \
             2 to 4 times faster); options do not help"
                .to_owned()
        },
    },
    Rule {
        id: "recurrence",
        applies: |hot_loop| hot_loop.is_one_at_a_time() && hot_loop.facts.recurrences != 0,
        text: |_| "one value at a time: each round needs the one before; options do not help".to_owned(),
    },
    Rule {
        id: "exception-exit",
        applies: |hot_loop| {
            hot_loop.is_one_at_a_time()
                && is_small(hot_loop)
                && hot_loop.facts.exceptions != 0
                && hot_loop.facts.checked_divisions == 0
        },
        text: |hot_loop| {
            let Facts { exits, counted_exits, .. } = hot_loop.facts;
            let text = if counted_exits < exits {
                "one value at a time: an exception may leave the loop (raise, or an index with boundscheck=True); \
                 check in a loop before this one (usually 1.5 to 2 times faster)"
            } else {
                // The loop checks only an index, not a value.
                "one value at a time: an index is checked in each round (of a list, or with boundscheck=True); an array \
                 without that check can compute several"
            };
            text.to_owned()
        },
    },
    Rule {
        id: "gather",
        applies: |hot_loop| {
            let Facts { gathers, scatters, indirect, .. } = hot_loop.facts;
            is_small(hot_loop) && (gathers + scatters != 0 || hot_loop.is_one_at_a_time() && indirect != 0)
        },
        text: |hot_loop| match hot_loop.facts.gathers + hot_loop.facts.scatters {
            0 => "one value at a time: an address comes from an array; nothing to gain by options".to_owned(),
            _ => "each value is fetched by itself (gather); neighbours in memory are faster: of a[i, j], j should be \
                the inner loop's"
                .to_owned(),
        },
    },
];

/// Returns true if the loop's file is part of Numba. Users cannot change that code or its options.
fn is_numba_source(path: &str) -> bool {
    path.contains("/site-packages/numba/") || path.contains("/dist-packages/numba/")
}

/// Returns true for an innermost loop with few instructions and no calls.
fn is_small(hot_loop: &Loop) -> bool {
    hot_loop.is_innermost && hot_loop.facts.calls == 0 && hot_loop.facts.instructions < MAX_SMALL_LOOP_INSTRUCTIONS
}

fn is_sum(hot_loop: &Loop) -> bool {
    let Facts { accumulators, recurrences, choices, conditional_sums, indirect, .. } = hot_loop.facts;
    hot_loop.is_one_at_a_time() && accumulators != 0 && recurrences + choices + conditional_sums + indirect == 0
}

fn is_object_mode(name: &str) -> bool {
    name.starts_with("PyGILState_") || name.contains("numba_gil") || name.starts_with("PyObject_Call")
}

fn is_allocation(name: &str) -> bool {
    const ALLOCATORS: [&str; 6] = ["malloc", "free", "calloc", "realloc", "_int_malloc", "_int_free"];
    let is_numba_allocator = name.starts_with("NRT_") && !name.ends_with("cref") && !is_list_growth(name);
    is_numba_allocator || ALLOCATORS.contains(&name.trim_start_matches("__libc_").trim_start_matches("cfree"))
}

/// Returns true if the loop handles strings. Each new string has to be allocated.
fn handles_strings(hot_loop: &Loop) -> bool {
    hot_loop.calls.iter().any(|(name, _)| name.starts_with("numba.cpython.unicode."))
        || hot_loop.lines.iter().any(|(path, _)| path.ends_with("numba/cpython/unicode.py"))
}

fn is_reference_count(name: &str) -> bool {
    matches!(name, "NRT_incref" | "NRT_decref")
}

fn is_list_growth(name: &str) -> bool {
    name == "NRT_MemInfo_varsize_realloc" || name == "NRT_MemInfo_varsize_realloc_unsafe"
}

fn is_dict(name: &str) -> bool {
    name.starts_with("numba_dict") || name.contains("dictobject") || name.contains("dictimpl")
}

/// Returns true for a libm function: a public name such as `exp`, an internal one such as `__exp_fma` or
/// `__ieee754_pow_fma`, or libm code without a symbol.
fn is_math(name: &str) -> bool {
    const FUNCTIONS: [&str; 24] = [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan",
        "atan2", "sinh", "cosh", "tanh", "hypot", "cbrt", "erf", "erfc", "lgamma", "tgamma",
    ];
    let name = name.trim_start_matches('_').trim_start_matches("numba_");
    if name.starts_with("[libm.so") || name.starts_with("[libm-") {
        return true;
    }
    let name = name.strip_prefix("ieee754_").unwrap_or(name);
    let name = ["_fma", "_fma4", "_avx2", "_sse2", "_finite"]
        .iter()
        .fold(name, |name, end| name.strip_suffix(end).unwrap_or(name));
    FUNCTIONS.contains(&name) || name.strip_suffix('f').is_some_and(|double| FUNCTIONS.contains(&double))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Count;

    #[test]
    fn advice_for_other_languages_does_not_mention_numba() {
        let source = include_str!("advice.rs").replace("\\\n", "");
        let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for (numba_words, _) in GENERIC_WORDING {
            assert_eq!(source.matches(numba_words).count().min(2), 2, "no rule says {numba_words}");
        }
        let texts = GENERIC_WORDING.map(|(numba_words, _)| numba_words).join(", ");
        let texts = generic_text(texts);
        assert!(
            ["Numba", "np.", "fastmath=", "error_model", "boundscheck", "icc_rt"]
                .iter()
                .all(|word| !texts.contains(word))
        );
    }

    #[test]
    fn an_index_check_is_not_a_value_check() {
        let text = |counted_exits| {
            let facts = Facts { scalar: 1, exits: 2, exceptions: 1, counted_exits, ..Facts::default() };
            let [advice] = &advice(&Loop::from_facts(facts))[..] else { panic!("one advice") };
            (advice.rule, advice.text.contains("an index is checked"))
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
            advice(&hot_loop).remove(0).text
        };
        let sum = Facts { scalar: 1, accumulators: 1, ..Facts::default() };
        assert!(text("stencil prog.py:9", sum.clone()).ends_with(STENCIL_NOTE));
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

    #[test]
    fn names_of_libm_functions_are_recognised() {
        assert!(
            ["exp", "__exp_fma", "__ieee754_pow_fma", "sinf", "__log_finite", "numba_exp", "[libm.so.6]"]
                .into_iter()
                .all(is_math)
        );
        assert!(!["expand", "logger", "sincere", "if"].into_iter().any(is_math));
        assert!(
            ["malloc", "NRT_Allocate", "_int_free", "__libc_malloc", "NRT_MemInfo_call_dtor"]
                .into_iter()
                .all(is_allocation)
        );
        assert!(!["freeze", "NRT_incref", "NRT_decref", "NRT_MemInfo_varsize_realloc"].into_iter().any(is_allocation));
    }
}
