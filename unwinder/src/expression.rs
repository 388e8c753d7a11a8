//! DWARF expressions, limited to the operations that call frame information uses (DWARF 5, 2.5).
//!
//! Operations and stack depth are bounded. Unknown operations are refused.

use gimli::{DwOp, constants as dw};

use crate::reader::Reader;

const MAX_OPERATIONS: usize = 200;
const MAX_STACK_DEPTH: usize = 16;

struct Stack {
    values: [u64; MAX_STACK_DEPTH],
    depth: usize,
}

impl Stack {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.depth = self.depth.checked_sub(1)?;
        self.values.get(self.depth).copied()
    }

    fn pick(&self, from_top: usize) -> Option<u64> {
        self.values.get(self.depth.checked_sub(1 + from_top)?).copied()
    }
}

/// Evaluates the DWARF expression in `bytes`, with `first` on the stack at the start.
///
/// `registers` and `memory` return `None` for an unknown register and an unreadable address. In that case, the result
/// is `None`, as it is for malformed and unsupported expressions. Operands of `DW_OP_addr` are not relocated:
/// `.eh_frame` is read-only, so linkers write no such operand in position-independent files.
///
/// ```
/// use jitlisten_unwinder::evaluate;
///
/// // DW_OP_breg7 8; DW_OP_deref: the word at rsp + 8.
/// let registers = |number| (number == 7).then_some(0x7000);
/// let mut memory = |address| (address == 0x7008).then_some(0x1234);
/// assert_eq!(evaluate(&[0x77, 8, 0x06], &registers, &mut memory, None), Some(0x1234));
/// ```
pub fn evaluate(
    bytes: &[u8],
    registers: &impl Fn(u64) -> Option<u64>,
    memory: &mut impl FnMut(u64) -> Option<u64>,
    first: Option<u64>,
) -> Option<u64> {
    let mut stack = Stack { values: [0; MAX_STACK_DEPTH], depth: 0 };
    if let Some(first) = first {
        stack.push(first)?;
    }
    let mut reader = Reader::new(bytes, 0);
    for _ in 0..MAX_OPERATIONS {
        if reader.is_at_end() {
            return stack.pop();
        }
        run_operation(&mut reader, &mut stack, registers, memory)?;
    }
    None
}

