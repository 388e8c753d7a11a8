//! Validation of FDEs: gimli decodes each one before any in-process unwinder can read it.
//!
//! Unwinders trust an FDE, and often read it inside a signal handler of the host. libunwind dereferences unchecked
//! values (the length of an expression, an offset from a register). libgcc aborts at a register that the machine does
//! not have, at an unknown operation of an expression, and where no rule defines the frame address (`gcc_assert` and
//! `gcc_unreachable` in `libgcc/unwind-dw2.c`). Rules with such defects are never registered.
//!
//! `DW_CFA_set_loc` is rejected, too: its operand has the pointer encoding of the FDE, which our copy changes. So are
//! jumps and divisions in expressions, because an unwinder might never return. LLVM and GCC emit none of these.

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, EhFrame, EndianSlice, Error, FrameDescriptionEntry, LittleEndian,
    Operation, OperationIter, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Vendor,
};

use crate::frame_pointer::Machine;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum number of values on the stack of an expression, as in `jitlisten-unwinder`.
const MAX_STACK_DEPTH: usize = 16;

/// Validates FDEs.
#[derive(Debug)]
pub struct RuleChecker {
    machine: Machine,
    context: UnwindContext<usize>,
}

/// Checks FDEs of this process's machine.
impl Default for RuleChecker {
    fn default() -> Self {
        RuleChecker::new(Machine::current().unwrap_or(Machine::X86_64))
    }
}

impl RuleChecker {
    pub(crate) fn new(machine: Machine) -> RuleChecker {
        RuleChecker { machine, context: UnwindContext::new() }
    }

    /// Returns `bytes` as a section with rules of the checker's machine.
    pub fn section<'a>(&self, bytes: &'a [u8]) -> EhFrame<Reader<'a>> {
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        if self.machine == Machine::Aarch64 {
            section.set_vendor(Vendor::AArch64);
        }
        section
    }

    /// Returns an error unless the FDE decodes completely, and unwinders can follow its rules.
    ///
    /// # Errors
    /// If the FDE is malformed or unsupported.
    pub fn check(
        &mut self,
        fde: &FrameDescriptionEntry<Reader<'_>>,
        section: &EhFrame<Reader<'_>>,
        bases: &BaseAddresses,
    ) -> gimli::Result<()> {
        // The second number is that of the registers in libgcc's frame state (`DWARF_FRAME_REGISTERS`).
        let (return_address, count) = match self.machine {
            Machine::X86_64 => (gimli::X86_64::RA, 17),
            Machine::Aarch64 => (gimli::AArch64::X30, 97),
        };
        let check_register = |register: Register| {
            if register.0 < count { Ok(()) } else { Err(Error::UnsupportedRegister(register.0.into())) }
        };
        let column = fde.cie().return_address_register();
        if column != return_address {
            return Err(Error::UnsupportedRegister(column.0.into()));
        }
        let mut programs = [fde.cie().instructions(section, bases), fde.instructions(section, bases)];
        for program in &mut programs {
            while let Some(instruction) = program.next()? {
                if let CallFrameInstruction::SetLoc { .. } = instruction {
                    return Err(Error::UnsupportedPointerEncoding(gimli::DW_EH_PE_absptr));
                }
            }
        }
        let check_expression = |expression: &UnwindExpression<usize>, depth| {
            check_operations(expression.get(section)?.operations(fde.cie().encoding()), depth, &check_register)
        };
        let mut rows = fde.rows(section, bases, &mut self.context)?;
        while let Some(row) = rows.next_row()? {
            match row.cfa() {
                // The initial state: no instruction has defined the frame address.
                CfaRule::RegisterAndOffset { register: Register(0), offset: 0 } => {
                    return Err(Error::CfiInstructionInInvalidContext);
                }
                CfaRule::RegisterAndOffset { register, .. } => check_register(*register)?,
                CfaRule::Expression(expression) => check_expression(expression, 0)?,
            }
            for (_, rule) in row.registers() {
                match rule {
                    RegisterRule::Register(register) => check_register(*register)?,
                    RegisterRule::Expression(expression) | RegisterRule::ValExpression(expression) => {
                        check_expression(expression, 1)?;
                    }
                    _ => {}
                }
            }
            // Without a rule, an unwinder finds the same return address again and again.
            let is_same = matches!(row.register(return_address), None | Some(RegisterRule::SameValue));
            if is_same && self.machine == Machine::X86_64 {
                return Err(Error::CfiInstructionInInvalidContext);
            }
        }
        Ok(())
    }

    /// Checks the FDE at `offset` in `bytes`, as written by `encode`.
    pub(super) fn check_encoded(&mut self, bytes: &[u8], offset: usize) -> gimli::Result<()> {
        let section = self.section(bytes);
        let bases = BaseAddresses::default().set_eh_frame(0);
        let fde = section.fde_from_offset(&bases, gimli::EhFrameOffset(offset), EhFrame::cie_from_offset)?;
        self.check(&fde, &section, &bases)
    }
}

/// Checks an expression that starts with `depth` values on its stack.
fn check_operations(
    mut operations: OperationIter<Reader<'_>>,
    mut depth: usize,
    check_register: &impl Fn(Register) -> gimli::Result<()>,
) -> gimli::Result<()> {
    while let Some(operation) = operations.next()? {
        let (pops, pushes) = match operation {
            Operation::Nop => (0, 0),
            Operation::UnsignedConstant { .. } | Operation::SignedConstant { .. } | Operation::Address { .. } => (0, 1),
            Operation::RegisterOffset { register, base_type, .. } if base_type.0 == 0 => {
                check_register(register)?;
                (0, 1)
            }
            Operation::Deref { base_type, size: 1 | 2 | 4 | 8, space: false } if base_type.0 == 0 => (1, 1),
            Operation::PlusConstant { .. } | Operation::Abs | Operation::Neg | Operation::Not => (1, 1),
            Operation::Drop => (1, 0),
            Operation::Pick { index } => (usize::from(index) + 1, usize::from(index) + 2),
            Operation::Swap => (2, 2),
            Operation::Rot => (3, 3),
            Operation::And
            | Operation::Minus
            | Operation::Mul
            | Operation::Or
            | Operation::Plus
            | Operation::Shl
            | Operation::Shr
            | Operation::Shra
            | Operation::Xor
            | Operation::Eq
            | Operation::Ge
            | Operation::Gt
            | Operation::Le
            | Operation::Lt
            | Operation::Ne => (2, 1),
            _ => return Err(Error::UnsupportedEvaluation),
        };
        depth = depth.checked_sub(pops).ok_or(Error::NotEnoughStackItems)? + pushes;
        if depth > MAX_STACK_DEPTH {
            return Err(Error::StackFull);
        }
    }
    if depth == 0 { Err(Error::NotEnoughStackItems) } else { Ok(()) }
}
