//! Machine code of x86-64 and aarch64: how control leaves an instruction, and what the facts of a loop need to know of
//! it, in terms of no instruction set.

mod aarch64;
mod x86_64;

use std::ops::{BitOr, BitOrAssign, Not};

use object::elf;

/// The instruction set of a file with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// How control leaves an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// To the next instruction, also behind a call.
    Next,
    /// To the target, if it is known.
    Jump(Option<u64>),
    /// To the target or to the next instruction.
    Branch(Option<u64>),
    /// Out of the function.
    Leave,
}

/// An instruction as the graph of a function needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) address: u64,
    /// The next instruction's address.
    pub(crate) end: u64,
    pub(crate) flow: Flow,
}

/// A set of registers, each as a whole: a part of a register is that register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers(u128);

/// What an instruction does, as far as it is of interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Does {
    #[default]
    Other,
    /// The decoder does not know it.
    Unknown,
    Call,
    /// Copies a vector register, loads or stores it.
    Move,
    /// Adds to the value of one of these registers, or subtracts from it.
    Add([Option<u8>; 2]),
    /// Multiplies the value of one of these registers.
    Multiply([Option<u8>; 2]),
    /// Of two floating-point values one: the larger, the smaller, or as a mask says.
    Choose,
    ChooseInteger,
    /// Compares floating-point values.
    Compare,
    Divide(Option<u8>),
    DivideInteger(Option<u8>),
    SquareRoot,
    /// Between float32 and float64.
    Widen,
    Narrow,
    Gather,
    Scatter,
}

/// How many values an operation has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Class {
    /// Several, in a register of so many bits; those of a value, where they are known.
    Packed(u32, Option<u32>),
    /// One floating-point value.
    Scalar,
    /// No arithmetic.
    #[default]
    Other,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Those of the address.
    pub(crate) address: Registers,
    pub(crate) is_stack: bool,
    pub(crate) is_store: bool,
    pub(crate) is_atomic: bool,
    /// The address's register is moved on.
    pub(crate) moves_on: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) step: Step,
    pub(crate) does: Does,
    pub(crate) class: Class,
    pub(crate) read: Registers,
    pub(crate) written: Registers,
    pub(crate) memory: Option<Memory>,
    pub(crate) sets_flags: bool,
    /// The first register grows by the second one.
    pub(crate) grows: Option<(u8, u8)>,
    /// Whether it writes the register of a function's status: a constant, or something else.
    pub(crate) status: Option<Option<u32>>,
}

impl Machine {
    pub(crate) fn of(machine: elf::Machine) -> Option<Machine> {
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

    pub(crate) fn instructions(self, code: &[u8], address: u64) -> Vec<Instruction> {
        match self {
            Machine::X86_64 => x86_64::instructions(code, address),
            Machine::Aarch64 => aarch64::instructions(code, address),
        }
    }

    /// The one instruction at an address, as an assembler writes it.
    pub(crate) fn text(self, code: &[u8], address: u64) -> String {
        match self {
            Machine::X86_64 => x86_64::text(code, address),
            Machine::Aarch64 => aarch64::text(code, address),
        }
    }
}

/// The first vector register; those before it are general ones. There are up to 32 of each.
pub(crate) const VECTOR: u8 = 32;
const MASK: u8 = 64;

impl Registers {
    pub(crate) const GENERAL: Registers = Registers((1 << VECTOR) - 1);
    pub(crate) const VECTORS: Registers = Registers(((1 << VECTOR) - 1) << VECTOR);

    pub(crate) fn one(number: u8) -> Registers {
        Registers(1_u128.checked_shl(number.into()).unwrap_or(0))
    }

    pub(crate) fn and(self, other: Registers) -> Registers {
        Registers(self.0 & other.0)
    }

    pub(crate) fn meets(self, other: Registers) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn has(self, number: u8) -> bool {
        self.meets(Registers::one(number))
    }

    /// From 0, where they are vector registers.
    pub(crate) fn vectors(self) -> impl Iterator<Item = usize> {
        (0..usize::from(VECTOR)).filter(move |at| self.has(VECTOR + *at as u8))
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
        numbers.into_iter().fold(Registers::default(), |all, number| all | Registers::one(number))
    }
}

impl Instruction {
    pub(crate) fn has_vectors(&self) -> bool {
        (self.read | self.written).meets(Registers::VECTORS)
    }

    /// Registers whose new value is from memory, where it is a load: not that of the address.
    pub(crate) fn loaded(&self) -> Registers {
        match self.memory {
            Some(Memory { moves_on: true, address, .. }) => self.written.and(!address),
            _ => self.written,
        }
    }
}