fn run_operation(
    reader: &mut Reader<'_>,
    stack: &mut Stack,
    registers: &impl Fn(u64) -> Option<u64>,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<()> {
    let code = reader.u8()?;
    match DwOp(code) {
        _ if (dw::DW_OP_lit0.0..=dw::DW_OP_lit31.0).contains(&code) => stack.push(u64::from(code - dw::DW_OP_lit0.0)),
        _ if (dw::DW_OP_breg0.0..=dw::DW_OP_breg31.0).contains(&code) => {
            push_register(reader, stack, registers, u64::from(code - dw::DW_OP_breg0.0))
        }
        dw::DW_OP_bregx => {
            let register = reader.uleb()?;
            push_register(reader, stack, registers, register)
        }
        dw::DW_OP_deref => {
            let address = stack.pop()?;
            stack.push(memory(address)?)
        }
        dw::DW_OP_deref_size => dereference(reader.u8()?, stack, memory),
        dw::DW_OP_bra => {
            let distance = reader.u16()?.cast_signed();
            if stack.pop()? != 0 { reader.move_by(i64::from(distance)) } else { Some(()) }
        }
        dw::DW_OP_skip => {
            let distance = reader.u16()?.cast_signed();
            reader.move_by(i64::from(distance))
        }
        dw::DW_OP_plus_uconst => {
            let value = stack.pop()?;
            stack.push(value.wrapping_add(reader.uleb()?))
        }
        dw::DW_OP_nop => Some(()),
        code => match read_constant(code, reader) {
            Some(value) => stack.push(value?),
            None => run_stack_operation(code, reader, stack),
        },
    }
}

/// Returns the operand of an operation that only pushes it; `None` for other operations.
fn read_constant(code: DwOp, reader: &mut Reader<'_>) -> Option<Option<u64>> {
    Some(match code {
        dw::DW_OP_addr | dw::DW_OP_const8u | dw::DW_OP_const8s => reader.u64(),
        dw::DW_OP_const1u => reader.u8().map(u64::from),
        dw::DW_OP_const1s => reader.u8().map(|value| value as i8 as u64),
        dw::DW_OP_const2u => reader.u16().map(u64::from),
        dw::DW_OP_const2s => reader.u16().map(|value| value as i16 as u64),
        dw::DW_OP_const4u => reader.u32().map(u64::from),
        dw::DW_OP_const4s => reader.u32().map(|value| value as i32 as u64),
        dw::DW_OP_constu => reader.uleb(),
        dw::DW_OP_consts => reader.sleb().map(i64::cast_unsigned),
        _ => return None,
    })
}

fn push_register(
    reader: &mut Reader<'_>,
    stack: &mut Stack,
    registers: &impl Fn(u64) -> Option<u64>,
    number: u64,
) -> Option<()> {
    let offset = reader.sleb()?;
    stack.push(registers(number)?.wrapping_add_signed(offset))
}

fn dereference(size: u8, stack: &mut Stack, memory: &mut impl FnMut(u64) -> Option<u64>) -> Option<()> {
    let address = stack.pop()?;
    let value = memory(address)?;
    stack.push(match size {
        1 => value & 0xff,
        2 => value & 0xffff,
        4 => value & 0xffff_ffff,
        8 => value,
        _ => return None,
    })
}

/// Runs an operation that uses only the stack and its own operands.
fn run_stack_operation(code: DwOp, reader: &mut Reader<'_>, stack: &mut Stack) -> Option<()> {
    match code {
        dw::DW_OP_dup => stack.push(stack.pick(0)?),
        dw::DW_OP_drop => stack.pop().map(drop),
        dw::DW_OP_over => stack.push(stack.pick(1)?),
        dw::DW_OP_pick => {
            let from_top = usize::from(reader.u8()?);
            stack.push(stack.pick(from_top)?)
        }
        dw::DW_OP_swap => {
            let (top, below) = (stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(below)
        }
        dw::DW_OP_rot => {
            let (first, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?);
            stack.push(first)?;
            stack.push(third)?;
            stack.push(second)
        }
        dw::DW_OP_abs | dw::DW_OP_neg | dw::DW_OP_not => run_unary(code, stack),
        _ => run_binary(code, stack),
    }
}

fn run_unary(code: DwOp, stack: &mut Stack) -> Option<()> {
    let value = stack.pop()?;
    stack.push(match code {
        dw::DW_OP_abs => value.cast_signed().wrapping_abs().cast_unsigned(),
        dw::DW_OP_neg => value.wrapping_neg(),
        _ => !value,
    })
}

fn run_binary(code: DwOp, stack: &mut Stack) -> Option<()> {
    let (right, left) = (stack.pop()?, stack.pop()?);
    let shift = u32::try_from(right).ok().filter(|&bits| bits < 64);
    let (signed_left, signed_right) = (left as i64, right as i64);
    stack.push(match code {
        dw::DW_OP_and => left & right,
        dw::DW_OP_div => signed_left.checked_div(signed_right)? as u64,
        dw::DW_OP_minus => left.wrapping_sub(right),
        dw::DW_OP_mod => left.checked_rem(right)?,
        dw::DW_OP_mul => left.wrapping_mul(right),
        dw::DW_OP_or => left | right,
        dw::DW_OP_plus => left.wrapping_add(right),
        dw::DW_OP_shl => shift.map_or(0, |bits| left << bits),
        dw::DW_OP_shr => shift.map_or(0, |bits| left >> bits),
        dw::DW_OP_shra => (signed_left >> shift.unwrap_or(63)) as u64,
        dw::DW_OP_xor => left ^ right,
        dw::DW_OP_eq => u64::from(signed_left == signed_right),
        dw::DW_OP_ge => u64::from(signed_left >= signed_right),
        dw::DW_OP_gt => u64::from(signed_left > signed_right),
        dw::DW_OP_le => u64::from(signed_left <= signed_right),
        dw::DW_OP_lt => u64::from(signed_left < signed_right),
        dw::DW_OP_ne => u64::from(signed_left != signed_right),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    #[test]
    fn expressions_are_bounded() {
        let evaluate_bytes = |bytes: &[u8], first| evaluate(bytes, &|_| Some(5), &mut |_| None, first);
        // DW_OP_skip -3 is an infinite loop.
        assert_eq!(evaluate_bytes(&[0x2f, 0xfd, 0xff], None), None);
        // A long run of DW_OP_dup, with and without a value to duplicate.
        assert_eq!(evaluate_bytes(&[0x12; 100], Some(1)), None);
        assert_eq!(evaluate_bytes(&[0x12; 100], None), None);
        // The CFA expression of a `.plt`: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        assert_eq!(evaluate_bytes(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22], None), Some(13));
    }
}
