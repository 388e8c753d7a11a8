//! Decoder for aarch64. SVE instructions are decoded as unknown.

use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction as Decoded, Opcode, Operand, SIMDSizeCode};

use super::{Class, FIRST_VECTOR, Flow, Instruction, Memory, Operation, Registers, Step};

const INSTRUCTION_BYTES: usize = 4;
/// Maximum number of instructions between a constant and the tail call that uses it. Those between the two
/// restore registers.
const MAX_INSTRUCTIONS_TO_TAIL_CALL: usize = 16;
/// Register number that encodes the stack pointer or the zero register.
const SP_OR_ZERO: u16 = 31;
const FRAME_POINTER: u16 = 29;

/// Decodes each word with its address; `None` for an unknown instruction.
fn decode_all(code: &[u8], address: u64) -> impl Iterator<Item = (u64, Option<Decoded>)> + '_ {
    let decoder = InstDecoder::default();
    let words = code.chunks_exact(INSTRUCTION_BYTES).zip((address..).step_by(INSTRUCTION_BYTES));
    words.map(move |(word, position)| (position, decoder.decode(&mut U8Reader::new(word)).ok()))
}

pub(super) fn steps(code: &[u8], address: u64) -> Vec<Step> {
    let decoded: Vec<_> = decode_all(code, address).collect();
    (0..decoded.len()).map(|index| decode_step(&decoded, index)).collect()
}

pub(super) fn instructions(code: &[u8], address: u64) -> Vec<Instruction> {
    let decoded: Vec<_> = decode_all(code, address).collect();
    (0..decoded.len())
        .map(|index| decode_instruction(decode_step(&decoded, index), decoded[index].1.as_ref()))
        .collect()
}

pub(super) fn text(code: &[u8], address: u64) -> String {
    let Some((_, decoded)) = decode_all(code, address).next() else { return String::new() };
    let Some(decoded) = decoded else {
        let word = code.iter().take(INSTRUCTION_BYTES).rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        return format!(".inst 0x{word:08x}");
    };
    let text = decoded.to_string();
    // The disassembler does not know the instruction's address, so it prints an offset after `$`.
    match (pc_offset(&decoded), text.split_once('$')) {
        (Some(offset), Some((before, _))) if decoded.opcode == Opcode::ADRP => {
            format!("{before}0x{:x}", (address & !0xfff).wrapping_add_signed(offset))
        }
        (Some(offset), Some((before, _))) => format!("{before}0x{:x}", address.wrapping_add_signed(offset)),
        _ => text,
    }
}

fn pc_offset(decoded: &Decoded) -> Option<i64> {
    decoded.operands.iter().find_map(|operand| match operand {
        Operand::PCOffset(offset) => Some(*offset),
        _ => None,
    })
}

fn decode_step(instructions: &[(u64, Option<Decoded>)], index: usize) -> Step {
    use Opcode as O;
    let (address, decoded) = (instructions[index].0, instructions[index].1.as_ref());
    let target = || decoded.and_then(pc_offset).map(|offset| address.wrapping_add_signed(offset));
    let flow = match decoded.map(|decoded| decoded.opcode) {
        Some(O::B) => Flow::Jump(target()),
        Some(O::BR) if is_tail_call(&instructions[..index], decoded) => Flow::Leave,
        Some(O::BR | O::BRAA | O::BRAAZ | O::BRAB | O::BRABZ) => Flow::Jump(None),
        Some(O::Bcc(_) | O::BCcc(_) | O::CBZ | O::CBNZ | O::TBZ | O::TBNZ) => Flow::Branch(target()),
        Some(O::RET | O::RETAA | O::RETAB | O::ERET | O::ERETAA | O::ERETAB | O::BRK | O::HLT | O::UDF) => Flow::Leave,
        _ => Flow::Next,
    };
    let is_padding = decoded.is_some_and(|decoded| decoded.opcode == O::HINT);
    Step { address, end: address.wrapping_add(INSTRUCTION_BYTES as u64), flow, is_padding }
}

