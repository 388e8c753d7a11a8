//! Parts of an object: functions, text ranges, machine.

use object::elf;

use crate::{AddressRange, Error};

/// Processor that an object was compiled for (`e_machine`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Machine {
    /// `EM_X86_64`
    X86_64,
    /// `EM_AARCH64`
    Aarch64,
}

impl Machine {
    /// Machine of this process.
    pub const HERE: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };

    pub(super) fn from_e_machine(machine: elf::Machine) -> Result<Self, Error> {
        match machine {
            elf::EM_X86_64 => Ok(Machine::X86_64),
            elf::EM_AARCH64 => Ok(Machine::Aarch64),
            other => Err(Error::OtherMachine(other.0)),
        }
    }
}

/// A loaded executable section.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextRange {
    /// Section name: `.text`, `.text.hot`, `.ltext`, ...
    pub section: Box<str>,
    /// Address range in memory.
    pub range: AddressRange,
}

/// A function of a loaded object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// Symbol name from the object (invalid UTF-8 is replaced).
    pub linkage_name: Box<str>,
    /// Code range of the function.
    pub range: AddressRange,
    /// Other symbols at the function's first byte, best names first.
    pub aliases: Vec<Box<str>>,
}
