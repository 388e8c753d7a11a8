//! The facts of a loop of x86-64 instructions.

use iced_x86::{
    FlowControl, Formatter as _, GasFormatter, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use std::ops::Range;

use super::facts::{Elements, Facts};
use crate::graph::NaturalLoop;

pub(super) fn facts(instructions: &[Instruction], of: &NaturalLoop) -> Facts {
    let mut facts = Facts { exits: of.exits.len() as u32, ..Facts::default() };
    let mut elements = Elements::default();
    let own: Vec<&Instruction> = of.instructions().map(|at| &instructions[at]).collect();
    for instruction in &own {
        count(&mut facts, &mut elements, instruction);
    }
    facts.element = elements.commonest();
    facts.checked_divisions = if of.exits.len() > 1 { checked_divisions(&own) } else { 0 };
    facts.exceptions = of.exits.iter().filter(|exit| raises(instructions, **exit)).count() as u32;
    facts.indirect = indirect(&own);
    let changed = changed(&own);
    facts.strided = strided(&own, &changed);
    invariant_divisions(&mut facts, &own, &changed);
    facts.counted_exits = counted_exits(of, instructions);
    // Values are followed through one block only: what another path does to them is not known.
    if let [_] = of.own.as_slice() {
        carried(&mut facts, &own, &changed);
    }
    facts
}

/// An instruction as an assembler writes it.
pub(super) fn text(instruction: &Instruction) -> String {
    let mut text = String::new();
    GasFormatter::new().format(instruction, &mut text);
    text
}

/// Whether code that a loop leaves to is seen to return 1, with which a function of Numba raises.
fn raises(instructions: &[Instruction], mut at: usize) -> bool {
    /// More of it is not looked at.
    const FAR: usize = 64;
    let mut status = None;
    for _ in 0..FAR {
        let Some(instruction) = instructions.get(at) else { return false };
        let is_status = instruction.op_count() == 2
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::EAX;
        match instruction.mnemonic() {
            Mnemonic::Mov if is_status => {
                status = (instruction.op1_kind() == OpKind::Immediate32).then(|| instruction.immediate32());
            }
            Mnemonic::Xor if is_status => status = None,
            _ => {}
        }
        at = match instruction.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => at + 1,
            FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                match instructions.binary_search_by_key(&target, Instruction::ip) {
                    Ok(target) => target,
                    Err(_) => return false,
                }
            }
            FlowControl::Return => return status == Some(1),
            _ => return false,
        };
    }
    false
}

/// The class of a mnemonic, without the `V` of AVX.
enum Class {
    Packed(Option<u32>),
    Scalar,
    Other,
}

fn count(facts: &mut Facts, elements: &mut Elements, instruction: &Instruction) {
    facts.instructions += 1;
    let name = name(instruction);
    let bits = vector_bits(instruction);
    match class(&name, bits) {
        Class::Packed(element) => {
            facts.packed += 1;
            facts.width = facts.width.max(bits);
            element.into_iter().for_each(|element| elements.add(element));
        }
        Class::Scalar => facts.scalar += 1,
        Class::Other => {}
    }
    facts.gathers += u32::from(name.contains("GATHER"));
    facts.scatters += u32::from(name.contains("SCATTER"));
    facts.divisions += u32::from(is_float_division(&name));
    facts.square_roots += u32::from(name.starts_with("SQRT"));
    facts.conversions += u32::from(matches!(name.as_str(), "CVTPS2PD" | "CVTPD2PS" | "CVTSS2SD" | "CVTSD2SS"));
    facts.narrowings += u32::from(matches!(name.as_str(), "CVTPD2PS" | "CVTSD2SS"));
    facts.integer_divisions += u32::from(is_integer_division(instruction));
    facts.integer_choices += u32::from(name.starts_with("CMOV"));
    let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    facts.calls += u32::from(is_call);
    if memory_operand(instruction).is_none() {
        return;
    }
    let is_exchange = instruction.mnemonic() == Mnemonic::Xchg;
    facts.atomics += u32::from(instruction.has_lock_prefix() || is_exchange);
    if is_call || matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
        return;
    }
    if is_of_stack(instruction) { facts.spills += 1 } else { facts.memory += 1 }
}

