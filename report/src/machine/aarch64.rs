//! Instructions of aarch64. Those of SVE are unknown to the decoder.

use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction as Decoded, Opcode, Operand, SIMDSizeCode};

use super::{Class, Does, Flow, Instruction, Memory, Registers, Step, VECTOR};

const LENGTH: usize = 4;
/// As many instructions restore registers before a tail call.
const FARTHEST_CONSTANT: usize = 16;
/// As an operand: the stack pointer, or zero.
const LAST: u16 = 31;
const FRAME: u16 = 29;

/// Each word with its address; nothing for a word that is no known instruction.
fn decoded(code: &[u8], address: u64) -> impl Iterator<Item = (u64, Option<Decoded>)> + '_ {
    let decoder = InstDecoder::default();
    let words = code.chunks_exact(LENGTH).zip((address..).step_by(LENGTH));
    words.map(move |(word, at)| (at, decoder.decode(&mut U8Reader::new(word)).ok()))
}

pub(super) fn steps(code: &[u8], address: u64) -> Vec<Step> {
    let all: Vec<_> = decoded(code, address).collect();
    (0..all.len()).map(|at| step(&all, at)).collect()
}

pub(super) fn instructions(code: &[u8], address: u64) -> Vec<Instruction> {
    let all: Vec<_> = decoded(code, address).collect();
    (0..all.len()).map(|at| instruction(step(&all, at), all[at].1.as_ref())).collect()
}

pub(super) fn text(code: &[u8], address: u64) -> String {
    let Some((_, decoded)) = decoded(code, address).next() else { return String::new() };
    let Some(decoded) = decoded else {
        let word = code.iter().take(LENGTH).rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        return format!(".inst 0x{word:08x}");
    };
    let text = decoded.to_string();
    // The decoder does not know where it is.
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

fn step(all: &[(u64, Option<Decoded>)], at: usize) -> Step {
    use Opcode as O;
    let (address, decoded) = (all[at].0, all[at].1.as_ref());
    let target = || decoded.and_then(pc_offset).map(|offset| address.wrapping_add_signed(offset));
    let flow = match decoded.map(|decoded| decoded.opcode) {
        Some(O::B) => Flow::Jump(target()),
        Some(O::BR) if is_tail_call(&all[..at], decoded) => Flow::Leave,
        Some(O::BR | O::BRAA | O::BRAAZ | O::BRAB | O::BRABZ) => Flow::Jump(None),
        Some(O::Bcc(_) | O::BCcc(_) | O::CBZ | O::CBNZ | O::TBZ | O::TBNZ) => Flow::Branch(target()),
        Some(O::RET | O::RETAA | O::RETAB | O::ERET | O::ERETAA | O::ERETAB | O::BRK | O::HLT | O::UDF) => Flow::Leave,
        _ => Flow::Next,
    };
    Step { address, end: address.wrapping_add(LENGTH as u64), flow }
}

/// Whether a jump to a register goes to a constant, which is another function.
fn is_tail_call(before: &[(u64, Option<Decoded>)], jump: Option<&Decoded>) -> bool {
    let nearest = before.iter().rev().take(FARTHEST_CONSTANT).filter_map(|(_, decoded)| decoded.as_ref());
    let target = jump.map(|jump| registers(&jump.operands[0]));
    let set = nearest.into_iter().find(|one| Some(registers(&one.operands[0])) == target);
    set.is_some_and(|set| matches!(set.opcode, Opcode::MOVZ | Opcode::MOVK))
}

fn instruction(step: Step, decoded: Option<&Decoded>) -> Instruction {
    let mut out = Instruction {
        step,
        does: Does::Unknown,
        class: Class::Other,
        read: Registers::default(),
        written: Registers::default(),
        memory: None,
        sets_flags: false,
        grows: None,
        status: None,
    };
    let Some(decoded) = decoded else { return out };
    let shape = Shape::of(decoded.opcode);
    out.does = does(decoded);
    out.class = class(decoded);
    out.memory = memory(decoded, shape);
    let written = shape.written();
    for (at, operand) in decoded.operands.iter().enumerate() {
        let registers = registers(operand);
        if at < written && !is_address(operand) {
            out.written |= registers;
        } else {
            out.read |= registers;
        }
    }
    let is_part =
        matches!(decoded.operands[0], Operand::SIMDRegisterElementsLane(..) | Operand::SIMDRegisterGroupLane(..));
    if shape == Shape::ReadsTarget || is_part {
        out.read |= registers(&decoded.operands[0]);
    }
    if out.memory.is_some_and(|memory| memory.moves_on) {
        out.written |= decoded.operands.iter().filter_map(base).collect();
    }
    out.sets_flags = shape == Shape::Compares || sets_flags(decoded.opcode);
    out.grows = grows(decoded);
    let is_status = matches!(decoded.operands[0], Operand::Register(_, 0) | Operand::RegisterOrSP(_, 0));
    out.status = (is_status && written == 1 && out.memory.is_none()).then(|| constant(decoded));
    out
}

/// Which of its operands an instruction writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// The first one.
    Computes,
    /// The first one, which it also reads.
    ReadsTarget,
    /// Two registers from memory.
    LoadsPair,
    Stores,
    /// None, but the flags.
    Compares,
    /// None.
    Reads,
}

