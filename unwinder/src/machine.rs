//! Differences between processor architectures. Registers are identified by their DWARF numbers.

/// A processor architecture, with the DWARF numbers of its special registers.
///
/// ```
/// use jitlisten_unwinder::Machine;
///
/// assert_eq!(Machine::X86_64.stack_pointer(), 7);
/// // A return address that `pacia` has signed.
/// assert_eq!(Machine::Aarch64.code_address(0x0012_0000_0040_1000), 0x40_1000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// x86-64, with the register numbers of the psABI, 3.6.2.
    #[default]
    X86_64,
    /// AArch64, with the register numbers of DWARF for the Arm 64-bit Architecture, 4.1.
    Aarch64,
}

impl Machine {
    /// Register number of the stack pointer: `rsp`, `sp`.
    pub const fn stack_pointer(self) -> usize {
        match self {
            Machine::X86_64 => 7,
            Machine::Aarch64 => 31,
        }
    }

    /// Register number of the frame pointer: `rbp`, `x29`.
    pub const fn frame_pointer(self) -> usize {
        match self {
            Machine::X86_64 => 6,
            Machine::Aarch64 => 29,
        }
    }

    /// Register number of the return address column: `rip`, `x30`.
    pub const fn return_address(self) -> usize {
        match self {
            Machine::X86_64 => 16,
            Machine::Aarch64 => 30,
        }
    }

    /// Distance from the stack pointer to the canonical frame address at a function's first instruction.
    pub const fn distance_at_entry(self) -> i32 {
        match self {
            Machine::X86_64 => 8,
            Machine::Aarch64 => 0,
        }
    }

    /// Strips a pointer authentication code (`pacia`, `pacib`) from a return address. On AArch64, such a code is in
    /// bits 48 and above; programs that request larger addresses from the kernel are not supported.
    pub const fn code_address(self, value: u64) -> u64 {
        match self {
            Machine::X86_64 => value,
            Machine::Aarch64 => value & ((1 << 48) - 1),
        }
    }
}