/// The mnemonic in capitals, without the `V` that AVX puts in front.
fn name(instruction: &Instruction) -> String {
    let name = format!("{:?}", instruction.mnemonic()).to_uppercase();
    match name.strip_prefix('V') {
        Some(rest) if !name.starts_with("VERR") => rest.to_owned(),
        _ => name,
    }
}

fn vector_bits(instruction: &Instruction) -> u32 {
    let registers = (0..instruction.op_count()).filter(|operand| instruction.op_kind(*operand) == OpKind::Register);
    let bits = registers.map(|operand| instruction.op_register(operand)).map(|register| match register {
        register if register.is_zmm() => 512,
        register if register.is_ymm() => 256,
        register if register.is_xmm() => 128,
        _ => 0,
    });
    bits.max().unwrap_or(0)
}

/// Arithmetic on floating-point values, and on vectors of integers; moves are none.
fn class(name: &str, bits: u32) -> Class {
    const FLOAT: [&str; 16] = [
        "ADD", "SUB", "MUL", "DIV", "SQRT", "MAX", "MIN", "FMADD", "FMSUB", "FNMADD", "FNMSUB", "FMADDSUB", "ROUND",
        "RNDSCALE", "ADDSUB", "CMP",
    ];
    const INTEGER: [&str; 8] = ["PADD", "PSUB", "PMUL", "PCMP", "PMAX", "PMIN", "PABS", "PMADD"];
    if bits == 0 {
        return Class::Other;
    }
    if name.starts_with("UCOMIS")
        || name.starts_with("COMIS")
        || name.starts_with("CVTSI2")
        || name.starts_with("CVTTS")
    {
        return Class::Scalar;
    }
    if INTEGER.iter().any(|start| name.starts_with(start)) {
        let element = [("Q", 64), ("D", 32), ("W", 16), ("B", 8)].into_iter().find(|(end, _)| name.ends_with(end));
        return Class::Packed(element.map(|(_, bits)| bits));
    }
    if name.starts_with("CVT") {
        let is_packed = name.contains("PD") || name.contains("PS") || name.contains("DQ") || name.contains("QQ");
        return if is_packed { Class::Packed(None) } else { Class::Scalar };
    }
    if !FLOAT.iter().any(|start| name.starts_with(start)) {
        return Class::Other;
    }
    match name.get(name.len().saturating_sub(2)..) {
        Some("SD" | "SS") => Class::Scalar,
        Some("PD") => Class::Packed(Some(64)),
        Some("PS") => Class::Packed(Some(32)),
        _ => Class::Other,
    }
}

fn is_float_division(name: &str) -> bool {
    matches!(name, "DIVSD" | "DIVSS" | "DIVPD" | "DIVPS")
}

fn is_integer_division(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
}

/// Divisions by what no instruction of the loop writes: a register, or a value that was spilled.
fn invariant_divisions(facts: &mut Facts, own: &[&Instruction], changed: &[Register]) {
    for instruction in own {
        let is_float = is_float_division(&name(instruction));
        if !is_float && !is_integer_division(instruction) {
            continue;
        }
        let Some(last) = instruction.op_count().checked_sub(1) else { continue };
        let is_invariant = match instruction.op_kind(last) {
            OpKind::Register => !changed.contains(&instruction.op_register(last).full_register()),
            OpKind::Memory => is_of_stack(instruction),
            _ => false,
        };
        *(if is_float { &mut facts.invariant_divisions } else { &mut facts.invariant_integer_divisions }) +=
            u32::from(is_invariant);
    }
}

/// Exits by a comparison of integers that were not loaded in the same block.
fn counted_exits(of: &NaturalLoop, instructions: &[Instruction]) -> u32 {
    let mut factory = InstructionInfoFactory::new();
    let mut is_counted = |range: &Range<usize>| {
        let mut loaded: Vec<Register> = Vec::new();
        let mut counted = false;
        for instruction in &instructions[range.clone()] {
            let has_memory = memory_operand(instruction).is_some() && instruction.mnemonic() != Mnemonic::Lea;
            let (read, written) = registers(&mut factory, instruction, |register| register != Register::None);
            let is_from_memory = has_memory || read.iter().any(|register| loaded.contains(register));
            if instruction.rflags_modified() != 0 {
                counted = !is_from_memory && vector_bits(instruction) == 0;
            }
            loaded.retain(|register| !written.contains(register));
            if is_from_memory {
                loaded.extend(written);
            }
        }
        counted
    };
    let leaves = |range: &&Range<usize>| {
        let Some(last) = range.end.checked_sub(1).map(|at| &instructions[at]) else { return false };
        let is_inside = |address: u64| of.instructions().any(|at| instructions[at].ip() == address);
        last.flow_control() == FlowControl::ConditionalBranch
            && !(is_inside(last.near_branch_target()) && is_inside(last.next_ip()))
    };
    of.own.iter().filter(leaves).filter(|range| is_counted(range)).count() as u32
}

