//! Interpreter that runs a function's call frame instructions up to one address (DWARF 5, 6.4).
//!
//! The state is small enough for a signal stack. A rule takes eight bytes, only general registers have rules, and
//! `DW_CFA_remember_state` may be nested at most six deep.

use gimli::{DwCfa, constants as dw};

use crate::expression::evaluate;
use crate::reader::Reader;
use crate::{Entry, Machine};

/// Mask of the primary opcode. If these two bits are nonzero, the low six bits are an operand.
const PRIMARY_MASK: u8 = 0xc0;
/// Mask of the operand that is encoded in a primary opcode.
const OPERAND_MASK: u8 = 0x3f;
/// `DW_CFA_AARCH64_negate_ra_state_with_pc`, which gimli does not name.
const NEGATE_RA_STATE_WITH_PC: DwCfa = DwCfa(0x2c);
/// `DW_CFA_GNU_negative_offset_extended`, which gimli does not name.
const NEGATIVE_OFFSET_EXTENDED: DwCfa = DwCfa(0x2f);
/// Maximum nesting depth of `DW_CFA_remember_state`.
const MAX_REMEMBERED_ROWS: usize = 6;
/// Maximum number of instructions to run per frame. The largest function of libpython has a few thousand.
const MAX_INSTRUCTIONS: usize = 20_000;

/// The rule that recovers the caller's value of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The register is unchanged.
    Same,
    /// The value is lost. For the return address: this is the outermost frame.
    Undefined,
    /// The value is saved at this offset from the canonical frame address.
    Offset(i32),
    /// The value is the canonical frame address plus this offset.
    ValueOffset(i32),
    /// The value is in this register.
    Register(u8),
    /// The value is saved at the address that an expression computes. The number is the offset of the expression's
    /// block (length, then bytes) in the section.
    Expression(u32),
    /// The value is the result of an expression. The number is the offset of its block in the section.
    ValueExpression(u32),
}

/// The rule that computes the canonical frame address (CFA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// The CFA is this register plus this offset.
    Register(u8, i32),
    /// The CFA is the result of an expression. The number is the offset of its block in the section.
    Expression(u32),
}

/// The rules at one address, for the registers with numbers below `REGISTERS`. Rules of other registers are ignored.
///
/// ```
/// use jitlisten_unwinder::{Machine, Row, Section};
/// # let eh_frame = [
/// #     0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
/// #     0x10, 0, 0, 0, 0x1c, 0, 0, 0, 0xe0, 0xef, 0xff, 0xff, 0x20, 0, 0, 0, 0, 0x41, 0x0e, 16,
/// # ];
///
/// let section = Section { bytes: &eh_frame, address: 0x2000, data_base: None };
/// let entry = section.entry(24).unwrap();
/// let row: Row<17> = Row::find(&entry, 0x1004, Machine::X86_64).unwrap();
///
/// // rsp is 0x7000, and the return address lies at 0x7008.
/// let registers = |number| (number == 7).then_some(0x7000);
/// let mut memory = |address| (address == 0x7008).then_some(0x40_1234);
/// let cfa = row.frame_address(entry.section, &registers, &mut memory).unwrap();
/// let return_address = row.rules[16].value(entry.section, cfa, None, &registers, &mut memory);
/// assert_eq!((cfa, return_address), (0x7010, Some(0x40_1234)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<const REGISTERS: usize> {
    /// The rule for the canonical frame address.
    pub cfa: Cfa,
    /// Rules indexed by DWARF register number.
    pub rules: [Rule; REGISTERS],
}

impl<const REGISTERS: usize> Row<REGISTERS> {
    /// Computes the row of `entry` at `address`. `None` if its instructions are malformed, unsupported or too many.
    pub fn find(entry: &Entry<'_>, address: u64, machine: Machine) -> Option<Self> {
        let cfa = Cfa::Register(machine.stack_pointer() as u8, machine.distance_at_entry());
        let initial = Row { cfa, rules: [Rule::Same; REGISTERS] };
        let mut program = Program {
            entry,
            machine,
            row: initial,
            initial,
            remembered: [initial; MAX_REMEMBERED_ROWS],
            depth: 0,
            location: entry.start,
            budget: MAX_INSTRUCTIONS,
        };
        program.run(entry.common.instructions, None)?;
        program.initial = program.row;
        program.run(entry.instructions, Some(address))?;
        Some(program.row)
    }

