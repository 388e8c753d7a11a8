//! The call frame instructions of a function, run up to one address (DWARF 5, 6.4).
//!
//! Small on purpose: this runs in a signal handler, on whatever stack is there. Rules are eight bytes each, registers are the
//! general ones (`machine`), and `DW_CFA_remember_state` may be nested six deep.

#![forbid(unsafe_code)]

use super::frame_table::Entry;
use super::machine::AT_ENTRY;
use super::reader::Reader;
use super::{REGISTERS, STACK};

const REMEMBERED: usize = 6;
/// Instructions that are run for one frame; the largest function of libpython has some thousands.
const MOST_INSTRUCTIONS: usize = 20_000;

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// It is still there.
    Same,
    /// It is lost. For the return address: this is the outermost frame.
    Undefined,
    /// At this distance from the canonical frame address.
    Offset(i32),
    /// It is the canonical frame address and this much.
    ValueOffset(i32),
    /// In this register.
    Register(u8),
    /// At an address that an expression gives; it begins with its length at this place of the section.
    Expression(u32),
    /// The value that an expression gives.
    ValueExpression(u32),
}

/// How the canonical frame address is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    Register(u8, i32),
    Expression(u32),
}

/// The rules at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cfa: Cfa,
    pub(crate) rules: [Rule; REGISTERS],
}

impl Row {
    const fn new() -> Row {
        Row { cfa: Cfa::Register(STACK as u8, AT_ENTRY), rules: [Rule::Same; REGISTERS] }
    }

    fn set(&mut self, register: u64, rule: Rule) {
        // Vector registers and the like do not matter here.
        if let Some(slot) = usize::try_from(register).ok().and_then(|register| self.rules.get_mut(register)) {
            *slot = rule;
        }
    }
}

/// Finds the row of `entry` that holds at `address`.
pub(crate) fn find(entry: &Entry<'_>, address: u64) -> Option<Row> {
    let initial = Row::new();
    let mut machine = Machine {
        entry,
        row: initial,
        initial,
        remembered: [initial; REMEMBERED],
        depth: 0,
        location: entry.start,
        budget: MOST_INSTRUCTIONS,
    };
    machine.run(entry.common.instructions, None)?;
    machine.initial = machine.row;
    machine.run(entry.instructions, Some(address))?;
    Some(machine.row)
}

struct Machine<'a, 'b> {
    entry: &'b Entry<'a>,
    row: Row,
    initial: Row,
    remembered: [Row; REMEMBERED],
    depth: usize,
    location: u64,
    budget: usize,
}

impl Machine<'_, '_> {
    /// Runs instructions, up to the end or until the next row begins behind `target`.
    fn run(&mut self, (start, end): (usize, usize), target: Option<u64>) -> Option<()> {
        let mut reader = Reader::new(self.entry.section, start).until(end)?;
        while !reader.is_at_end() {
            self.budget = self.budget.checked_sub(1)?;
            let code = reader.u8()?;
            if let Some(location) = self.advance(code, &mut reader)? {
                if target.is_some_and(|target| location > target) {
                    return Some(());
                }
                self.location = location;
                continue;
            }
            let low = u64::from(code & 0x3f);
            match code >> 6 {
                2 => {
                    let offset = self.factored(reader.uleb()? as i64)?;
                    self.row.set(low, Rule::Offset(offset));
                }
                3 => self.restore(low),
                _ => self.instruction(code, &mut reader)?,
            }
        }
        Some(())
    }

    /// The new location, if the instruction is one that goes on to a new row.
    fn advance(&self, code: u8, reader: &mut Reader<'_>) -> Option<Option<u64>> {
        let delta = match code {
            0x40..=0x7f => u64::from(code & 0x3f),
            0x02 => u64::from(reader.u8()?),
            0x03 => u64::from(reader.u16()?),
            0x04 => u64::from(reader.u32()?),
            // DW_CFA_set_loc is written by no compiler.
            0x01 => return None,
            _ => return Some(None),
        };
        Some(Some(self.location.wrapping_add(delta.wrapping_mul(self.entry.common.code_alignment))))
    }

