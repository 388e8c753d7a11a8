//! Reports of a producer through the API, and their order; see [`crate::producer`].

#![forbid(unsafe_code)]

use super::{Session, State};
use crate::object::{Channel, Origin};
use crate::{AddressRange, Error, LoadedObject, ObjectId};

impl Session {
    pub(crate) fn reported_finalized(&self, id: ObjectId) -> Result<(), Error> {
        match self.lock().reported.get_mut(&id) {
            None => return Err(Error::UnknownObject(id)),
            Some(true) => return Err(Error::AlreadyFinalized(id)),
            Some(finalized) => *finalized = true,
        }
        self.finalized(id);
        Ok(())
    }

    pub(crate) fn reported_freeing(&self, id: ObjectId) -> Result<(), Error> {
        let mut state = self.lock_here();
        state.reported.remove(&id).ok_or(Error::UnknownObject(id))?;
        let text = state.ledger.text(id).unwrap_or_default().to_vec();
        self.free(&mut state, id);
        // Nothing hooks what the producer does to these pages next.
        let mut images = self.images();
        let is_empty =
            |pages: &AddressRange| state.ledger.owners(*pages).is_empty() && !state.ledger.is_pending(*pages);
        for pages in images.around(&text).into_iter().filter(is_empty) {
            images.withdraw(pages, &state.padding);
        }
        Ok(())
    }

    /// See [`crate::producer::owns_pages`].
    pub(crate) fn owns_pages(&self, id: ObjectId) -> Result<(), Error> {
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
    /// The object that `object` is, reported by the other channel or, byte for byte, by the same one. A producer that
    /// forgets *freeing* and uses the addresses again for something else has a new object.
    pub(super) fn same(&mut self, object: &LoadedObject, origin: Origin) -> Option<ObjectId> {
        let channel = origin.channel();
        let starts = |object: &LoadedObject| -> Vec<u64> {
            object.text().iter().map(|text: &crate::TextRange| AddressRange::start(text.range).0).collect()
        };
        let id = self.ledger.starting_at(object.text().first()?.range.start())?;
        let record = self.objects.get_mut(&id)?;
        // JITLink's debug plugin knows sizes of tables from before functions were left out.
        let is_listed = record.origin == Origin::LlvmLinker && matches!(origin, Origin::LlvmList { .. });
        let equal = record.object == *object || is_listed && record.object.has_code_of(object);
        let again = record.from_both || record.origin.channel() == channel;
        if starts(&record.object) != starts(object) || (again && !equal) {
            return None;
        }
        record.from_both |= !again;
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
        let counted = session.statistics();
        assert_eq!((counted.objects_loaded, counted.objects_finalized, counted.objects_freed), (2, 2, 2));
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
