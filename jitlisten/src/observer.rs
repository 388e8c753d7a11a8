//! The interface for the sampler: it is notified of compiled code as sinks are, with everything that a stack walk
//! needs.
//!
//! There is at most one. It is not a sink: it writes no file for other tools, and the program does not turn it on and
//! off.

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::{AddressRange, LoadedObject, ObjectId};

/// An object whose code is final and has not run yet.
#[derive(Debug)]
pub struct ObservedCode<'a> {
    /// Its number.
    pub id: ObjectId,
    /// What it consists of.
    pub object: &'a LoadedObject,
    /// Its relocated `.eh_frame`, as it is in memory, and where.
    pub eh_frame: Option<(AddressRange, &'a [u8])>,
    /// Rules for functions that the `.eh_frame` lacks, where they can be read from the code.
    pub made_rules: &'a [FunctionRules],
}

/// Called under the session's lock, in any thread. Must not wait and must not call the session.
pub trait CodeObserver: Send + Sync {
    /// Code is about to run. When this returns, it may.
    fn finalized(&self, code: &ObservedCode<'_>);
    /// Code is about to go away.
    fn freeing(&self, id: ObjectId);
    /// An image has been mapped: `range` is the file at `path` from `offset` on.
    fn image_mapped(&self, range: AddressRange, offset: u64, path: &Path);
    /// Libraries have come or gone. Under the loader's lock, and without the session's.
    fn libraries_changed(&self);
}

static OBSERVER: OnceBox<&'static dyn CodeObserver> = OnceBox::new();
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The observer, if one is at work.
pub(crate) fn observer() -> Option<&'static dyn CodeObserver> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    OBSERVER.get().copied()
}

/// The first one to come stays; see [`Session::observe`](crate::Session::observe).
pub(crate) fn activate(observer: &'static dyn CodeObserver) {
    OBSERVER.get_or_init(|| Box::new(observer));
    ACTIVE.store(true, Ordering::Release);
}

pub(crate) fn deactivate() {
    ACTIVE.store(false, Ordering::Release);
}

/// The loader's list of libraries has changed: called by the shim, which watches it.
pub fn notify_libraries_changed() {
    if let Some(observer) = observer() {
        observer.libraries_changed();
    }
}

pub(crate) fn finalized(id: ObjectId, object: &LoadedObject, made_rules: &[FunctionRules], snapshot: &CodeSnapshot) {
    let Some(observer) = observer() else { return };
    let eh_frame = object.eh_frame().and_then(|range| Some((range, snapshot.get(range)?)));
    observer.finalized(&ObservedCode { id, object, eh_frame, made_rules });
}
