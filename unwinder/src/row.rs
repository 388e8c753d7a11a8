//! The call frame instructions of a function, run up to one address (DWARF 5, 6.4).
//!
//! Small on purpose, for signal stacks: rules are eight bytes each, for the general registers, and
//! `DW_CFA_remember_state` may be nested six deep.

#![forbid(unsafe_code)]

use gimli::{DwCfa, constants as dw};

use crate::expression::evaluate;
use crate::reader::Reader;
use crate::{Entry, Machine};

/// The high two bits of an instruction, if they are not zero, are the instruction; the low six are its operand.
const PRIMARY: u8 = 0xc0;
const OPERAND: u8 = 0x3f;
/// Those that gimli has no names for.
const NEGATE_RA_STATE_WITH_PC: DwCfa = DwCfa(0x2c);
const NEGATIVE_OFFSET_EXTENDED: DwCfa = DwCfa(0x2f);
const REMEMBERED: usize = 6;
/// Instructions that are run for one frame; the largest function of libpython has some thousands.
const MOST_INSTRUCTIONS: usize = 20_000;

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
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
pub enum Cfa {
    /// The value of a register and this much.
    Register(u8, i32),
    /// The value that an expression gives.
    Expression(u32),
}

/// The rules at one address, of so many registers; other registers are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<const REGISTERS: usize> {
    /// How the canonical frame address is found.
    pub cfa: Cfa,
    /// By the numbers of the registers.
    pub rules: [Rule; REGISTERS],
}

impl<const REGISTERS: usize> Row<REGISTERS> {
    /// The row of `entry` that holds at `address`.
    pub fn find(entry: &Entry<'_>, address: u64, machine: Machine) -> Option<Self> {
        let cfa = Cfa::Register(machine.stack_pointer() as u8, machine.distance_at_entry());
        let initial = Row { cfa, rules: [Rule::Same; REGISTERS] };
        let mut program = Program {
            entry,
            machine,
            row: initial,
            initial,
            remembered: [initial; REMEMBERED],
            depth: 0,
            location: entry.start,
            budget: MOST_INSTRUCTIONS,
        };
        program.run(entry.common.instructions, None)?;
        program.initial = program.row;
        program.run(entry.instructions, Some(address))?;
        Some(program.row)
    }

    /// The canonical frame address. `registers` and `memory` return known values.
    pub fn frame_address(
        &self,
        section: &[u8],
        registers: &impl Fn(u64) -> Option<u64>,
        memory: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        match self.cfa {
            Cfa::Register(register, offset) => {
                registers(u64::from(register)).map(|value| value.wrapping_add_signed(i64::from(offset)))
            }
            Cfa::Expression(start) => evaluate(block(section, start)?, registers, memory, None),
        }
    }

    fn set(&mut self, register: u64, rule: Rule) {
        // Vector registers and the like do not matter here.
        if let Some(slot) = usize::try_from(register).ok().and_then(|register| self.rules.get_mut(register)) {
            *slot = rule;
        }
    }
}

impl Rule {
    /// The caller's value of the register, whose value here is `own`.
    pub fn value(
        self,
        section: &[u8],
        frame_address: u64,
        own: Option<u64>,
        registers: &impl Fn(u64) -> Option<u64>,
        memory: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let at = |offset: i32| frame_address.wrapping_add_signed(i64::from(offset));
        match self {
            Rule::Same => own,
            Rule::Undefined => None,
            Rule::Offset(offset) => memory(at(offset)),
            Rule::ValueOffset(offset) => Some(at(offset)),
            Rule::Register(other) => registers(u64::from(other)),
            Rule::Expression(start) => {
                let address = evaluate(block(section, start)?, registers, memory, Some(frame_address))?;
                memory(address)
            }
            Rule::ValueExpression(start) => evaluate(block(section, start)?, registers, memory, Some(frame_address)),
        }
    }
}

/// The instructions of an entry while they run.
struct Program<'a, 'b, const REGISTERS: usize> {
    entry: &'b Entry<'a>,
    machine: Machine,
    row: Row<REGISTERS>,
    initial: Row<REGISTERS>,
    remembered: [Row<REGISTERS>; REMEMBERED],
    depth: usize,
    location: u64,
    budget: usize,
}

