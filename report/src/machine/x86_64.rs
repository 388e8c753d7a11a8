//! Decoder for x86-64.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter as _, GasFormatter, Instruction as Decoded, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::{CallTarget, Class, FIRST_MASK, FIRST_VECTOR, Flow, Instruction, Memory, Operation, Registers, Step};

/// Maximum number of instructions between a constant and the tail call that uses it. Those between the two
/// restore registers.
const MAX_INSTRUCTIONS_TO_TAIL_CALL: usize = 16;

fn decoder(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}

pub(super) fn steps(code: &[u8], address: u64) -> Vec<Step> {
    let decoded: Vec<Decoded> = decoder(code, address).into_iter().collect();
    (0..decoded.len()).map(|index| decode_step(&decoded, index)).collect()
}

pub(super) fn instructions(code: &[u8], address: u64) -> Vec<Instruction> {
    let mut factory = InstructionInfoFactory::new();
    let decoded: Vec<Decoded> = decoder(code, address).into_iter().collect();
    (0..decoded.len()).map(|index| decode_instruction(&decoded, index, &mut factory)).collect()
}

pub(super) fn text(code: &[u8], address: u64) -> String {
    let mut text = String::new();
    GasFormatter::new().format(&decoder(code, address).decode(), &mut text);
    text
}

fn decode_step(instructions: &[Decoded], index: usize) -> Step {
    let decoded = &instructions[index];
    let target = || Some(decoded.near_branch_target()).filter(|target| *target != 0);
    let flow = match decoded.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump(target()),
        FlowControl::ConditionalBranch => Flow::Branch(target()),
        // A table of targets is indexed by a register.
        FlowControl::IndirectBranch if decoded.memory_index() != Register::None => Flow::Switch,
        FlowControl::IndirectBranch if !is_tail_call(&instructions[..index], decoded) => Flow::Jump(None),
        _ => Flow::Leave,
    };
    let is_padding = matches!(decoded.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
    Step { address: decoded.ip(), end: decoded.next_ip(), flow, is_padding }
}

/// Returns the target of the call at the end of the code, if it is constant.
pub(super) fn call_target(code: &[u8], address: u64) -> Option<CallTarget> {
    let decoded: Vec<Decoded> = decoder(code, address).into_iter().collect();
    let (call, preceding) = decoded.split_last()?;
    match call.flow_control() {
        FlowControl::Call => Some(CallTarget::Relative(call.near_branch_target())).filter(|_| call.is_call_near()),
        FlowControl::IndirectCall if call.op0_kind() == OpKind::Register => {
            let sets = |setter: &&Decoded| {
                setter.op0_kind() == OpKind::Register
                    && setter.op0_register() == call.op0_register()
                    && !matches!(setter.mnemonic(), Mnemonic::Push | Mnemonic::Call | Mnemonic::Cmp | Mnemonic::Test)
            };
            let setter = preceding.iter().rev().find(sets)?;
            (setter.op1_kind() == OpKind::Immediate64).then(|| CallTarget::Absolute(setter.immediate64()))
        }
        _ => None,
    }
}

/// Returns true for a jump to a register that holds a constant, which is the address of another function.
fn is_tail_call(preceding: &[Decoded], jump: &Decoded) -> bool {
    let mut candidates = preceding.iter().rev().take(MAX_INSTRUCTIONS_TO_TAIL_CALL);
    let setter = candidates
        .find(|candidate| candidate.op0_kind() == OpKind::Register && candidate.op0_register() == jump.op0_register());
    jump.op0_kind() == OpKind::Register && setter.is_some_and(|setter| setter.op1_kind() == OpKind::Immediate64)
}