fn memory_operand(instruction: &Instruction) -> Option<u32> {
    (0..instruction.op_count()).find(|operand| instruction.op_kind(*operand) == OpKind::Memory)
}

fn is_of_stack(instruction: &Instruction) -> bool {
    matches!(instruction.memory_base(), Register::RSP | Register::RBP) && instruction.memory_index() == Register::None
}

/// Divisions by a register that is compared in the loop, too: a divisor that must not be zero.
fn checked_divisions(own: &[&Instruction]) -> u32 {
    let compared: Vec<Register> = own
        .iter()
        .filter(|instruction| name(instruction).contains("COMIS"))
        .flat_map(|instruction| (0..instruction.op_count()).map(|operand| instruction.op_register(operand)))
        .filter(|register| *register != Register::None)
        .collect();
    let is_checked = |instruction: &&&Instruction| {
        let Some(last) = instruction.op_count().checked_sub(1) else { return false };
        is_float_division(&name(instruction)) && compared.contains(&instruction.op_register(last))
    };
    own.iter().filter(is_checked).count() as u32
}

/// Accesses whose address was loaded in the same round, not from the stack.
fn indirect(own: &[&Instruction]) -> u32 {
    let mut factory = InstructionInfoFactory::new();
    let mut loaded: Vec<Register> = Vec::new();
    let mut found = 0;
    for instruction in own {
        let has_memory = memory_operand(instruction).is_some();
        let is_access = has_memory && !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
        let address = [instruction.memory_base(), instruction.memory_index()].map(Register::full_register);
        if is_access && address.iter().any(|register| loaded.contains(register)) {
            found += 1;
        }
        let (read, written) = registers(&mut factory, instruction, Register::is_gpr);
        let is_load = is_access && !is_of_stack(instruction);
        // Through additions, masks and selections of an index.
        let is_from_loaded = !is_access && read.iter().any(|register| loaded.contains(register));
        loaded.retain(|register| !written.contains(register));
        if is_load || is_from_loaded {
            loaded.extend(written);
        }
    }
    found
}

/// Every register that the loop changes.
fn changed(own: &[&Instruction]) -> Vec<Register> {
    let mut factory = InstructionInfoFactory::new();
    let written =
        |instruction: &&Instruction| registers(&mut factory, instruction, |register| register != Register::None).1;
    own.iter().flat_map(written).collect()
}

/// Accesses of vector registers whose address grows in each round by a register that the loop does not change.
fn strided(own: &[&Instruction], changed: &[Register]) -> u32 {
    let moved: Vec<Register> = own
        .iter()
        .filter_map(|instruction| {
            let target = instruction.op0_register().full_register();
            let is_moved = match instruction.mnemonic() {
                Mnemonic::Add | Mnemonic::Sub => {
                    instruction.op1_kind() == OpKind::Register
                        && !changed.contains(&instruction.op1_register().full_register())
                }
                Mnemonic::Lea => {
                    let address = [instruction.memory_base(), instruction.memory_index()].map(Register::full_register);
                    let other = address.iter().find(|register| **register != target);
                    address.contains(&target)
                        && other.is_some_and(|other| *other != Register::None && !changed.contains(other))
                }
                _ => false,
            };
            (is_moved && target.is_gpr()).then_some(target)
        })
        .collect();
    let is_strided = |instruction: &&&Instruction| {
        let address = [instruction.memory_base(), instruction.memory_index()].map(Register::full_register);
        vector_bits(instruction) != 0
            && memory_operand(instruction).is_some()
            && address.iter().any(|register| moved.contains(register))
    };
    own.iter().filter(is_strided).count() as u32
}

