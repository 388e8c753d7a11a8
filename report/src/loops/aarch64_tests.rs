//! Tests of loop facts for the kernels in `benches/why/kernels.py`, compiled for aarch64 by Numba
//! (`benches/why/aarch64.py`).

use super::facts::Facts;
use super::hot_loop::Loop;
use super::{analysis, rules};
use crate::machine::graph;
use crate::machine::{Flow, Machine};

fn innermost(code: &[u8]) -> Vec<Facts> {
    let instructions = Machine::Aarch64.instructions(code, 0);
    let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
    let natural_loops = graph::find_loops(&steps).into_iter().filter(|natural_loops| natural_loops.is_innermost);
    natural_loops.map(|natural_loops| analysis::loop_facts(&instructions, &natural_loops)).collect()
}

fn kernel_code(kernel: &str) -> Vec<u8> {
    let is_name = |line: &str| u32::from_str_radix(line.split(' ').next().unwrap_or_default(), 16).is_err();
    let lines = include_str!("aarch64.txt").lines().skip_while(|line| *line != kernel).skip(1);
    let words = lines.take_while(|line| !is_name(line)).flat_map(str::split_whitespace);
    words.flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_le_bytes()).collect()
}

/// Describes each loop by its number of lanes and the rules that apply without samples, as in `2x, 1x fp-order`.
fn describe_loops(kernel: &str) -> String {
    let loops = innermost(&kernel_code(kernel)).into_iter().map(|facts| {
        let hot_loop = Loop::from_facts(facts);
        let rules = rules::advice(&hot_loop).into_iter().map(|advice| advice.rule);
        [hot_loop.chip()].iter().map(String::as_str).chain(rules).collect::<Vec<_>>().join(" ")
    });
    loops.collect::<Vec<_>>().join(", ")
}

#[test]
fn loops_of_real_kernels() {
    let expected = [
        ("total", "1x fp-order, 1x fp-order"),
        ("total_changed", "2x, 1x fp-order"),
        ("dot", "1x fp-order, 1x fp-order"),
        ("scaled", "1x, 2x"),
        ("ratio", "1x division-check"),
        ("widened", "2x float-widening, 1x float-widening"),
        ("bins", "1x integer-division, 2x, 1x"),
        ("running", "1x recurrence"),
        ("chosen", "1x gather"),
        ("iterated", "1x fp-order, 1x strided-sum"),
        ("roots", "2x, 1x"),
        ("smoothed_in_place", "1x recurrence"),
        ("largest", "1x"),
        ("present", "1x conditional-sum"),
        ("refused", "1x exception-exit"),
        ("by_scalar", "2x invariant-divisor, 1x invariant-divisor"),
        ("complex_product", "2x, 2x"),
    ];
    for (kernel, loops) in expected {
        assert_eq!(describe_loops(kernel), loops, "{kernel}");
    }
}

#[test]
fn calls_spills_and_exits() {
    let [vector, scalar] = &innermost(&kernel_code("bell"))[..] else { panic!("two loops") };
    assert_eq!((vector.calls, vector.spills, vector.memory, vector.packed), (2, 4, 2, 0));
    assert_eq!((scalar.calls, scalar.spills, scalar.memory), (2, 0, 4));
    let [ratio] = &innermost(&kernel_code("ratio"))[..] else { panic!("one loop") };
    assert_eq!((ratio.divisions, ratio.checked_divisions, ratio.exits, ratio.exceptions), (1, 1, 2, 1));
}

/// Machine code: `movz x8, #1; movk x8, #2, lsl #16; br x8`, then the same jump without a constant.
#[test]
fn a_jump_to_a_constant_leaves_the_function() {
    let flow = |code: &[u32]| {
        let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        Machine::Aarch64.steps(&code, 0).last().unwrap().flow
    };
    assert_eq!(flow(&[0xd2800028, 0xf2a00048, 0xd61f0100]), Flow::Leave);
    assert_eq!(flow(&[0xd503201f, 0xd61f0100]), Flow::Jump(None));
}

/// Machine code: `ldr d0, [x9], #8; ptrue p0.d; subs x7, x7, #1; b.ne; ret`.
#[test]
fn loops_with_unknown_instructions_get_no_advice() {
    let code: Vec<u8> = [0xfc408520_u32, 0x25d8e3e0, 0xf10004e7, 0x54ffffa1, 0xd65f03c0]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let [facts] = &innermost(&code)[..] else { panic!("one loop") };
    assert_eq!((facts.instructions, facts.unknown), (4, 1));
    assert_eq!(Machine::Aarch64.text(&code[4..], 4), ".inst 0x25d8e3e0");
    assert_eq!(Machine::Aarch64.text(&code[12..], 12), "b.ne 0x0");
    let hot_loop = Loop::from_facts(Facts { scalar: 1, accumulators: 1, unknown: 1, ..Facts::default() });
    assert_eq!((hot_loop.chip().as_str(), rules::advice(&hot_loop)), ("?x", Vec::new()));
}
