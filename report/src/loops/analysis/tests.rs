//! Tests of the analysis.

use super::*;
use crate::loops::hot_loop::Entry;
use crate::machine::Machine;
use crate::machine::graph;

/// Returns the facts of the only loop in the code.
fn facts_of(bytes: &[u8]) -> Facts {
    let instructions = Machine::X86_64.instructions(bytes, 0x1000);
    let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
    let [natural_loop] = &graph::find_loops(&steps)[..] else { panic!("one loop: {instructions:?}") };
    loop_facts(&instructions, natural_loop)
}

#[test]
fn a_sum_is_an_accumulator() {
    // addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
    assert_eq!((facts.scalar, facts.accumulators, facts.recurrences, facts.exits), (1, 1, 0, 1));
    assert!(!facts.is_vectorised());
}

#[test]
fn a_row_is_computed_again_only_beside_a_store() {
    // mov rax, [rdx+rbx*8]; imul rax, r9; vmovsd xmm0, [rax+rcx*8]; vmovsd [rsi+rcx*8], xmm0; inc rcx; cmp r8, rcx;
    // jne; ret
    let row = b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\xc5\xfb\x10\x04\xc8\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\x39\xc8\x75\
          \xe6\xc3";
    // The same with add rax, rcx and [rdi+rax*8].
    let element =
        b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\x48\x01\xc8\xc5\xfb\x10\x04\xc7\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\
          \x39\xc8\x75\xe3\xc3";
    // mov r10, rcx and sub r10, rax instead of imul, and [rdi+r10*8].
    let offset =
        b"\x48\x8b\x04\xda\x49\x89\xca\x49\x29\xc2\xc4\xa1\x7b\x10\x04\xd7\xc5\xfb\x11\x04\xce\x48\xff\xc1\x49\
          \x39\xc8\x75\xe3\xc3";
    // As the first, with vaddsd xmm1, xmm1, xmm0 instead of the store.
    let sum = b"\x48\x8b\x04\xda\x49\x0f\xaf\xc1\xc5\xfb\x10\x04\xc8\xc5\xf3\x58\xc8\x48\xff\xc1\x49\x39\xc8\x75\xe7\
          \xc3";
    let counts = |code: &[u8]| {
        let facts = facts_of(code);
        (facts.repeated_loads, facts.repeated_rows, facts.repeated_offsets)
    };
    assert_eq!(
        [counts(row), counts(element), counts(offset), counts(sum)],
        [(1, 1, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0)]
    );
}

#[test]
fn a_stride_may_be_on_the_stack() {
    // addsd xmm0, [rdi]; add rdi, [rbp-8]; dec rsi; jne; ret
    assert_eq!(facts_of(b"\xf2\x0f\x58\x07\x48\x03\x7d\xf8\x48\xff\xce\x75\xf3\xc3").strided, 1);
}

#[test]
fn a_store_by_mask_is_a_store() {
    // vcmpltpd ymm6, ymm2, [rsi+rcx]; vmaskmovpd [rsi+rcx], ymm6, ymm2; add rcx, 32; cmp rdx, rcx; jne; ret
    let facts = facts_of(b"\xc5\xed\xc2\x34\x0e\x01\xc4\xe2\x4d\x2f\x14\x0e\x48\x83\xc1\x20\x48\x39\xca\x75\xeb\xc3");
    assert_eq!((facts.masked_stores, facts.stores), (1, 1));
}

#[test]
fn a_product_is_an_accumulator_too() {
    // mulsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xf2\x0f\x59\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
    assert_eq!((facts.accumulators, facts.products), (1, 1));
}

