//! Changes of memory with objects, now or later.

#![forbid(unsafe_code)]

use std::sync::{MutexGuard, PoisonError};

use super::{Origin, Session};
use crate::code_snapshot::CodeSnapshot;
use crate::log_line;
use crate::options::SinkKind;
use crate::process::{checked_read, reserve};
use crate::sink::Images;
use crate::{Address, AddressRange, ObjectId};

impl Session {
    /// LLVM has taken the object out of its GDB JIT list, and will give its debug object up; the code stays. Call it
    /// while the debug object is there.
    #[doc(hidden)]
    pub fn unregistered(&self, id: ObjectId) {
        let mut state = self.lock_here();
        let pid = state.pid;
        let Some(record) = state.objects.get_mut(&id) else { return };
        let kept_at = record.debug_object.kept_at.take();
        if record.debug_object.copy.is_none()
            && let Some(range) = kept_at.filter(|range| reserve::is_memory_left(range.size() as usize))
        {
            record.debug_object.copy = checked_read::copy(range).ok();
        }
        if matches!(record.origin, Origin::LlvmList { .. }) {
            record.origin = Origin::Unlisted;
            if record.finalized.is_some() {
                // An entry of ours takes the place of LLVM's own.
                let snapshot = CodeSnapshot::of(pid, &record.object);
                self.notify(&mut state, SinkKind::Gdb, id, &snapshot);
            }
        }
        log_line!(Debug, "unregistered {id:?}: kept until its memory is unmapped");
    }

    /// Memory was reserved in front of code that is still to come; sinks may use it once that is *finalized*.
    #[doc(hidden)]
    pub fn reserve_header_padding(&self, padding: AddressRange) {
        self.lock().padding.insert(padding.end(), padding);
    }

    /// Takes back the memory in front of `code`, if some was reserved.
    #[doc(hidden)]
    pub fn take_header_padding(&self, code: Address) -> Option<AddressRange> {
        self.lock().padding.remove(&code)
    }

    /// What is in `range` may change from now on: its owner is about to make it writable, or to take the right to
    /// execute it, and has reported all that is *freeing* there. No image names it any more.
    #[doc(hidden)]
    pub fn changing(&self, range: AddressRange) {
        let state = self.lock();
        self.images().withdraw(range, &state.padding);
    }

    /// `range` is about to be unmapped.
    #[doc(hidden)]
    pub fn unmapping(&self, range: AddressRange) {
        let _state = self.lock();
        self.images().forget(range);
    }

    /// Must be called under the session's lock.
    pub(super) fn images(&self) -> MutexGuard<'_, Images> {
        self.context.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
