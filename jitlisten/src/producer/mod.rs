//! API for programs that compile code and report it to jitlisten. It changes nothing else in the process.
//!
//! ```text
//!                                *loaded*                          *finalized*    *freeing*
//!   a JIT with ELF objects     LoadedCode::from_object  --+
//!                                                         +-->  finalized  ->  dropped
//!   a JIT without              LoadedCode::from_raw     --+
//!   inkwell, llvm-sys          the `jitlisten-llvm` crate
//! ```
//!
//! If a producer's object is also discovered by the shim, it stays one object, and its second *finalized* or *freeing*
//! has no effect.
//!
//! # A JIT without LLVM
//!
//! ```
//! use jitlisten::options::Options;
//! use jitlisten::producer::{self, LoadedCode, raw};
//! use jitlisten::{Address, AddressRange, Machine};
//!
//! // Same as `JITLISTEN=unwind` in the environment.
//! let (options, complaints) = Options::read(|variable| (variable == "JITLISTEN").then(|| "unwind".into()));
//! let session = producer::open(options, &complaints);
//! # let memory = [0xc3_u8; 16]; // ret
//! let range = AddressRange::new(Address(memory.as_ptr() as u64), memory.len() as u64).ok_or("no such range")?;
//! let functions = [raw::Function::new(range, b"forty_two")];
//! let code = LoadedCode::from_raw(session, &raw::Code::new(Machine::HERE, &functions))?; // it has an address
//! code.finalized(); // its bytes are final; now it may run
//! assert_eq!(session.statistics().functions, 1);
//! drop(code); // its memory is about to be freed
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod loaded_code;
pub mod raw;
mod raw_lines;
mod reported_code;
mod section_addresses;

use crate::Session;
use crate::live_objects::LiveObjects;
use crate::options::{Listening, Options, SinkKind};
use crate::session::open_session;

pub use loaded_code::LoadedCode;
pub use section_addresses::{Placed, set_section_addresses};

/// Opens the session of this process for reported objects only, without discovery. Follows forks of the process.
///
/// If the session is open already, returns it unchanged.
pub fn open(mut options: Options, complaints: &[String]) -> &'static Session {
    options.listening = Listening::Calls;
    let mut complaints = complaints.to_vec();
    if options.sinks.contains(SinkKind::Modules) {
        complaints.push("JITLISTEN: modules has no effect in a session that listens to calls only".to_owned());
    }
    let session = open_session(options, &complaints);
    if session.options().listening == Listening::Calls {
        LiveObjects::of(session).follow_forks();
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