    /// Returns the canonical frame address. `registers` and `memory` return `None` for values that are unknown or
    /// unreadable.
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
            Cfa::Expression(start) => evaluate(read_block(section, start)?, registers, memory, None),
        }
    }

    fn set(&mut self, register: u64, rule: Rule) {
        // Drop the rules of vector registers and of any other number beyond the array.
        if let Some(slot) = usize::try_from(register).ok().and_then(|register| self.rules.get_mut(register)) {
            *slot = rule;
        }
    }
}

impl Rule {
    /// Returns the caller's value of the register. `own` is the register's value in this frame, which [`Rule::Same`]
    /// passes on.
    pub fn value(
        self,
        section: &[u8],
        frame_address: u64,
        own: Option<u64>,
        registers: &impl Fn(u64) -> Option<u64>,
        memory: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let cfa_plus = |offset: i32| frame_address.wrapping_add_signed(i64::from(offset));
        match self {
            Rule::Same => own,
            Rule::Undefined => None,
            Rule::Offset(offset) => memory(cfa_plus(offset)),
            Rule::ValueOffset(offset) => Some(cfa_plus(offset)),
            Rule::Register(source) => registers(u64::from(source)),
            Rule::Expression(start) => {
                let address = evaluate(read_block(section, start)?, registers, memory, Some(frame_address))?;
                memory(address)
            }
            Rule::ValueExpression(start) => {
                evaluate(read_block(section, start)?, registers, memory, Some(frame_address))
            }
        }
    }
}

/// Interpreter state of an entry's call frame instructions.
struct Program<'a, 'b, const REGISTERS: usize> {
    entry: &'b Entry<'a>,
    machine: Machine,
    row: Row<REGISTERS>,
    initial: Row<REGISTERS>,
    remembered: [Row<REGISTERS>; MAX_REMEMBERED_ROWS],
    depth: usize,
    location: u64,
    budget: usize,
}

impl<const REGISTERS: usize> Program<'_, '_, REGISTERS> {
    /// Runs instructions up to `end`, or until the next row begins after `target`.
    fn run(&mut self, (start, end): (usize, usize), target: Option<u64>) -> Option<()> {
        let mut reader = Reader::new(self.entry.section, start).until(end)?;
        while !reader.is_at_end() {
            self.budget = self.budget.checked_sub(1)?;
            let code = reader.u8()?;
            if let Some(location) = self.read_advance(code, &mut reader)? {
                if target.is_some_and(|target| location > target) {
                    return Some(());
                }
                self.location = location;
                continue;
            }
            let operand = u64::from(code & OPERAND_MASK);
            match DwCfa(code & PRIMARY_MASK) {
                dw::DW_CFA_offset => {
                    let offset = self.scale_offset(reader.uleb()? as i64)?;
                    self.row.set(operand, Rule::Offset(offset));
                }
                dw::DW_CFA_restore => self.restore_rule(operand),
                _ => self.run_instruction(DwCfa(code), &mut reader)?,
            }
        }
        Some(())
    }

    /// Returns the location of the next row, or `Some(None)` if the instruction begins no row.
    fn read_advance(&self, code: u8, reader: &mut Reader<'_>) -> Option<Option<u64>> {
        let delta = match DwCfa(code) {
            _ if DwCfa(code & PRIMARY_MASK) == dw::DW_CFA_advance_loc => u64::from(code & OPERAND_MASK),
            dw::DW_CFA_advance_loc1 => u64::from(reader.u8()?),
            dw::DW_CFA_advance_loc2 => u64::from(reader.u16()?),
            dw::DW_CFA_advance_loc4 => u64::from(reader.u32()?),
            // Compilers do not emit this instruction.
            dw::DW_CFA_set_loc => return None,
            _ => return Some(None),
        };
        Some(Some(self.location.wrapping_add(delta.wrapping_mul(self.entry.common.code_alignment))))
    }

    fn scale_offset(&self, offset: i64) -> Option<i32> {
        i32::try_from(offset.checked_mul(self.entry.common.data_alignment)?).ok()
    }

