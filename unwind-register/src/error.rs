//! Error type of the crate.

#![forbid(unsafe_code)]

use core::fmt;

/// Reason for rejecting a section or for ignoring an unwinder.
///
/// ```
/// use unwind_register::{Error, Registry, Section};
///
/// // SAFETY: the section describes no code.
/// let result = unsafe { Registry::process().register(&Section::without_eh_frame()) };
/// assert_eq!(result.unwrap_err(), Error::NothingToRegister);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The `.eh_frame` entry at `offset` extends past the end of the section, or its fields past the end of the entry.
    Truncated {
        /// Offset of the entry in the section.
        offset: usize,
    },
    /// Unsupported CIE version (1, 3 and 4 are supported).
    CieVersion {
        /// Offset of the CIE in the section.
        offset: usize,
        /// Version number of the CIE.
        version: u8,
    },
    /// A CIE has an unsupported augmentation letter, which may change the layout.
    Augmentation {
        /// Offset of the CIE in the section.
        offset: usize,
        /// First unsupported letter.
        letter: u8,
    },
    /// A pointer encoding needs a base address that the caller did not provide (`DW_EH_PE_textrel`, `datarel`, ...).
    PointerEncoding {
        /// Offset of the entry in the section.
        offset: usize,
        /// The `DW_EH_PE_*` byte.
        encoding: u8,
    },
    /// The CIE pointer of an FDE does not lead to a CIE.
    NoCie {
        /// Offset of the FDE in the section.
        offset: usize,
    },
    /// The function's call frame instructions do not decode, or use `DW_CFA_set_loc`.
    Instructions {
        /// Start address of the function.
        function: usize,
    },
    /// The section contains neither a usable FDE nor a function with a frame-pointer prologue.
    NothingToRegister,
    /// The memory for unwind entries (1 GiB of address space) is exhausted or could not be reserved.
    OutOfMemory {
        /// Size of the failed request in bytes.
        wanted: usize,
    },
    /// Unsupported architecture (x86_64 and little-endian aarch64 are supported).
    Machine,
    /// A nongnu libunwind gave an unknown answer to the layout probe. It is ignored.
    LibunwindLayout {
        /// Path of the library, as reported by the loader.
        library: String,
        /// Status that its `unw_get_proc_info_by_ip` returned.
        status: i32,
    },
    /// A nongnu libunwind exports the registration function, but lacks a function needed to use it safely. It is
    /// ignored.
    LibunwindSymbols {
        /// Path of the library, as reported by the loader.
        library: String,
        /// Name of the missing symbol.
        missing: &'static str,
    },
    /// The library could not be pinned in memory. It is ignored.
    NotPinned {
        /// Path of the library, as reported by the loader.
        library: String,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated { offset } => write!(f, "the .eh_frame entry at {offset:#x} is cut off"),
            Error::CieVersion { offset, version } => write!(f, "the CIE at {offset:#x} has version {version}"),
            Error::Augmentation { offset, letter } => {
                write!(f, "the CIE at {offset:#x} has the unknown augmentation {:?}", char::from(*letter))
            }
            Error::PointerEncoding { offset, encoding } => {
                write!(f, "the entry at {offset:#x} has a pointer of encoding {encoding:#04x}")
            }
            Error::NoCie { offset } => write!(f, "the FDE at {offset:#x} points to no CIE"),
            Error::Instructions { function } => {
                write!(f, "the call frame instructions of the function at {function:#x} do not decode")
            }
            Error::NothingToRegister => f.write_str("no function has an FDE or a frame pointer"),
            Error::OutOfMemory { wanted } => write!(f, "no space for {wanted} bytes of unwind entries"),
            Error::Machine => f.write_str("the unwind tables of this machine are not known"),
            Error::LibunwindLayout { library, status } => {
                write!(f, "{library}: unknown unw_dyn_info layout (probe returned {status}), not used")
            }
            Error::LibunwindSymbols { library, missing } => write!(f, "{library}: no {missing}, not used"),
            Error::NotPinned { library } => write!(f, "{library}: could not be pinned, not used"),
        }
    }
}