fn decode_instruction(instructions: &[Decoded], index: usize, factory: &mut InstructionInfoFactory) -> Instruction {
    let decoded = &instructions[index];
    let mnemonic = mnemonic(decoded);
    let bits = vector_bits(decoded);
    let (mut read, mut written) = (Registers::default(), Registers::default());
    for register_use in factory.info(decoded).used_registers() {
        let registers: Registers = register_number(register_use.register()).into_iter().collect();
        let access = register_use.access();
        if matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            read |= registers;
        }
        if matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            written |= registers;
        }
    }
    Instruction {
        step: decode_step(instructions, index),
        operation: decode_operation(decoded, &mnemonic),
        class: classify(&mnemonic, bits),
        read,
        written,
        memory: memory_access(decoded, &mnemonic),
        sets_flags: decoded.rflags_modified() != 0,
        increment: find_increment(decoded),
        advance: find_advance(decoded),
        difference: find_difference(decoded),
        spreads_sign: spreads_sign(decoded),
        multiplies_wide: match decoded.mnemonic() {
            Mnemonic::Mul | Mnemonic::Mulx | Mnemonic::Vpmuludq => true,
            Mnemonic::Imul => decoded.op_count() == 1,
            _ => false,
        },
        multiplies_packed: mnemonic.starts_with("PMUL"),
        multiplies_integers: matches!(decoded.mnemonic(), Mnemonic::Imul),
        stores_by_mask: stores_by_mask(decoded, &mnemonic),
        is_avx: format!("{:?}", decoded.mnemonic()).starts_with('V') && bits != 0,
        status: status_write(decoded),
    }
}

/// Returns the mnemonic in capitals, without the `V` prefix of AVX.
fn mnemonic(decoded: &Decoded) -> String {
    let mnemonic = format!("{:?}", decoded.mnemonic()).to_uppercase();
    match mnemonic.strip_prefix('V') {
        Some(rest) if !mnemonic.starts_with("VERR") => rest.to_owned(),
        _ => mnemonic,
    }
}