/// Returns true for a jump to a register that holds a constant, which is the address of another function.
fn is_tail_call(preceding: &[(u64, Option<Decoded>)], jump: Option<&Decoded>) -> bool {
    let candidates =
        preceding.iter().rev().take(MAX_INSTRUCTIONS_TO_TAIL_CALL).filter_map(|(_, decoded)| decoded.as_ref());
    let target = jump.map(|jump| operand_registers(&jump.operands[0]));
    let setter = candidates.into_iter().find(|candidate| Some(operand_registers(&candidate.operands[0])) == target);
    setter.is_some_and(|setter| matches!(setter.opcode, Opcode::MOVZ | Opcode::MOVK))
}

fn decode_instruction(step: Step, decoded: Option<&Decoded>) -> Instruction {
    let mut out = Instruction {
        step,
        operation: Operation::Unknown,
        class: Class::Other,
        read: Registers::default(),
        written: Registers::default(),
        memory: None,
        sets_flags: false,
        increment: None,
        advance: None,
        difference: None,
        spreads_sign: false,
        multiplies_wide: false,
        multiplies_packed: false,
        multiplies_integers: false,
        stores_by_mask: false,
        is_avx: false,
        status: None,
    };
    let Some(decoded) = decoded else { return out };
    let shape = Shape::from_opcode(decoded.opcode);
    out.operation = decode_operation(decoded);
    out.class = classify(decoded);
    out.memory = memory_access(decoded, shape);
    let written = shape.written_operands();
    for (index, operand) in decoded.operands.iter().enumerate() {
        let registers = operand_registers(operand);
        if index < written && !is_address(operand) {
            out.written |= registers;
        } else {
            out.read |= registers;
        }
    }
    let is_part =
        matches!(decoded.operands[0], Operand::SIMDRegisterElementsLane(..) | Operand::SIMDRegisterGroupLane(..));
    if shape == Shape::ReadsTarget || is_part {
        out.read |= operand_registers(&decoded.operands[0]);
    }
    if out.memory.is_some_and(|memory| memory.updates_base) {
        out.written |= decoded.operands.iter().filter_map(base_register).collect();
    }
    out.sets_flags = shape == Shape::Compares || sets_flags(decoded.opcode);
    out.increment = find_increment(decoded);
    let is_status = matches!(decoded.operands[0], Operand::Register(_, 0) | Operand::RegisterOrSP(_, 0));
    out.status = (is_status && written == 1 && out.memory.is_none()).then(|| written_constant(decoded));
    out
}

/// Operands that an instruction writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Writes the first operand.
    Computes,
    /// Writes the first operand, which it also reads.
    ReadsTarget,
    /// Loads two registers from memory.
    LoadsPair,
    Stores,
    /// Writes only the flags.
    Compares,
    /// Writes no register.
    Reads,
}

/// Stores.
const STORES: &[Opcode] = {
    use Opcode::*;
    &[STP, STNP, STR, STRB, STRH, STRW, STUR, STURB, STURH, STTR, STTRB, STTRH, STLR, STLRB, STLRH, ST1, ST2, ST3, ST4]
};

/// Loads of two registers.
const PAIR_LOADS: &[Opcode] = {
    use Opcode::*;
    &[LDP, LDPSW, LDNP, LDXP, LDAXP]
};

/// Instructions that write only the flags.
const COMPARISONS: &[Opcode] = {
    use Opcode::*;
    &[FCMP, FCMPE, FCCMP, FCCMPE, CCMP, CCMN, CBZ, CBNZ, TBZ, TBNZ]
};

/// Instructions that read the register that they write.
const UPDATES: &[Opcode] = {
    use Opcode::*;
    &[
        FMLA, FMLS, MLA, MLS, BSL, BIT, BIF, INS, MOVK, BFM, SADALP, UADALP, SMLAL, UMLAL, SMLAL2, UMLAL2, SMLSL,
        UMLSL, SMLSL2, UMLSL2, SABA, UABA, SDOT, UDOT, FCMLA, XTN2, FCVTN2, SSRA, USRA, TBX,
    ]
};

