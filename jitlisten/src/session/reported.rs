//! Handling of a producer's API reports, including their order; see [`crate::producer`].

#![forbid(unsafe_code)]

use super::{Session, State};
use crate::object::{Channel, Origin};
use crate::{AddressRange, Error, LoadedObject, ObjectId};

impl Session {
    /// Handles *finalized* by the producer.
    ///
    /// # Errors
    /// [`Error::UnknownObject`] and [`Error::AlreadyFinalized`].
    #[doc(hidden)]
    pub fn reported_finalized(&self, id: ObjectId) -> Result<(), Error> {
        self.libraries_changed();
        match self.lock().reported.get_mut(&id) {
            None => return Err(Error::UnknownObject(id)),
            Some(true) => return Err(Error::AlreadyFinalized(id)),
            Some(finalized) => *finalized = true,
        }
        self.finalized(id);
        Ok(())
    }

    /// Handles *freeing* by the producer, also for an object that was never finalized.
    ///
    /// # Errors
    /// [`Error::UnknownObject`].
    #[doc(hidden)]
    pub fn reported_freeing(&self, id: ObjectId) -> Result<(), Error> {
        let mut state = self.lock_for_this_process();
        state.reported.remove(&id).ok_or(Error::UnknownObject(id))?;
        let text = state.ledger.text(id).unwrap_or_default().to_vec();
        self.free_object(&mut state, id);
        // From here on, no hook observes how the producer changes these pages.
        let mut images = self.images();
        let is_empty =
            |pages: &AddressRange| state.ledger.owners(*pages).is_empty() && !state.ledger.is_pending(*pages);
        for pages in images.overlapping_pages(&text).into_iter().filter(is_empty) {
            images.withdraw(pages, &state.padding);
        }
        Ok(())
    }

    /// Records the promise of [`LoadedCode::owns_pages`](crate::producer::LoadedCode::owns_pages).
    ///
    /// # Errors
    /// [`Error::UnknownObject`].
    #[doc(hidden)]
    pub fn reported_owns_pages(&self, id: ObjectId) -> Result<(), Error> {
        let mut state = self.lock();
        if !state.reported.contains_key(&id) {
            return Err(Error::UnknownObject(id));
        }
        if let Some(record) = state.objects.get_mut(&id) {
            record.owns_pages = true;
        }
        Ok(())
    }
}

impl State {
    /// Finds the known object that `object` duplicates: one that the other channel reported, or an identical one from
    /// the same channel. A producer that forgets *freeing* and reuses the addresses for different code gets a new
    /// object.
    pub(super) fn find_same_object(&mut self, object: &LoadedObject, origin: Origin) -> Option<ObjectId> {
        let channel = origin.channel();
        let text_starts = |object: &LoadedObject| -> Vec<u64> {
            object.text().iter().map(|text: &crate::TextRange| AddressRange::start(text.range).0).collect()
        };
        let id = self.ledger.starting_at(object.text().first()?.range.start())?;
        let record = self.objects.get_mut(&id)?;
        // JITLink's debug plugin reports table sizes from before dead functions were removed.
        let is_list_entry_of_linked = record.origin == Origin::LlvmLinker && matches!(origin, Origin::LlvmList { .. });
        let equal = record.object == *object || is_list_entry_of_linked && record.object.has_code_of(object);
        let same_channel = record.in_both_channels || record.origin.channel() == channel;
        if text_starts(&record.object) != text_starts(object) || (same_channel && !equal) {
            return None;
        }
        record.in_both_channels |= !same_channel;
        record.owns_pages |= channel == Channel::Discovered;
        if channel == Channel::Api {
            self.reported.entry(id).or_default();
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, SinkSet};
    use crate::producer::raw::{self, Code, Function};
    use crate::{Address, Machine};

    fn session() -> Session {
        Session::new(Options { sinks: SinkSet::NONE, ..Options::default() })
    }

    fn reported_loaded(session: &Session, object: Vec<u8>) -> Result<ObjectId, Error> {
        session.loaded_from(Origin::Caller, object, None).map(|loaded| loaded.id)
    }

    fn object(start: u64, name: &str) -> Vec<u8> {
        let range = AddressRange::new(Address(start), 16).unwrap();
        let functions = [Function { range, name: name.as_bytes() }];
        raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame: None }).unwrap()
    }

    #[test]
    fn both_channels_report_one_object_in_either_order() {
        let session = session();
        let discovered = session.loaded(object(0x1000, "alpha"), None, None).unwrap().id;
        let reported = reported_loaded(&session, object(0x1000, "other_name_of_alpha")).unwrap();
        assert_eq!(reported, discovered);
        session.finalized(discovered);
        session.reported_finalized(reported).unwrap();
        session.reported_freeing(reported).unwrap();
        session.freeing(discovered);

        let reported = reported_loaded(&session, object(0x1000, "alpha")).unwrap();
        assert_ne!(reported, discovered, "a number is used once");
        session.reported_finalized(reported).unwrap();
        assert_eq!(session.loaded(object(0x1000, "alpha"), None, None).unwrap().id, reported);
        session.finalized(reported);
        session.freeing(reported);
        session.reported_freeing(reported).unwrap();
        let statistics = session.statistics();
        assert_eq!((statistics.objects_loaded, statistics.objects_finalized, statistics.objects_freed), (2, 2, 2));
    }

    #[test]
    fn a_wrong_order_is_an_error() {
        let session = session();
        assert!(matches!(session.reported_finalized(ObjectId(7)), Err(Error::UnknownObject(ObjectId(7)))));
        let id = reported_loaded(&session, object(0x1000, "alpha")).unwrap();
        assert_eq!(reported_loaded(&session, object(0x1000, "alpha")).unwrap(), id);
        session.reported_finalized(id).unwrap();
        assert!(matches!(session.reported_finalized(id), Err(Error::AlreadyFinalized(_))));
        session.reported_freeing(id).unwrap();
        assert!(matches!(session.reported_freeing(id), Err(Error::UnknownObject(_))));
        assert!(matches!(session.reported_finalized(id), Err(Error::UnknownObject(_))));
        let discovered = session.loaded(object(0x1000, "alpha"), None, None).unwrap().id;
        assert!(session.reported_freeing(discovered).is_err(), "it is not the caller's");
    }

    #[test]
    fn an_address_that_is_used_again_without_a_word_is_a_new_object() {
        let session = session();
        let old = reported_loaded(&session, object(0x1000, "alpha")).unwrap();
        session.reported_finalized(old).unwrap();
        let new = reported_loaded(&session, object(0x1000, "beta")).unwrap();
        assert_ne!(new, old);
        session.reported_finalized(new).unwrap();
        assert!(!session.is_alive(old));
    }
}