fn register_number(register: Register) -> Option<u8> {
    let full_register = register.full_register();
    let offset_from =
        |first: Register, base: u8| u8::try_from(full_register as u32 - first as u32).ok().map(|index| index + base);
    match full_register {
        full_register if full_register.is_gpr64() => offset_from(Register::RAX, 0),
        full_register if full_register.is_zmm() => offset_from(Register::ZMM0, FIRST_VECTOR),
        full_register if full_register.is_k() => offset_from(Register::K0, FIRST_MASK),
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

/// Returns the class of arithmetic on floating-point values and on vectors of integers. Moves are not arithmetic.
fn classify(mnemonic: &str, bits: u32) -> Class {
    const FLOAT_PREFIXES: [&str; 16] = [
        "ADD", "SUB", "MUL", "DIV", "SQRT", "MAX", "MIN", "FMADD", "FMSUB", "FNMADD", "FNMSUB", "FMADDSUB", "ROUND",
        "RNDSCALE", "ADDSUB", "CMP",
    ];
    const INTEGER_PREFIXES: [&str; 8] = ["PADD", "PSUB", "PMUL", "PCMP", "PMAX", "PMIN", "PABS", "PMADD"];
    if bits == 0 {
        return Class::Other;
    }
    if mnemonic.starts_with("UCOMIS")
        || mnemonic.starts_with("COMIS")
        || mnemonic.starts_with("CVTSI2")
        || mnemonic.starts_with("CVTTS")
    {
        return Class::Scalar;
    }
    if INTEGER_PREFIXES.iter().any(|start| mnemonic.starts_with(start)) {
        let element = [("Q", 64), ("D", 32), ("W", 16), ("B", 8)].into_iter().find(|(end, _)| mnemonic.ends_with(end));
        return Class::Packed(bits, element.map(|(_, bits)| bits));
    }
    if mnemonic.starts_with("CVT") {
        let is_packed =
            mnemonic.contains("PD") || mnemonic.contains("PS") || mnemonic.contains("DQ") || mnemonic.contains("QQ");
        return if is_packed { Class::Packed(bits, None) } else { Class::Scalar };
    }
    if !FLOAT_PREFIXES.iter().any(|start| mnemonic.starts_with(start)) {
        return Class::Other;
    }
    match mnemonic.get(mnemonic.len().saturating_sub(2)..) {
        Some("SD" | "SS") => Class::Scalar,
        Some("PD") => Class::Packed(bits, Some(64)),
        Some("PS") => Class::Packed(bits, Some(32)),
        _ => Class::Other,
    }
}

fn decode_operation(decoded: &Decoded, mnemonic: &str) -> Operation {
    const MOVE_PREFIXES: [&str; 3] = ["MOVAP", "MOVUP", "MOVDQ"];
    let has_prefix = |list: &[&str]| list.iter().any(|start| mnemonic.starts_with(start));
    let register =
        |operand: u32| (operand < decoded.op_count()).then(|| register_number(decoded.op_register(operand))).flatten();
    let last_operand = || decoded.op_count().checked_sub(1).and_then(register);
    // With two operands, the first is both source and destination.
    let sources = || if decoded.op_count() == 3 { [register(1), register(2)] } else { [register(0), register(1)] };
    if matches!(decoded.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        return Operation::Call;
    }
    match mnemonic {
        "INVALID" => Operation::Unknown,
        "DIVSD" | "DIVSS" | "DIVPD" | "DIVPS" => Operation::Divide(last_operand()),
        "DIV" | "IDIV" => Operation::DivideInteger(last_operand()),
        "CVTPS2PD" | "CVTSS2SD" => Operation::Widen,
        "CVTPD2PS" | "CVTSD2SS" => Operation::Narrow,
        "ADDSD" | "ADDSS" | "ADDPD" | "ADDPS" => Operation::Add(sources()),
        "SUBSD" | "SUBSS" | "SUBPD" | "SUBPS" => Operation::Add([sources()[0], None]),
        "ADD" | "SUB" | "INC" | "DEC" if decoded.op0_kind() == OpKind::Memory => Operation::AddInMemory,
        "MULSD" | "MULSS" | "MULPD" | "MULPS" => Operation::Multiply(sources()),
        _ if has_prefix(&["FMADD", "FMSUB", "FNMADD", "FNMSUB"]) => {
            let addend = match () {
                () if mnemonic.contains("231") => 0,
                () if mnemonic.contains("213") => 2,
                () => 1,
            };
            Operation::Add([register(addend), None])
        }
        _ if mnemonic.contains("GATHER") => Operation::Gather,
        _ if mnemonic.contains("SCATTER") => Operation::Scatter,
        _ if has_prefix(&["SQRT"]) => Operation::SquareRoot,
        _ if has_prefix(&["CMOV"]) => Operation::ChooseInteger,
        _ if has_prefix(&["MAXS", "MINS", "MAXP", "MINP", "BLEND"]) => Operation::Choose,
        _ if has_prefix(&["MOV"])
            && decoded.has_op_mask()
            && !(decoded.zeroing_masking() && has_prefix(&MOVE_PREFIXES)) =>
        {
            Operation::Choose
        }
        _ if mnemonic.contains("COMIS") || has_prefix(&["CMPS", "CMPP"]) => Operation::Compare,
        _ if has_prefix(&MOVE_PREFIXES) => Operation::Move,
        _ => Operation::Other,
    }
}

fn memory_access(decoded: &Decoded, mnemonic: &str) -> Option<Memory> {
    let operand = (0..decoded.op_count()).find(|operand| decoded.op_kind(*operand) == OpKind::Memory)?;
    if matches!(decoded.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
        return None;
    }
    let (base, index) = (decoded.memory_base(), decoded.memory_index());
    Some(Memory {
        address: [base, index].into_iter().filter_map(register_number).collect(),
        parts: [(base, 1), (index, decoded.memory_index_scale())]
            .map(|(register, factor)| Some((register_number(register)?, factor))),
        offset: decoded.memory_displacement64() as i64,
        bytes: decoded.memory_size().size() as u32,
        is_stack: is_stack(base, index),
        is_store: operand == 0 && (mnemonic.starts_with("MOV") || stores_by_mask(decoded, mnemonic)),
        is_atomic: decoded.has_lock_prefix() || decoded.mnemonic() == Mnemonic::Xchg,
        updates_base: false,
    })
}

fn is_stack(base: Register, index: Register) -> bool {
    matches!(base, Register::RSP | Register::RBP) && index == Register::None
}

fn stores_by_mask(decoded: &Decoded, mnemonic: &str) -> bool {
    decoded.op0_kind() == OpKind::Memory && (mnemonic.starts_with("MASKMOV") || mnemonic.starts_with("PMASKMOV"))
}

fn find_increment(decoded: &Decoded) -> Option<(u8, u8)> {
    let target = register_number(decoded.op0_register()).filter(|target| *target < FIRST_VECTOR)?;
    let addend = match decoded.mnemonic() {
        // A constant of the loop may be on the stack.
        Mnemonic::Add | Mnemonic::Sub if decoded.op1_kind() == OpKind::Memory => {
            let is_stack = is_stack(decoded.memory_base(), decoded.memory_index());
            register_number(decoded.memory_base()).filter(|_| is_stack)
        }
        Mnemonic::Add | Mnemonic::Sub => register_number(decoded.op1_register()),
        Mnemonic::Lea => match [decoded.memory_base(), decoded.memory_index()].map(register_number) {
            [base, addend] if base == Some(target) => addend,
            [addend, index] if index == Some(target) && decoded.memory_index_scale() == 1 => addend,
            _ => None,
        },
        _ => None,
    };
    addend.map(|addend| (target, addend))
}

fn find_advance(decoded: &Decoded) -> Option<(u8, i64)> {
    let target = register_number(decoded.op0_register()).filter(|target| *target < FIRST_VECTOR)?;
    let immediate = || is_immediate(decoded.op1_kind()).then(|| decoded.immediate(1) as i64);
    let constant = match decoded.mnemonic() {
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Add => immediate()?,
        Mnemonic::Sub => immediate()?.checked_neg()?,
        Mnemonic::Lea
            if register_number(decoded.memory_base()) == Some(target) && decoded.memory_index() == Register::None =>
        {
            decoded.memory_displacement64() as i64
        }
        _ => return None,
    };
    Some((target, constant))
}

fn find_difference(decoded: &Decoded) -> Option<(u8, u8)> {
    let is_subtraction = matches!(decoded.mnemonic(), Mnemonic::Vpsubd | Mnemonic::Vpsubq);
    let minuend = register_number(decoded.op1_register()).filter(|_| is_subtraction)?;
    Some((minuend, register_number(decoded.op2_register())?))
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8to64
            | OpKind::Immediate8to32
            | OpKind::Immediate32
            | OpKind::Immediate32to64
            | OpKind::Immediate64
    )
}

fn spreads_sign(decoded: &Decoded) -> bool {
    let last = decoded.op_count().checked_sub(1);
    matches!(decoded.mnemonic(), Mnemonic::Sar | Mnemonic::Vpsraq)
        && last.is_some_and(|last| is_immediate(decoded.op_kind(last)) && decoded.immediate(last) & 0xff == 63)
}

fn status_write(decoded: &Decoded) -> Option<Option<u32>> {
    let is_status =
        decoded.op_count() == 2 && decoded.op0_kind() == OpKind::Register && decoded.op0_register() == Register::EAX;
    match decoded.mnemonic() {
        Mnemonic::Mov if is_status => Some((decoded.op1_kind() == OpKind::Immediate32).then(|| decoded.immediate32())),
        Mnemonic::Xor if is_status => Some(None),
        _ => None,
    }
}
