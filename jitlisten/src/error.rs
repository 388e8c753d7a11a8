//! Errors: of objects that a caller reports, and of files.

#![forbid(unsafe_code)]

use core::fmt;

use crate::{AddressRange, ObjectId};

/// Everything this crate refuses, named by what was found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not an ELF object this crate can read; the text is the reader's.
    NotAnObject(Reason),
    /// The object is for another machine (`e_machine`).
    OtherMachine(u16),
    /// The file is neither relocatable nor linked (`e_type`).
    OtherFileType(u16),
    /// Two loaded executable sections claim the same memory.
    SectionsOverlap(AddressRange, AddressRange),
    /// A loaded section leaves the address space.
    OutsideAddressSpace {
        /// `sh_addr`
        start: u64,
        /// `sh_size`
        size: u64,
    },
    /// Following the object's own counts and references would copy more than `limit` bytes, far more than it has.
    TooMuchData {
        /// What an object of this size may ask for.
        limit: u64,
    },
    /// There is no memory to work on an object of `size` bytes.
    NoMemory {
        /// The object's size.
        size: usize,
    },
    /// A relocation of a type this crate does not know (`r_type`).
    UnknownRelocation(u32),
    /// A relocation that points outside its section (`r_offset`).
    RelocationOutside(u64),
    /// DWARF or call frame information that cannot be read; the text is the reader's.
    Dwarf(Reason),
    /// Call frame information that cannot be written for another place; the text is the converter's.
    Move(Reason),
    /// An ELF file that cannot be written; the text is the writer's.
    NotWritten(Reason),
    /// Debug or call frame information that cannot be written; the text is the writer's.
    Encode(Reason),
    /// Raw code without a function, or with one that has no name.
    NoFunction,
    /// A function of raw code that is empty, too long, or at no address.
    FunctionSize {
        /// Its first byte.
        start: u64,
        /// Its length.
        size: u64,
    },
    /// Raw code in so many pieces that do not touch.
    TooManyPieces(usize),
    /// No object of that number has been reported, or it has been freed.
    UnknownObject(ObjectId),
    /// *finalized* comes a second time from the same caller.
    AlreadyFinalized(ObjectId),
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
            Error::UnknownObject(id) => write!(f, "no object {} is alive", id.0),
            Error::AlreadyFinalized(id) => write!(f, "object {} has been finalized before", id.0),
        }
    }
}

impl std::error::Error for Error {}

/// What the library said that reads or writes ELF and DWARF for this crate: to be shown. Which library that is, and in
/// which version, is no part of what this crate offers.
pub struct Reason(Library);

#[derive(Debug)]
enum Library {
    ReadElf(object::Error),
    ReadDwarf(gimli::Error),
    ConvertCfi(gimli::write::ConvertError),
    WriteElf(object::write::Error),
    WriteDwarf(gimli::write::Error),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Library::ReadElf(error) => error.fmt(f),
            Library::ReadDwarf(error) => error.fmt(f),
            Library::ConvertCfi(error) => error.fmt(f),
            Library::WriteElf(error) => error.fmt(f),
            Library::WriteDwarf(error) => error.fmt(f),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// These are for `?` in this crate.
#[doc(hidden)]
impl From<object::Error> for Error {
    fn from(error: object::Error) -> Self {
        Error::NotAnObject(Reason(Library::ReadElf(error)))
    }
}

#[doc(hidden)]
impl From<gimli::Error> for Error {
    fn from(error: gimli::Error) -> Self {
        Error::Dwarf(Reason(Library::ReadDwarf(error)))
    }
}

#[doc(hidden)]
impl From<gimli::write::Error> for Error {
    fn from(error: gimli::write::Error) -> Self {
        Error::Encode(Reason(Library::WriteDwarf(error)))
    }
}

#[doc(hidden)]
impl From<gimli::write::ConvertError> for Error {
    fn from(error: gimli::write::ConvertError) -> Self {
        Error::Move(Reason(Library::ConvertCfi(error)))
    }
}

#[doc(hidden)]
impl From<object::write::Error> for Error {
    fn from(error: object::write::Error) -> Self {
        Error::NotWritten(Reason(Library::WriteElf(error)))
    }
}
