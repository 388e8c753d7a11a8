//! What helps: a table of rules on the facts of a loop that ran.
//!
//! A rule has a stable id (`docs/why-rules.md` lists them), a condition, and a sentence that names the change,
//! whether it changes results, and the speed-up that `benches/why` measured for its kernels: a range,
//! not a promise. The order is that of the table; a loop gets the first two that apply.

use std::path::Path;

use super::facts::Facts;
use super::found::{Advice, Loop};

struct Rule {
    id: &'static str,
    applies: fn(&Loop) -> bool,
    text: fn(&Loop) -> String,
}

/// Larger loops spend their time in many ways.
const SMALL: u32 = 100;
/// An integer division takes as long as so many others.
const INSTRUCTIONS_A_DIVISION: u32 = 40;
/// Of each loop.
const MOST: usize = 2;

pub(super) fn advice(of: &Loop) -> Vec<Advice> {
    if is_numba_s_own(&of.around) {
        return Vec::new();
    }
    // What an unknown instruction does may be the reason.
    let rules = RULES.iter().filter(|rule| of.facts.unknown == 0 && (rule.applies)(of));
    // A cell of a notebook may have a name without an extension.
    let is_python = Path::new(&of.around).extension().is_none_or(|extension| extension == "py");
    let text = |rule: &Rule| match (is_python, (rule.text)(of)) {
        (true, text) if of.function.starts_with("stencil ") && names_option(&text) => text + OF_A_STENCIL,
        (true, text) => text,
        (false, text) => without_numba(text),
    };
    rules.map(|rule| Advice { rule: rule.id, text: text(rule) }).take(MOST).collect()
}