/// Arithmetic on floating-point values, each result from values at the same place.
const FLOAT_ARITHMETIC: &[Opcode] = {
    use Opcode::*;
    &[
        FADD, FSUB, FMUL, FNMUL, FDIV, FSQRT, FMAX, FMIN, FMAXNM, FMINNM, FMLA, FMLS, FMADD, FMSUB, FNMADD, FNMSUB,
        FABD, FCMEQ, FCMGE, FCMGT, FCMLE, FCMLT, FACGE, FACGT, FRINTN, FRINTP, FRINTM, FRINTZ, FRINTA, FRINTX, FRINTI,
        FCMP, FCMPE, FCCMP, FCCMPE, FMULX, FCMLA, FCADD,
    ]
};

/// Arithmetic that may be on vectors of integers.
const INTEGER_ARITHMETIC: &[Opcode] = {
    use Opcode::*;
    &[
        ADD, SUB, MUL, MLA, MLS, ADDP, CMEQ, CMGE, CMGT, CMHI, CMHS, CMLE, CMLT, CMTST, SMAX, SMIN, UMAX, UMIN, ABS,
        NEG, SMULL, UMULL, SMLAL, UMLAL, SADDW, UADDW, SADDL, UADDL, SADALP, UADALP,
    ]
};

impl Shape {
    fn from_opcode(opcode: Opcode) -> Shape {
        use Opcode as O;
        match opcode {
            // The addend register of an atomic operation counts as written, too.
            O::LDADD(_) | O::LDCLR(_) | O::LDSET(_) | O::LDEOR(_) | O::SWP(_) => Shape::LoadsPair,
            O::BL | O::BLR | O::BR | O::B | O::RET | O::Bcc(_) | O::PRFM | O::PRFUM | O::HINT | O::MSR => Shape::Reads,
            _ if STORES.contains(&opcode) => Shape::Stores,
            _ if PAIR_LOADS.contains(&opcode) => Shape::LoadsPair,
            _ if COMPARISONS.contains(&opcode) => Shape::Compares,
            _ if UPDATES.contains(&opcode) => Shape::ReadsTarget,
            _ => Shape::Computes,
        }
    }

    fn written_operands(self) -> usize {
        match self {
            Shape::Computes | Shape::ReadsTarget => 1,
            Shape::LoadsPair => 2,
            Shape::Stores | Shape::Compares | Shape::Reads => 0,
        }
    }
}

fn general_register(number: u16) -> Option<u8> {
    u8::try_from(number).ok()
}

fn vector_register(number: u16) -> Option<u8> {
    u8::try_from(number).ok().map(|number| number + FIRST_VECTOR)
}

/// Returns the registers of an operand, except the zero register.
fn operand_registers(operand: &Operand) -> Registers {
    let consecutive = |first: u16, count: u8| {
        (0..u16::from(count)).filter_map(|index| vector_register((first + index) % 32)).collect()
    };
    match *operand {
        Operand::Register(_, number) | Operand::RegShift(_, _, _, number) if number == SP_OR_ZERO => {
            Registers::default()
        }
        Operand::Register(_, number) | Operand::RegShift(_, _, _, number) | Operand::RegisterOrSP(_, number) => {
            general_register(number).into_iter().collect()
        }
        Operand::RegisterPair(_, number) => {
            [general_register(number), general_register(number + 1)].into_iter().flatten().collect()
        }
        Operand::SIMDRegister(_, number)
        | Operand::SIMDRegisterElements(_, number, _)
        | Operand::SIMDRegisterElementsLane(_, number, ..)
        | Operand::SIMDRegisterElementsMultipleLane(_, number, ..) => vector_register(number).into_iter().collect(),
        Operand::SIMDRegisterGroup(_, number, _, count) | Operand::SIMDRegisterGroupLane(number, _, count, _) => {
            consecutive(number, count)
        }
        Operand::RegRegOffset(base, index, ..) if index == SP_OR_ZERO => general_register(base).into_iter().collect(),
        Operand::RegRegOffset(base, index, ..) | Operand::RegPostIndexReg(base, index) => {
            [general_register(base), general_register(index)].into_iter().flatten().collect()
        }
        Operand::RegPreIndex(base, ..) | Operand::RegPostIndex(base, _) => general_register(base).into_iter().collect(),
        _ => Registers::default(),
    }
}

fn is_address(operand: &Operand) -> bool {
    base_register(operand).is_some()
}

