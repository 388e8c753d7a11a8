//! The parts of an object: its functions, its text, and its machine.

use object::elf;

use crate::{AddressRange, Error};

/// The processor an object was compiled for (`e_machine`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Machine {
    /// `EM_X86_64`
    X86_64,
    /// `EM_AARCH64`
    Aarch64,
}

impl Machine {
    /// The machine we run on.
    pub const HERE: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };

    pub(super) fn from_e_machine(machine: elf::Machine) -> Result<Self, Error> {
        match machine {
            elf::EM_X86_64 => Ok(Machine::X86_64),
            elf::EM_AARCH64 => Ok(Machine::Aarch64),
            other => Err(Error::OtherMachine(other.0)),
        }
    }
}

/// One loaded executable section.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextRange {
    /// `.text`, `.text.hot`, `.ltext`, ...
    pub section: Box<str>,
    /// Where it is loaded.
    pub range: AddressRange,
}

/// One function of a loaded object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The symbol as it stands in the object (bytes that are not UTF-8 replaced).
    pub linkage_name: Box<str>,
    /// Where its code is.
    pub range: AddressRange,
    /// The other symbols at its first byte, best first.
    pub aliases: Vec<Box<str>>,
}
