//! Instructions of x86-64.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter as _, GasFormatter, Instruction as Decoded, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::{Class, Does, Flow, Instruction, MASK, Memory, Registers, Step, VECTOR};

/// As many instructions restore registers before a tail call.
const FARTHEST_CONSTANT: usize = 16;

fn decoder(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}

pub(super) fn steps(code: &[u8], address: u64) -> Vec<Step> {
    let all: Vec<Decoded> = decoder(code, address).into_iter().collect();
    (0..all.len()).map(|at| step(&all, at)).collect()
}

pub(super) fn instructions(code: &[u8], address: u64) -> Vec<Instruction> {
    let mut factory = InstructionInfoFactory::new();
    let all: Vec<Decoded> = decoder(code, address).into_iter().collect();
    (0..all.len()).map(|at| instruction(&all, at, &mut factory)).collect()
}

pub(super) fn text(code: &[u8], address: u64) -> String {
    let mut text = String::new();
    GasFormatter::new().format(&decoder(code, address).decode(), &mut text);
    text
}

fn step(all: &[Decoded], at: usize) -> Step {
    let decoded = &all[at];
    let target = || Some(decoded.near_branch_target()).filter(|target| *target != 0);
    let flow = match decoded.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump(target()),
        FlowControl::ConditionalBranch => Flow::Branch(target()),
        FlowControl::IndirectBranch if !is_tail_call(&all[..at], decoded) => Flow::Jump(None),
        _ => Flow::Leave,
    };
    Step { address: decoded.ip(), end: decoded.next_ip(), flow }
}

/// Whether a jump to a register goes to a constant, which is another function.
fn is_tail_call(before: &[Decoded], jump: &Decoded) -> bool {
    let mut nearest = before.iter().rev().take(FARTHEST_CONSTANT);
    let set = nearest.find(|one| one.op0_kind() == OpKind::Register && one.op0_register() == jump.op0_register());
    jump.op0_kind() == OpKind::Register && set.is_some_and(|set| set.op1_kind() == OpKind::Immediate64)
}

fn instruction(all: &[Decoded], at: usize, factory: &mut InstructionInfoFactory) -> Instruction {
    let decoded = &all[at];
    let name = name(decoded);
    let bits = vector_bits(decoded);
    let (mut read, mut written) = (Registers::default(), Registers::default());
    for used in factory.info(decoded).used_registers() {
        let register: Registers = number(used.register()).into_iter().collect();
        let access = used.access();
        if matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            read |= register;
        }
        if matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            written |= register;
        }
    }
    Instruction {
        step: step(all, at),
        does: does(decoded, &name),
        class: class(&name, bits),
        read,
        written,
        memory: memory(decoded, &name),
        sets_flags: decoded.rflags_modified() != 0,
        grows: grows(decoded),
        status: status(decoded),
    }
}

/// The mnemonic in capitals, without the `V` that AVX puts in front.
fn name(decoded: &Decoded) -> String {
    let name = format!("{:?}", decoded.mnemonic()).to_uppercase();
    match name.strip_prefix('V') {
        Some(rest) if !name.starts_with("VERR") => rest.to_owned(),
        _ => name,
    }
}

fn number(register: Register) -> Option<u8> {
    let whole = register.full_register();
    let from = |first: Register, number: u8| u8::try_from(whole as u32 - first as u32).ok().map(|at| at + number);
    match whole {
        whole if whole.is_gpr64() => from(Register::RAX, 0),
        whole if whole.is_zmm() => from(Register::ZMM0, VECTOR),
        whole if whole.is_k() => from(Register::K0, MASK),
        _ => None,
    }
}