impl Shape {
    fn of(opcode: Opcode) -> Shape {
        use Opcode as O;
        match opcode {
            O::STP
            | O::STNP
            | O::STR
            | O::STRB
            | O::STRH
            | O::STRW
            | O::STUR
            | O::STURB
            | O::STURH
            | O::STTR
            | O::STTRB
            | O::STTRH
            | O::STLR
            | O::STLRB
            | O::STLRH
            | O::ST1
            | O::ST2
            | O::ST3
            | O::ST4 => Shape::Stores,
            // Of an atomic operation, also the value that it adds.
            O::LDP
            | O::LDPSW
            | O::LDNP
            | O::LDXP
            | O::LDAXP
            | O::LDADD(_)
            | O::LDCLR(_)
            | O::LDSET(_)
            | O::LDEOR(_)
            | O::SWP(_) => Shape::LoadsPair,
            O::FCMP | O::FCMPE | O::FCCMP | O::FCCMPE | O::CCMP | O::CCMN | O::CBZ | O::CBNZ | O::TBZ | O::TBNZ => {
                Shape::Compares
            }
            O::BL | O::BLR | O::BR | O::B | O::RET | O::Bcc(_) | O::PRFM | O::PRFUM | O::HINT | O::MSR => Shape::Reads,
            O::FMLA
            | O::FMLS
            | O::MLA
            | O::MLS
            | O::BSL
            | O::BIT
            | O::BIF
            | O::INS
            | O::MOVK
            | O::BFM
            | O::SADALP
            | O::UADALP
            | O::SMLAL
            | O::UMLAL
            | O::SMLAL2
            | O::UMLAL2
            | O::SMLSL
            | O::UMLSL
            | O::SMLSL2
            | O::UMLSL2
            | O::SABA
            | O::UABA
            | O::SDOT
            | O::UDOT
            | O::FCMLA
            | O::XTN2
            | O::FCVTN2
            | O::SSRA
            | O::USRA
            | O::TBX => Shape::ReadsTarget,
            _ => Shape::Computes,
        }
    }

    fn written(self) -> usize {
        match self {
            Shape::Computes | Shape::ReadsTarget => 1,
            Shape::LoadsPair => 2,
            Shape::Stores | Shape::Compares | Shape::Reads => 0,
        }
    }
}

fn general(number: u16) -> Option<u8> {
    u8::try_from(number).ok()
}

fn vector(number: u16) -> Option<u8> {
    u8::try_from(number).ok().map(|number| number + VECTOR)
}

/// The registers of an operand; zero is none.
fn registers(operand: &Operand) -> Registers {
    let several = |first: u16, count: u8| (0..u16::from(count)).filter_map(|at| vector((first + at) % 32)).collect();
    match *operand {
        Operand::Register(_, number) | Operand::RegShift(_, _, _, number) if number == LAST => Registers::default(),
        Operand::Register(_, number) | Operand::RegShift(_, _, _, number) | Operand::RegisterOrSP(_, number) => {
            general(number).into_iter().collect()
        }
        Operand::RegisterPair(_, number) => [general(number), general(number + 1)].into_iter().flatten().collect(),
        Operand::SIMDRegister(_, number)
        | Operand::SIMDRegisterElements(_, number, _)
        | Operand::SIMDRegisterElementsLane(_, number, ..)
        | Operand::SIMDRegisterElementsMultipleLane(_, number, ..) => vector(number).into_iter().collect(),
        Operand::SIMDRegisterGroup(_, number, _, count) | Operand::SIMDRegisterGroupLane(number, _, count, _) => {
            several(number, count)
        }
        Operand::RegRegOffset(base, index, ..) if index == LAST => general(base).into_iter().collect(),
        Operand::RegRegOffset(base, index, ..) | Operand::RegPostIndexReg(base, index) => {
            [general(base), general(index)].into_iter().flatten().collect()
        }
        Operand::RegPreIndex(base, ..) | Operand::RegPostIndex(base, _) => general(base).into_iter().collect(),
        _ => Registers::default(),
    }
}