    fn factored(&self, offset: i64) -> Option<i32> {
        i32::try_from(offset.checked_mul(self.entry.common.data_alignment)?).ok()
    }

    fn restore(&mut self, register: u64) {
        let rule = usize::try_from(register).ok().and_then(|register| self.initial.rules.get(register)).copied();
        if let Some(rule) = rule {
            self.row.set(register, rule);
        }
    }

    fn instruction(&mut self, code: u8, reader: &mut Reader<'_>) -> Option<()> {
        match code {
            // nop, GNU_args_size
            0x00 => {}
            // AARCH64_negate_ra_state, and the same with the program counter: whether the return address is signed. The signature is
            // taken off in any case.
            0x2c | 0x2d if cfg!(target_arch = "aarch64") => {}
            0x2e => drop(reader.uleb()?),
            // offset_extended, restore_extended, undefined, same_value, register
            0x05 => {
                let (register, offset) = (reader.uleb()?, reader.uleb()? as i64);
                self.row.set(register, Rule::Offset(self.factored(offset)?));
            }
            0x06 => {
                let register = reader.uleb()?;
                self.restore(register);
            }
            0x07 => self.row.set(reader.uleb()?, Rule::Undefined),
            0x08 => self.row.set(reader.uleb()?, Rule::Same),
            0x09 => {
                let (register, other) = (reader.uleb()?, reader.uleb()?);
                self.row.set(register, Rule::Register(u8::try_from(other).ok()?));
            }
            0x0a => {
                *self.remembered.get_mut(self.depth)? = self.row;
                self.depth += 1;
            }
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = *self.remembered.get(self.depth)?;
            }
            0x0c..=0x0f | 0x12 | 0x13 => self.frame_address(code, reader)?,
            _ => self.rule(code, reader)?,
        }
        Some(())
    }

    /// `DW_CFA_def_cfa*`
    fn frame_address(&mut self, code: u8, reader: &mut Reader<'_>) -> Option<()> {
        let (register, offset) = match (code, self.row.cfa) {
            (0x0c, _) => (register(reader)?, i32::try_from(reader.uleb()?).ok()?),
            (0x12, _) => (register(reader)?, self.factored(reader.sleb()?)?),
            (0x0d, Cfa::Register(_, offset)) => (register(reader)?, offset),
            (0x0e, Cfa::Register(register, _)) => (register, i32::try_from(reader.uleb()?).ok()?),
            (0x13, Cfa::Register(register, _)) => (register, self.factored(reader.sleb()?)?),
            (0x0f, _) => {
                self.row.cfa = Cfa::Expression(skip_block(reader)?);
                return Some(());
            }
            _ => return None,
        };
        self.row.cfa = Cfa::Register(register, offset);
        Some(())
    }

    /// `DW_CFA_expression` and the other rules that have an operand.
    fn rule(&mut self, code: u8, reader: &mut Reader<'_>) -> Option<()> {
        let register = reader.uleb()?;
        let rule = match code {
            0x10 => Rule::Expression(skip_block(reader)?),
            0x16 => Rule::ValueExpression(skip_block(reader)?),
            0x11 => Rule::Offset(self.factored(reader.sleb()?)?),
            0x14 => Rule::ValueOffset(self.factored(reader.uleb()? as i64)?),
            0x15 => Rule::ValueOffset(self.factored(reader.sleb()?)?),
            // GNU_negative_offset_extended
            0x2f => Rule::Offset(self.factored(reader.uleb()? as i64)?.checked_neg()?),
            _ => return None,
        };
        self.row.set(register, rule);
        Some(())
    }
}

fn register(reader: &mut Reader<'_>) -> Option<u8> {
    u8::try_from(reader.uleb()?).ok().filter(|&register| usize::from(register) < REGISTERS)
}

/// Where a block with its length begins.
fn skip_block(reader: &mut Reader<'_>) -> Option<u32> {
    let start = u32::try_from(reader.position()).ok()?;
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)?;
    Some(start)
}

/// The block that begins at `start`.
pub(crate) fn block(section: &[u8], start: u32) -> Option<&[u8]> {
    let mut reader = Reader::new(section, start as usize);
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)
}