/// The whole registers of a kind that an instruction reads and writes.
fn registers(
    factory: &mut InstructionInfoFactory,
    instruction: &Instruction,
    is_kind: fn(Register) -> bool,
) -> (Vec<Register>, Vec<Register>) {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for used in factory.info(instruction).used_registers() {
        let register = used.register().full_register();
        if !is_kind(used.register()) {
            continue;
        }
        let access = used.access();
        if matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            read.push(register);
        }
        if matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            written.push(register);
        }
    }
    (read, written)
}

/// What a vector register holds, as far as it comes from the registers at the beginning of the round: a bit for each.
#[derive(Clone, Copy, Default)]
struct Value {
    /// Every register that it depends on.
    from: u32,
    /// Those that a chosen value depends on, those that something was added to, and those that went through anything
    /// else.
    chosen: u32,
    added: u32,
    other: u32,
    /// The one whose value it is, changed by additions or multiplications only.
    sum_of: Option<u32>,
    changes: u32,
    /// Whether these were multiplications, and additions.
    is_multiplied: bool,
    is_added: bool,
}

/// Values that a loop of one block carries from one round to the next.
fn carried(facts: &mut Facts, own: &[&Instruction], changed: &[Register]) {
    let number = |register: Register| register.full_register() as u32 - Register::ZMM0 as u32;
    // What the loop does not change is a constant.
    let is_changed = |at: u32| changed.iter().any(|register| register.is_zmm() && number(*register) == at);
    let mut values: [Value; 32] = std::array::from_fn(|at| match at as u32 {
        at if is_changed(at) => Value { from: 1 << at, sum_of: Some(at), ..Value::default() },
        _ => Value::default(),
    });
    // What is stored or compared depends on these.
    let (mut escaped, mut compared) = (0_u32, 0_u32);
    let (mut used_otherwise, mut factory) = (0_u32, InstructionInfoFactory::new());
    for instruction in own {
        let (read, written) = registers(&mut factory, instruction, Register::is_vector_register);
        let read: Vec<u32> = read.into_iter().map(number).filter(|at| *at < 32).collect();
        let all = |bits: fn(&Value) -> u32| read.iter().fold(0, |sum, at| sum | bits(&values[*at as usize]));
        let from = all(|value| value.from);
        let [target] = written.as_slice() else {
            // A sum that is stored in the same place each round is read after the loop only.
            if is_at_one_place(instruction, changed) {
                continue;
            }
            used_otherwise |= all(sum_bit);
            if is_comparison(instruction) {
                compared |= from;
            } else {
                escaped |= from;
            }
            continue;
        };
        let target = number(*target);
        if target >= 32 {
            continue;
        }
        let is_carried =
            |register: Register| values.get(number(register) as usize).is_some_and(|value| value.from != 0);
        let addend = addend(instruction, target, is_carried).map(number).filter(|at| *at < 32);
        let (chosen, added, other) = (all(|value| value.chosen), all(|value| value.added), all(|value| value.other));
        let mut value = Value { from, chosen, added, other, ..Value::default() };
        if is_move(instruction) && read.len() == 1 {
            value = values[read[0] as usize];
        } else if let Some(addend) = addend {
            let before = values[addend as usize];
            let is_product = name(instruction).starts_with("MUL");
            (value.sum_of, value.changes) = (before.sum_of, before.changes + 1);
            value.is_multiplied = before.is_multiplied || is_product;
            value.is_added = before.is_added || !is_product;
            let others = read.iter().filter(|at| **at != addend);
            let others = others.fold((0, 0), |(sums, from), at| {
                let value = &values[*at as usize];
                (sums | sum_bit(value), from | value.from)
            });
            used_otherwise |= others.0;
            if is_product {
                value.other |= from;
            } else {
                value.added |= before.from;
                value.other |= others.1;
            }
        } else {
            used_otherwise |= all(sum_bit);
            if is_choice(instruction) {
                value.chosen |= from;
            } else {
                value.other |= from;
            }
        }
        values[target as usize] = value;
    }
    for (at, value) in values.iter().enumerate() {
        let bit = 1_u32 << at;
        if value.from & bit == 0 || value.sum_of == Some(at as u32) && value.changes == 0 {
            continue;
        }
        let is = |bits: u32| bits & bit != 0;
        let is_mixed = value.is_multiplied && value.is_added;
        if value.sum_of == Some(at as u32) && !is(used_otherwise) && !is_mixed {
            facts.accumulators += 1;
        } else if is(escaped) || is(value.other) || !is(value.chosen) {
            facts.recurrences += 1;
        } else if !is(value.added) {
            facts.choices += 1;
        } else if !is(compared) {
            facts.conditional_sums += 1;
        } else {
            facts.recurrences += 1;
        }
    }
}

