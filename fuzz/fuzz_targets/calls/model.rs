//! What the library has to know: which objects are alive, and what that makes of its counters.

use std::collections::BTreeSet;

use jitlisten::LoadedObject;

use crate::api::{self, Statistics};
use crate::reported::{Expected, Reported};

/// An object that was reported, until the caller frees it.
pub(crate) struct Known {
    pub(crate) id: u64,
    pub(crate) object: LoadedObject,
    pub(crate) finalized: bool,
    /// Not, when another one was finalized at its addresses.
    pub(crate) alive: bool,
}

impl Known {
    fn overlaps(&self, other: &LoadedObject) -> bool {
        let mine = self.object.text().iter();
        mine.flat_map(|text| other.text().iter().map(move |other| text.range.overlaps(other.range))).any(|both| both)
    }
}

/// Everything since the session was opened.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) known: Vec<Known>,
    pub(crate) registrations: BTreeSet<u64>,
    /// Where text of this input's objects begins, and whose.
    pub(crate) places: Vec<(u64, u64)>,
    largest_id: u64,
    largest_registration: u64,
    counted: Statistics,
}

impl Model {
    pub(crate) fn loaded(&mut self, reported: Reported) {
        match (reported.expected, reported.status) {
            (Expected::InvalidArgument, status) => assert_eq!((status, reported.id), (api::INVALID_ARGUMENT, 0)),
            (Expected::NotUnderstood, status) => {
                assert_eq!((status, reported.id), (api::NOT_UNDERSTOOD, 0));
                self.counted.objects_refused += 1;
            }
            (Expected::Object(object), status) => {
                assert_eq!(status, api::OK);
                self.reported(reported.id, object);
            }
        }
    }

    fn reported(&mut self, id: u64, object: LoadedObject) {
        assert_ne!(id, 0);
        if let Some(known) = self.known.iter().find(|known| known.id == id) {
            assert!(known.alive && known.object == object, "another object has this number");
            return;
        }
        assert!(id > self.largest_id, "a number is used again");
        let starts = || object.text().iter().map(|text| text.range.start().0);
        if let Some(first) = starts().next() {
            // Where several objects have been at one address, the latest of them counts.
            let mut here = self.places.iter().filter(|place| place.0 == first).map(|place| place.1);
            let only = here.next().filter(|only| here.all(|other| other == *only));
            let only = self.known.iter().find(|known| known.alive && Some(known.id) == only);
            assert!(only.is_none_or(|only| only.object != object), "reported twice, and two objects");
        }
        self.places.extend(starts().map(|start| (start, id)));
        self.largest_id = id;
        self.counted.objects_loaded += 1;
        self.known.push(Known { id, object, finalized: false, alive: true });
    }

    pub(crate) fn finalized(&mut self, id: u64, status: i32) {
        let Some(index) = self.known.iter().position(|known| known.id == id) else {
            return assert_eq!(status, if id == 0 { api::INVALID_ARGUMENT } else { api::UNKNOWN_OBJECT });
        };
        if self.known[index].finalized {
            return assert_eq!(status, api::WRONG_ORDER);
        }
        assert_eq!(status, api::OK);
        self.known[index].finalized = true;
        if !self.known[index].alive {
            return;
        }
        let object = self.known[index].object.clone();
        self.counted.objects_finalized += 1;
        self.counted.functions += object.functions().len() as u64;
        let others = self.known.iter_mut().filter(|known| known.id != id && known.alive && known.finalized);
        for gone in others.filter(|known| known.overlaps(&object)) {
            gone.alive = false;
            self.counted.objects_freed += 1;
        }
    }

    pub(crate) fn freeing(&mut self, id: u64, status: i32) {
        let Some(index) = self.known.iter().position(|known| known.id == id) else {
            return assert_eq!(status, if id == 0 { api::INVALID_ARGUMENT } else { api::UNKNOWN_OBJECT });
        };
        assert_eq!(status, api::OK);
        self.counted.objects_freed += u64::from(self.known.remove(index).alive);
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
        let known = self.registrations.remove(&registration);
        assert_eq!(status, if known { api::OK } else { api::UNKNOWN_OBJECT });
    }

    pub(crate) fn check(&self, found: &Statistics) {
        let counted = &self.counted;
        let alive = self.known.iter().filter(|known| known.alive).count() as u64;
        assert_eq!(found.objects_loaded - found.objects_freed, alive, "what came and did not go is alive");
        assert_eq!(
            (found.objects_loaded, found.objects_finalized, found.objects_freed, found.objects_refused),
            (counted.objects_loaded, counted.objects_finalized, counted.objects_freed, counted.objects_refused)
        );
        assert_eq!(found.functions, counted.functions);
        assert!(found.functions_without_frame_pointer <= found.functions);
        assert!(found.functions_without_unwind_table <= found.functions);
        assert!(found.objects_without_frame_pointers <= found.objects_finalized);
        assert!(found.images_without_padding <= found.images_written);
        assert_eq!((found.images_withdrawn, found.images_put_back), (0, 0), "no change of memory was reported");
    }

    /// Finalized code that is alive.
    pub(crate) fn code(&self) -> impl Iterator<Item = &LoadedObject> {
        self.known.iter().filter(|known| known.alive && known.finalized).map(|known| &known.object)
    }
}
