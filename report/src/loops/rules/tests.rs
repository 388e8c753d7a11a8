//! Tests of the rules on facts of loops.

use super::*;
use crate::loops::facts::{Carried, Facts};
use crate::loops::hot_loop::{Entry, Remark, Surroundings};
use crate::profile::Count;

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
    for facts in [Facts { spread: 1, ..sum.clone() }, Facts { strided: 1, ..sum }, Facts { wraparounds: 1, ..values }] {
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
        let surroundings = Surroundings { is_loop: true, self_count: count(around), entry, ..Surroundings::default() };
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
    let gain = |facts: Facts| advice_in_loop(facts, "array(float64, 2d, C)", 0).first().and_then(|advice| advice.gain);
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
fn a_division_beside_a_random_number_generator_is_hidden() {
    let rule = |integer_latency| {
        let facts = Facts {
            scalar: 3,
            divisions: 2,
            invariant_divisions: 2,
            instructions: 16,
            carried: Some(Carried::Nothing),
            integer_latency,
            ..Facts::default()
        };
        advice(&Loop::from_facts(facts)).first().map(|advice| advice.rule)
    };
    assert_eq!((rule(10), rule(1)), (None, Some("invariant-divisor")));
}

#[test]
fn a_value_that_stays_the_same_is_loaded_before_the_loop() {
    let has_change = |fixed_gathers| {
        let facts = Facts { gathers: 4, fixed_gathers, packed: 16, width: 512, element: 64, ..Facts::default() };
        advice(&Loop::from_facts(facts))[0].change.is_some()
    };
    assert!(has_change(4) && !has_change(1));
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
