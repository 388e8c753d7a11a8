//! Tracker of objects that are *loaded* but not yet final. After a second, their code is searched for at other
//! addresses, and the log reports the first such object.

#![forbid(unsafe_code)]

use jitlisten::ObjectId;
use jitlisten::plumbing::Mapping;

use crate::trackers::waiting_list::WaitingList;

/// Time after which a pending object is overdue, in ns.
pub(crate) const FINALIZE_TIMEOUT_NS: u64 = 1_000_000_000;

const MAX_PENDING_OBJECTS: usize = 1 << 16;

/// An object that is loaded but not yet final.
pub(crate) struct PendingObject {
    pub(crate) id: ObjectId,
    /// Thread that loaded the object.
    pub(crate) thread: u64,
}

/// Objects that are loaded but not final, oldest first. Some may have become final since they were added. A search for
/// an object's code at other addresses counts as a try.
pub(crate) type PendingObjects = WaitingList<PendingObject, MAX_PENDING_OBJECTS, { usize::MAX }>;

/// Reason why an object is not final, judging by the mappings of its memory.
pub(crate) fn reason(mappings: Option<&[Mapping]>) -> &'static str {
    let Some(mappings) = mappings else { return "its memory is gone" };
    if mappings.iter().all(|mapping| mapping.executable) {
        return "its memory may be executed and written, and no unwind table was registered for it";
    }
    "its memory may not be executed: its code was copied elsewhere, or is not used yet"
}