impl<const REGISTERS: usize> Program<'_, '_, REGISTERS> {
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
            let operand = u64::from(code & OPERAND);
            match DwCfa(code & PRIMARY) {
                dw::DW_CFA_offset => {
                    let offset = self.factored(reader.uleb()? as i64)?;
                    self.row.set(operand, Rule::Offset(offset));
                }
                dw::DW_CFA_restore => self.restore(operand),
                _ => self.instruction(DwCfa(code), &mut reader)?,
            }
        }
        Some(())
    }

    /// The new location, if the instruction is one that goes on to a new row.
    fn advance(&self, code: u8, reader: &mut Reader<'_>) -> Option<Option<u64>> {
        let delta = match DwCfa(code) {
            _ if DwCfa(code & PRIMARY) == dw::DW_CFA_advance_loc => u64::from(code & OPERAND),
            dw::DW_CFA_advance_loc1 => u64::from(reader.u8()?),
            dw::DW_CFA_advance_loc2 => u64::from(reader.u16()?),
            dw::DW_CFA_advance_loc4 => u64::from(reader.u32()?),
            // Written by no compiler.
            dw::DW_CFA_set_loc => return None,
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

    fn instruction(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        match code {
            dw::DW_CFA_nop => {}
            // Whether the return address is signed. The signature is taken off in any case.
            dw::DW_CFA_AARCH64_negate_ra_state | NEGATE_RA_STATE_WITH_PC if self.machine == Machine::Aarch64 => {}
            dw::DW_CFA_GNU_args_size => drop(reader.uleb()?),
            dw::DW_CFA_offset_extended => {
                let (register, offset) = (reader.uleb()?, reader.uleb()? as i64);
                self.row.set(register, Rule::Offset(self.factored(offset)?));
            }
            dw::DW_CFA_restore_extended => {
                let register = reader.uleb()?;
                self.restore(register);
            }
            dw::DW_CFA_undefined => self.row.set(reader.uleb()?, Rule::Undefined),
            dw::DW_CFA_same_value => self.row.set(reader.uleb()?, Rule::Same),
            dw::DW_CFA_register => {
                let (register, other) = (reader.uleb()?, reader.uleb()?);
                self.row.set(register, Rule::Register(u8::try_from(other).ok()?));
            }
            dw::DW_CFA_remember_state => {
                *self.remembered.get_mut(self.depth)? = self.row;
                self.depth += 1;
            }
            dw::DW_CFA_restore_state => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = *self.remembered.get(self.depth)?;
            }
            dw::DW_CFA_def_cfa_expression => self.row.cfa = Cfa::Expression(skip_block(reader)?),
            dw::DW_CFA_def_cfa
            | dw::DW_CFA_def_cfa_sf
            | dw::DW_CFA_def_cfa_register
            | dw::DW_CFA_def_cfa_offset
            | dw::DW_CFA_def_cfa_offset_sf => self.frame_address(code, reader)?,
            _ => self.rule(code, reader)?,
        }
        Some(())
    }

    /// `DW_CFA_def_cfa*` with a register or an offset.
    fn frame_address(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        let (register, offset) = match (code, self.row.cfa) {
            (dw::DW_CFA_def_cfa, _) => (self.register(reader)?, i32::try_from(reader.uleb()?).ok()?),
            (dw::DW_CFA_def_cfa_sf, _) => (self.register(reader)?, self.factored(reader.sleb()?)?),
            (dw::DW_CFA_def_cfa_register, Cfa::Register(_, offset)) => (self.register(reader)?, offset),
            (dw::DW_CFA_def_cfa_offset, Cfa::Register(register, _)) => (register, i32::try_from(reader.uleb()?).ok()?),
            (dw::DW_CFA_def_cfa_offset_sf, Cfa::Register(register, _)) => (register, self.factored(reader.sleb()?)?),
            _ => return None,
        };
        self.row.cfa = Cfa::Register(register, offset);
        Some(())
    }

    /// `DW_CFA_expression` and the other rules that have an operand.
    fn rule(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        let register = reader.uleb()?;
        let rule = match code {
            dw::DW_CFA_expression => Rule::Expression(skip_block(reader)?),
            dw::DW_CFA_val_expression => Rule::ValueExpression(skip_block(reader)?),
            dw::DW_CFA_offset_extended_sf => Rule::Offset(self.factored(reader.sleb()?)?),
            dw::DW_CFA_val_offset => Rule::ValueOffset(self.factored(reader.uleb()? as i64)?),
            dw::DW_CFA_val_offset_sf => Rule::ValueOffset(self.factored(reader.sleb()?)?),
            NEGATIVE_OFFSET_EXTENDED => Rule::Offset(self.factored(reader.uleb()? as i64)?.checked_neg()?),
            _ => return None,
        };
        self.row.set(register, rule);
        Some(())
    }

    fn register(&self, reader: &mut Reader<'_>) -> Option<u8> {
        u8::try_from(reader.uleb()?).ok().filter(|&register| usize::from(register) < REGISTERS)
    }
}

/// Where a block with its length begins.
fn skip_block(reader: &mut Reader<'_>) -> Option<u32> {
    let start = u32::try_from(reader.position()).ok()?;
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)?;
    Some(start)
}

/// The block that begins at `start`.
fn block(section: &[u8], start: u32) -> Option<&[u8]> {
    let mut reader = Reader::new(section, start as usize);
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)
}