/// Whether a store goes to an address that the loop does not change; the stack holds values of the same round.
fn is_at_one_place(instruction: &Instruction, changed: &[Register]) -> bool {
    let address = [instruction.memory_base(), instruction.memory_index()].map(Register::full_register);
    let is_store = memory_operand(instruction) == Some(0) && name(instruction).starts_with("MOV");
    let is_store = is_store && !is_of_stack(instruction);
    is_store && !address.iter().any(|register| changed.contains(register))
}

fn is_comparison(instruction: &Instruction) -> bool {
    let name = name(instruction);
    name.contains("COMIS") || name.starts_with("CMPS") || name.starts_with("CMPP")
}

/// Of two values one: the larger, the smaller, or as a mask says.
fn is_choice(instruction: &Instruction) -> bool {
    let name = name(instruction);
    let is_masked_move = instruction.has_op_mask() && name.starts_with("MOV");
    is_masked_move || ["MAXS", "MINS", "MAXP", "MINP", "BLEND"].iter().any(|start| name.starts_with(start))
}

/// The register whose running sum a value is.
fn sum_bit(value: &Value) -> u32 {
    value.sum_of.map_or(0, |of| 1 << of)
}

fn is_move(instruction: &Instruction) -> bool {
    let name = name(instruction);
    name.starts_with("MOVAP") || name.starts_with("MOVUP") || name.starts_with("MOVDQ")
}

