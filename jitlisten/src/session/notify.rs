//! Sinks and the observer: turned on and off, and notified.

#![forbid(unsafe_code)]

use super::record::neighbours;
use super::{Record, Session, State};
use crate::code_snapshot::CodeSnapshot;
use crate::log_line;
use crate::options::SinkKind;
use crate::process::fork_gate;
use crate::sink::{self, Neighbours, SinkError, Unwinders};
use crate::{Address, AddressRange, ObjectId, observer};

impl Session {
    /// Switches a sink on, and notifies it of everything that is alive. If it is on, nothing happens, except in the
    /// child of a fork: what it has inherited is written now.
    pub fn enable(&self, kind: SinkKind) {
        let mut state = self.lock_here();
        if std::mem::take(&mut state.inherits[kind as usize]) {
            self.notify_of_everything(&mut state, kind);
        } else if state.sinks[kind as usize].is_none() {
            // A map that is there by now may be ours, of an earlier time: it is not stale.
            state.sinks[kind as usize] = Some(sink::create(kind, &self.options, &self.context));
            self.notify_of_everything(&mut state, kind);
        }
        drop(state);
        self.give_way();
    }

    /// Switches a sink off; its files are closed and stay.
    pub fn disable(&self, kind: SinkKind) {
        let mut state = self.lock();
        self.end(&mut state, kind);
        state.sinks[kind as usize] = None;
        state.inherits[kind as usize] = false;
        drop(state);
        self.give_way();
    }

    /// Whether a sink is on: asked for, and not failed.
    pub fn is_enabled(&self, kind: SinkKind) -> bool {
        self.lock().sinks[kind as usize].is_some()
    }

    /// Whether this is the process that the session is of, and no thread has its lock at this moment: one that held it
    /// when a child came into being without handlers will never give it back there.
    #[doc(hidden)]
    pub fn is_free_here(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.pid == std::process::id())
    }

    /// The process exits: sinks write what they have kept. They stay on, because other threads may still compile.
    #[doc(hidden)]
    pub fn ending(&self) {
        // The lock is not waited for: its holder may be this very thread, whose signal handler exits.
        if let Ok(mut state) = self.state.try_lock()
            && state.pid == std::process::id()
        {
            SinkKind::ALL.into_iter().for_each(|kind| self.end(&mut state, kind));
        }
        crate::log::flush();
    }

    fn end(&self, state: &mut State, kind: SinkKind) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.ending() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    /// Notifies `observer` of all code that is alive, and from now on of all that comes and goes. One observer in a
    /// process.
    #[doc(hidden)]
    pub fn observe(&self, observer: &'static dyn observer::CodeObserver) {
        let state = self.lock_here();
        observer::activate(observer);
        for (&id, record) in state.objects.iter().filter(|(_, record)| record.finalized.is_some()) {
            observer::finalized(id, &record.object, &record.made_rules, &CodeSnapshot::of(state.pid, &record.object));
        }
    }

    /// Ends that.
    #[doc(hidden)]
    pub fn stop_observing(&self) {
        let _state = self.lock();
        observer::deactivate();
    }

    /// Debuggers that read our list, and no other, find this one there: the list of an LLVM, by the address of its
    /// first entry.
    #[doc(hidden)]
    pub fn show_to_debuggers(&self, first_entry: u64) {
        sink::show_list_of(first_entry);
    }

    /// Libraries have come, or may have: what is alive is registered with unwinders in them. Cheap when none has. Must
    /// not be called under a lock that another thread waits for inside the loader.
    #[doc(hidden)]
    pub fn libraries_changed(&self) -> Unwinders {
        if self.counters.objects_loaded.get() == 0 || !self.is_enabled(SinkKind::Unwind) {
            return Unwinders::NotWanted;
        }
        fork_gate::enumerate_libraries(sink::look_for_unwinders).unwrap_or(Unwinders::Unrelocated)
    }

    pub(super) fn notify(&self, state: &mut State, kind: SinkKind, id: ObjectId, snapshot: &CodeSnapshot) {
        let &mut State { ref objects, ref ledger, ref changes, ref mut sinks, ref padding, forked_at, .. } = state;
        let (Some(sink), Some(record)) = (&mut sinks[kind as usize], objects.get(&id)) else { return };
        let debug_object = sink.wants_debug_object().then(|| record.debug_object.bytes(&record.object)).flatten();
        let next_code = |from: Address| ledger.next_text(from);
        let neighbours = |range: AddressRange| neighbours(objects, ledger, changes, range);
        let mut finalized =
            record.as_finalized(id, debug_object.as_deref(), &next_code, &neighbours, padding, snapshot);
        // Before the fork there was no such process.
        finalized.since = finalized.since.max(forked_at);
        match sink.finalized(&finalized) {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    pub(super) fn notify_of_everything(&self, state: &mut State, kind: SinkKind) {
        let finalized = state.objects.iter().filter_map(|(&id, record)| Some((record.finalized?, id)));
        let mut oldest_first: Vec<(u64, ObjectId)> = finalized.collect();
        oldest_first.sort_unstable();
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        sink.many_begin();
        for (_, id) in oldest_first {
            let Some(record) = state.objects.get(&id) else { continue };
            let snapshot = CodeSnapshot::of(state.pid, &record.object);
            self.notify(state, kind, id, &snapshot);
        }
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.many_end() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    pub(super) fn notify_of_end(
        &self,
        state: &mut State,
        kind: SinkKind,
        id: ObjectId,
        record: &Record,
        snapshot: &CodeSnapshot,
    ) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        let gate = |_| Neighbours::default();
        let freed = record.as_finalized(id, None, &|_| None, &gate, &state.padding, snapshot);
        if let Err(error) = sink.freeing(&freed) {
            self.give_up(state, kind, &error);
        }
    }

    /// One sink need not know an object any more that lives on.
    pub(super) fn notify_freeing(&self, state: &mut State, kind: SinkKind, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        let snapshot = CodeSnapshot::of(state.pid, &record.object);
        self.notify_of_end(state, kind, id, &record, &snapshot);
        state.objects.insert(id, record);
    }

    fn give_up(&self, state: &mut State, kind: SinkKind, error: &SinkError) {
        state.sinks[kind as usize] = None;
        state.inherits[kind as usize] = false;
        self.counters.sinks[kind as usize].failures.add(1);
        log_line!(Error, "the {} sink stops: {error}", kind.name());
    }
}
