//! Objects reported by one of LLVM's linkers and then registered in LLVM's GDB JIT list.

use std::sync::Arc;

use super::{LiveObjects, Loaded, Origin, Record, State};
use crate::options::SinkKind;
use crate::{AddressRange, Error, ObjectId};

impl LiveObjects {
    /// Handles *loaded*: LLVM's linker has placed an object in memory. `object` is a copy with the load addresses in
    /// its section headers, identical to the debug object that LLVM would create. `library` is the path of the file
    /// that contains that copy of LLVM.
    ///
    /// # Errors
    /// Same as for [`LiveObjects::loaded`].
    pub fn linked(&self, object: Vec<u8>, library: Option<Arc<str>>) -> Result<Loaded, Error> {
        self.loaded_from(Origin::LlvmLinker, object, library)
    }

    /// Returns true if `debug_object`, registered in LLVM's GDB JIT list at `kept_at`, is identical to the object `id`
    /// that the linker has reported. [`LiveObjects`] then relies on LLVM's copy.
    pub fn adopt_list_entry(&self, id: ObjectId, debug_object: &[u8], kept_at: Option<AddressRange>) -> bool {
        let mut state = self.lock_for_this_process();
        let Some(record) = state.objects.get_mut(&id) else { return false };
        if record.origin != Origin::LlvmLinker || record.debug_object.copy.as_deref() != Some(debug_object) {
            return false;
        }
        record.origin = Origin::LlvmList { kept_at };
        record.debug_object.kept_at = kept_at;
        if record.finalized.is_some() {
            if kept_at.is_some() {
                record.debug_object.copy = None;
            }
            // LLVM's own entry replaces ours.
            self.withdraw_from_sink(&mut state, SinkKind::Gdb, id);
        }
        true
    }

    /// Handles a list entry for an object that the linker has reported, if the entry has different bytes for the same
    /// code. [`LiveObjects`] keeps its own copy.
    pub(super) fn adopt_entry(&self, state: &mut State, id: ObjectId) {
        let is_unlisted = |record: &&mut Record| matches!(record.origin, Origin::LlvmLinker | Origin::Unlisted);
        let Some(record) = state.objects.get_mut(&id).filter(is_unlisted) else { return };
        record.origin = Origin::LlvmList { kept_at: None };
        if record.finalized.is_some() {
            self.withdraw_from_sink(state, SinkKind::Gdb, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_objects::object;
    use super::*;
    use crate::options::{Options, SinkSet};
    use crate::producer::raw::{self, Code, Function};
    use crate::{Address, Machine};

    #[test]
    fn an_object_of_the_linker_is_the_one_in_the_list() {
        let objects = LiveObjects::new(Options { sinks: SinkSet::NONE.with(SinkKind::Gdb), ..Options::default() });
        for is_final in [false, true] {
            let (bytes, other_object) = (object(0x1000, "alpha"), object(0x1000, "beta"));
            let id = objects.linked(bytes.clone(), None).unwrap().id;
            if is_final {
                objects.finalized(id);
            }
            let kept_at = AddressRange::new(Address(bytes.as_ptr() as u64), bytes.len() as u64);
            assert!(!objects.adopt_list_entry(id, &other_object, kept_at), "another object at the same place");
            assert!(objects.adopt_list_entry(id, &bytes, kept_at));
            assert!(!objects.adopt_list_entry(id, &bytes, kept_at), "it has been listed");
            objects.finalized(id);
            objects.freeing(id);
            assert!(!objects.adopt_list_entry(id, &bytes, kept_at), "it is gone");
        }
        assert_eq!(objects.statistics().objects_loaded, 2);
    }

    /// Two debug objects of one function, with unwind tables of different sizes.
    #[test]
    fn what_differs_in_its_tables_only_is_the_object_of_the_linker() {
        let objects = LiveObjects::new(Options { sinks: SinkSet::NONE.with(SinkKind::Gdb), ..Options::default() });
        let range = |start, size| AddressRange::new(Address(start), size).unwrap();
        let encode = |size| {
            let functions = [Function { range: range(0x1000, 16), name: b"alpha" }];
            let eh_frame = Some(range(0x5000, size));
            raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame }).unwrap()
        };
        let id = objects.linked(encode(0x40), None).unwrap().id;
        objects.finalized(id);
        assert_eq!(objects.loaded(encode(0x80), None, None).unwrap().id, id);
        assert_eq!(objects.statistics().objects_loaded, 1);
        // Different code at the same address is a new object.
        assert_ne!(objects.loaded(object(0x1000, "beta"), None, None).unwrap().id, id);
    }
}
