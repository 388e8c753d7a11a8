//! Objects whose code was copied to another address after linking.

#![forbid(unsafe_code)]

use super::{Origin, Session, linked_code, names};
use crate::ledger::Outcome;
use crate::{Error, LoadedObject, ObjectId};

impl Session {
    /// The debug object of an object that is *loaded* and not *finalized*.
    #[doc(hidden)]
    pub fn debug_object(&self, id: ObjectId) -> Option<Vec<u8>> {
        let state = self.lock();
        let record = state.objects.get(&id).filter(|record| record.finalized.is_none())?;
        record.debug_object.bytes(&record.object).map(std::borrow::Cow::into_owned)
    }

    /// An object that is *loaded* and not *finalized* is elsewhere, as this debug object says. `owns_pages`: it was
    /// there before its pages became executable. Otherwise its host writes to executable pages, and may do so again.
    ///
    /// # Errors
    /// That the object is not there, or the debug object is not understood: then nothing has changed.
    #[doc(hidden)]
    pub fn moved(&self, id: ObjectId, debug_object: Vec<u8>, owns_pages: bool) -> Result<Outcome, Error> {
        self.check_memory(debug_object.len())?;
        let object = LoadedObject::parse(&debug_object)?;
        let names = names(&object, &debug_object);
        let mut state = self.lock_here();
        let record = state.objects.get_mut(&id).filter(|record| record.finalized.is_none());
        let record = record.ok_or(Error::UnknownObject(id))?;
        let code = linked_code(id, &object);
        (record.object, record.names, record.origin) = (object, names, Origin::Moved);
        record.owns_pages = owns_pages;
        // What LLVM keeps speaks of the first place.
        record.debug_object = super::DebugObject { copy: Some(debug_object), kept_at: None };
        let outcome = state.ledger.moved(code);
        self.carry_out(&mut state, &outcome);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, SinkSet};
    use crate::producer::raw::{self, Code, Function};
    use crate::{Address, AddressRange, Machine};

    fn object(start: u64) -> Vec<u8> {
        let range = AddressRange::new(Address(start), 16).unwrap();
        let functions = [Function { range, name: b"alpha" }];
        raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame: None }).unwrap()
    }

    #[test]
    fn an_object_may_move_until_it_is_final() {
        let session = Session::new(Options { sinks: SinkSet::NONE, ..Options::default() });
        let id = session.loaded(object(0x1000), None, None).unwrap().id;
        assert_eq!(session.debug_object(id), Some(object(0x1000)));
        assert!(session.moved(id, vec![1, 2, 3], true).is_err());
        assert!(session.moved(id, object(0x8000), true).unwrap().is_empty(), "it may not run there yet");
        // The first place is free for another object, the second is not.
        assert_eq!(session.loaded(object(0x8000), None, None).unwrap().id, id);
        assert_ne!(session.loaded(object(0x1000), None, None).unwrap().id, id);
        session.finalized(id);
        assert!(session.moved(id, object(0x9000), true).is_err() && session.debug_object(id).is_none());
        assert_eq!(session.statistics().objects_finalized, 1);
    }
}
