//! Trackers of objects that were reported but are not yet located, or not yet final. Each tracker keeps the reports of
//! one kind of source, and returns the objects that it has located. The shim's state then reports these to the session.
//!
//! | tracker | objects |
//! | --- | --- |
//! | `linked` | reported by a linker, and perhaps also in a GDB JIT list |
//! | `emitted` | handed to JITLink, and not yet located |
//! | `self_loaded` | compiled to memory; the program may load them itself |
//! | `copies` | loaded at an address at which they cannot run |
//! | `pending` | loaded, not yet final |
//! | `watched_code` | unregistered, or in writable memory; freed once their code changes |
//! | `unwind_tables` | code of a library that no channel observes |

#![forbid(unsafe_code)]

pub(crate) mod copies;
pub(crate) mod emitted;
pub(crate) mod linked;
pub(crate) mod memory;
pub(crate) mod pending;
pub(crate) mod self_loaded;
pub(crate) mod unwind_tables;
mod waiting_list;
pub(crate) mod watched_code;

use emitted::EmittedObjects;
use linked::LinkedObjects;
use pending::PendingObjects;
use self_loaded::SelfLoadedObjects;
use watched_code::WatchedCode;

#[derive(Default)]
pub(crate) struct Trackers {
    pub(crate) linked: LinkedObjects,
    pub(crate) emitted: EmittedObjects,
    pub(crate) self_loaded: SelfLoadedObjects,
    pub(crate) pending: PendingObjects,
    /// Unregistered objects whose code is still mapped.
    pub(crate) unregistered: WatchedCode,
}
