//! Code observer, the sampler's interface to the session. Like a sink, the observer is notified of compiled code, and
//! receives everything that a stack walk needs.
//!
//! There is at most one observer. It is not a sink, because it writes no file for other tools, and the program cannot
//! enable or disable it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::{AddressRange, LoadedObject, ObjectId};

/// An object whose code is final and has not run yet.
#[derive(Debug)]
pub struct ObservedCode<'a> {
    /// Identifier of the object.
    pub id: ObjectId,
    /// Functions and text ranges of the object.
    pub object: &'a LoadedObject,
    /// Range and bytes of the relocated `.eh_frame` in memory.
    pub eh_frame: Option<(AddressRange, &'a [u8])>,
    /// Unwind rules derived from the code, for functions that the `.eh_frame` does not cover.
    pub derived_rules: &'a [FunctionRules],
}

/// Receiver of code events. All methods but `libraries_changed` are called under the session's lock, on any thread.
/// They must not block and must not call the session.
pub trait CodeObserver: Send + Sync {
    /// Called before code may run for the first time.
    fn finalized(&self, code: &ObservedCode<'_>);
    /// Called before code is freed.
    fn freeing(&self, id: ObjectId);
    /// Called after an image was mapped: `range` maps the file at `path` from `offset`.
    fn image_mapped(&self, range: AddressRange, offset: u64, path: &Path);
    /// Called after libraries were loaded or unloaded, under the loader's lock and without the session's.
    fn libraries_changed(&self);
}

static OBSERVER: OnceBox<&'static dyn CodeObserver> = OnceBox::new();
static ACTIVE: AtomicBool = AtomicBool::new(false);

pub(crate) fn observer() -> Option<&'static dyn CodeObserver> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    OBSERVER.get().copied()
}

/// Activates the observer. Only the first observer of a process is ever used; see
/// [`LiveObjects::observe`](crate::live_objects::LiveObjects::observe).
pub(crate) fn activate(observer: &'static dyn CodeObserver) {
    OBSERVER.get_or_init(|| Box::new(observer));
    ACTIVE.store(true, Ordering::Release);
}

pub(crate) fn deactivate() {
    ACTIVE.store(false, Ordering::Release);
}

/// Notifies the observer that the loader's list of libraries changed. Called by the shim, which watches the list.
pub fn notify_libraries_changed() {
    if let Some(observer) = observer() {
        observer.libraries_changed();
    }
}

pub(crate) fn finalized(id: ObjectId, object: &LoadedObject, derived_rules: &[FunctionRules], snapshot: &CodeSnapshot) {
    let Some(observer) = observer() else { return };
    let eh_frame = object.eh_frame().and_then(|range| Some((range, snapshot.get(range)?)));
    observer.finalized(&ObservedCode { id, object, eh_frame, derived_rules });
}