    fn restore_rule(&mut self, register: u64) {
        let rule = usize::try_from(register).ok().and_then(|register| self.initial.rules.get(register)).copied();
        if let Some(rule) = rule {
            self.row.set(register, rule);
        }
    }

    fn run_instruction(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        match code {
            dw::DW_CFA_nop => {}
            // Toggles the signing of the return address. `Machine::code_address` strips a signature in any case.
            dw::DW_CFA_AARCH64_negate_ra_state | NEGATE_RA_STATE_WITH_PC if self.machine == Machine::Aarch64 => {}
            dw::DW_CFA_GNU_args_size => drop(reader.uleb()?),
            dw::DW_CFA_offset_extended => {
                let (register, offset) = (reader.uleb()?, reader.uleb()? as i64);
                self.row.set(register, Rule::Offset(self.scale_offset(offset)?));
            }
            dw::DW_CFA_restore_extended => {
                let register = reader.uleb()?;
                self.restore_rule(register);
            }
            dw::DW_CFA_undefined => self.row.set(reader.uleb()?, Rule::Undefined),
            dw::DW_CFA_same_value => self.row.set(reader.uleb()?, Rule::Same),
            dw::DW_CFA_register => {
                let (register, source) = (reader.uleb()?, reader.uleb()?);
                self.row.set(register, Rule::Register(u8::try_from(source).ok()?));
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
            | dw::DW_CFA_def_cfa_offset_sf => self.set_cfa(code, reader)?,
            _ => self.run_rule_instruction(code, reader)?,
        }
        Some(())
    }

    /// Runs a `DW_CFA_def_cfa*` instruction with a register or an offset.
    fn set_cfa(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        let (register, offset) = match (code, self.row.cfa) {
            (dw::DW_CFA_def_cfa, _) => (self.read_register(reader)?, i32::try_from(reader.uleb()?).ok()?),
            (dw::DW_CFA_def_cfa_sf, _) => (self.read_register(reader)?, self.scale_offset(reader.sleb()?)?),
            (dw::DW_CFA_def_cfa_register, Cfa::Register(_, offset)) => (self.read_register(reader)?, offset),
            (dw::DW_CFA_def_cfa_offset, Cfa::Register(register, _)) => (register, i32::try_from(reader.uleb()?).ok()?),
            (dw::DW_CFA_def_cfa_offset_sf, Cfa::Register(register, _)) => {
                (register, self.scale_offset(reader.sleb()?)?)
            }
            _ => return None,
        };
        self.row.cfa = Cfa::Register(register, offset);
        Some(())
    }

    /// Runs `DW_CFA_expression` and the other instructions that set a register's rule with an operand.
    fn run_rule_instruction(&mut self, code: DwCfa, reader: &mut Reader<'_>) -> Option<()> {
        let register = reader.uleb()?;
        let rule = match code {
            dw::DW_CFA_expression => Rule::Expression(skip_block(reader)?),
            dw::DW_CFA_val_expression => Rule::ValueExpression(skip_block(reader)?),
            dw::DW_CFA_offset_extended_sf => Rule::Offset(self.scale_offset(reader.sleb()?)?),
            dw::DW_CFA_val_offset => Rule::ValueOffset(self.scale_offset(reader.uleb()? as i64)?),
            dw::DW_CFA_val_offset_sf => Rule::ValueOffset(self.scale_offset(reader.sleb()?)?),
            NEGATIVE_OFFSET_EXTENDED => Rule::Offset(self.scale_offset(reader.uleb()? as i64)?.checked_neg()?),
            _ => return None,
        };
        self.row.set(register, rule);
        Some(())
    }

    fn read_register(&self, reader: &mut Reader<'_>) -> Option<u8> {
        u8::try_from(reader.uleb()?).ok().filter(|&register| usize::from(register) < REGISTERS)
    }
}

/// Skips a block, and returns the offset of its length.
fn skip_block(reader: &mut Reader<'_>) -> Option<u32> {
    let start = u32::try_from(reader.position()).ok()?;
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)?;
    Some(start)
}

/// Returns the contents of the block at `start`.
fn read_block(section: &[u8], start: u32) -> Option<&[u8]> {
    let mut reader = Reader::new(section, start as usize);
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)
}
