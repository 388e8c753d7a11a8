//! Differences between processors. Registers have DWARF's numbers.

#![forbid(unsafe_code)]

/// A processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// x86-64 psABI, 3.6.2.
    #[default]
    X86_64,
    /// DWARF for the Arm 64-bit Architecture, 4.1.
    Aarch64,
}

impl Machine {
    /// The stack pointer: `rsp`, `sp`.
    pub const fn stack_pointer(self) -> usize {
        match self {
            Machine::X86_64 => 7,
            Machine::Aarch64 => 31,
        }
    }

    /// The frame pointer: `rbp`, `x29`.
    pub const fn frame_pointer(self) -> usize {
        match self {
            Machine::X86_64 => 6,
            Machine::Aarch64 => 29,
        }
    }

    /// The column of the return address: `rip`, `x30`.
    pub const fn return_address(self) -> usize {
        match self {
            Machine::X86_64 => 16,
            Machine::Aarch64 => 30,
        }
    }

    /// From the stack pointer to the canonical frame address at the first instruction of a function.
    pub const fn distance_at_entry(self) -> i32 {
        match self {
            Machine::X86_64 => 8,
            Machine::Aarch64 => 0,
        }
    }

    /// The address in a return address. On aarch64 the bits above 48 may be a signature (`pacia`, `pacib`); programs
    /// that ask the kernel for larger addresses are not supported.
    pub const fn code_address(self, value: u64) -> u64 {
        match self {
            Machine::X86_64 => value,
            Machine::Aarch64 => value & ((1 << 48) - 1),
        }
    }
}
