//! Changes of memory with objects, now or later. Those that a caller of ours hears of are reported here; the sinks are
//! notified before the call returns.

#![forbid(unsafe_code)]

use std::sync::{MutexGuard, PoisonError};

use super::{Origin, Session, State};
use crate::code_snapshot::CodeSnapshot;
use crate::ledger::{Executable, Ledger, MemoryChange, Outcome, code_pages};
use crate::log_line;
use crate::options::SinkKind;
use crate::process::{checked_read, reserve};
use crate::sink::Images;
use crate::{Address, AddressRange, ObjectId};

impl Session {
    /// Looks at the code of the process, under the session's lock: `look` must not call the session.
    #[doc(hidden)]
    pub fn ledger<R>(&self, look: impl FnOnce(&Ledger) -> R) -> R {
        look(&self.lock().ledger)
    }

    /// `range` may be executed from now on.
    #[doc(hidden)]
    pub fn executable(&self, range: AddressRange, how: Executable) -> Outcome {
        code_pages::insert(range);
        self.change(|ledger| ledger.executable(range, how)).1
    }

    /// `range` is about to be executable no more. No image names it from then on.
    #[doc(hidden)]
    pub fn not_executable(&self, range: AddressRange) -> Outcome {
        code_pages::remove(range);
        let (state, outcome) = self.change(|ledger| ledger.not_executable(range));
        self.images().withdraw(range, &state.padding);
        outcome
    }

    /// `range` is about to be unmapped, or replaced by other memory.
    #[doc(hidden)]
    pub fn unmapped(&self, range: AddressRange) -> Outcome {
        self.leaving(range, |ledger| ledger.unmapped(range))
    }

    /// `range` is about to be replaced by memory that may be executed: it may be the code that objects wait for there,
    /// mapped twice.
    #[doc(hidden)]
    pub fn replaced_by_code(&self, range: AddressRange) -> Outcome {
        self.leaving(range, |ledger| ledger.not_executable(range))
    }

    fn leaving(&self, range: AddressRange, change: impl FnOnce(&mut Ledger) -> Outcome) -> Outcome {
        code_pages::remove(range);
        let (_state, outcome) = self.change(change);
        self.images().forget(range);
        outcome
    }

    /// A system call of the host is about to change the memory in `range`. No image is made there until it has ended:
    /// see `sink/image/pages.rs`.
    #[doc(hidden)]
    pub fn begin_change(&self, range: AddressRange) -> MemoryChange {
        self.lock().changes.begin(range)
    }

    /// The system call has returned.
    #[doc(hidden)]
    pub fn end_change(&self, change: &MemoryChange) {
        self.lock().changes.end(change);
    }

    /// LLVM has handed the `.eh_frame` at `address` to the unwinder.
    #[doc(hidden)]
    pub fn eh_frame_registered(&self, address: Address) -> Outcome {
        self.change(|ledger| ledger.eh_frame_registered(address)).1
    }

    /// An object has had time enough to become final.
    #[doc(hidden)]
    pub fn overdue(&self, id: ObjectId) -> Outcome {
        self.change(|ledger| ledger.overdue(id)).1
    }

    /// A few of the objects that have had time enough and are not final, in turn.
    #[doc(hidden)]
    pub fn next_overdue(&self, count: usize) -> Vec<ObjectId> {
        self.lock().ledger.next_overdue(count)
    }

    fn change(&self, change: impl FnOnce(&mut Ledger) -> Outcome) -> (MutexGuard<'_, State>, Outcome) {
        let mut state = self.lock();
        let outcome = change(&mut state.ledger);
        if !outcome.is_empty() {
            self.look_where(&mut state);
            self.carry_out(&mut state, &outcome);
        }
        (state, outcome)
    }