fn vector_bits(decoded: &Decoded) -> u32 {
    let registers = (0..decoded.op_count()).filter(|operand| decoded.op_kind(*operand) == OpKind::Register);
    let bits = registers.map(|operand| decoded.op_register(operand)).map(|register| match register {
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
        return Class::Packed(bits, element.map(|(_, bits)| bits));
    }
    if name.starts_with("CVT") {
        let is_packed = name.contains("PD") || name.contains("PS") || name.contains("DQ") || name.contains("QQ");
        return if is_packed { Class::Packed(bits, None) } else { Class::Scalar };
    }
    if !FLOAT.iter().any(|start| name.starts_with(start)) {
        return Class::Other;
    }
    match name.get(name.len().saturating_sub(2)..) {
        Some("SD" | "SS") => Class::Scalar,
        Some("PD") => Class::Packed(bits, Some(64)),
        Some("PS") => Class::Packed(bits, Some(32)),
        _ => Class::Other,
    }
}

fn does(decoded: &Decoded, name: &str) -> Does {
    const MOVES: [&str; 3] = ["MOVAP", "MOVUP", "MOVDQ"];
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    let register =
        |operand: u32| (operand < decoded.op_count()).then(|| number(decoded.op_register(operand))).flatten();
    let last = || decoded.op_count().checked_sub(1).and_then(register);
    // Of two registers, the result replaces one.
    let sources = || if decoded.op_count() == 3 { [register(1), register(2)] } else { [register(0), register(1)] };
    if matches!(decoded.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        return Does::Call;
    }
    match name {
        "INVALID" => Does::Unknown,
        "DIVSD" | "DIVSS" | "DIVPD" | "DIVPS" => Does::Divide(last()),
        "DIV" | "IDIV" => Does::DivideInteger(last()),
        "CVTPS2PD" | "CVTSS2SD" => Does::Widen,
        "CVTPD2PS" | "CVTSD2SS" => Does::Narrow,
        "ADDSD" | "ADDSS" | "ADDPD" | "ADDPS" => Does::Add(sources()),
        "SUBSD" | "SUBSS" | "SUBPD" | "SUBPS" => Does::Add([sources()[0], None]),
        "MULSD" | "MULSS" | "MULPD" | "MULPS" => Does::Multiply(sources()),
        _ if starts(&["FMADD", "FMSUB", "FNMADD", "FNMSUB"]) => {
            let addend = match () {
                () if name.contains("231") => 0,
                () if name.contains("213") => 2,
                () => 1,
            };
            Does::Add([register(addend), None])
        }
        _ if name.contains("GATHER") => Does::Gather,
        _ if name.contains("SCATTER") => Does::Scatter,
        _ if starts(&["SQRT"]) => Does::SquareRoot,
        _ if starts(&["CMOV"]) => Does::ChooseInteger,
        _ if starts(&["MAXS", "MINS", "MAXP", "MINP", "BLEND"]) => Does::Choose,
        _ if starts(&["MOV"]) && decoded.has_op_mask() && !(decoded.zeroing_masking() && starts(&MOVES)) => {
            Does::Choose
        }
        _ if name.contains("COMIS") || starts(&["CMPS", "CMPP"]) => Does::Compare,
        _ if starts(&MOVES) => Does::Move,
        _ => Does::Other,
    }
}

fn memory(decoded: &Decoded, name: &str) -> Option<Memory> {
    let operand = (0..decoded.op_count()).find(|operand| decoded.op_kind(*operand) == OpKind::Memory)?;
    if matches!(decoded.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
        return None;
    }
    let (base, index) = (decoded.memory_base(), decoded.memory_index());
    Some(Memory {
        address: [base, index].into_iter().filter_map(number).collect(),
        is_stack: matches!(base, Register::RSP | Register::RBP) && index == Register::None,
        is_store: operand == 0 && name.starts_with("MOV"),
        is_atomic: decoded.has_lock_prefix() || decoded.mnemonic() == Mnemonic::Xchg,
        moves_on: false,
    })
}

fn grows(decoded: &Decoded) -> Option<(u8, u8)> {
    let target = number(decoded.op0_register()).filter(|target| *target < VECTOR)?;
    let other = match decoded.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub => number(decoded.op1_register()),
        Mnemonic::Lea => match [decoded.memory_base(), decoded.memory_index()].map(number) {
            [base, other] if base == Some(target) => other,
            [other, index] if index == Some(target) => other,
            _ => None,
        },
        _ => None,
    };
    other.map(|other| (target, other))
}

fn status(decoded: &Decoded) -> Option<Option<u32>> {
    let is_status =
        decoded.op_count() == 2 && decoded.op0_kind() == OpKind::Register && decoded.op0_register() == Register::EAX;
    match decoded.mnemonic() {
        Mnemonic::Mov if is_status => Some((decoded.op1_kind() == OpKind::Immediate32).then(|| decoded.immediate32())),
        Mnemonic::Xor if is_status => Some(None),
        _ => None,
    }
}
