//! Notifications about compiled code: published for the handler immediately, and queued for the writer.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{CodeObserver, LiveObjects, ObservedCode, cfi};
use jitlisten::{AddressRange, Machine, ObjectId};

use crate::handler::code_map::{self, CodeRange, Tables};
use crate::recording::current;
use crate::thread::slots;
use crate::unwind::FrameTable;

/// A recording's observation of the session's code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// True if [`Observation::begin`] enabled the image sink, which was disabled before.
    enabled_images: bool,
}

impl Observation {
    /// Observes compiled code, and enables the image sink if `images` is true.
    pub(crate) fn begin(images: bool) -> Observation {
        let Some(objects) = LiveObjects::process().filter(|objects| objects.options().active) else {
            return Observation { enabled_images: false };
        };
        objects.observe(&Observer);
        let enabled_images = images && !objects.is_enabled(SinkKind::Image);
        if enabled_images {
            objects.enable(SinkKind::Image);
        }
        Observation { enabled_images }
    }

    /// Undoes [`Observation::begin`].
    pub(crate) fn end(self) {
        forget_code();
        if self.enabled_images
            && let Some(objects) = LiveObjects::process()
        {
            objects.disable(SinkKind::Image);
        }
    }
}

/// Stops observing code and forgets it. A recording may end long before it is stopped: at its time limit, or on a full
/// disk.
pub(crate) fn forget_code() {
    if let Some(objects) = LiveObjects::process() {
        objects.stop_observing();
    }
    if let Some(recording) = current::last() {
        drop(recording.code_events.take());
    }
    code_map::clear();
    code_map::reclaim(slots::no_handler_is_running);
}

/// Queues a change for the writer.
fn push_event(range: AddressRange, image: Option<(PathBuf, u64)>) {
    if let Some(recording) = current::last() {
        recording.code_events.push(range, image);
    }
}

/// Receives the session's notifications.
struct Observer;

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
        if let Some(recording) = current::last() {
            recording.code_events.note_library_change();
            recording.wake.notify();
        }
    }
}

/// Builds the unwind tables of an object.
fn unwind_tables(code: &ObservedCode<'_>) -> Tables {
    let Some(base) = code.object.text().first().map(|text| text.range.start().0) else { return Tables::Bare };
    let mut tables = Vec::new();
    if let Some((range, bytes)) = code.eh_frame {
        tables.push(FrameTable::from_section(bytes.to_vec().into(), range.start().0, base));
    }
    let address = cfi::address_after(code.derived_rules);
    if !code.derived_rules.is_empty()
        && let Ok(bytes) = cfi::encode(code.derived_rules, Machine::HERE, address)
    {
        tables.push(FrameTable::from_section(bytes.into(), address.0, base));
    }
    if tables.is_empty() { Tables::Bare } else { Tables::Frames(tables) }
}
