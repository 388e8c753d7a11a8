//! DWARF expressions, as far as call frame information uses them (DWARF 5, 2.5).
//!
//! Bounded: so many operations, so deep a stack. What is not known is refused.

#![forbid(unsafe_code)]

use super::reader::Reader;
use super::{Memory, Registers};

const MOST_OPERATIONS: usize = 200;
const DEPTH: usize = 16;

struct Stack {
    values: [u64; DEPTH],
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

/// The value of the expression that `bytes` are. `first` is on the stack at the start.
pub(crate) fn evaluate(
    bytes: &[u8],
    registers: &Registers,
    memory: &mut impl Memory,
    first: Option<u64>,
) -> Option<u64> {
    let mut stack = Stack { values: [0; DEPTH], depth: 0 };
    if let Some(first) = first {
        stack.push(first)?;
    }
    let mut reader = Reader::new(bytes, 0);
    for _ in 0..MOST_OPERATIONS {
        if reader.is_at_end() {
            return stack.pop();
        }
        operation(&mut reader, &mut stack, registers, memory)?;
    }
    None
}

fn operation(
    reader: &mut Reader<'_>,
    stack: &mut Stack,
    registers: &Registers,
    memory: &mut impl Memory,
) -> Option<()> {
    let code = reader.u8()?;
    match code {
        // DW_OP_addr, const*
        0x03 | 0x0e | 0x0f => push_read(stack, reader.u64()),
        0x08 => push_read(stack, reader.u8().map(u64::from)),
        0x09 => push_read(stack, reader.u8().map(|value| value as i8 as u64)),
        0x0a => push_read(stack, reader.u16().map(u64::from)),
        0x0b => push_read(stack, reader.u16().map(|value| value as i16 as u64)),
        0x0c => push_read(stack, reader.u32().map(u64::from)),
        0x0d => push_read(stack, reader.u32().map(|value| value as i32 as u64)),
        0x10 => push_read(stack, reader.uleb()),
        0x11 => push_read(stack, reader.sleb().map(|value| value as u64)),
        // DW_OP_lit0..31
        0x30..=0x4f => stack.push(u64::from(code - 0x30)),
        // DW_OP_breg0..31, bregx
        0x70..=0x8f => push_register(reader, stack, registers, u64::from(code - 0x70)),
        0x92 => {
            let register = reader.uleb()?;
            push_register(reader, stack, registers, register)
        }
        // DW_OP_deref, deref_size
        0x06 => {
            let address = stack.pop()?;
            stack.push(memory.read(address)?)
        }
        0x94 => dereference(reader.u8()?, stack, memory),
        // DW_OP_bra, skip
        0x28 => {
            let distance = reader.u16()? as i16;
            if stack.pop()? != 0 { reader.move_by(i64::from(distance)) } else { Some(()) }
        }
        0x2f => {
            let distance = reader.u16()? as i16;
            reader.move_by(i64::from(distance))
        }
        // DW_OP_plus_uconst
        0x23 => {
            let value = stack.pop()?;
            stack.push(value.wrapping_add(reader.uleb()?))
        }
        0x96 => Some(()),
        0x12..=0x17 => shuffle(code, reader, stack),
        0x19 | 0x1f | 0x20 => unary(code, stack),
        _ => binary(code, stack),
    }
}

fn push_read(stack: &mut Stack, value: Option<u64>) -> Option<()> {
    stack.push(value?)
}

fn push_register(reader: &mut Reader<'_>, stack: &mut Stack, registers: &Registers, number: u64) -> Option<()> {
    let offset = reader.sleb()?;
    stack.push(registers.get(number)?.wrapping_add(offset as u64))
}

fn dereference(size: u8, stack: &mut Stack, memory: &mut impl Memory) -> Option<()> {
    let address = stack.pop()?;
    let value = memory.read(address)?;
    stack.push(match size {
        1 => value & 0xff,
        2 => value & 0xffff,
        4 => value & 0xffff_ffff,
        8 => value,
        _ => return None,
    })
}

/// `DW_OP_dup`, `drop`, `over`, `pick`, `swap`, `rot`
fn shuffle(code: u8, reader: &mut Reader<'_>, stack: &mut Stack) -> Option<()> {
    match code {
        0x12 => stack.push(stack.pick(0)?),
        0x13 => stack.pop().map(drop),
        0x14 => stack.push(stack.pick(1)?),
        0x15 => {
            let from_top = usize::from(reader.u8()?);
            stack.push(stack.pick(from_top)?)
        }
        0x16 => {
            let (top, below) = (stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(below)
        }
        _ => {
            let (first, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?);
            stack.push(first)?;
            stack.push(third)?;
            stack.push(second)
        }
    }
}

/// `DW_OP_abs`, `neg`, `not`
fn unary(code: u8, stack: &mut Stack) -> Option<()> {
    let value = stack.pop()?;
    stack.push(match code {
        0x19 => (value as i64).wrapping_abs() as u64,
        0x1f => value.wrapping_neg(),
        _ => !value,
    })
}

fn binary(code: u8, stack: &mut Stack) -> Option<()> {
    let (right, left) = (stack.pop()?, stack.pop()?);
    let shift = u32::try_from(right).ok().filter(|&bits| bits < 64);
    let (signed_left, signed_right) = (left as i64, right as i64);
    stack.push(match code {
        0x1a => left & right,
        0x1b => signed_left.checked_div(signed_right)? as u64,
        0x1c => left.wrapping_sub(right),
        0x1d => left.checked_rem(right)?,
        0x1e => left.wrapping_mul(right),
        0x21 => left | right,
        0x22 => left.wrapping_add(right),
        0x24 => shift.map_or(0, |bits| left << bits),
        0x25 => shift.map_or(0, |bits| left >> bits),
        0x26 => (signed_left >> shift.unwrap_or(63)) as u64,
        0x27 => left ^ right,
        0x29 => u64::from(signed_left == signed_right),
        0x2a => u64::from(signed_left >= signed_right),
        0x2b => u64::from(signed_left > signed_right),
        0x2c => u64::from(signed_left <= signed_right),
        0x2d => u64::from(signed_left < signed_right),
        0x2e => u64::from(signed_left != signed_right),
        _ => return None,
    })
}
