//! Model of the library: live objects and expected counters.

use std::collections::BTreeSet;

use jitlisten::LoadedObject;

use crate::api::{self, Statistics};
use crate::reported::{Expected, Reported};

/// A reported object that the caller has not freed.
pub(crate) struct ReportedObject {
    pub(crate) id: u64,
    pub(crate) object: LoadedObject,
    /// Number of reports that were not freed, and number of these that were finalized.
    reports: u32,
    finalized_reports: u32,
    pub(crate) finalized: bool,
    /// False once another object has been finalized at the same addresses.
    pub(crate) alive: bool,
}

impl ReportedObject {
    fn overlaps(&self, other: &LoadedObject) -> bool {
        let texts = self.object.text().iter();
        texts
            .flat_map(|text| other.text().iter().map(move |other| text.range.overlaps(other.range)))
            .any(|overlap| overlap)
    }
}

/// Expected state since the session was opened.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) objects: Vec<ReportedObject>,
    pub(crate) registrations: BTreeSet<u64>,
    /// Start addresses of text ranges, each with the ID of an object that this input reported there.
    pub(crate) text_owners: Vec<(u64, u64)>,
    largest_id: u64,
    largest_registration: u64,
    expected: Statistics,
}

impl Model {
    pub(crate) fn loaded(&mut self, reported: Reported) {
        match (reported.expected, reported.status) {
            (Expected::InvalidArgument, status) => assert_eq!((status, reported.id), (api::INVALID_ARGUMENT, 0)),
            (Expected::NotUnderstood, status) => {
                assert_eq!((status, reported.id), (api::NOT_UNDERSTOOD, 0));
                self.expected.objects_refused += 1;
            }
            (Expected::Object(object), status) => {
                assert_eq!(status, api::OK);
                self.record_object(reported.id, object);
            }
        }
    }

    fn record_object(&mut self, id: u64, object: LoadedObject) {
        assert_ne!(id, 0);
        if let Some(reported) = self.objects.iter_mut().find(|object| object.id == id) {
            assert!(reported.alive && reported.object == object, "another object has this number");
            reported.reports += 1;
            return;
        }
        assert!(id > self.largest_id, "a number is used again");
        let starts = || object.text().iter().map(|text| text.range.start().0);
        if let Some(first) = starts().next() {
            // If several objects have the same address, only the most recent one counts.
            let mut owners = self.text_owners.iter().filter(|owner| owner.0 == first).map(|owner| owner.1);
            let sole_owner = owners.next().filter(|sole_owner| owners.all(|other| other == *sole_owner));
            let sole_owner = self.objects.iter().find(|reported| reported.alive && Some(reported.id) == sole_owner);
            assert!(sole_owner.is_none_or(|sole_owner| sole_owner.object != object), "reported twice, and two objects");
        }
        self.text_owners.extend(starts().map(|start| (start, id)));
        self.largest_id = id;
        self.expected.objects_loaded += 1;
        self.objects.push(ReportedObject {
            id,
            object,
            reports: 1,
            finalized_reports: 0,
            finalized: false,
            alive: true,
        });
    }

    pub(crate) fn finalized(&mut self, id: u64, status: i32) {
        let Some(index) = self.objects.iter().position(|object| object.id == id) else {
            return assert_eq!(status, if id == 0 { api::INVALID_ARGUMENT } else { api::UNKNOWN_OBJECT });
        };
        let reported = &mut self.objects[index];
        if reported.finalized_reports == reported.reports {
            return assert_eq!(status, api::WRONG_ORDER);
        }
        reported.finalized_reports += 1;
        let is_first = !std::mem::replace(&mut reported.finalized, true) && reported.alive;
        let may_be_refused = is_first && reported.object.eh_frame().is_some();
        assert!(status == api::OK || may_be_refused && status == api::NOT_UNDERSTOOD);
        self.expected.unwind_tables_refused += u64::from(status == api::NOT_UNDERSTOOD);
        if !is_first {
            return;
        }
        let object = self.objects[index].object.clone();
        self.expected.objects_finalized += 1;
        self.expected.functions += object.functions().len() as u64;
        let other_objects =
            self.objects.iter_mut().filter(|reported| reported.id != id && reported.alive && reported.finalized);
        for replaced in other_objects.filter(|reported| reported.overlaps(&object)) {
            replaced.alive = false;
            self.expected.objects_freed += 1;
        }
    }

    pub(crate) fn freeing(&mut self, id: u64, status: i32) {
        let Some(index) = self.objects.iter().position(|object| object.id == id) else {
            return assert_eq!(status, if id == 0 { api::INVALID_ARGUMENT } else { api::UNKNOWN_OBJECT });
        };
        assert_eq!(status, api::OK);
        let reported = &mut self.objects[index];
        if reported.reports > 1 {
            reported.reports -= 1;
            reported.finalized_reports = reported.finalized_reports.saturating_sub(1);
            return;
        }
        self.expected.objects_freed += u64::from(self.objects.remove(index).alive);
    }

    pub(crate) fn registered(&mut self, (status, out, invalid): (i32, u64, bool)) {
        match status {
            api::OK => {
                assert!(!invalid && out > self.largest_registration, "{out} is no new registration");
                self.largest_registration = out;
                self.registrations.insert(out);
            }
            _ => assert_eq!((status, out), (if invalid { api::INVALID_ARGUMENT } else { api::NOT_UNDERSTOOD }, 0)),
        }
    }

    pub(crate) fn deregistered(&mut self, registration: u64, status: i32) {
        let was_registered = self.registrations.remove(&registration);
        assert_eq!(status, if was_registered { api::OK } else { api::UNKNOWN_OBJECT });
    }

    pub(crate) fn check(&self, actual: &Statistics) {
        let expected = &self.expected;
        let alive = self.objects.iter().filter(|object| object.alive).count() as u64;
        assert_eq!(actual.objects_loaded - actual.objects_freed, alive, "what came and did not go is alive");
        assert_eq!(
            (actual.objects_loaded, actual.objects_finalized, actual.objects_freed, actual.objects_refused),
            (expected.objects_loaded, expected.objects_finalized, expected.objects_freed, expected.objects_refused)
        );
        assert_eq!(actual.functions, expected.functions);
        assert_eq!(actual.unwind_tables_refused, expected.unwind_tables_refused);
        assert!(actual.functions_without_frame_pointer <= actual.functions);
        assert!(actual.functions_without_unwind_table <= actual.functions);
        assert!(actual.objects_without_frame_pointers <= actual.objects_finalized);
        assert!(actual.images_without_padding <= actual.images_written);
        assert_eq!((actual.images_withdrawn, actual.images_put_back), (0, 0), "no change of memory was reported");
    }

    /// Returns the code that is finalized and still alive.
    pub(crate) fn code(&self) -> impl Iterator<Item = &LoadedObject> {
        self.objects.iter().filter(|object| object.alive && object.finalized).map(|object| &object.object)
    }
}
