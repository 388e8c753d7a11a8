//! Handling of a producer's API reports, including their order; see [`crate::producer`].

use std::collections::btree_map::Entry;

use super::{LiveObjects, Record, State};
use crate::object::{Channel, Origin};
use crate::process::{checked_read, mappings};
use crate::sink::page_size;
use crate::{Address, AddressRange, Error, LoadedObject, ObjectId, TableProblem, cfi, log_line};

impl LiveObjects {
    /// Handles *finalized* by the producer.
    ///
    /// # Errors
    /// [`Error::UnknownObject`] and [`Error::AlreadyFinalized`]. After [`Error::UnwindTable`] the object is finalized,
    /// but no sink uses its table.
    pub fn reported_finalized(&self, id: ObjectId) -> Result<(), Error> {
        self.libraries_changed();
        let mut state = self.lock_for_this_process();
        let reports = state.reported.get_mut(&id).ok_or(Error::UnknownObject(id))?;
        if reports.finalized == reports.loaded {
            return Err(Error::AlreadyFinalized(id));
        }
        reports.finalized += 1;
        let problem = state.objects.get_mut(&id).and_then(Record::ignore_unusable_table);
        let outcome = state.ledger.finalized(id);
        for replaced in outcome.freed.iter().filter(|replaced| state.reported.contains_key(replaced)) {
            log_line!(Warn, "object {id} overlaps object {replaced}, which was not reported as freed");
        }
        self.apply_outcome(&mut state, &outcome);
        drop(state);
        let Some(problem) = problem else { return Ok(()) };
        self.counters.unwind_tables_refused.add(1);
        let error = Error::UnwindTable { id, problem };
        log_line!(Warn, "{error}");
        Err(error)
    }

    /// Handles *freeing* by the producer, also for an object that was never finalized.
    ///
    /// # Errors
    /// [`Error::UnknownObject`].
    pub fn reported_freeing(&self, id: ObjectId) -> Result<(), Error> {
        let mut state = self.lock_for_this_process();
        let reports = state.reported.get_mut(&id).ok_or(Error::UnknownObject(id))?;
        if reports.loaded > 1 {
            reports.loaded -= 1;
            reports.finalized = reports.finalized.saturating_sub(1);
            return Ok(());
        }
        let padding = state.reported.remove(&id).and_then(|reports| reports.padding);
        let text = state.ledger.text(id).unwrap_or_default().to_vec();
        self.free_object(&mut state, id);
        // From here on, no hook observes how the producer changes these pages.
        let mut images = self.images();
        let is_empty =
            |pages: &AddressRange| state.ledger.owners(*pages).is_empty() && !state.ledger.is_pending(*pages);
        for pages in images.overlapping_pages(&text).into_iter().filter(is_empty) {
            images.withdraw(pages, &state.padding);
        }
        drop(images);
        if let Some(padding) = padding {
            state.forget_padding(padding.end());
        }
        Ok(())
    }

    /// Records the promise of [`LoadedCode::owns_pages`](crate::producer::LoadedCode::owns_pages).
    ///
    /// # Errors
    /// [`Error::UnknownObject`], and [`Error::AlreadyFinalized`] if the promise comes too late.
    pub fn reported_owns_pages(&self, id: ObjectId) -> Result<(), Error> {
        let mut state = self.lock();
        let reports = state.reported.get(&id).ok_or(Error::UnknownObject(id))?;
        if reports.finalized == reports.loaded {
            return Err(Error::AlreadyFinalized(id));
        }
        if let Some(record) = state.objects.get_mut(&id) {
            record.owns_pages = true;
        }
        Ok(())
    }

