//! Decoders for x86-64 and aarch64. They describe an instruction's control flow and operation independently of the
//! instruction set.

mod aarch64;
pub(crate) mod graph;
mod x86_64;

use std::ops::{BitOr, BitOrAssign, Not};

use object::elf;

/// Instruction set of an object file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// How control leaves an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Continues with the next instruction. This includes calls.
    Next,
    /// Jumps to the target, if it is known.
    Jump(Option<u64>),
    /// Jumps to one of the targets in a table.
    Switch,
    /// Jumps to the target or continues with the next instruction.
    Branch(Option<u64>),
    Leave,
}

/// Instruction for the control flow graph: its address range and how control leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) address: u64,
    /// Address of the next instruction.
    pub(crate) end: u64,
    pub(crate) flow: Flow,
    /// True for an instruction without effect, which fills the space before an aligned block.
    pub(crate) is_padding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallTarget {
    /// Address in the file's address space.
    Relative(u64),
    /// Address in the process.
    Absolute(u64),
}

/// Set of registers. A partial register counts as the whole register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers(u128);

/// Operation of an instruction, as classified for loop facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Operation {
    #[default]
    Other,
    Unknown,
    Call,
    /// Copies, loads or stores a vector register.
    Move,
    /// Adds to or subtracts from a value in one of these registers.
    Add([Option<u8>; 2]),
    /// Adds to or subtracts from an integer in memory.
    AddInMemory,
    /// Multiplies a value in one of these registers.
    Multiply([Option<u8>; 2]),
    /// Selects one of two floating-point values: the larger, the smaller, or by a mask.
    Choose,
    ChooseInteger,
    /// Compares floating-point values.
    Compare,
    Divide(Option<u8>),
    DivideInteger(Option<u8>),
    SquareRoot,
    /// Converts from float32 to float64; `Narrow` converts back.
    Widen,
    Narrow,
    Gather,
    Scatter,
}

/// Number of values that an operation works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Class {
    /// Several values: register width in bits, and element width if known.
    Packed(u32, Option<u32>),
    /// One floating-point value.
    Scalar,
    #[default]
    Other,
}

/// Memory access of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: Registers,
    /// The same registers with their factors; `None` where the decoder does not tell.
    pub(crate) parts: [Option<(u8, u32)>; 2],
    /// Constant part of the address; 0 where the decoder does not tell.
    pub(crate) offset: i64,
    /// Size of the access in bytes; 0 if unknown.
    pub(crate) bytes: u32,
    pub(crate) is_stack: bool,
    pub(crate) is_store: bool,
    pub(crate) is_atomic: bool,
    /// True if the access updates the address register.
    pub(crate) updates_base: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) step: Step,
    pub(crate) operation: Operation,
    pub(crate) class: Class,
    pub(crate) read: Registers,
    pub(crate) written: Registers,
    pub(crate) memory: Option<Memory>,
    pub(crate) sets_flags: bool,
    /// Registers `(target, addend)`: the instruction adds the second, or a value on the stack at it, to the first.
    pub(crate) increment: Option<(u8, u8)>,
    /// Register and constant that the instruction adds to it.
    pub(crate) advance: Option<(u8, i64)>,
    /// Vector registers `(minuend, subtrahend)` of a subtraction of integers.
    pub(crate) difference: Option<(u8, u8)>,
    /// True if the instruction spreads the sign of an integer, as in an index that counts from the end if negative.
    pub(crate) spreads_sign: bool,
    /// True for a product with twice as many bits as its factors, as in a division by a constant.
    pub(crate) multiplies_wide: bool,
    /// True for products of several integers at a time.
    pub(crate) multiplies_packed: bool,
    /// True for a product of two integers.
    pub(crate) multiplies_integers: bool,
    /// True for a store of those values of a vector that a mask selects, on AVX and AVX2.
    pub(crate) stores_by_mask: bool,
    /// True for an instruction of AVX or later.
    pub(crate) is_avx: bool,
    /// Constant that the instruction writes to the register that returns a function's status. `Some(None)` if the
    /// written value is not constant; `None` if the instruction does not write that register.
    pub(crate) status: Option<Option<u32>>,
}

