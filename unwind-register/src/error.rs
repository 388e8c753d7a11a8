//! Errors.

#![forbid(unsafe_code)]

use core::fmt;

/// Why a section was not registered, or a library not used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The entry at `offset` of the `.eh_frame` ends before its own length says, or behind the section's end.
    Truncated {
        /// Where the entry starts.
        offset: usize,
    },
    /// A CIE has a version that `.eh_frame` does not know (1, 3 and 4 are known).
    CieVersion {
        /// Where the CIE starts.
        offset: usize,
        /// The version it has.
        version: u8,
    },
    /// A CIE has an augmentation letter that changes the layout and is not known here.
    Augmentation {
        /// Where the CIE starts.
        offset: usize,
        /// The first unknown letter.
        letter: u8,
    },
    /// A pointer has an encoding that needs a base no one gave (`DW_EH_PE_textrel`, `datarel`, ...).
    PointerEncoding {
        /// Where the entry starts.
        offset: usize,
        /// The `DW_EH_PE_*` byte.
        encoding: u8,
    },
    /// An FDE points to something that is no CIE.
    NoCie {
        /// Where the FDE starts.
        offset: usize,
    },
    /// The call frame instructions of the function do not decode, or use `DW_CFA_set_loc`.
    Instructions {
        /// The first address of the function.
        function: usize,
    },
    /// There was neither an FDE nor a frame-pointer prologue in the whole section.
    NothingToRegister,
    /// The memory for unwind entries (1 GiB of address space) is used up, or could not be reserved.
    OutOfMemory {
        /// How many bytes were asked for.
        wanted: usize,
    },
    /// The machine is not one whose unwind tables are known here (x86_64 and aarch64, little endian, are).
    Machine,
    /// A libunwind answers the layout probe like no known version: it is ignored.
    LibunwindLayout {
        /// The library, as the loader calls it.
        library: String,
        /// What its `unw_get_proc_info_by_ip` returned.
        status: i32,
    },
    /// A libunwind has the registration function, but not the functions that make using it safe.
    LibunwindSymbols {
        /// The library, as the loader calls it.
        library: String,
        /// The symbol that is missing.
        missing: &'static str,
    },
    /// The library could not be pinned, so it is ignored.
    NotPinned {
        /// The library, as the loader calls it.
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