    /// LLVM has taken the object out of its GDB JIT list, and will give its debug object up; the code stays. Call it
    /// while the debug object is there.
    #[doc(hidden)]
    pub fn unregistered(&self, id: ObjectId) {
        let mut state = self.lock_here();
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
                // An entry of ours takes the place of LLVM's own.
                let snapshot = CodeSnapshot::of(pid, &record.object);
                self.notify(&mut state, SinkKind::Gdb, id, &snapshot);
            }
        }
        log_line!(Debug, "unregistered {id:?}: kept until its memory is unmapped");
    }

    /// Memory was reserved in front of code that is still to come; sinks may use it once that is *finalized*.
    #[doc(hidden)]
    pub fn reserve_header_padding(&self, padding: AddressRange) {
        self.lock().padding.insert(padding.end(), padding);
    }

    /// Takes back the memory in front of `code`, if some was reserved.
    #[doc(hidden)]
    pub fn take_header_padding(&self, code: Address) -> Option<AddressRange> {
        self.lock().padding.remove(&code)
    }

    /// What is in `range` may change from now on: its owner is about to make it writable. No image names it any more.
    #[doc(hidden)]
    pub fn changing(&self, range: AddressRange) {
        let state = self.lock();
        self.images().withdraw(range, &state.padding);
    }

    /// Must be called under the session's lock.
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

    /// Where no program has memory: `code_pages` is one for all tests.
    const BASE: u64 = 1 << 62;

    fn pages(count: u64) -> AddressRange {
        AddressRange::new(Address(BASE), count << 12).unwrap()
    }

    fn object(start: u64) -> Vec<u8> {
        let functions = [Function { range: AddressRange::new(Address(start), 16).unwrap(), name: b"alpha" }];
        raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame: None }).unwrap()
    }

    fn with_images(test: &str) -> (Session, std::path::PathBuf) {
        let directory = std::env::temp_dir().join(format!("jitlisten-rule-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let sinks = SinkSet::NONE.with(SinkKind::Image);
        (Session::new(Options { sinks, directory: Some(directory.clone()), ..Options::default() }), directory)
    }

    fn counted(session: &Session) -> [u64; 4] {
        let images = session.statistics().images;
        [images.written, images.refused_not_final, images.refused_not_owned, images.withdrawn]
    }

    /// Other tests run in other threads.
    #[test]
    #[cfg_attr(miri, ignore = "miri runs no other process's code")]
    fn reported_code_has_an_image_if_its_pages_are_its_own_until_it_is_freed() {
        let (session, directory) = with_images("reported");
        let (shared, owned) = (page_of_code(), page_of_code());
        for (page, expected) in [(shared, [0, 0, 1, 0]), (owned, [1, 0, 1, 0])] {
            let id = session.loaded_from(Origin::Caller, object(page.start().0), None).unwrap().id;
            if page == owned {
                session.owns_pages(id).unwrap();
            }
            session.reported_finalized(id).unwrap();
            assert_eq!(counted(&session), expected);
            session.reported_freeing(id).unwrap();
        }
        assert_eq!(counted(&session), [1, 0, 1, 1], "the pages are anonymous again");
        // More code in the same page, without the promise.
        let first = session.loaded_from(Origin::Caller, object(owned.start().0), None).unwrap().id;
        session.owns_pages(first).unwrap();
        let second = session.loaded_from(Origin::Caller, object(owned.start().0 + 64), None).unwrap().id;
        session.reported_finalized(first).unwrap();
        session.reported_finalized(second).unwrap();
        assert_eq!(counted(&session), [1, 0, 2, 1]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri runs no other process's code")]
    fn there_is_no_image_during_a_change_of_memory() {
        let (session, directory) = with_images("changing");
        let page = page_of_code();
        let change = session.begin_change(page);
        let id = session.loaded(object(page.start().0), None, None).unwrap().id;
        assert_eq!(session.executable(page, Executable::Only).finalized, [id]);
        assert_eq!(counted(&session), [0, 1, 0, 0]);
        session.disable(SinkKind::Image);
        session.enable(SinkKind::Image);
        assert_eq!(counted(&session), [0, 2, 0, 0]);
        session.end_change(&change);
        session.disable(SinkKind::Image);
        session.enable(SinkKind::Image);
        assert_eq!(counted(&session), [1, 2, 0, 0]);
        let _ = session.not_executable(page);
        assert_eq!(counted(&session), [1, 2, 0, 1]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn changes_of_memory_finalize_and_free_what_was_discovered() {
        let session = Session::new(Options { sinks: SinkSet::NONE, ..Options::default() });
        let discovered = session.loaded(object(BASE), None, None).unwrap();
        assert!(discovered.outcome.is_empty() && discovered.pending.is_some());
        let reported = session.loaded_from(Origin::Caller, object(BASE + 0x100), None).unwrap().id;
        assert_eq!(session.executable(pages(1), Executable::Only).finalized, [discovered.id]);
        session.finalized(reported);
        session.finalized(discovered.id);
        assert_eq!(session.statistics().objects_finalized, 2);
        assert_eq!(session.not_executable(pages(1)).freed, [discovered.id]);
        assert!(!session.is_alive(discovered.id) && session.is_alive(reported));
        // Linked again: it waits, and what waits in memory that goes is another one if it comes again.
        let again = session.loaded(object(BASE), None, None).unwrap().id;
        assert_eq!(session.loaded(object(BASE), None, None).unwrap().id, again);
        assert!(session.unmapped(pages(1)).is_empty() && session.is_alive(again));
        assert_ne!(session.loaded(object(BASE), None, None).unwrap().id, again);
        assert_eq!(session.overdue(again).freed, [again]);
        assert!(session.is_alive(reported));
    }
}