impl Machine {
    pub(crate) fn from_elf(machine: elf::Machine) -> Option<Machine> {
        match machine {
            elf::EM_X86_64 => Some(Machine::X86_64),
            elf::EM_AARCH64 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    pub(crate) fn steps(self, code: &[u8], address: u64) -> Vec<Step> {
        match self {
            Machine::X86_64 => x86_64::steps(code, address),
            Machine::Aarch64 => aarch64::steps(code, address),
        }
    }

    /// Returns the target of the call at the end of the code, if it is constant. Known for x86-64 only.
    pub(crate) fn call_target(self, code: &[u8], address: u64) -> Option<CallTarget> {
        match self {
            Machine::X86_64 => x86_64::call_target(code, address),
            Machine::Aarch64 => None,
        }
    }

    pub(crate) fn instructions(self, code: &[u8], address: u64) -> Vec<Instruction> {
        match self {
            Machine::X86_64 => x86_64::instructions(code, address),
            Machine::Aarch64 => aarch64::instructions(code, address),
        }
    }

    /// Disassembles the instruction at an address.
    pub(crate) fn text(self, code: &[u8], address: u64) -> String {
        match self {
            Machine::X86_64 => x86_64::text(code, address),
            Machine::Aarch64 => aarch64::text(code, address),
        }
    }
}

/// Number of the first vector register. General-purpose registers have lower numbers; there are up to 32 of each.
pub(crate) const FIRST_VECTOR: u8 = 32;
const FIRST_MASK: u8 = 64;

impl Registers {
    pub(crate) const VECTORS: Registers = Registers(((1 << FIRST_VECTOR) - 1) << FIRST_VECTOR);

    pub(crate) fn single(number: u8) -> Registers {
        Registers(1_u128.checked_shl(number.into()).unwrap_or(0))
    }

    pub(crate) fn and(self, other: Registers) -> Registers {
        Registers(self.0 & other.0)
    }

    pub(crate) fn intersects(self, other: Registers) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn contains(self, number: u8) -> bool {
        self.intersects(Registers::single(number))
    }

    /// Yields the numbers of all registers in the set.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u8> {
        (0..2 * FIRST_VECTOR).filter(move |number| self.contains(*number))
    }

    /// Yields the vector registers, numbered from 0.
    pub(crate) fn vectors(self) -> impl Iterator<Item = usize> {
        (0..usize::from(FIRST_VECTOR)).filter(move |index| self.contains(FIRST_VECTOR + *index as u8))
    }
}

impl BitOr for Registers {
    type Output = Registers;
    fn bitor(self, other: Registers) -> Registers {
        Registers(self.0 | other.0)
    }
}

impl BitOrAssign for Registers {
    fn bitor_assign(&mut self, other: Registers) {
        self.0 |= other.0;
    }
}

impl Not for Registers {
    type Output = Registers;
    fn not(self) -> Registers {
        Registers(!self.0)
    }
}

impl FromIterator<u8> for Registers {
    fn from_iter<All: IntoIterator<Item = u8>>(numbers: All) -> Registers {
        numbers.into_iter().fold(Registers::default(), |registers, number| registers | Registers::single(number))
    }
}

impl Instruction {
    pub(crate) fn has_vectors(&self) -> bool {
        (self.read | self.written).intersects(Registers::VECTORS)
    }

    /// Returns the registers that a load fills from memory. An updated address register is not among them.
    pub(crate) fn loaded(&self) -> Registers {
        match self.memory {
            Some(Memory { updates_base: true, address, .. }) => self.written.and(!address),
            _ => self.written,
        }
    }
}