fn base_register(operand: &Operand) -> Option<u8> {
    match *operand {
        Operand::RegRegOffset(base, ..)
        | Operand::RegPostIndexReg(base, _)
        | Operand::RegPreIndex(base, ..)
        | Operand::RegPostIndex(base, _) => general_register(base),
        _ => None,
    }
}

fn memory_access(decoded: &Decoded, shape: Shape) -> Option<Memory> {
    use Opcode as O;
    let address = decoded.operands.iter().find(|operand| is_address(operand))?;
    if matches!(decoded.opcode, O::PRFM | O::PRFUM) {
        return None;
    }
    let is_atomic = matches!(
        decoded.opcode,
        O::LDADD(_) | O::LDCLR(_) | O::LDSET(_) | O::LDEOR(_) | O::SWP(_) | O::CAS(_) | O::CASP(_) | O::LDXR | O::LDAXR
    );
    Some(Memory {
        address: operand_registers(address),
        parts: [None; 2],
        offset: 0,
        bytes: 0,
        is_stack: matches!(
            *address,
            Operand::RegPreIndex(SP_OR_ZERO | FRAME_POINTER, ..) | Operand::RegPostIndex(SP_OR_ZERO | FRAME_POINTER, _)
        ),
        is_store: shape == Shape::Stores,
        is_atomic,
        updates_base: matches!(
            address,
            Operand::RegPreIndex(_, _, true) | Operand::RegPostIndex(..) | Operand::RegPostIndexReg(..)
        ),
    })
}

/// Returns the sizes of the element and the register of a vector operand, in bits.
fn packed_sizes(operand: &Operand) -> Option<(u32, u32)> {
    match *operand {
        Operand::SIMDRegisterElements(whole, _, element) => Some((size_bits(element), size_bits(whole))),
        _ => None,
    }
}

fn size_bits(size: SIMDSizeCode) -> u32 {
    match size {
        SIMDSizeCode::B => 8,
        SIMDSizeCode::H => 16,
        SIMDSizeCode::S => 32,
        SIMDSizeCode::D => 64,
        SIMDSizeCode::Q => 128,
    }
}

/// Returns the class of arithmetic on floating-point values and on vectors of integers. Moves are not arithmetic.
fn classify(decoded: &Decoded) -> Class {
    use Opcode as O;
    let vectors = || decoded.operands.iter().filter_map(packed_sizes);
    let width = vectors().map(|(_, bits)| bits).max();
    let element = || vectors().map(|(element, _)| element).next();
    match decoded.opcode {
        // Pairwise operations within one register end a vectorised sum or a complex product.
        O::FADDP | O::FMAXP | O::FMINP | O::FMAXNMP | O::FMINNMP => match packed_sizes(&decoded.operands[0]) {
            Some((element, width)) => Class::Packed(width, Some(element)),
            None => Class::Scalar,
        },
        O::FCVT | O::FCVTL | O::FCVTL2 | O::FCVTN | O::FCVTN2 | O::SCVTF | O::UCVTF | O::FCVTZS | O::FCVTZU => {
            width.map_or(Class::Scalar, |width| Class::Packed(width, None))
        }
        opcode if FLOAT_ARITHMETIC.contains(&opcode) => {
            width.map_or(Class::Scalar, |width| Class::Packed(width, element()))
        }
        opcode if INTEGER_ARITHMETIC.contains(&opcode) => {
            width.map_or(Class::Other, |width| Class::Packed(width, element()))
        }
        _ => Class::Other,
    }
}