fn is_address(operand: &Operand) -> bool {
    base(operand).is_some()
}

fn base(operand: &Operand) -> Option<u8> {
    match *operand {
        Operand::RegRegOffset(base, ..)
        | Operand::RegPostIndexReg(base, _)
        | Operand::RegPreIndex(base, ..)
        | Operand::RegPostIndex(base, _) => general(base),
        _ => None,
    }
}

fn memory(decoded: &Decoded, shape: Shape) -> Option<Memory> {
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
        address: registers(address),
        is_stack: matches!(*address, Operand::RegPreIndex(LAST | FRAME, ..) | Operand::RegPostIndex(LAST | FRAME, _)),
        is_store: shape == Shape::Stores,
        is_atomic,
        moves_on: matches!(
            address,
            Operand::RegPreIndex(_, _, true) | Operand::RegPostIndex(..) | Operand::RegPostIndexReg(..)
        ),
    })
}

/// The element and the register of a vector operand, in bits.
fn packed(operand: &Operand) -> Option<(u32, u32)> {
    match *operand {
        Operand::SIMDRegisterElements(whole, _, element) => Some((bits(element), bits(whole))),
        _ => None,
    }
}

fn bits(size: SIMDSizeCode) -> u32 {
    match size {
        SIMDSizeCode::B => 8,
        SIMDSizeCode::H => 16,
        SIMDSizeCode::S => 32,
        SIMDSizeCode::D => 64,
        SIMDSizeCode::Q => 128,
    }
}

/// Arithmetic on floating-point values, and on vectors of integers; moves are none.
fn class(decoded: &Decoded) -> Class {
    use Opcode as O;
    let vectors = || decoded.operands.iter().filter_map(packed);
    let width = vectors().map(|(_, bits)| bits).max();
    match decoded.opcode {
        O::FADD
        | O::FSUB
        | O::FMUL
        | O::FNMUL
        | O::FDIV
        | O::FSQRT
        | O::FMAX
        | O::FMIN
        | O::FMAXNM
        | O::FMINNM
        | O::FMLA
        | O::FMLS
        | O::FMADD
        | O::FMSUB
        | O::FNMADD
        | O::FNMSUB
        | O::FABD
        | O::FCMEQ
        | O::FCMGE
        | O::FCMGT
        | O::FCMLE
        | O::FCMLT
        | O::FACGE
        | O::FACGT
        | O::FRINTN
        | O::FRINTP
        | O::FRINTM
        | O::FRINTZ
        | O::FRINTA
        | O::FRINTX
        | O::FRINTI
        | O::FCMP
        | O::FCMPE
        | O::FCCMP
        | O::FCCMPE
        | O::FMULX
        | O::FCMLA
        | O::FCADD => match width {
            Some(width) => Class::Packed(width, vectors().map(|(element, _)| element).next()),
            None => Class::Scalar,
        },
        // Of the values of one register: the end of a vectorised sum, or of a complex product.
        O::FADDP | O::FMAXP | O::FMINP | O::FMAXNMP | O::FMINNMP => match packed(&decoded.operands[0]) {
            Some((element, width)) => Class::Packed(width, Some(element)),
            None => Class::Scalar,
        },
        O::FCVT | O::FCVTL | O::FCVTL2 | O::FCVTN | O::FCVTN2 | O::SCVTF | O::UCVTF | O::FCVTZS | O::FCVTZU => {
            width.map_or(Class::Scalar, |width| Class::Packed(width, None))
        }
        O::ADD
        | O::SUB
        | O::MUL
        | O::MLA
        | O::MLS
        | O::ADDP
        | O::CMEQ
        | O::CMGE
        | O::CMGT
        | O::CMHI
        | O::CMHS
        | O::CMLE
        | O::CMLT
        | O::CMTST
        | O::SMAX
        | O::SMIN
        | O::UMAX
        | O::UMIN
        | O::ABS
        | O::NEG
        | O::SMULL
        | O::UMULL
        | O::SMLAL
        | O::UMLAL
        | O::SADDW
        | O::UADDW
        | O::SADDL
        | O::UADDL
        | O::SADALP
        | O::UADALP => match width {
            Some(width) => Class::Packed(width, vectors().map(|(element, _)| element).next()),
            None => Class::Other,
        },
        _ => Class::Other,
    }
}

