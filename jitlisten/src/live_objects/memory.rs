//! Changes to memory that contains code now or will contain it later. The hooks report them here; the sinks have been
//! notified when each call returns.

use std::sync::{MutexGuard, PoisonError};

use super::{LiveObjects, Origin, State};
use crate::code_snapshot::CodeSnapshot;
use crate::ledger::{Executable, Ledger, MemoryChange, Outcome, code_pages};
use crate::log_line;
use crate::options::SinkKind;
use crate::process::{checked_read, reserve};
use crate::sink::Images;
use crate::{Address, AddressRange, ObjectId};

impl LiveObjects {
    /// Reads the ledger under the state's lock. `read` must not call `self`.
    pub fn ledger<R>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        read(&self.lock().ledger)
    }

    /// Records that `range` became executable.
    pub fn executable(&self, range: AddressRange, rights: Executable) -> Outcome {
        code_pages::insert(range);
        self.update_ledger(|ledger| ledger.executable(range, rights)).1
    }

    /// Records that `range` is about to become non-executable. Its images are withdrawn first.
    pub fn not_executable(&self, range: AddressRange) -> Outcome {
        code_pages::remove(range);
        let (state, outcome) = self.update_ledger(|ledger| ledger.not_executable(range));
        self.images().withdraw(range, &state.padding);
        outcome
    }

    /// Records that `range` is about to be unmapped, or replaced by other memory.
    pub fn unmapped(&self, range: AddressRange) -> Outcome {
        self.release_memory(range, |ledger| ledger.unmapped(range))
    }

    /// Records that `range` is about to be replaced by executable memory. Pending objects stay, because the new mapping
    /// may be a second mapping of their code.
    pub fn replaced_by_code(&self, range: AddressRange) -> Outcome {
        self.release_memory(range, |ledger| ledger.not_executable(range))
    }

    fn release_memory(&self, range: AddressRange, update: impl FnOnce(&mut Ledger) -> Outcome) -> Outcome {
        code_pages::remove(range);
        let (_state, outcome) = self.update_ledger(update);
        self.images().forget(range);
        outcome
    }

    /// Records that a system call of the host is about to change the memory in `range`. No image is made there until
    /// the call has ended; see `sink/image/pages.rs`.
    pub fn begin_change(&self, range: AddressRange) -> MemoryChange {
        self.lock().changes.begin(range)
    }

    /// Records that the system call has returned.
    pub fn end_change(&self, change: &MemoryChange) {
        self.lock().changes.end(change);
    }

    /// Records that LLVM has registered the `.eh_frame` at `address` with the unwinder.
    pub fn eh_frame_registered(&self, address: Address) -> Outcome {
        self.update_ledger(|ledger| ledger.eh_frame_registered(address)).1
    }

    /// Handles a pending object whose timeout has expired.
    pub fn overdue(&self, id: ObjectId) -> Outcome {
        self.update_ledger(|ledger| ledger.overdue(id)).1
    }

    /// Returns the next `count` overdue pending objects, round-robin.
    pub fn next_overdue(&self, count: usize) -> Vec<ObjectId> {
        self.lock().ledger.next_overdue(count)
    }

    fn update_ledger(&self, update: impl FnOnce(&mut Ledger) -> Outcome) -> (MutexGuard<'_, State>, Outcome) {
        let mut state = self.lock();
        let outcome = update(&mut state.ledger);
        if !outcome.is_empty() {
            self.handle_process_change(&mut state);
            self.apply_outcome(&mut state, &outcome);
        }
        (state, outcome)
    }

    /// Records that LLVM has removed the object from its GDB JIT list and is about to free its debug object, while the
    /// code stays. Must be called before the debug object is freed.
    pub fn unregistered(&self, id: ObjectId) {
        let mut state = self.lock_for_this_process();
        let pid = state.pid;
        let Some(record) = state.objects.get_mut(&id) else { return };
        let kept_at = record.debug_object.kept_at.take();
        if record.debug_object.copy.is_none()
            && let Some(range) = kept_at.filter(|range| reserve::is_memory_left(range.size() as usize))
        {
            record.debug_object.copy = checked_read::copy(range).ok();
        }
        if matches!(record.origin, Origin::LlvmList { .. }) {
            record.origin = Origin::Unlisted;
            if record.finalized.is_some() {
                // Our own entry replaces LLVM's.
                let snapshot = CodeSnapshot::for_object(pid, &record.object);
                self.notify_sink_finalized(&mut state, SinkKind::Gdb, id, &snapshot);
            }
        }
        log_line!(Debug, "unregistered object {id}: kept until its memory is unmapped");
    }

    /// Records memory that was reserved in front of code that will be loaded there. Sinks may use the memory once that
    /// code is *finalized*.
    pub fn reserve_header_padding(&self, padding: AddressRange) {
        self.lock().padding.insert(padding.end(), padding);
    }

    /// Removes and returns the memory reserved in front of `code`, if any. That of a producer stays.
    pub fn take_header_padding(&self, code: Address) -> Option<AddressRange> {
        let mut state = self.lock();
        let is_of_producer = state.promised_padding.contains_key(&code);
        if is_of_producer { None } else { state.padding.remove(&code) }
    }

    /// Records that the owner of `range` is about to make it writable. Its images are withdrawn.
    pub fn withdraw_images(&self, range: AddressRange) {
        let state = self.lock();
        self.images().withdraw(range, &state.padding);
    }

    /// Locks the images. Must be called under the state's lock.
    pub(super) fn images(&self) -> MutexGuard<'_, Images> {
        self.context.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Machine;
    use crate::options::{Options, SinkSet};
    use crate::process::page_of_code;
    use crate::producer::raw::{self, Code, Function};

    /// Address outside the user address space, because `code_pages` is shared by all tests.
    const BASE: u64 = 1 << 62;

    fn pages(count: u64) -> AddressRange {
        AddressRange::new(Address(BASE), count << 12).unwrap()
    }

    fn object(start: u64) -> Vec<u8> {
        let functions = [Function { range: AddressRange::new(Address(start), 16).unwrap(), name: b"alpha" }];
        raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame: None }).unwrap()
    }

    fn with_images(test: &str) -> (LiveObjects, std::path::PathBuf) {
        let directory = std::env::temp_dir().join(format!("jitlisten-rule-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let sinks = SinkSet::NONE.with(SinkKind::Image);
        (LiveObjects::new(Options { sinks, directory: Some(directory.clone()), ..Options::default() }), directory)
    }

    fn image_counts(objects: &LiveObjects) -> [u64; 4] {
        let images = objects.statistics().images;
        [images.written, images.refused_not_final, images.refused_not_owned, images.withdrawn]
    }

    /// Needs the promise of `owns_pages`, because other tests run in other threads.
    #[test]
    #[cfg_attr(miri, ignore = "miri runs no other process's code")]
    fn reported_code_has_an_image_if_its_pages_are_its_own_until_it_is_freed() {
        let (objects, directory) = with_images("reported");
        let (shared, owned) = (page_of_code(), page_of_code());
        for (page, expected) in [(shared, [0, 0, 1, 0]), (owned, [1, 0, 1, 0])] {
            let id = objects.loaded_from(Origin::Caller, object(page.start().0), None).unwrap().id;
            if page == owned {
                objects.reported_owns_pages(id).unwrap();
            }
            objects.reported_finalized(id).unwrap();
            assert_eq!(image_counts(&objects), expected);
            objects.reported_freeing(id).unwrap();
        }
        assert_eq!(image_counts(&objects), [1, 0, 1, 1], "the pages are anonymous again");
        // This object adds code on the same page without the promise.
        let first = objects.loaded_from(Origin::Caller, object(owned.start().0), None).unwrap().id;
        objects.reported_owns_pages(first).unwrap();
        let second = objects.loaded_from(Origin::Caller, object(owned.start().0 + 64), None).unwrap().id;
        objects.reported_finalized(first).unwrap();
        objects.reported_finalized(second).unwrap();
        assert_eq!(image_counts(&objects), [1, 0, 2, 1]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri runs no other process's code")]
    fn there_is_no_image_during_a_change_of_memory() {
        let (objects, directory) = with_images("changing");
        let page = page_of_code();
        let change = objects.begin_change(page);
        let id = objects.loaded(object(page.start().0), None, None).unwrap().id;
        assert_eq!(objects.executable(page, Executable::Only).finalized, [id]);
        assert_eq!(image_counts(&objects), [0, 1, 0, 0]);
        objects.disable(SinkKind::Image);
        objects.enable(SinkKind::Image);
        assert_eq!(image_counts(&objects), [0, 2, 0, 0]);
        objects.end_change(&change);
        objects.disable(SinkKind::Image);
        objects.enable(SinkKind::Image);
        assert_eq!(image_counts(&objects), [1, 2, 0, 0]);
        let _ = objects.not_executable(page);
        assert_eq!(image_counts(&objects), [1, 2, 0, 1]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn changes_of_memory_finalize_and_free_what_was_discovered() {
        let objects = LiveObjects::new(Options { sinks: SinkSet::NONE, ..Options::default() });
        let discovered = objects.loaded(object(BASE), None, None).unwrap();
        assert!(discovered.outcome.is_empty() && discovered.pending.is_some());
        let reported = objects.loaded_from(Origin::Caller, object(BASE + 0x100), None).unwrap().id;
        assert_eq!(objects.executable(pages(1), Executable::Only).finalized, [discovered.id]);
        objects.finalized(reported);
        objects.finalized(discovered.id);
        assert_eq!(objects.statistics().objects_finalized, 2);
        assert_eq!(objects.not_executable(pages(1)).freed, [discovered.id]);
        assert!(!objects.is_alive(discovered.id) && objects.is_alive(reported));
        // The object is linked again and is pending. If its memory is unmapped while it is pending, the next report
        // describes a new object.
        let relinked_id = objects.loaded(object(BASE), None, None).unwrap().id;
        assert_eq!(objects.loaded(object(BASE), None, None).unwrap().id, relinked_id);
        assert!(objects.unmapped(pages(1)).is_empty() && objects.is_alive(relinked_id));
        assert_ne!(objects.loaded(object(BASE), None, None).unwrap().id, relinked_id);
        assert_eq!(objects.overdue(relinked_id).freed, [relinked_id]);
        assert!(objects.is_alive(reported));
    }
}
