//! API for programs that compile code and report it to jitlisten. Changes nothing else in the process.
//!
//! ```text
//!   a JIT with ELF objects     set_section_addresses  --+
//!                                                 +-->  loaded  ->  finalized  ->  freeing
//!   a JIT without              raw::encode     --+
//!   inkwell, llvm-sys          llvm.cpp        --+   with one of the `llvmNN-N` features
//! ```
//!
//! For discovered objects, [`Session::loaded`] and its siblings tolerate repeated events and unknown objects. A
//! producer reports its own objects, so a wrong order is an error here. If a producer's object is also discovered by
//! the shim, it stays one object with one id, and its second *finalized* or *freeing* has no effect.
//!
//! # A JIT without LLVM
//!
//! ```
//! use jitlisten::options::Options;
//! use jitlisten::producer::{self, raw};
//! use jitlisten::{Address, AddressRange, Machine};
//!
//! // Same as `JITLISTEN=unwind` in the environment.
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

/// Opens the session of this process for reported objects only, without discovery. Follows forks of the process.
///
/// If the session is open already, returns it unchanged.
pub fn open(mut options: Options, complaints: &[String]) -> &'static Session {
    options.listening = Listening::Calls;
    let session = Session::open(options, complaints);
    if session.options().listening == Listening::Calls {
        session.follow_forks();
    }
    session
}

/// Compiler of an object, which determines where the object is registered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Producer {
    /// LLVM, which has registered the `.eh_frame` with libgcc.
    Llvm,
    /// Any other compiler, which has registered nothing.
    Other,
}

/// Reports *loaded* for an object that was placed in memory. Its loaded sections have their addresses in `sh_addr`.
///
/// # Errors
/// If the object cannot be parsed.
pub fn loaded(session: &Session, producer: Producer, object: Vec<u8>) -> Result<ObjectId, Error> {
    let _host_state = HostStateGuard::enter();
    let origin = match producer {
        Producer::Llvm => Origin::Llvm,
        Producer::Other => Origin::Caller,
    };
    session.loaded_from(origin, object, None).map(|loaded| loaded.id)
}

/// Reports *loaded* for an object whose section headers have no addresses; see [`set_section_addresses`].
///
/// # Errors
/// If the object cannot be parsed.
pub fn loaded_at(
    session: &Session,
    producer: Producer,
    mut object: Vec<u8>,
    placed: &[Placed<'_>],
) -> Result<ObjectId, Error> {
    set_section_addresses(&mut object, placed).inspect_err(|error| session.refuse(object.len(), error))?;
    loaded(session, producer, object)
}

/// Reports *loaded* for code without an ELF object; see [`raw::encode`].
///
/// # Errors
/// Errors of [`raw::encode`].
pub fn code_loaded(session: &Session, code: &raw::Code<'_>) -> Result<ObjectId, Error> {
    let object = raw::encode(code).inspect_err(|error| session.refuse(0, error))?;
    loaded(session, Producer::Other, object)
}

/// Reports *finalized*: the object is relocated and may run. After a library was loaded, the next call takes the
/// loader's lock, to find unwinders in it.
///
/// # Errors
/// [`Error::UnknownObject`] and [`Error::AlreadyFinalized`].
pub fn finalized(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.libraries_changed();
    session.reported_finalized(id)
}

/// Promises, before *finalized*, that the pages of this object contain no code of other objects, and that nothing
/// writes to, protects, unmaps or replaces them from *finalized* to *freeing*.
///
/// The image sink needs this promise in processes with several threads: it replaces the pages, and concurrent writes by
/// another thread would be lost. Without the promise the object has no image; the other sinks still name its code.
///
/// # Errors
/// [`Error::UnknownObject`].
pub fn owns_pages(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.owns_pages(id)
}

/// Reports *freeing*: the object's code is about to be freed, but still mapped. An object that was never
/// *finalized* may be freed.
///
/// # Errors
/// [`Error::UnknownObject`].
pub fn freeing(session: &Session, id: ObjectId) -> Result<(), Error> {
    let _host_state = HostStateGuard::enter();
    session.reported_freeing(id)
}