    /// Records the promise of [`LoadedCode::owns_padding`](crate::producer::LoadedCode::owns_padding).
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::AlreadyFinalized`] and [`Error::Padding`].
    pub fn reported_owns_padding(&self, id: ObjectId, size: u64) -> Result<(), Error> {
        let mut state = self.lock_for_this_process();
        let state = &mut *state;
        let reports = state.reported.get_mut(&id).ok_or(Error::UnknownObject(id))?;
        if reports.finalized == reports.loaded {
            return Err(Error::AlreadyFinalized(id));
        }
        let text = state.objects.get(&id).and_then(|record| record.object.text().first());
        let padding =
            text.and_then(|text| bytes_before(text.range.start(), size)).ok_or(Error::Padding { id, size })?;
        let is_free = |range| state.ledger.owners(range).is_empty() && !state.ledger.is_pending(range);
        let is_promised = state.promised_padding.contains_key(&padding.end());
        let is_shared = is_promised && state.padding.get(&padding.end()) == Some(&padding);
        if !(is_shared || is_private_memory(padding) && is_free(padding)) {
            return Err(Error::Padding { id, size });
        }
        // The shim may have reserved memory there before.
        let is_reserved = !is_promised && state.padding.contains_key(&padding.end());
        if reports.padding.is_none() && !is_reserved {
            reports.padding = Some(padding);
            *state.promised_padding.entry(padding.end()).or_default() += 1;
            state.padding.insert(padding.end(), padding);
        }
        Ok(())
    }
}

impl State {
    /// Ends the promise of one object. The padding stays while another object on the same page has it.
    fn forget_padding(&mut self, end: Address) {
        if let Entry::Occupied(mut count) = self.promised_padding.entry(end) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.padding.remove(&end);
            }
        }
    }
}

/// Returns the `size` bytes before the page that contains `code`, if they are whole pages.
fn bytes_before(code: Address, size: u64) -> Option<AddressRange> {
    let page_size = page_size();
    let end = code.0 / page_size * page_size;
    let padding = AddressRange::new(Address(end.checked_sub(size)?), size)?;
    (size > 0 && size.is_multiple_of(page_size)).then_some(padding)
}

fn is_private_memory(range: AddressRange) -> bool {
    let mappings = mappings::mappings_in(range).ok().flatten();
    mappings.is_some_and(|mappings| mappings.iter().all(|mapping| !mapping.shared && !mapping.is_file_backed))
}

impl Record {
    /// Returns true if the record was created for an object like this one.
    fn is_of(&self, object: &LoadedObject) -> bool {
        match self.ignored_table {
            None => self.object == *object,
            Some(table) => {
                let mut without_table = object.clone();
                without_table.remove_eh_frame();
                object.eh_frame() == Some(table) && self.object == without_table
            }
        }
    }

    /// Removes the table of an object that is not final if it is unusable, and returns the reason.
    fn ignore_unusable_table(&mut self) -> Option<TableProblem> {
        let range = self.object.eh_frame().filter(|_| self.finalized.is_none())?;
        let problem = self.find_table_problem(range)?;
        self.object.remove_eh_frame();
        self.ignored_table = Some(range);
        Some(problem)
    }

    fn find_table_problem(&self, range: AddressRange) -> Option<TableProblem> {
        let Ok(bytes) = checked_read::copy(range) else { return Some(TableProblem::Unreadable) };
        let described = match cfi::validate(&bytes, range.start()) {
            Ok(described) => described,
            Err(problem) => return Some(problem),
        };
        // LLVM may have removed all functions that a table of its own describes.
        if self.origin != Origin::Caller {
            return None;
        }
        let is_in_text =
            |entry: &AddressRange| self.object.text().iter().any(|text| text.range.contains(entry.start()));
        if let Some(empty) = described.iter().find(|entry| entry.is_empty() && is_in_text(entry)) {
            return Some(TableProblem::EmptyEntry(empty.start()));
        }
        let is_own = |code: &AddressRange| self.object.text().iter().any(|text| text.range.overlaps(*code));
        let own: Vec<AddressRange> = described.into_iter().filter(is_own).collect();
        if own.is_empty() {
            return Some(TableProblem::OtherCode);
        }
        // The copy that unwinders get has neither kind of entry.
        let is_inside = |code: &AddressRange| self.object.text().iter().any(|text| text.range.covers(*code));
        if let Some(&partly_outside) = own.iter().find(|code| !is_inside(code)) {
            return Some(TableProblem::PartlyOutside(partly_outside));
        }
        let overlap = own.windows(2).find(|pair| pair[0].overlaps(pair[1]));
        overlap.map(|pair| TableProblem::EntriesOverlap(pair[1]))
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
        let equal = record.is_of(object) || is_list_entry_of_linked && record.object.has_code_of(object);
        let same_channel = record.in_both_channels || record.origin.channel() == channel;
        if text_starts(&record.object) != text_starts(object) || (same_channel && !equal) {
            return None;
        }
        record.in_both_channels |= !same_channel;
        record.owns_pages |= channel == Channel::Discovered;
        if channel == Channel::Api {
            self.reported.entry(id).or_default().loaded += 1;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_objects::object;
    use super::*;
    use crate::cfi::{Cfa, FunctionRules, UnwindRow};
    use crate::options::{Options, SinkSet};
    use crate::producer::raw::{self, Code, Function};
    use crate::{Address, Machine, Offset};

    fn objects() -> LiveObjects {
        LiveObjects::new(Options { sinks: SinkSet::NONE, ..Options::default() })
    }

    fn reported_loaded(objects: &LiveObjects, object: Vec<u8>) -> Result<ObjectId, Error> {
        objects.loaded_from(Origin::Caller, object, None).map(|loaded| loaded.id)
    }

    #[test]
    fn both_channels_report_one_object_in_either_order() {
        let objects = objects();
        let discovered = objects.loaded(object(0x1000, "alpha"), None, None).unwrap().id;
        let reported = reported_loaded(&objects, object(0x1000, "other_name_of_alpha")).unwrap();
        assert_eq!(reported, discovered);
        objects.finalized(discovered);
        objects.reported_finalized(reported).unwrap();
        objects.reported_freeing(reported).unwrap();
        objects.freeing(discovered);

        let reported = reported_loaded(&objects, object(0x1000, "alpha")).unwrap();
        assert_ne!(reported, discovered, "a number is used once");
        objects.reported_finalized(reported).unwrap();
        assert_eq!(objects.loaded(object(0x1000, "alpha"), None, None).unwrap().id, reported);
        objects.finalized(reported);
        objects.freeing(reported);
        objects.reported_freeing(reported).unwrap();
        let statistics = objects.statistics();
        assert_eq!((statistics.objects_loaded, statistics.objects_finalized, statistics.objects_freed), (2, 2, 2));
    }

    #[test]
    fn two_objects_on_a_page_share_the_padding() {
        let objects = objects();
        // The allocator maps such a large block alone.
        let memory = vec![0_u8; 1 << 20];
        let page_size = page_size();
        let code = (memory.as_ptr() as u64).next_multiple_of(page_size) + page_size;
        let [first, second] = [0, 64].map(|offset| reported_loaded(&objects, object(code + offset, "f")).unwrap());
        for id in [first, second, second] {
            objects.reported_owns_padding(id, page_size).unwrap();
        }
        objects.reported_finalized(first).unwrap();
        objects.reported_finalized(second).unwrap();
        let has_padding = || objects.lock().padding.contains_key(&Address(code));
        objects.reported_freeing(first).unwrap();
        assert!(has_padding(), "the second object still owns it");
        objects.reported_freeing(second).unwrap();
        assert!(!has_padding() && objects.lock().promised_padding.is_empty());
    }

    #[test]
    fn a_wrong_order_is_an_error() {
        let objects = objects();
        assert!(matches!(objects.reported_finalized(ObjectId(7)), Err(Error::UnknownObject(ObjectId(7)))));
        let id = reported_loaded(&objects, object(0x1000, "alpha")).unwrap();
        assert_eq!(id.0, 1, "the C API's 0 is no object");
        objects.reported_finalized(id).unwrap();
        assert!(matches!(objects.reported_finalized(id), Err(Error::AlreadyFinalized(_))));
        objects.reported_freeing(id).unwrap();
        assert!(matches!(objects.reported_freeing(id), Err(Error::UnknownObject(_))));
        assert!(matches!(objects.reported_finalized(id), Err(Error::UnknownObject(_))));
        let discovered = objects.loaded(object(0x1000, "alpha"), None, None).unwrap().id;
        assert!(objects.reported_freeing(discovered).is_err(), "it is not the caller's");
    }

    #[test]
    fn each_report_of_the_same_code_is_finalized_and_freed() {
        let objects = objects();
        let id = reported_loaded(&objects, object(0x1000, "alpha")).unwrap();
        objects.reported_finalized(id).unwrap();
        assert_eq!(reported_loaded(&objects, object(0x1000, "alpha")).unwrap(), id);
        objects.reported_finalized(id).unwrap();
        assert!(objects.reported_finalized(id).is_err());
        objects.reported_freeing(id).unwrap();
        assert!(objects.is_alive(id), "the other report");
        objects.reported_freeing(id).unwrap();
        assert!(!objects.is_alive(id) && objects.reported_freeing(id).is_err());
        let statistics = objects.statistics();
        assert_eq!((statistics.objects_loaded, statistics.objects_finalized, statistics.objects_freed), (1, 1, 1));
    }

    /// Encodes a table with an entry for the 16 bytes at each of `starts`.
    fn table_for(starts: &[u64]) -> Vec<u8> {
        let rows = vec![UnwindRow { offset: Offset(0), cfa: Cfa { register: 7, offset: 24 }, saved: Vec::new() }];
        let range = |&start: &u64| AddressRange::new(Address(start), 16).unwrap();
        let rules: Vec<_> =
            starts.iter().map(|start| FunctionRules { range: range(start), rows: rows.clone() }).collect();
        let mut table = cfi::encode(&rules, Machine::X86_64, Address(0)).unwrap();
        let address = Address(table.as_ptr() as u64);
        table.copy_from_slice(&cfi::encode(&rules, Machine::X86_64, address).unwrap());
        table
    }

    fn range_of(table: &[u8]) -> AddressRange {
        AddressRange::new(Address(table.as_ptr() as u64), table.len() as u64).unwrap()
    }

    #[test]
    #[cfg_attr(not(target_arch = "x86_64"), ignore = "the table names registers of x86_64")]
    fn an_unusable_table_is_ignored_and_counted() {
        let finalize = |table: AddressRange| {
            let objects = objects();
            let functions = [Function::new(AddressRange::new(Address(0x1000), 16).unwrap(), b"alpha")];
            let object = raw::encode(&Code::new(Machine::X86_64, &functions).eh_frame(table)).unwrap();
            let id = reported_loaded(&objects, object.clone()).unwrap();
            let finalized = objects.reported_finalized(id);
            assert_eq!(reported_loaded(&objects, object).unwrap(), id, "it is the same object");
            let repaired = table_for(&[0x1000]);
            let object = raw::encode(&Code::new(Machine::X86_64, &functions).eh_frame(range_of(&repaired))).unwrap();
            assert_ne!(reported_loaded(&objects, object).unwrap(), id, "it has another table");
            let statistics = objects.statistics();
            assert_eq!((statistics.objects_finalized, statistics.objects_refused), (1, 0));
            assert_eq!(statistics.unwind_tables_refused, u64::from(finalized.is_err()));
            finalized.map_err(|error| error.to_string())
        };
        let own = table_for(&[0x1000]);
        finalize(range_of(&own)).unwrap();
        assert!(finalize(range_of(&own[..24])).unwrap_err().ends_with("for a function of the object"), "no entries");
        finalize(range_of(&table_for(&[0x1000, 0x2000]))).expect("an entry for other code is ignored");
        let error = finalize(range_of(&table_for(&[0x1008]))).unwrap_err();
        assert!(error.ends_with("the entry for 0x1008..0x1018 is partly outside the functions"), "{error}");
        let error = finalize(range_of(&table_for(&[0x1000, 0x1000]))).unwrap_err();
        assert!(error.ends_with("the entry for 0x1000..0x1010 overlaps another"), "{error}");
        let mut empty = table_for(&[0x1000]);
        empty[40..48].fill(0);
        assert!(finalize(range_of(&empty)).unwrap_err().ends_with("the entry for 0x1000 is empty"));
        let other = table_for(&[0x2000]);
        let error = finalize(range_of(&other)).unwrap_err();
        assert_eq!(error, "the .eh_frame of object 1 is ignored: no entry is for a function of the object");
        assert!(finalize(AddressRange::new(Address(16), 64).unwrap()).unwrap_err().ends_with("cannot be read"));
        assert!(finalize(range_of(&[0x55; 64])).unwrap_err().contains("malformed"));
        assert!(finalize(range_of(&own[..own.len() - 8])).unwrap_err().contains("malformed"));
        for (offset, bytes, defect) in [
            (own.len() - 5, &[0x3f][..], "no DW_CFA_*"),
            (8, &[4], "version"),
            (9, b"zQ", "augmentation"),
            (14, &[17], "column of the return address"),
            (16, &[0x9c], "indirect pointer"),
            (16, &[0x05], "unknown pointer encoding"),
            (24, &[0xff, 0xff], "length"),
            (28, &[0xff, 0xff], "pointer to the common entry"),
            (40, &[0xff; 8], "size"),
        ] {
            let mut table = table_for(&[0x1000]);
            table[offset..offset + bytes.len()].copy_from_slice(bytes);
            let error = finalize(range_of(&table)).unwrap_err();
            assert!(error.contains("malformed"), "{defect}: {error}");
        }
    }

    #[test]
    fn an_address_that_is_used_again_without_a_word_is_a_new_object() {
        let objects = objects();
        let old = reported_loaded(&objects, object(0x1000, "alpha")).unwrap();
        objects.reported_finalized(old).unwrap();
        let new = reported_loaded(&objects, object(0x1000, "beta")).unwrap();
        assert_ne!(new, old);
        objects.reported_finalized(new).unwrap();
        assert!(!objects.is_alive(old));
    }
}
