//! Error type for reported objects and for files.

use core::fmt;

use crate::{Address, AddressRange, ObjectId};

/// Error about an object, or about a file that the crate writes.
///
/// ```
/// use jitlisten::{Error, LoadedObject};
///
/// let error = LoadedObject::parse(b"not an ELF file").unwrap_err();
/// assert!(matches!(error, Error::NotAnObject(_)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a readable ELF object; the message comes from the ELF reader.
    NotAnObject(Reason),
    /// The object is for another machine (`e_machine`).
    OtherMachine(u16),
    /// The file is neither relocatable nor linked (`e_type`).
    OtherFileType(u16),
    /// Two loaded executable sections overlap in memory.
    SectionsOverlap(AddressRange, AddressRange),
    /// A loaded section exceeds the address space.
    OutsideAddressSpace {
        /// `sh_addr` of the section.
        start: u64,
        /// `sh_size` of the section.
        size: u64,
    },
    /// The counts and references in the object describe more than `limit` bytes of data, far more than the object's
    /// size.
    TooMuchData {
        /// Limit for an object of this size.
        limit: u64,
    },
    /// There is not enough memory to process an object of `size` bytes.
    NoMemory {
        /// Size of the object.
        size: usize,
    },
    /// Unsupported relocation type (`r_type`).
    UnknownRelocation(u32),
    /// Relocation that points outside its section (`r_offset`).
    RelocationOutside(u64),
    /// Malformed DWARF or call frame information; the message comes from the DWARF reader.
    Dwarf(Reason),
    /// Call frame information that cannot be rewritten for other addresses; the message comes from the converter.
    Move(Reason),
    /// ELF file that cannot be written; the message comes from the ELF writer.
    NotWritten(Reason),
    /// Debug or call frame information that cannot be written; the message comes from the DWARF writer.
    Encode(Reason),
    /// Raw code that contains no function, or a function without a name.
    NoFunction,
    /// Function of raw code that is empty, too long, or lacks an address.
    FunctionSize {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        size: u64,
    },
    /// Raw code that consists of too many separate pieces.
    TooManyPieces(usize),
    /// No live object has this id: it was never reported, or has been freed.
    UnknownObject(ObjectId),
    /// The same caller has already reported the object as *finalized*.
    AlreadyFinalized(ObjectId),
    /// Memory in front of code that cannot hold the headers of an image: not whole pages, or not private anonymous
    /// memory.
    Padding {
        /// Object with the code.
        id: ObjectId,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// The `.eh_frame` of a finalized object is unusable and was ignored.
    UnwindTable {
        /// Object with this table.
        id: ObjectId,
        /// Description of the problem.
        problem: TableProblem,
    },
}

/// Reason why an `.eh_frame` is unusable.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableProblem {
    /// Its memory cannot be read.
    Unreadable,
    /// It is malformed; the message comes from the DWARF reader.
    Malformed(Reason),
    /// None of its entries is for a function of the object.
    OtherCode,
    /// One of its entries, for this range, is only partly inside the object's functions.
    PartlyOutside(AddressRange),
    /// One of its entries, for code at this address, is empty.
    EmptyEntry(Address),
    /// One of its entries, for this range, overlaps another.
    EntriesOverlap(AddressRange),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAnObject(error) => write!(f, "not a readable ELF object: {error}"),
            Error::OtherMachine(machine) => write!(f, "object of another machine: e_machine {machine}"),
            Error::OtherFileType(file_type) => write!(f, "neither relocatable nor linked: e_type {file_type}"),
            Error::SectionsOverlap(first, second) => write!(f, "executable sections overlap: {first} and {second}"),
            Error::OutsideAddressSpace { start, size } => {
                write!(f, "section of {size} bytes at {start:#x} leaves the address space")
            }
            Error::TooMuchData { limit } => write!(f, "object asks for more than {limit} bytes of names and copies"),
            Error::NoMemory { size } => write!(f, "no memory for an object of {size} bytes"),
            Error::UnknownRelocation(r_type) => write!(f, "unknown relocation type {r_type}"),
            Error::RelocationOutside(offset) => write!(f, "relocation outside its section: r_offset {offset:#x}"),
            Error::Dwarf(error) => write!(f, "unreadable debug information: {error}"),
            Error::Move(error) => write!(f, "call frame information cannot be moved: {error}"),
            Error::NotWritten(error) => write!(f, "an ELF file cannot be written: {error}"),
            Error::Encode(error) => write!(f, "debug or call frame information cannot be written: {error}"),
            Error::NoFunction => f.write_str("raw code has no function, or one without a name"),
            Error::FunctionSize { start, size } => write!(f, "invalid function: {size} bytes at {start:#x}"),
            Error::TooManyPieces(pieces) => write!(f, "raw code is in {pieces} pieces"),
            Error::UnknownObject(id) => write!(f, "object {} was not reported, or has been freed", id.0),
            Error::AlreadyFinalized(id) => write!(f, "object {} has been finalized before", id.0),
            Error::Padding { id, size } => {
                write!(f, "the {size} bytes in front of object {} are not pages of private anonymous memory", id.0)
            }
            Error::UnwindTable { id, problem } => write!(f, "the .eh_frame of object {} is ignored: {problem}", id.0),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for TableProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableProblem::Unreadable => f.write_str("its memory cannot be read"),
            TableProblem::Malformed(reason) => write!(f, "it is malformed: {reason}"),
            TableProblem::OtherCode => f.write_str("no entry is for a function of the object"),
            TableProblem::PartlyOutside(range) => write!(f, "the entry for {range} is partly outside the functions"),
            TableProblem::EmptyEntry(start) => write!(f, "the entry for {start} is empty"),
            TableProblem::EntriesOverlap(range) => write!(f, "the entry for {range} overlaps another"),
        }
    }
}

/// Message of the library that reads or writes ELF and DWARF for this crate; for display only. The library and its
/// version are not part of this crate's API.
pub struct Reason(Library);

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines [`Library`], and conversions for `?` within this crate.
macro_rules! library_errors {
    ($($library:ident($error:ty) => $($target:ident::$variant:ident),+;)*) => {
        #[derive(Debug)]
        enum Library {
            $($library($error),)*
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0 {
                    $(Library::$library(error) => error.fmt(f),)*
                }
            }
        }

        $($(
            #[doc(hidden)]
            impl From<$error> for $target {
                fn from(error: $error) -> Self {
                    $target::$variant(Reason(Library::$library(error)))
                }
            }
        )+)*
    };
}

library_errors! {
    ReadElf(object::Error) => Error::NotAnObject;
    ReadDwarf(gimli::Error) => Error::Dwarf, TableProblem::Malformed;
    ConvertCfi(gimli::write::ConvertError) => Error::Move;
    WriteElf(object::write::Error) => Error::NotWritten;
    WriteDwarf(gimli::write::Error) => Error::Encode;
}