fn decode_operation(decoded: &Decoded) -> Operation {
    use Opcode as O;
    let operands = &decoded.operands;
    let vector_at = |index: usize| match operands[index] {
        Operand::SIMDRegister(_, number)
        | Operand::SIMDRegisterElements(_, number, _)
        | Operand::SIMDRegisterElementsLane(_, number, ..) => vector_register(number),
        _ => None,
    };
    let general_at = |index: usize| match operands[index] {
        Operand::Register(_, number) => general_register(number),
        _ => None,
    };
    let is_lane = matches!(operands[0], Operand::SIMDRegisterGroupLane(..));
    let is_zero = |index: usize| matches!(operands[index], Operand::Register(_, SP_OR_ZERO));
    match decoded.opcode {
        O::Invalid => Operation::Unknown,
        O::BL | O::BLR | O::BLRAA | O::BLRAAZ | O::BLRAB | O::BLRABZ => Operation::Call,
        O::FADD => Operation::Add([vector_at(1), vector_at(2)]),
        O::FSUB => Operation::Add([vector_at(1), None]),
        O::FMADD | O::FMSUB | O::FNMADD | O::FNMSUB => Operation::Add([vector_at(3), None]),
        O::FMLA | O::FMLS => Operation::Add([vector_at(0), None]),
        O::FMUL | O::FNMUL => Operation::Multiply([vector_at(1), vector_at(2)]),
        O::FDIV => Operation::Divide(vector_at(2)),
        O::SDIV | O::UDIV => Operation::DivideInteger(general_at(2)),
        O::FSQRT => Operation::SquareRoot,
        O::FCMP | O::FCMPE | O::FCCMP | O::FCCMPE => Operation::Compare,
        O::FMAX | O::FMIN | O::FMAXNM | O::FMINNM | O::FCSEL | O::BSL | O::BIT | O::BIF => Operation::Choose,
        // The choice between 0 and 1 only materialises a condition.
        O::CSEL | O::CSINC | O::CSINV | O::CSNEG if !(is_zero(1) && is_zero(2)) => Operation::ChooseInteger,
        O::FCVTL | O::FCVTL2 => Operation::Widen,
        O::FCVTN | O::FCVTN2 => Operation::Narrow,
        O::FCVT => match (operands[0], operands[1]) {
            (Operand::SIMDRegister(SIMDSizeCode::D, _), _) => Operation::Widen,
            _ => Operation::Narrow,
        },
        O::LD1 if is_lane => Operation::Gather,
        O::ST1 if is_lane => Operation::Scatter,
        O::FMOV if vector_at(0).is_some() && vector_at(1).is_some() => Operation::Move,
        // Disassembled as `mov v0.16b, v1.16b`.
        O::ORR if vector_at(1).is_some() && vector_at(1) == vector_at(2) => Operation::Move,
        _ => Operation::Other,
    }
}

fn sets_flags(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(opcode, O::ADDS | O::SUBS | O::ANDS | O::BICS | O::ADCS | O::SBCS)
}

fn find_increment(decoded: &Decoded) -> Option<(u8, u8)> {
    let register_of = |operand: &Operand| match *operand {
        Operand::Register(_, number) | Operand::RegisterOrSP(_, number) | Operand::RegShift(_, _, _, number)
            if number != SP_OR_ZERO =>
        {
            general_register(number)
        }
        _ => None,
    };
    if let Some(Operand::RegPostIndexReg(base, by)) = decoded.operands.iter().find(|operand| is_address(operand)) {
        return Some((general_register(*base)?, general_register(*by)?));
    }
    if !matches!(decoded.opcode, Opcode::ADD | Opcode::SUB | Opcode::ADDS | Opcode::SUBS) {
        return None;
    }
    // Neither register is incremented in `a = b + 8 * a`.
    let [target, first, second] = [0, 1, 2].map(|index| register_of(&decoded.operands[index]));
    let is_shifted = !matches!(decoded.operands[2], Operand::RegShift(_, 0, ..));
    match target? {
        target if first == Some(target) => Some((target, second?)),
        target if second == Some(target) && !is_shifted => Some((target, first?)),
        _ => None,
    }
}

fn written_constant(decoded: &Decoded) -> Option<u32> {
    match (decoded.opcode, decoded.operands[1], decoded.operands[2]) {
        (Opcode::MOVZ, Operand::ImmShift(value, 0), _) => Some(value.into()),
        (Opcode::MOVZ, Operand::Immediate(value), _) => Some(value),
        (Opcode::ORR, Operand::Register(_, SP_OR_ZERO), Operand::Immediate(value)) => Some(value),
        (Opcode::ORR, Operand::Register(_, SP_OR_ZERO), Operand::Imm64(value)) => u32::try_from(value).ok(),
        (Opcode::ORR, Operand::Register(_, SP_OR_ZERO), Operand::RegShift(_, 0, _, SP_OR_ZERO)) => Some(0),
        _ => None,
    }
}