#[test]
fn a_loop_starts_anew_if_nothing_of_its_last_end_is_left() {
    let entry = |code: &[u8]| {
        let instructions = Machine::X86_64.instructions(code, 0x1000);
        let steps: Vec<_> = instructions.iter().map(|instruction| instruction.step).collect();
        let loops = graph::find_loops(&steps);
        let body = |index: usize| loops[index].instructions().map(|index| &instructions[index]).collect::<Vec<_>>();
        let inner = loops.iter().position(|natural_loop| natural_loop.is_innermost).unwrap();
        classify_entry(&body(inner), &body(loops[inner].parent.unwrap()))
    };
    // outer: vmovsd xmm0, [rdi+r11*8]; vxorpd xmm1, xmm1, xmm1; xor ebx, ebx; inner: vmulsd xmm1, xmm0, xmm1
    // vaddsd xmm1, xmm1, [rsi+rbx*8]; inc rbx; cmp r10, rbx; jne inner; vmovsd [rax+r11*8], xmm1; nop; inc r11
    // cmp r11, rdx; jne outer; ret
    let polynomial =
        b"\xc4\xa1\x7b\x10\x04\xdf\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\
          \x39\xda\x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd4\xc3";
    // Without vxorpd.
    let carried =
        b"\xc4\xa1\x7b\x10\x04\xdf\x90\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\x39\xda\x75\
          \xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd7\xc3";
    // vsubsd xmm0, xmm2, xmm1 instead of the load.
    let descent =
        b"\xc5\xeb\x5c\xc1\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\x39\xda\
          \x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x90\x49\xff\xc3\x49\x39\xd3\x75\xd6\xc3";
    // add rsi, r9 instead of nop.
    let rows = b"\xc4\xa1\x7b\x10\x04\xdf\xc5\xf1\x57\xc9\x31\xdb\xc5\xfb\x59\xc9\xc5\xf3\x58\x0c\xde\x48\xff\xc3\x49\
          \x39\xda\x75\xef\xc4\xa1\x7b\x11\x0c\xd8\x4c\x01\xce\x49\xff\xc3\x49\x39\xd3\x75\xd2\xc3";
    let entries = [&polynomial[..], carried, descent, rows].map(entry);
    assert_eq!(entries, [Entry::Repeats, Entry::Continues, Entry::Continues, Entry::StartsAnew]);
}

#[test]
fn a_running_sum_that_is_stored_is_a_recurrence() {
    // addsd xmm0, [rdi+rax*8]; movsd [rdx+rax*8], xmm0; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x04\xc2\x48\xff\xc0\x48\x39\xf0\x7c\xee\xc3");
    assert_eq!((facts.accumulators, facts.recurrences), (0, 1));
}

#[test]
fn a_sum_in_one_element_is_an_accumulator_and_a_polynomial_is_not() {
    // addsd xmm0, [rdi+rax*8]; movsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
    assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
    // movsd xmm2, [rdi+rax*8]; addsd xmm2, xmm1; mulsd xmm2, xmm2; addsd xmm2, xmm0; movsd xmm0, [rdi+rax*8];
    // addsd xmm0, xmm2; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(
        b"\xf2\x0f\x10\x14\xc7\xf2\x0f\x58\xd1\xf2\x0f\x59\xd2\xf2\x0f\x58\xd0\xf2\x0f\x10\x04\xc7\xf2\x0f\x58\xc2\
          \x48\xff\xc0\x48\x39\xf0\x7c\xde\xc3",
    );
    assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
    // mulsd xmm0, xmm1; addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xf2\x0f\x59\xc1\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
    assert_eq!((facts.accumulators, facts.recurrences), (0, 1));
}

#[test]
fn divisions_by_loop_invariant_values() {
    // vmovupd ymm1, [rdi+rax*8]; vdivpd ymm1, ymm1, ymm0; add rax, 4; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xc5\xfd\x10\x0c\xc7\xc5\xf5\x5e\xc8\x48\x83\xc0\x04\x48\x39\xf0\x7c\xee\xc3");
    assert_eq!((facts.divisions, facts.invariant_divisions, facts.counted_exits), (1, 1, 1));
    // mov rax, [rdi]; cqo; idiv rcx; mov rcx, rdx; add rdi, 8; cmp rdi, rsi; jl; ret
    let facts = facts_of(b"\x48\x8b\x07\x48\x99\x48\xf7\xf9\x48\x89\xd1\x48\x83\xc7\x08\x48\x39\xf7\x7c\xec\xc3");
    assert_eq!((facts.integer_divisions, facts.invariant_integer_divisions), (1, 0));
}