fn does(decoded: &Decoded) -> Does {
    use Opcode as O;
    let operands = &decoded.operands;
    let vector_at = |at: usize| match operands[at] {
        Operand::SIMDRegister(_, number)
        | Operand::SIMDRegisterElements(_, number, _)
        | Operand::SIMDRegisterElementsLane(_, number, ..) => vector(number),
        _ => None,
    };
    let general_at = |at: usize| match operands[at] {
        Operand::Register(_, number) => general(number),
        _ => None,
    };
    let is_lane = matches!(operands[0], Operand::SIMDRegisterGroupLane(..));
    let is_zero = |at: usize| matches!(operands[at], Operand::Register(_, LAST));
    match decoded.opcode {
        O::Invalid => Does::Unknown,
        O::BL | O::BLR | O::BLRAA | O::BLRAAZ | O::BLRAB | O::BLRABZ => Does::Call,
        O::FADD => Does::Add([vector_at(1), vector_at(2)]),
        O::FSUB => Does::Add([vector_at(1), None]),
        O::FMADD | O::FMSUB | O::FNMADD | O::FNMSUB => Does::Add([vector_at(3), None]),
        O::FMLA | O::FMLS => Does::Add([vector_at(0), None]),
        O::FMUL | O::FNMUL => Does::Multiply([vector_at(1), vector_at(2)]),
        O::FDIV => Does::Divide(vector_at(2)),
        O::SDIV | O::UDIV => Does::DivideInteger(general_at(2)),
        O::FSQRT => Does::SquareRoot,
        O::FCMP | O::FCMPE | O::FCCMP | O::FCCMPE => Does::Compare,
        O::FMAX | O::FMIN | O::FMAXNM | O::FMINNM | O::FCSEL | O::BSL | O::BIT | O::BIF => Does::Choose,
        // Not the bit of a condition.
        O::CSEL | O::CSINC | O::CSINV | O::CSNEG if !(is_zero(1) && is_zero(2)) => Does::ChooseInteger,
        O::FCVTL | O::FCVTL2 => Does::Widen,
        O::FCVTN | O::FCVTN2 => Does::Narrow,
        O::FCVT => match (operands[0], operands[1]) {
            (Operand::SIMDRegister(SIMDSizeCode::D, _), _) => Does::Widen,
            _ => Does::Narrow,
        },
        O::LD1 if is_lane => Does::Gather,
        O::ST1 if is_lane => Does::Scatter,
        O::FMOV if vector_at(0).is_some() && vector_at(1).is_some() => Does::Move,
        // `mov v0.16b, v1.16b`
        O::ORR if vector_at(1).is_some() && vector_at(1) == vector_at(2) => Does::Move,
        _ => Does::Other,
    }
}

fn sets_flags(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(opcode, O::ADDS | O::SUBS | O::ANDS | O::BICS | O::ADCS | O::SBCS)
}

fn grows(decoded: &Decoded) -> Option<(u8, u8)> {
    let one = |operand: &Operand| match *operand {
        Operand::Register(_, number) | Operand::RegisterOrSP(_, number) | Operand::RegShift(_, _, _, number)
            if number != LAST =>
        {
            general(number)
        }
        _ => None,
    };
    if let Some(Operand::RegPostIndexReg(base, by)) = decoded.operands.iter().find(|operand| is_address(operand)) {
        return Some((general(*base)?, general(*by)?));
    }
    if !matches!(decoded.opcode, Opcode::ADD | Opcode::SUB | Opcode::ADDS | Opcode::SUBS) {
        return None;
    }
    // Of `a = b + 8 * a`, neither grows.
    let [target, first, second] = [0, 1, 2].map(|at| one(&decoded.operands[at]));
    let is_shifted = !matches!(decoded.operands[2], Operand::RegShift(_, 0, ..));
    match target? {
        target if first == Some(target) => Some((target, second?)),
        target if second == Some(target) && !is_shifted => Some((target, first?)),
        _ => None,
    }
}

/// The constant that an instruction writes.
fn constant(decoded: &Decoded) -> Option<u32> {
    match (decoded.opcode, decoded.operands[1], decoded.operands[2]) {
        (Opcode::MOVZ, Operand::ImmShift(value, 0), _) => Some(value.into()),
        (Opcode::MOVZ, Operand::Immediate(value), _) => Some(value),
        (Opcode::ORR, Operand::Register(_, LAST), Operand::Immediate(value)) => Some(value),
        (Opcode::ORR, Operand::Register(_, LAST), Operand::Imm64(value)) => u32::try_from(value).ok(),
        (Opcode::ORR, Operand::Register(_, LAST), Operand::RegShift(_, 0, _, LAST)) => Some(0),
        _ => None,
    }
}
