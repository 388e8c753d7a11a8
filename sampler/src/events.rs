//! Notifications of the session about compiled code: published for the handler at once, and kept for the writer.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use jitlisten::plumbing::{CodeObserver, ObservedCode};
use jitlisten::{AddressRange, Machine, ObjectId, Session, cfi};

use crate::clock;
use crate::code_map::{self, Range, Tables};
use crate::unwind::FrameTable;
use crate::{threads, wake};

/// Something that happened to compiled code.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) time: u64,
    pub(crate) range: AddressRange,
    /// The image that was mapped there: its file, and from where on. `None`: memory without a name.
    pub(crate) image: Option<(PathBuf, u64)>,
    next: *mut Event,
}

/// The newest event; each leads to the one before it. No lock: a fork may come at any time.
static NEWEST: AtomicPtr<Event> = AtomicPtr::new(ptr::null_mut());

/// When libraries have come or gone since mappings were looked at; 0: they have not.
pub(crate) static LIBRARIES_CHANGED: AtomicU64 = AtomicU64::new(0);

fn push(range: AddressRange, image: Option<(PathBuf, u64)>) {
    let event = Box::into_raw(Box::new(Event { time: clock::monotonic(), range, image, next: ptr::null_mut() }));
    let mut newest = NEWEST.load(Ordering::Acquire);
    loop {
        // SAFETY: ours until it is linked.
        unsafe { (*event).next = newest };
        match NEWEST.compare_exchange(newest, event, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => newest = now,
        }
    }
}

/// Takes all events, the oldest first.
pub(crate) fn take() -> Vec<Event> {
    let mut events = Vec::new();
    let mut at = NEWEST.swap(ptr::null_mut(), Ordering::AcqRel);
    while !at.is_null() {
        // SAFETY: made by `push`, and unlinked by the exchange: no other thread has it.
        let event = unsafe { Box::from_raw(at) };
        at = event.next;
        events.push(*event);
    }
    events.reverse();
    events
}

/// Learns of code no more. A recording can end long before it is stopped: by its duration, or by a full disk.
pub(crate) fn forget_code() {
    if let Some(session) = Session::process() {
        session.stop_observing();
    }
    drop(take());
    code_map::clear();
    code_map::reclaim(threads::no_handler_runs);
}

/// The observer of this process.
pub(crate) struct Observer;

impl CodeObserver for Observer {
    fn finalized(&self, code: &ObservedCode<'_>) {
        let tables = Arc::new(tables(code));
        for text in code.object.text() {
            let (start, end) = (text.range.start().0, text.range.end().0);
            code_map::publish_compiled(Range { start, end, owner: code.id.0, tables: Arc::clone(&tables) });
            push(text.range, None);
        }
    }

    fn freeing(&self, id: ObjectId) {
        code_map::free_compiled(id.0);
    }

    fn image_mapped(&self, range: AddressRange, offset: u64, path: &Path) {
        push(range, Some((path.to_owned(), offset)));
    }

    fn libraries_changed(&self) {
        let _ = LIBRARIES_CHANGED.compare_exchange(0, clock::monotonic(), Ordering::AcqRel, Ordering::Relaxed);
        wake::writer();
    }
}

fn tables(code: &ObservedCode<'_>) -> Tables {
    let Some(base) = code.object.text().first().map(|text| text.range.start().0) else { return Tables::Bare };
    let mut tables = Vec::new();
    if let Some((range, bytes)) = code.eh_frame {
        tables.push(FrameTable::by_reading(bytes.to_vec().into(), range.start().0, base));
    }
    let place = cfi::place_behind(code.made_rules);
    if !code.made_rules.is_empty()
        && let Ok(bytes) = cfi::encode(code.made_rules, Machine::HERE, place)
    {
        tables.push(FrameTable::by_reading(bytes.into(), place.0, base));
    }
    if tables.is_empty() { Tables::Bare } else { Tables::Frames(tables) }
}