#[test]
fn integers_of_a_random_number_generator_take_their_time() {
    // imul rcx, rcx, 1103515245; add rcx, 12345; and ecx, 0x7fffffff; cvtsi2sd xmm2, rcx; divsd xmm2, xmm1
    // addsd xmm0, xmm2; dec rsi; jne; ret
    let facts = facts_of(
        b"\x48\x69\xc9\x6d\x4e\xc6\x41\x48\x81\xc1\x39\x30\x00\x00\x81\xe1\xff\xff\xff\x7f\xf2\x48\x0f\x2a\xd1\xf2\x0f\x5e\xd1\xf2\x0f\x58\xc2\x48\xff\xce\x75\xda\xc3",
    );
    assert_eq!((facts.invariant_divisions, facts.integer_latency), (1, 5));
}

#[test]
fn a_maximum_is_a_choice_and_a_filtered_sum_is_conditional() {
    // vmovsd xmm1, [rdi+rax*8]; vmaxsd xmm0, xmm1, xmm0; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xc5\xfb\x10\x0c\xc7\xc5\xf3\x5f\xc0\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
    assert_eq!((facts.choices, facts.conditional_sums, facts.recurrences, facts.accumulators), (1, 0, 0, 0));
    // vmovsd xmm1, [rdi+rax*8]; vaddsd xmm2, xmm0, xmm1; vblendvpd xmm0, xmm2, xmm0, xmm3; inc rax; cmp rax, rsi;
    // jl; ret
    let facts =
        facts_of(b"\xc5\xfb\x10\x0c\xc7\xc5\xfb\x58\xd1\xc4\xe3\x69\x4b\xc0\x30\x48\xff\xc0\x48\x39\xf0\x7c\xe9\xc3");
    assert_eq!((facts.choices, facts.conditional_sums, facts.recurrences, facts.accumulators), (0, 1, 0, 0));
}

#[test]
fn a_sum_that_is_bounded_in_each_round_is_a_recurrence() {
    // vaddsd xmm0, xmm0, [rdi+rax*8]; vmaxsd xmm0, xmm0, xmm1; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xc5\xfb\x58\x04\xc7\xc5\xfb\x5f\xc1\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
    assert_eq!((facts.conditional_sums, facts.recurrences, facts.carried), (0, 1, Some(Carried::Others)));
}

#[test]
fn only_what_was_added_to_is_a_sum_in_memory() {
    // vmovsd xmm0, [rdi+rax*8]; vaddsd xmm0, xmm0, [rdx]; vmovsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
    let sum = b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x58\x02\xc5\xfb\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xeb\xc3";
    // The same with vmulsd.
    let product = b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x59\x02\xc5\xfb\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xeb\xc3";
    assert_eq!((facts_of(sum).sums_in_memory, facts_of(product).sums_in_memory), (1, 0));
}

#[test]
fn an_argument_that_differs_between_rounds_is_not_constant() {
    // movabs r12, 8; xor ebx, ebx; vmovsd xmm1, [r12+rbx*8]; call rbp; inc rbx; cmp rbx, r13; jl; ret
    let by_index =
        b"\x49\xbc\x08\0\0\0\0\0\0\0\x31\xdb\xc4\xc1\x7b\x10\x0c\xdc\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xf0\xc3";
    // The same with vmovsd xmm1, [r12].
    let fixed =
        b"\x49\xbc\x08\0\0\0\0\0\0\0\x31\xdb\xc4\xc1\x7b\x10\x0c\x24\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xf0\xc3";
    assert_eq!((facts_of(by_index).constant_arguments, facts_of(fixed).constant_arguments), (0, 1));
    // movabs rax, 8; vmovsd xmm0, [rax]; call rbp; vmovapd xmm1, xmm0; call rbp; inc rbx; cmp rbx, r13; jl; ret
    let returned = b"\x48\xb8\x08\0\0\0\0\0\0\0\xc5\xfb\x10\x00\xff\xd5\xc5\xf9\x28\xc8\xff\xd5\x48\xff\xc3\x4c\x39\
        \xeb\x7c\xe2\xc3";
    assert_eq!(facts_of(returned).constant_arguments, 0);
    // mov [rsp+8], r12; then in the loop: mov rax, [rsp+8]; vmovsd xmm1, [rax]; call rbp; ...
    let spilled =
        b"\x4c\x89\x64\x24\x08\x48\x8b\x44\x24\x08\xc5\xfb\x10\x08\xff\xd5\x48\xff\xc3\x4c\x39\xeb\x7c\xed\xc3";
    assert_eq!(facts_of(spilled).constant_arguments, 0);
}

