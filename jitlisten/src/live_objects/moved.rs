//! Objects whose code was copied to another address after linking.

use super::{LiveObjects, Origin, linked_code, readable_names};
use crate::ledger::Outcome;
use crate::{Error, LoadedObject, ObjectId};

impl LiveObjects {
    /// Debug object of a pending object.
    pub fn debug_object(&self, id: ObjectId) -> Option<Vec<u8>> {
        let state = self.lock();
        let record = state.objects.get(&id).filter(|record| record.finalized.is_none())?;
        record.debug_object.bytes(&record.object).map(std::borrow::Cow::into_owned)
    }

    /// Records that the host copied a pending object to other addresses, as given by `debug_object`. `owns_pages` is
    /// true if the copy was made before its pages became executable. Otherwise the host writes to executable pages, and
    /// may do so again.
    ///
    /// # Errors
    /// If the object is unknown or not pending, or the debug object cannot be parsed. In both cases nothing changes.
    pub fn object_moved(&self, id: ObjectId, debug_object: Vec<u8>, owns_pages: bool) -> Result<Outcome, Error> {
        self.check_memory(debug_object.len())?;
        let object = LoadedObject::parse(&debug_object)?;
        let names = readable_names(&object, &debug_object);
        let mut state = self.lock_for_this_process();
        let record = state.objects.get_mut(&id).filter(|record| record.finalized.is_none());
        let record = record.ok_or(Error::UnknownObject(id))?;
        let code = linked_code(id, &object);
        (record.object, record.names, record.origin) = (object, names, Origin::Moved);
        record.owns_pages = owns_pages;
        // LLVM's debug object still has the old addresses.
        record.debug_object = super::DebugObject { copy: Some(debug_object), kept_at: None };
        let outcome = state.ledger.moved(code);
        self.apply_outcome(&mut state, &outcome);
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
        let objects = LiveObjects::new(Options { sinks: SinkSet::NONE, ..Options::default() });
        let id = objects.loaded(object(0x1000), None, None).unwrap().id;
        assert_eq!(objects.debug_object(id), Some(object(0x1000)));
        assert!(objects.object_moved(id, vec![1, 2, 3], true).is_err());
        assert!(objects.object_moved(id, object(0x8000), true).unwrap().is_empty(), "it may not run there yet");
        // The old address is free for another object; the new one is not.
        assert_eq!(objects.loaded(object(0x8000), None, None).unwrap().id, id);
        assert_ne!(objects.loaded(object(0x1000), None, None).unwrap().id, id);
        objects.finalized(id);
        assert!(objects.object_moved(id, object(0x9000), true).is_err() && objects.debug_object(id).is_none());
        assert_eq!(objects.statistics().objects_finalized, 1);
    }
}
