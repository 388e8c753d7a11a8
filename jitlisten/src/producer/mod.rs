//! For programs that compile code and report it themselves. No process surgery.
//!
//! ```text
//!   a JIT with ELF objects     set_section_addresses  --+
//!                                                +-->  loaded  ->  finalized  ->  freeing
//!   a JIT without              raw::encode     --+
//!   inkwell, llvm-sys          llvm.cpp        --+   with one of the `llvmNN-N` features
//! ```
//!
//! [`Session::loaded`] and its siblings are for discovered objects: a verb may come twice, or for no object. A producer
//! reports its own objects, so a wrong order is an error. An object that is also discovered (the shim finds it through
//! LLVM) is one object with one number, and its second *finalized* or *freeing* does nothing.
//!
//! # A JIT without LLVM
//!
//! ```
//! use jitlisten::options::Options;
//! use jitlisten::producer::{self, raw};
//! use jitlisten::{Address, AddressRange, Machine};
//!
//! // As `JITLISTEN=unwind` in the environment says.
//! let (options, complaints) = Options::read(|variable| (variable == "JITLISTEN").then(|| "unwind".into()));
//! let session = producer::open(options, &complaints);
//! # let memory = [0xc3_u8; 16]; // ret
//! let range = AddressRange::new(Address(memory.as_ptr() as u64), memory.len() as u64).ok_or("no such range")?;
//! let functions = [raw::Function::new(range, b"forty_two")];
//! let code = raw::Code::new(Machine::HERE, &functions);
//! let id = producer::code_loaded(session, &code)?; // it has an address
//! producer::finalized(session, id)?; // its bytes are final; now it may run
//! assert_eq!(session.statistics().functions, 1);
//! producer::freeing(session, id)?; // it is about to be freed
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

#[cfg(feature = "_llvm")]
#[allow(unsafe_code)]
pub mod inkwell;
#[cfg(feature = "_llvm")]
#[allow(unsafe_code)]
pub mod llvm;
#[cfg(feature = "_llvm")]
mod llvm_version;
pub mod raw;
mod raw_lines;
mod reported_code;
mod section_addresses;
#[cfg(feature = "_llvm")]
#[allow(unsafe_code)]
mod verbs;

use crate::object::Origin;
use crate::options::{Listening, Options};
use crate::process::host_state::HostStateGuard;
use crate::{Error, ObjectId, Session};

#[cfg(feature = "_llvm")]
pub use llvm_version::llvm_sys;
pub use section_addresses::{Placed, set_section_addresses};

/// Opens the session of this process for what is reported here, and nothing else. Follows forks of the process.
pub fn open(mut options: Options, complaints: &[String]) -> &'static Session {
    options.listening = Listening::Calls;
    let session = Session::open(options, complaints);
    if session.options().listening == Listening::Calls {
        session.follow_forks();
    }
    session
}

/// What compiled an object, and so where it is registered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Producer {
    /// An LLVM, which has registered its `.eh_frame` with libgcc.
    Llvm,
    /// Another compiler, which has registered nothing.
    Other,
}

/// *loaded*: an object, whose loaded sections carry their address in `sh_addr`, has been placed in memory.
///
/// # Errors
/// What makes it unreadable.
pub fn loaded(session: &Session, producer: Producer, object: Vec<u8>) -> Result<ObjectId, Error> {
    let _host_state = HostStateGuard::enter();
    let origin = match producer {
        Producer::Llvm => Origin::Llvm,
        Producer::Other => Origin::Caller,
    };
    session.loaded_from(origin, object, None).map(|loaded| loaded.id)
}

/// *loaded*, for an object that carries no addresses: see [`set_section_addresses`].
///
/// # Errors
/// What makes it unreadable.
pub fn loaded_at(
    session: &Session,
    producer: Producer,
    mut object: Vec<u8>,
    placed: &[Placed<'_>],
) -> Result<ObjectId, Error> {
    set_section_addresses(&mut object, placed).inspect_err(|error| session.refuse(object.len(), error))?;
    loaded(session, producer, object)
}

/// *loaded*, for code without an object: see [`raw::encode`].
///
/// # Errors
/// As that.
pub fn code_loaded(session: &Session, code: &raw::Code<'_>) -> Result<ObjectId, Error> {
    let object = raw::encode(code).inspect_err(|error| session.refuse(0, error))?;
    loaded(session, Producer::Other, object)
}

/// *finalized*: its bytes are relocated, and it may run. Takes the loader's lock when a library was opened since the
/// last time, to look for unwinders in it.
///
/// # Errors
/// [`Error::UnknownObject`] and [`Error::AlreadyFinalized`].
pub fn finalized(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.libraries_changed();
    session.reported_finalized(id)
}

/// Promises, before *finalized*, that the pages of this object's code hold no code of others, and that from *finalized*
/// to *freeing* nothing writes to them, protects, unmaps or replaces them. The image sink needs that promise where the
/// process has several threads: it replaces the pages, and what another thread writes to them meanwhile would be lost.
/// Without it, such an object has no image; the other sinks name its code all the same.
///
/// # Errors
/// [`Error::UnknownObject`].
pub fn owns_pages(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.owns_pages(id)
}

/// *freeing*: its code is about to be freed, and is still there. Not having been *finalized* is no error.
///
/// # Errors
/// [`Error::UnknownObject`].
pub fn freeing(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.reported_freeing(id)
}