#[test]
fn a_result_that_is_read_again_is_carried() {
    // vmovsd xmm0, [rdi+rax*8]; vdivsd xmm0, xmm0, [rsi+rax*8]; vmovsd [rdi+rax*8], xmm0
    // inc rax; cmp rax, rdx; jl; ret
    let in_place = b"\xc5\xfb\x10\x04\xc7\xc5\xfb\x5e\x04\xc6\xc5\xfb\x11\x04\xc7\x48\xff\xc0\x48\x39\xd0\x7c\xe9\xc3";
    // The same with [rdi+rax*8-8] loaded first.
    let running =
        b"\xc5\xfb\x10\x44\xc7\xf8\xc5\xfb\x5e\x04\xc6\xc5\xfb\x11\x04\xc7\x48\xff\xc0\x48\x39\xd0\x7c\xe8\xc3";
    assert_eq!(
        (facts_of(in_place).carried, facts_of(running).carried),
        (Some(Carried::Nothing), Some(Carried::Others))
    );
}

#[test]
fn an_array_is_reloaded_or_pointed_to() {
    // mov rax, [rdi+8]; vmovsd xmm0, [rax+rcx*8]; inc rcx; cmp rcx, rsi; jl; ret
    let attribute = facts_of(b"\x48\x8b\x47\x08\xc5\xfb\x10\x04\xc8\x48\xff\xc1\x48\x39\xf1\x7c\xef\xc3");
    // The same with mov rax, [rdi+rcx*8], and [rax].
    let list = facts_of(b"\x48\x8b\x04\xcf\xc5\xfb\x10\x00\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
    let counts = |facts: Facts| (facts.indirect, facts.reloads, facts.pointers);
    assert_eq!((counts(attribute), counts(list)), ((1, 1, 0), (1, 0, 1)));
}

#[test]
fn only_an_index_descends() {
    // vmovsd xmm0, [rdi+rcx*8]; add rcx, -1; cmp rcx, rsi; jg; ret
    let index = facts_of(b"\xc5\xfb\x10\x04\xcf\x48\x83\xc1\xff\x48\x39\xf1\x7f\xf2\xc3");
    // vmovsd xmm0, [rdi]; add rdi, 8; dec rcx; jne; ret
    let counter = facts_of(b"\xc5\xfb\x10\x07\x48\x83\xc7\x08\x48\xff\xc9\x75\xf3\xc3");
    assert_eq!((index.descends, counter.descends), (true, false));
    // vpsubq ymm1, ymm0, ymm2; vpaddq ymm2, ymm2, ymm3; inc rcx; cmp rcx, rsi; jl; ret
    let subtracted = facts_of(b"\xc5\xfd\xfb\xca\xc5\xed\xd4\xd3\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
    // The same with vpsubq ymm1, ymm2, ymm0.
    let reduced = facts_of(b"\xc5\xed\xfb\xc8\xc5\xed\xd4\xd3\x48\xff\xc1\x48\x39\xf1\x7c\xf0\xc3");
    assert_eq!((subtracted.descends, reduced.descends), (true, false));
}

#[test]
fn only_an_integer_at_one_address_is_counted_in_memory() {
    // inc qword [rax]; inc rcx; cmp rcx, rsi; jl; ret
    let counter = facts_of(b"\x48\xff\x00\x48\xff\xc1\x48\x39\xf1\x7c\xf5\xc3");
    // The same with inc qword [rax+rcx*8].
    let counters = facts_of(b"\x48\xff\x04\xc8\x48\xff\xc1\x48\x39\xf1\x7c\xf4\xc3");
    assert_eq!((counter.counts_in_memory, counters.counts_in_memory), (1, 0));
}

#[test]
fn a_divisor_that_is_set_again_is_not_shared() {
    // movsd xmm0, [rdi+rcx*8]; divsd xmm1, xmm0; divsd xmm2, xmm0; inc rcx; cmp rcx, rsi; jl; ret
    let shared = facts_of(b"\xf2\x0f\x10\x04\xcf\xf2\x0f\x5e\xc8\xf2\x0f\x5e\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3");
    // The same with sqrtsd xmm0, xmm0 between the divisions.
    let separate = facts_of(
        b"\xf2\x0f\x10\x04\xcf\xf2\x0f\x5e\xc8\xf2\x0f\x51\xc0\xf2\x0f\x5e\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xe7\xc3",
    );
    assert_eq!((shared.shared_divisions, separate.shared_divisions), (1, 0));
}

#[test]
fn fields_of_records_are_as_far_apart_as_the_records() {
    // vmovsd xmm1, [rdi]; vmulsd xmm1, xmm1, [rdi+8]; vaddsd xmm0, xmm0, xmm1; add rdi, 48; dec rsi; jne; ret
    let facts =
        facts_of(b"\xc5\xfb\x10\x0f\xc5\xf3\x59\x4f\x08\xc5\xfb\x58\xc1\x48\x83\xc7\x30\x48\xff\xce\x75\xea\xc3");
    assert_eq!((facts.accumulators, facts.additions, facts.spread, facts.unrolled), (1, 1, 6, 2));
}

#[test]
fn counters_on_branches_are_counted() {
    // vucomisd xmm0, [rdi+rcx*8]; ja +5; inc rdx; jmp +3; inc rax; inc rcx; cmp rcx, rsi; jl; ret
    let code = b"\xc5\xf9\x2e\x04\xcf\x77\x05\x48\xff\xc2\xeb\x03\x48\xff\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
    assert_eq!((facts_of(code).branched_counts, facts_of(code).exits), (2, 1));
}

#[test]
fn a_sum_on_a_branch_is_counted_if_nothing_else_is_carried() {
    // vmovsd xmm1, [rdi+rcx*8]; vucomisd xmm1, xmm2; jae +4; vaddsd xmm0, xmm1, xmm0
    // inc rcx; cmp rcx, rsi; jl; ret
    let sum = b"\xc5\xfb\x10\x0c\xcf\xc5\xf9\x2e\xca\x73\x04\xc5\xf3\x58\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
    // The same with vmulsd.
    let product = b"\xc5\xfb\x10\x0c\xcf\xc5\xf9\x2e\xca\x73\x04\xc5\xf3\x59\xc0\x48\xff\xc1\x48\x39\xf1\x7c\xe9\xc3";
    let facts = [&sum[..], &product[..]].map(facts_of);
    assert_eq!(facts.clone().map(|facts| facts.branched_sums), [1, 0]);
    assert!(facts.iter().all(|facts| facts.carries_floats && facts.carried.is_none()));
}

#[test]
fn what_is_read_decides_no_address_of_a_check() {
    // cmp rcx, rsi; je end; mov rdx, [rdi+rcx*8]; inc rcx; cmp rdx, rax; jne; ret
    let check = b"\x48\x39\xf1\x74\x0c\x48\x8b\x14\xcf\x48\xff\xc1\x48\x39\xc2\x75\xef\xc3";
    // The same with mov rcx, [rdi+rcx*8], as in a chain of a hash table.
    let chain = b"\x48\x39\xf1\x74\x0c\x48\x8b\x0c\xcf\x48\xff\xc1\x48\x39\xc2\x75\xef\xc3";
    assert_eq!([&check[..], &chain[..]].map(|code| facts_of(code).only_reads_in_order), [true, false]);
}

#[test]
fn an_integer_divisor_is_checked_before_its_conversion() {
    // mov r10, [rdx+r9*8]; test r10, r10; je end; vcvtsi2sd xmm0, xmm15, r10; vmovsd xmm1, [r8+r9*8];
    // vdivsd xmm0, xmm1, xmm0; vmovsd [rcx+r9*8], xmm0; inc r9; cmp rax, r9; jne; ret
    let code = b"\x4e\x8b\x14\xca\x4d\x85\xd2\x74\x1d\xc4\xc1\x83\x2a\xc2\xc4\x81\x7b\x10\x0c\xc8\xc5\xf3\x5e\xc0\
        \xc4\xa1\x7b\x11\x04\xc9\x49\xff\xc1\x4c\x39\xc8\x75\xda\xc3";
    let facts = facts_of(code);
    assert_eq!((facts.divisions, facts.checked_divisions, facts.exits), (1, 1, 2));
}

#[test]
fn a_value_of_the_round_before_is_no_recurrence() {
    // vmulsd xmm1, xmm1, xmm2; vaddsd xmm0, xmm1, xmm0; vmovsd xmm1, [rdi+rcx*8]; inc rcx; cmp rcx, rsi; jl; ret
    let code = b"\xc5\xf3\x59\xca\xc5\xf3\x58\xc0\xc5\xfb\x10\x0c\xcf\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3";
    let facts = facts_of(code);
    assert_eq!((facts.accumulators, facts.recurrences), (1, 0));
}

#[test]
fn packed_additions_have_a_width_and_lanes() {
    // vaddpd ymm0, ymm0, [rdi+rax*8]; add rax, 4; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\xc5\xfd\x58\x04\xc7\x48\x83\xc0\x04\x48\x39\xf0\x7c\xf2\xc3");
    assert_eq!((facts.width, facts.lanes(), facts.packed), (256, 4, 1));
    assert!(facts.is_vectorised());
}

#[test]
fn an_index_from_an_array_is_indirect() {
    // mov rcx, [rdx+rax*8]; sqrtsd xmm0, [rdi+rcx*8]; inc rax; cmp rax, rsi; jl; ret
    let facts = facts_of(b"\x48\x8b\x0c\xc2\xf2\x0f\x51\x04\xcf\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
    assert_eq!((facts.indirect, facts.square_roots, facts.accumulators), (1, 1, 0));
}

#[test]
fn products_of_several_indices_are_counted() {
    // vpmullq zmm10, zmm9, zmm0; vmovdqa64 zmm11, zmm10; inc rcx; cmp rcx, rsi; jl; ret
    let facts = facts_of(b"\x62\x72\xb5\x48\x40\xd0\x62\x51\xfd\x48\x6f\xda\x48\xff\xc1\x48\x39\xf1\x7c\xec\xc3");
    assert_eq!(facts.packed_products, 1);
}

#[test]
fn a_division_by_a_constant_is_a_wide_product() {
    // mov rax, rcx; sar rax, 63; and rax, rdx; inc rcx; cmp rcx, rsi; jl; ret
    let index = facts_of(b"\x48\x89\xc8\x48\xc1\xf8\x3f\x48\x21\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xee\xc3");
    // The same with imul rdx before sar.
    let quotient =
        facts_of(b"\x48\x89\xc8\x48\xf7\xea\x48\xc1\xf8\x3f\x48\x21\xd0\x48\xff\xc1\x48\x39\xf1\x7c\xeb\xc3");
    assert_eq!((index.wraparounds, index.wide_products), (1, 0));
    assert_eq!((quotient.wraparounds, quotient.wide_products), (1, 1));
}

#[test]
fn an_address_that_grows_by_a_register_is_strided() {
    // addsd xmm0, [rdi]; add rdi, rdx; dec rsi; jne; ret
    let facts = facts_of(b"\xf2\x0f\x58\x07\x48\x01\xd7\x48\xff\xce\x75\xf4\xc3");
    assert_eq!((facts.strided, facts.accumulators), (1, 1));
    // add rax, [rdi]; add rdi, rdx; dec rsi; jne; ret
    let facts = facts_of(b"\x48\x03\x07\x48\x01\xd7\x48\xff\xce\x75\xf5\xc3");
    assert_eq!((facts.strided, facts.strided_integers, facts.strided_stores), (0, 1, 0));
    // mov [rdi], rax; add rdi, rdx; dec rsi; jne; ret
    let facts = facts_of(b"\x48\x89\x07\x48\x01\xd7\x48\xff\xce\x75\xf5\xc3");
    assert_eq!((facts.strided_integers, facts.strided_stores), (1, 1));
    // addsd xmm0, [rdi]; add rdi, 8; dec rsi; jne; ret
    let facts = facts_of(b"\xf2\x0f\x58\x07\x48\x83\xc7\x08\x48\xff\xce\x75\xf3\xc3");
    assert_eq!((facts.strided, facts.accumulators), (0, 1));
}