/// Of an addition, a multiplication or a fused one, the operand that an accumulator would be.
fn addend(instruction: &Instruction, target: u32, is_carried: impl Fn(Register) -> bool) -> Option<Register> {
    let name = name(instruction);
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    let register = |operand: u32| Some(instruction.op_register(operand)).filter(|register| *register != Register::None);
    if starts(&["FMADD", "FMSUB", "FNMADD", "FNMSUB"]) {
        return match () {
            () if name.contains("231") => register(0),
            () if name.contains("213") => register(2),
            () => register(1),
        };
    }
    if !matches!(
        name.as_str(),
        "ADDSD" | "ADDSS" | "MULSD" | "MULSS" | "SUBSD" | "SUBSS" | "ADDPD" | "ADDPS" | "MULPD" | "MULPS"
    ) {
        return None;
    }
    let sources = if instruction.op_count() == 3 { [register(1), register(2)] } else { [register(0), register(1)] };
    if name.starts_with("SUB") {
        return sources[0];
    }
    // Of two registers, the one with a value from before the round; of two of those, the one that the result replaces.
    let is_target = |source: &Register| source.full_register() as u32 - Register::ZMM0 as u32 == target;
    let known = sources.into_iter().flatten();
    let mut carried = known.clone().filter(|source| is_carried(*source));
    carried.clone().find(is_target).or_else(|| carried.next()).or_else(|| known.clone().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph;

    /// The facts of the only loop of some code.
    fn facts_of(bytes: &[u8]) -> Facts {
        let instructions = graph::decode(bytes, 0x1000);
        let [natural] = &graph::loops(&graph::steps(&instructions))[..] else { panic!("one loop: {instructions:?}") };
        facts(&instructions, natural)
    }

    #[test]
    fn a_sum_is_an_accumulator() {
        // addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xf3\xc3");
        assert_eq!((found.scalar, found.accumulators, found.recurrences, found.exits), (1, 1, 0, 1));
        assert!(!found.is_vectorised());
    }

    #[test]
    fn a_running_sum_that_is_stored_is_a_recurrence() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx+rax*8], xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x04\xc2\x48\xff\xc0\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((found.accumulators, found.recurrences), (0, 1));
    }

    #[test]
    fn a_sum_in_one_element_is_an_accumulator_and_a_polynomial_is_none() {
        // addsd xmm0, [rdi+rax*8]; movsd [rdx], xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x58\x04\xc7\xf2\x0f\x11\x02\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.accumulators, found.recurrences), (1, 0));
        // movsd xmm2, [rdi+rax*8]; addsd xmm2, xmm1; mulsd xmm2, xmm2; addsd xmm2, xmm0; movsd xmm0, [rdi+rax*8];
        // addsd xmm0, xmm2; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(
            b"\xf2\x0f\x10\x14\xc7\xf2\x0f\x58\xd1\xf2\x0f\x59\xd2\xf2\x0f\x58\xd0\xf2\x0f\x10\x04\xc7\xf2\x0f\x58\xc2\
              \x48\xff\xc0\x48\x39\xf0\x7c\xde\xc3",
        );
        assert_eq!((found.accumulators, found.recurrences), (1, 0));
        // mulsd xmm0, xmm1; addsd xmm0, [rdi+rax*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xf2\x0f\x59\xc1\xf2\x0f\x58\x04\xc7\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.accumulators, found.recurrences), (0, 1));
    }

    #[test]
    fn divisions_by_what_the_loop_does_not_change() {
        // vmovupd ymm1, [rdi+rax*8]; vdivpd ymm1, ymm1, ymm0; add rax, 4; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfd\x10\x0c\xc7\xc5\xf5\x5e\xc8\x48\x83\xc0\x04\x48\x39\xf0\x7c\xee\xc3");
        assert_eq!((found.divisions, found.invariant_divisions, found.counted_exits), (1, 1, 1));
        // mov rax, [rdi]; cqo; idiv rcx; mov rcx, rdx; add rdi, 8; cmp rdi, rsi; jl; ret
        let found = facts_of(b"\x48\x8b\x07\x48\x99\x48\xf7\xf9\x48\x89\xd1\x48\x83\xc7\x08\x48\x39\xf7\x7c\xec\xc3");
        assert_eq!((found.integer_divisions, found.invariant_integer_divisions), (1, 0));
    }

    #[test]
    fn a_maximum_is_a_choice_and_a_sum_of_some_is_conditional() {
        // vmovsd xmm1, [rdi+rax*8]; vmaxsd xmm0, xmm1, xmm0; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfb\x10\x0c\xc7\xc5\xf3\x5f\xc0\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.choices, found.conditional_sums, found.recurrences, found.accumulators), (1, 0, 0, 0));
        // vmovsd xmm1, [rdi+rax*8]; vaddsd xmm2, xmm0, xmm1; vblendvpd xmm0, xmm2, xmm0, xmm3; inc rax; cmp rax, rsi;
        // jl; ret
        let found = facts_of(
            b"\xc5\xfb\x10\x0c\xc7\xc5\xfb\x58\xd1\xc4\xe3\x69\x4b\xc0\x30\x48\xff\xc0\x48\x39\xf0\x7c\xe9\xc3",
        );
        assert_eq!((found.choices, found.conditional_sums, found.recurrences, found.accumulators), (0, 1, 0, 0));
    }

    #[test]
    fn packed_additions_have_a_width_and_lanes() {
        // vaddpd ymm0, ymm0, [rdi+rax*8]; add rax, 4; cmp rax, rsi; jl; ret
        let found = facts_of(b"\xc5\xfd\x58\x04\xc7\x48\x83\xc0\x04\x48\x39\xf0\x7c\xf2\xc3");
        assert_eq!((found.width, found.lanes(), found.packed), (256, 4, 1));
        assert!(found.is_vectorised());
    }

    #[test]
    fn an_index_from_an_array_is_indirect() {
        // mov rcx, [rdx+rax*8]; sqrtsd xmm0, [rdi+rcx*8]; inc rax; cmp rax, rsi; jl; ret
        let found = facts_of(b"\x48\x8b\x0c\xc2\xf2\x0f\x51\x04\xcf\x48\xff\xc0\x48\x39\xf0\x7c\xef\xc3");
        assert_eq!((found.indirect, found.square_roots, found.accumulators), (1, 1, 0));
    }

    #[test]
    fn an_address_that_grows_by_a_register_is_strided() {
        // addsd xmm0, [rdi]; add rdi, rdx; dec rsi; jne; ret
        let found = facts_of(b"\xf2\x0f\x58\x07\x48\x01\xd7\x48\xff\xce\x75\xf4\xc3");
        assert_eq!((found.strided, found.accumulators), (1, 1));
        // addsd xmm0, [rdi]; add rdi, 8; dec rsi; jne; ret
        let found = facts_of(b"\xf2\x0f\x58\x07\x48\x83\xc7\x08\x48\xff\xce\x75\xf3\xc3");
        assert_eq!((found.strided, found.accumulators), (0, 1));
    }
}
