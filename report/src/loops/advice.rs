//! What helps: a table of rules on the facts of a loop that ran.
//!
//! A rule has a stable id (`docs/why.md` has a section for each), a condition, and a sentence that names the change, whether it changes
//! results, and the speed-up that the benchmark of `docs/why.md` measured for its kernels: a range, not a promise. The order is that of
//! the table; a loop gets the first two that apply.

use super::found::{Advice, Loop};

struct Rule {
    id: &'static str,
    applies: fn(&Loop) -> bool,
    text: fn(&Loop) -> String,
}

/// Of each loop.
const MOST: usize = 2;

pub(super) fn advice(of: &Loop) -> Vec<Advice> {
    let rules = RULES.iter().filter(|rule| (rule.applies)(of));
    rules.map(|rule| Advice { rule: rule.id, text: (rule.text)(of) }).take(MOST).collect()
}

const RULES: [Rule; 12] = [
    Rule {
        id: "object-mode",
        applies: |of| of.share_of_calls(is_object_mode) > 5.0,
        text: |_| "calls Python in each round; move the objmode block out of the loop".to_owned(),
    },
    Rule {
        id: "allocation",
        applies: |of| of.share_of_calls(is_allocation) > 10.0,
        text: |of| {
            let share = of.share_of_calls(is_allocation);
            format!(
                "{share:.0} % of it allocates and frees memory; make the array before the loop, or write the expression as a \
                 loop (usually 4 to 6 times faster)"
            )
        },
    },
    Rule {
        id: "typed-dict",
        applies: |of| of.share_of_calls(is_dict) > 20.0,
        text: |of| {
            let share = of.share_of_calls(is_dict);
            format!("{share:.0} % of it is in a typed dict; an array and an index, where keys allow it, avoid hashing")
        },
    },
    Rule {
        id: "math-call",
        applies: |of| of.share_of_calls(is_math) > 20.0,
        text: |of| {
            let (name, share) = (of.largest_call(is_math).unwrap_or_default(), of.share_of_calls(is_math));
            let name = if name.starts_with('[') { "a function of libm" } else { name };
            format!(
                "{name} is called for each value ({share:.0} % of this loop): one value at a time; Numba from PyPI has no vector \
                 math library since 0.62"
            )
        },
    },
    Rule {
        id: "reference-count",
        applies: |of| of.facts.atomics != 0 && of.facts.instructions < 200,
        text: |_| {
            "counts references with atomic operations in each round; take the object out of its container before the loop".to_owned()
        },
    },
    Rule {
        id: "float-widening",
        applies: |of| of.facts.conversions > 1 && of.facts.conversions * 4 >= of.facts.packed.max(of.facts.scalar),
        text: |_| {
            "float32 becomes float64 and back, because a literal is float64; np.float32(0.1) keeps it (usually 2 times faster; changes \
             rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "integer-division",
        applies: |of| of.facts.integer_divisions != 0,
        text: |of| {
            let count = of.facts.integer_divisions;
            let divisions =
                if count == 1 { "1 integer division".to_owned() } else { format!("{count} integer divisions") };
            format!("{divisions} by a variable; by a constant it is 1.7 to 11 times faster")
        },
    },
    Rule {
        id: "division-check",
        applies: |of| of.is_one_at_a_time() && of.facts.checked_divisions != 0,
        text: |_| {
            "one value at a time: a division by zero must raise; error_model='numpy' returns inf or nan instead (usually 2 to 4 times \
             faster)"
                .to_owned()
        },
    },
    Rule {
        id: "fp-order",
        applies: |of| of.is_one_at_a_time() && of.facts.accumulators != 0 && of.facts.recurrences == 0,
        text: |_| {
            "one value at a time: the sum keeps its order; fastmath={'reassoc'} allows several (usually 4 to 10 times faster; changes \
             rounding)"
                .to_owned()
        },
    },
    Rule {
        id: "stride",
        applies: |of| of.is_one_at_a_time() && of.vector_version_did_not_run() && of.facts.exits < 2,
        text: |_| {
            "one value at a time, although there is a vector version: the stride is not known to be 1 before it runs, or the loop is \
             short; C-contiguous arrays and an index (2 to 10 times faster)"
                .to_owned()
        },
    },
    Rule {
        id: "recurrence",
        applies: |of| of.is_one_at_a_time() && of.facts.recurrences != 0,
        text: |_| {
            "one value at a time: each round needs the one before; of a maximum or minimum, keep 4 and join them after the loop (3 to 4 \
             times faster); options do not help"
                .to_owned()
        },
    },
    Rule {
        id: "gather",
        applies: |of| of.facts.gathers + of.facts.scatters != 0 || of.facts.scalar != 0 && of.facts.indirect != 0,
        text: |of| match of.facts.gathers + of.facts.scatters {
            0 => "one value at a time: an address comes from an array; nothing to gain by options".to_owned(),
            _ => "each value is fetched by itself (gather): the last index should be the one of the inner loop"
                .to_owned(),
        },
    },
];

fn is_object_mode(name: &str) -> bool {
    name.starts_with("PyGILState_") || name.contains("numba_gil") || name.starts_with("PyObject_Call")
}

fn is_allocation(name: &str) -> bool {
    const ALLOCATORS: [&str; 6] = ["malloc", "free", "calloc", "realloc", "_int_malloc", "_int_free"];
    name.starts_with("NRT_") || ALLOCATORS.contains(&name.trim_start_matches("__libc_").trim_start_matches("cfree"))
}

fn is_dict(name: &str) -> bool {
    name.starts_with("numba_dict") || name.contains("dictobject") || name.contains("dictimpl")
}

/// `exp`, what C libraries call it inside (`__exp_fma`, `__ieee754_pow_fma`), and code of libm without a symbol.
fn is_math(name: &str) -> bool {
    const FUNCTIONS: [&str; 20] = [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan",
        "atan2", "sinh", "cosh", "tanh", "hypot", "cbrt",
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

    #[test]
    fn names_of_the_c_library_are_known() {
        assert!(
            ["exp", "__exp_fma", "__ieee754_pow_fma", "sinf", "__log_finite", "numba_exp", "[libm.so.6]"]
                .into_iter()
                .all(is_math)
        );
        assert!(!["expand", "logger", "sincere", "if"].into_iter().any(is_math));
        assert!(["malloc", "NRT_Allocate", "_int_free", "__libc_malloc"].into_iter().all(is_allocation));
        assert!(!is_allocation("freeze"));
    }
}