/// What the texts say of Numba, and what is true of any language.
const ELSEWHERE: [(&str, &str); 8] = [
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

/// Numba compiles a stencil with its default options, whatever those of its caller are.
const OF_A_STENCIL: &str = "; a stencil takes no options: write it as a loop in an @njit function";

fn names_option(text: &str) -> bool {
    ["fastmath=", "error_model="].iter().any(|option| text.contains(option))
}

fn without_numba(text: String) -> String {
    ELSEWHERE.iter().fold(text, |text, (of_numba, elsewhere)| text.replace(of_numba, elsewhere))
}

/// What the calls of some functions do, with their share.
fn part(of: &Loop, is_meant: fn(&str) -> bool, does: &str) -> String {
    format!("{:.0} % of it {does}", of.share_of_calls(is_meant))
}

const RULES: [Rule; 19] = [
    Rule {
        id: "object-mode",
        applies: |of| of.share_below(is_object_mode) > 5.0,
        text: |_| "calls Python in each round; move the objmode block out of the loop".to_owned(),
    },
    Rule {
        id: "list-growth",
        applies: |of| of.share_of_calls(is_list_growth) > 10.0,
        text: |of| {
            part(
                of,
                is_list_growth,
                "resizes a list; fill an array that is large enough by index (usually 8 times faster)",
            )
        },
    },
    Rule {
        id: "allocation",
        applies: |of| of.share_of_calls(is_allocation) > 20.0 && !is_of_strings(of),
        text: |of| {
            part(
                of,
                is_allocation,
                "allocates and frees memory; make the array before the loop, or write the expression as a \
                 loop (usually 4 to 30 times faster)",
            )
        },
    },
    Rule {
        id: "typed-dict",
        applies: |of| of.share_of_calls(is_dict) > 20.0,
        text: |of| part(of, is_dict, "is in a typed dict; an array and an index, where keys allow it, avoid hashing"),
    },
    Rule {
        id: "math-call",
        applies: |of| of.share_of_calls(is_math) > 20.0,
        text: |of| {
            let (name, share) = (of.largest_call(is_math).unwrap_or_default(), of.share_of_calls(is_math));
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
        applies: |of| {
            let is_freed = of.share_of_calls(is_allocation) > 5.0;
            let is_here = of.facts.atomics != 0 && of.facts.instructions < 200 && of.own.percent_of(of.total) > 50.0;
            let share = of.share_of_calls(is_reference_count);
            let is_short = |name: &str| is_reference_count(name) || name.starts_with("numba_list_");
            let does_little_else = of.facts.instructions < 40 && of.calls.iter().all(|(name, _)| is_short(name));
            // Numba 0.57 does not inline what takes an item out of a typed list.
            let is_item = |(name, _): &(String, _)| name.starts_with("numba.typed.listobject.");
            let takes_items = of.facts.calls == 1 && of.calls.iter().all(is_item);
            let share_of_items = if takes_items { of.share_below(is_reference_count) } else { 0.0 };
            is_here || share > 60.0 && !is_freed || share > 25.0 && does_little_else || share_of_items > 25.0
        },
        text: |_| {
            "counts references to an object in each round; take it out of its container before the loop, or use an \
             array for numbers"
                .to_owned()
        },
    },
    Rule {
        id: "float-widening",
        applies: |of| {
            let Facts { conversions, narrowings, packed, scalar, .. } = of.facts;
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
        applies: |of| {
            of.facts.calls == 0
                && of.is_innermost
                && of.facts.invariant_integer_divisions * INSTRUCTIONS_A_DIVISION >= of.facts.instructions.max(1)
        },
        text: |of| {
            let count = of.facts.invariant_integer_divisions;
            let divisions =
                if count == 1 { "1 integer division".to_owned() } else { format!("{count} integer divisions") };
            format!("{divisions} by a variable; by a constant it is 2 to 11 times faster")
        },
    },
    Rule {
        id: "division-check",
        applies: |of| of.is_one_at_a_time() && is_small(of) && of.facts.checked_divisions != 0,
        text: |_| {
            "one value at a time: a division by zero must raise; error_model='numpy' returns inf or nan instead \
             (usually 2 to 4 times faster)"
                .to_owned()
        },
    },
    Rule {
        id: "invariant-divisor",
        applies: |of| is_small(of) && of.facts.invariant_divisions != 0,
        text: |_| {
            "divides by a value that the loop does not change; fastmath={'arcp'}, or a product with its reciprocal, \
             divides once (usually 2 to 3 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "fp-order",
        applies: |of| is_sum(of) && of.facts.strided == 0,
        text: |_| {
            "one value at a time: the sum keeps its order; fastmath={'reassoc'} allows several (usually 2 to 10 times \
             faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "strided-sum",
        applies: |of| is_sum(of) && of.facts.strided != 0,
        text: |_| {
            "one value at a time: the sum keeps its order, and its values are not known to be neighbours in memory; \
             fastmath={'reassoc'} helps only with a C-contiguous array by index, the last index in the inner loop \
             (then usually 3 to 12 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "zip",
        applies: |of| {
            let Facts { exits, counted_exits, strided, scalar, .. } = of.facts;
            of.is_one_at_a_time() && is_small(of) && exits == 2 && counted_exits == 2 && strided >= 2 && scalar != 0
        },
        text: |_| {
            "one value at a time: zip asks in each round which array ends first; an index over C-contiguous arrays \
             asks once (usually 1.5 to 3 times faster)"
                .to_owned()
        },
    },
    Rule {
        id: "stride",
        applies: |of| {
            of.is_one_at_a_time() && of.vector_version_did_not_run() && of.facts.calls == 0 && of.facts.exits < 2
        },
        text: |_| {
            "one value at a time, although there is a vector version: the stride is not known to be 1 before it runs, \
             or the loop is short; C-contiguous arrays by index, the last index in the inner loop, help"
                .to_owned()
        },
    },
    Rule {
        id: "conditional-sum",
        applies: |of| {
            let Facts { conditional_sums, recurrences, strided, indirect, .. } = of.facts;
            of.is_one_at_a_time() && conditional_sums != 0 && recurrences + strided + indirect == 0
        },
        text: |_| {
            "one value at a time: a sum that only some rounds add to; `s += x if wanted else 0.0` with \
             fastmath={'reassoc'} allows several (usually 9 to 13 times faster; changes rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "maximum",
        applies: |of| {
            // Of a position that is kept beside, four are no faster. With four, or a maximum and a minimum of two, the
            // advice has been followed.
            let Facts { choices, recurrences, conditional_sums, integer_choices, .. } = of.facts;
            let others = recurrences + conditional_sums + integer_choices;
            of.is_one_at_a_time() && (1..=2).contains(&choices) && others == 0
        },
        text: |_| {
            "one value at a time: each round keeps the larger or smaller; keep 4 and join them after the loop (usually \
             2 to 4 times faster); options do not help"
                .to_owned()
        },
    },
    Rule {
        id: "recurrence",
        applies: |of| of.is_one_at_a_time() && of.facts.recurrences != 0,
        text: |_| "one value at a time: each round needs the one before; options do not help".to_owned(),
    },
    Rule {
        id: "exception-exit",
        applies: |of| {
            of.is_one_at_a_time() && is_small(of) && of.facts.exceptions != 0 && of.facts.checked_divisions == 0
        },
        text: |of| {
            let Facts { exits, counted_exits, .. } = of.facts;
            let text = if counted_exits < exits {
                "one value at a time: an exception may leave the loop (raise, or an index with boundscheck=True); \
                 check in a loop before this one (usually 1.5 to 2 times faster)"
            } else {
                // No value is looked at: it is the index.
                "one value at a time: an index is checked in each round (of a list, or with boundscheck=True); an array \
                 without that check can compute several"
            };
            text.to_owned()
        },
    },
    Rule {
        id: "gather",
        applies: |of| {
            let Facts { gathers, scatters, indirect, .. } = of.facts;
            is_small(of) && (gathers + scatters != 0 || of.is_one_at_a_time() && indirect != 0)
        },
        text: |of| match of.facts.gathers + of.facts.scatters {
            0 => "one value at a time: an address comes from an array; nothing to gain by options".to_owned(),
            _ => "each value is fetched by itself (gather); neighbours in memory are faster: of a[i, j], j should be \
                the inner loop's"
                .to_owned(),
        },
    },
];

/// A function of Numba's that was not inlined: readers of the advice cannot change it or its options.
fn is_numba_s_own(path: &str) -> bool {
    path.contains("/site-packages/numba/") || path.contains("/dist-packages/numba/")
}

/// A loop in which every instruction counts.
fn is_small(of: &Loop) -> bool {
    of.is_innermost && of.facts.calls == 0 && of.facts.instructions < SMALL
}

fn is_sum(of: &Loop) -> bool {
    let Facts { accumulators, recurrences, choices, conditional_sums, indirect, .. } = of.facts;
    of.is_one_at_a_time() && accumulators != 0 && recurrences + choices + conditional_sums + indirect == 0
}

fn is_object_mode(name: &str) -> bool {
    name.starts_with("PyGILState_") || name.contains("numba_gil") || name.starts_with("PyObject_Call")
}

fn is_allocation(name: &str) -> bool {
    const ALLOCATORS: [&str; 6] = ["malloc", "free", "calloc", "realloc", "_int_malloc", "_int_free"];
    let is_of_numba = name.starts_with("NRT_") && !name.ends_with("cref") && !is_list_growth(name);
    is_of_numba || ALLOCATORS.contains(&name.trim_start_matches("__libc_").trim_start_matches("cfree"))
}

/// Each new string needs memory of its own.
fn is_of_strings(of: &Loop) -> bool {
    of.calls.iter().any(|(name, _)| name.starts_with("numba.cpython.unicode."))
        || of.lines.iter().any(|(path, _)| path.ends_with("numba/cpython/unicode.py"))
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

/// `exp`, what C libraries call it inside (`__exp_fma`, `__ieee754_pow_fma`), and code of libm without a symbol.
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
    fn advice_for_other_languages_has_no_words_of_numba() {
        let source = include_str!("advice.rs").replace("\\\n", "");
        let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for (of_numba, _) in ELSEWHERE {
            assert_eq!(source.matches(of_numba).count().min(2), 2, "no rule says {of_numba}");
        }
        let said = ELSEWHERE.map(|(of_numba, _)| of_numba).join(", ");
        let said = without_numba(said);
        assert!(
            ["Numba", "np.", "fastmath=", "error_model", "boundscheck", "icc_rt"]
                .iter()
                .all(|word| !said.contains(word))
        );
    }

    #[test]
    fn a_check_of_an_index_is_no_check_of_a_value() {
        let text = |counted_exits| {
            let facts = Facts { scalar: 1, exits: 2, exceptions: 1, counted_exits, ..Facts::default() };
            let [advice] = &advice(&Loop::of_facts(facts))[..] else { panic!("one advice") };
            (advice.rule, advice.text.contains("an index is checked"))
        };
        assert_eq!((text(1), text(2)), (("exception-exit", false), ("exception-exit", true)));
    }

    #[test]
    fn advice_that_was_followed_is_not_repeated() {
        let count = |choices| advice(&Loop::of_facts(Facts { scalar: 8, choices, ..Facts::default() })).len();
        assert_eq!([0, 1, 2, 4].map(count), [0, 1, 1, 0]);
    }

    #[test]
    fn a_typed_list_that_is_called_counts_references() {
        let count = |samples| Count { weight: samples, samples };
        let rules = |callee: &str| {
            let below = ["NRT_incref", "handle_index"].map(|leaf| ((callee.to_owned(), leaf.to_owned()), count(40)));
            let facts = Facts { scalar: 1, calls: 1, instructions: 18, ..Facts::default() };
            let calls = vec![(callee.to_owned(), count(80))];
            let of = Loop { calls, below: below.to_vec(), total: count(100), ..Loop::of_facts(facts) };
            advice(&of).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules("numba.typed.listobject.impl_getitem"), ["reference-count"]);
        assert!(rules("prog.of_arrays").is_empty());
    }

    #[test]
    fn a_stencil_takes_no_options() {
        let text = |function: &str, facts: Facts| {
            let of = Loop { function: function.to_owned(), ..Loop::of_facts(facts) };
            advice(&of).remove(0).text
        };
        let sum = Facts { scalar: 1, accumulators: 1, ..Facts::default() };
        assert!(text("stencil prog.py:9", sum.clone()).ends_with(OF_A_STENCIL));
        assert!(!text("prog.stencil", sum).contains("stencil"));
        let running = Facts { scalar: 1, recurrences: 1, ..Facts::default() };
        assert!(!text("stencil prog.py:9", running).contains("stencil"));
    }

    #[test]
    fn loops_of_numba_itself_get_no_advice() {
        let facts = Facts { scalar: 1, accumulators: 1, ..Facts::default() };
        let rules = |around: &str| {
            let of = Loop { around: around.to_owned(), ..Loop::of_facts(facts.clone()) };
            advice(&of).iter().map(|advice| advice.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules("/home/me/numba/prog.py"), ["fp-order"]);
        assert!(rules("/venv/lib/python3.11/site-packages/numba/np/arraymath.py").is_empty());
    }

    #[test]
    fn names_of_the_c_library_are_known() {
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
