//! Sinks and the observer: enabling, disabling and notifying them.

use super::record::neighbours;
use super::{LiveObjects, Record, State};
use crate::code_snapshot::CodeSnapshot;
use crate::log::LogEvent;
use crate::log_line;
use crate::options::SinkKind;
use crate::process::{clock, fork_gate};
use crate::sink::{self, Neighbours, SinkError, UnwinderSearch};
use crate::{Address, AddressRange, ObjectId, observer};

impl LiveObjects {
    /// Does what `Session::enable` promises.
    pub fn enable(&self, kind: SinkKind) {
        let mut state = self.lock_for_this_process();
        let locked_at = clock::monotonic();
        if std::mem::take(&mut state.replay_inherited[kind as usize]) {
            self.replay_live_objects(&mut state, kind);
        } else if state.sinks[kind as usize].is_none() {
            // An existing perf map may be one that this process wrote earlier, so it is not stale.
            state.sinks[kind as usize] = Some(sink::create(kind, &self.options, &self.context));
            self.replay_live_objects(&mut state, kind);
        }
        self.yield_to_waiters(state, locked_at);
    }

    /// Disables a sink. Its files are closed and kept.
    pub fn disable(&self, kind: SinkKind) {
        let mut state = self.lock();
        let locked_at = clock::monotonic();
        self.end_sink(&mut state, kind);
        state.sinks[kind as usize] = None;
        state.replay_inherited[kind as usize] = false;
        self.yield_to_waiters(state, locked_at);
    }

    /// Returns true if a sink is enabled: requested and not failed.
    pub fn is_enabled(&self, kind: SinkKind) -> bool {
        self.lock().sinks[kind as usize].is_some()
    }

    /// Returns true if the state belongs to this process and its lock is free right now. After a fork without
    /// handlers, the lock may be held by a thread that exists only in the parent, and would never be released.
    pub fn is_unlocked_in_this_process(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.pid == std::process::id())
    }

    /// Flushes the sinks at process exit. They stay enabled, because other threads may still compile.
    pub fn flush_sinks(&self) {
        // Do not wait for the lock, because a signal handler that calls `exit` may have interrupted its holder on this
        // very thread.
        if let Ok(mut state) = self.state.try_lock()
            && state.pid == std::process::id()
        {
            SinkKind::ALL.into_iter().for_each(|kind| self.end_sink(&mut state, kind));
        }
        crate::log::flush();
    }

    fn end_sink(&self, state: &mut State, kind: SinkKind) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.finish() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.disable_failed_sink(state, kind, &error),
        }
    }

    /// Notifies `observer` of all live code now, and of every event from now on. A process has at most one observer.
    pub fn observe(&self, observer: &'static dyn observer::CodeObserver) {
        let state = self.lock_for_this_process();
        observer::activate(observer);
        for (&id, record) in state.objects.iter().filter(|(_, record)| record.finalized.is_some()) {
            observer::finalized(
                id,
                &record.object,
                &record.derived_rules,
                &CodeSnapshot::for_object(state.pid, &record.object),
            );
        }
    }

    /// Deactivates the observer.
    pub fn stop_observing(&self) {
        let _state = self.lock();
        observer::deactivate();
    }

    /// Appends LLVM's GDB JIT list, given by the address of its first entry, to our own list, for debuggers that read
    /// only ours.
    pub fn show_to_debuggers(&self, first_entry: u64) {
        sink::show_llvm_list(first_entry);
    }

    /// Registers live code with unwinders in libraries that were loaded since the last call. Cheap if there are none.
    /// Must not be called under a lock that another thread may wait for inside the loader.
    pub fn libraries_changed(&self) -> UnwinderSearch {
        if self.counters.objects_loaded.get() == 0 || !self.is_enabled(SinkKind::Unwind) {
            return UnwinderSearch::NotNeeded;
        }
        fork_gate::enumerate_libraries(sink::find_unwinders).unwrap_or(UnwinderSearch::Unrelocated)
    }

    pub(super) fn notify_sink_finalized(
        &self,
        state: &mut State,
        kind: SinkKind,
        id: ObjectId,
        snapshot: &CodeSnapshot,
    ) {
        let &mut State { ref objects, ref ledger, ref changes, ref mut sinks, ref padding, forked_at, .. } = state;
        let (Some(sink), Some(record)) = (&mut sinks[kind as usize], objects.get(&id)) else { return };
        let debug_object = sink.wants_debug_object().then(|| record.debug_object.bytes(&record.object)).flatten();
        let find_next_code = |from: Address| ledger.next_text(from);
        let neighbours = |range: AddressRange| neighbours(objects, ledger, changes, range);
        let mut finalized =
            record.as_finalized(id, debug_object.as_deref(), &find_next_code, &neighbours, padding, snapshot);
        // This process did not exist before the fork, so its files must not contain earlier times.
        finalized.finalized_at_ns = finalized.finalized_at_ns.max(forked_at);
        match sink.finalized(&finalized) {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.disable_failed_sink(state, kind, &error),
        }
    }

    pub(super) fn replay_live_objects(&self, state: &mut State, kind: SinkKind) {
        let finalized = state.objects.iter().filter_map(|(&id, record)| Some((record.finalized?, id)));
        let mut oldest_first: Vec<(u64, ObjectId)> = finalized.collect();
        oldest_first.sort_unstable();
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        sink.begin_batch();
        for (_, id) in oldest_first {
            let Some(record) = state.objects.get(&id) else { continue };
            let snapshot = CodeSnapshot::for_object(state.pid, &record.object);
            self.notify_sink_finalized(state, kind, id, &snapshot);
        }
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.end_batch() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.disable_failed_sink(state, kind, &error),
        }
    }

    pub(super) fn notify_sink_freeing(
        &self,
        state: &mut State,
        kind: SinkKind,
        id: ObjectId,
        record: &Record,
        snapshot: &CodeSnapshot,
    ) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        let no_neighbours = |_| Neighbours::default();
        let freed = record.as_finalized(id, None, &|_| None, &no_neighbours, &state.padding, snapshot);
        if let Err(error) = sink.freeing(&freed) {
            self.disable_failed_sink(state, kind, &error);
        }
    }

    /// Removes a live object from a single sink.
    pub(super) fn withdraw_from_sink(&self, state: &mut State, kind: SinkKind, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        let snapshot = CodeSnapshot::for_object(state.pid, &record.object);
        self.notify_sink_freeing(state, kind, id, &record, &snapshot);
        state.objects.insert(id, record);
    }

    fn disable_failed_sink(&self, state: &mut State, kind: SinkKind, error: &SinkError) {
        state.sinks[kind as usize] = None;
        state.replay_inherited[kind as usize] = false;
        self.counters.sinks[kind as usize].failures.add(1);
        log_line!(Error, "{}", LogEvent::SinkStopped { sink: kind.name(), error: &error.to_string() });
    }
}
