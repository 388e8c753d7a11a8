//! Notifications about compiled code: published for the handler immediately, and queued for the writer.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use jitlisten::plumbing::{CodeObserver, ObservedCode};
use jitlisten::{AddressRange, Machine, ObjectId, Session, cfi};

use crate::handler::clock;
use crate::handler::code_map::{self, CodeRange, Tables};
use crate::thread::slots;
use crate::unwind::FrameTable;
use crate::writer::wake;

/// A change of compiled code.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) time: u64,
    pub(crate) range: AddressRange,
    /// The image mapped there: its path, and the file offset. `None` for anonymous memory.
    pub(crate) image: Option<(PathBuf, u64)>,
    next: *mut Event,
}

/// Head of a lock-free list, newest event first. Not a lock, because a fork may happen at any time.
static NEWEST_EVENT: AtomicPtr<Event> = AtomicPtr::new(ptr::null_mut());

/// Time of the first library change since the mappings were last read; 0 if none.
pub(crate) static LIBRARIES_CHANGED: AtomicU64 = AtomicU64::new(0);

/// Queues an event for the writer.
fn push_event(range: AddressRange, image: Option<(PathBuf, u64)>) {
    let event = Box::into_raw(Box::new(Event { time: clock::monotonic(), range, image, next: ptr::null_mut() }));
    let mut newest = NEWEST_EVENT.load(Ordering::Acquire);
    loop {
        // SAFETY: the event is ours until it is linked into the list.
        unsafe { (*event).next = newest };
        match NEWEST_EVENT.compare_exchange(newest, event, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(current) => newest = current,
        }
    }
}

/// Takes all queued events, oldest first.
pub(crate) fn take_events() -> Vec<Event> {
    let mut events = Vec::new();
    let mut event_ptr = NEWEST_EVENT.swap(ptr::null_mut(), Ordering::AcqRel);
    while !event_ptr.is_null() {
        // SAFETY: created by `push_event` and unlinked by the exchange: no other thread has it.
        let event = unsafe { Box::from_raw(event_ptr) };
        event_ptr = event.next;
        events.push(*event);
    }
    events.reverse();
    events
}

/// Stops observing code and forgets it. A recording may end long before it is stopped: at its time limit, or on a full
/// disk.
pub(crate) fn forget_code() {
    if let Some(session) = Session::process() {
        session.stop_observing();
    }
    drop(take_events());
    code_map::clear();
    code_map::reclaim(slots::no_handler_is_running);
}

/// Receives the session's notifications.
pub(crate) struct Observer;

impl CodeObserver for Observer {
    fn finalized(&self, code: &ObservedCode<'_>) {
        let tables = Arc::new(unwind_tables(code));
        for text in code.object.text() {
            let (start, end) = (text.range.start().0, text.range.end().0);
            code_map::publish_compiled(CodeRange { start, end, owner: code.id.0, tables: Arc::clone(&tables) });
            push_event(text.range, None);
        }
    }

    fn freeing(&self, id: ObjectId) {
        code_map::free_compiled(id.0);
    }

    fn image_mapped(&self, range: AddressRange, offset: u64, path: &Path) {
        push_event(range, Some((path.to_owned(), offset)));
    }

    fn libraries_changed(&self) {
        let _ = LIBRARIES_CHANGED.compare_exchange(0, clock::monotonic(), Ordering::AcqRel, Ordering::Relaxed);
        wake::notify_writer();
    }
}

/// Builds the unwind tables of an object.
fn unwind_tables(code: &ObservedCode<'_>) -> Tables {
    let Some(base) = code.object.text().first().map(|text| text.range.start().0) else { return Tables::Bare };
    let mut tables = Vec::new();
    if let Some((range, bytes)) = code.eh_frame {
        tables.push(FrameTable::from_section(bytes.to_vec().into(), range.start().0, base));
    }
    let address = cfi::place_behind(code.made_rules);
    if !code.made_rules.is_empty()
        && let Ok(bytes) = cfi::encode(code.made_rules, Machine::HERE, address)
    {
        tables.push(FrameTable::from_section(bytes.into(), address.0, base));
    }
    if tables.is_empty() { Tables::Bare } else { Tables::Frames(tables) }
}
