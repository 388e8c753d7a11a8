//! Handling of forks and user changes: after `fork(2)`, `_Fork`, `clone(2)` and `setuid(2)` the sinks write new files.
//!
//! In the child of a fork, the sinks close the parent's files. Before the first object of its own, the child writes all
//! live objects to its own files, in one-megabyte writes. Two alternatives were rejected:
//!
//! * A link to the parent's perf map would serve a perf that attaches later. But CPython and others append to or
//!   truncate `/tmp/perf-PID.map`, in the child or after `exec`, and would change the parent's map.
//! * A copy made by the kernel would leave a file for each child that only calls `exec`.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{LiveObjects, State};
use crate::ledger::MemoryChanges;
use crate::log_line;
use crate::options::SinkKind;
use crate::process::across_fork::{self, ForkSlot, HeldAcrossFork};
use crate::process::write_nosignal::{effective_user, user_is_final};
use crate::process::{clock, fork_gate};
use crate::sink::SinkState;

impl LiveObjects {
    /// Locks the state across `fork(2)`. Call this in the prepare handler of `pthread_atfork`.
    pub fn lock_for_fork(&'static self) -> ForkGuard {
        let _gate = fork_gate::ClosedGate::close();
        let state = self.lock();
        ForkGuard { objects: self, state, log: crate::log::lock_for_fork(), _gate }
    }

    /// Locks the state across every `fork(2)` from now on, so that the child finds it unlocked and continues with its
    /// own files. For processes without another fork handler; callers of [`LiveObjects::lock_for_fork`], such as the shim,
    /// must not call this.
    pub fn follow_forks(&'static self) {
        across_fork::follow_forks::<ForkGuard>();
    }

    /// Detaches the state from the parent process after a fork. The child abandons the parent's files and never
    /// writes to them. Runs in constant time and writes nothing, because most children call `exec`, or only run
    /// inherited code. The first object that the child finalizes triggers the replay of all live objects into its own
    /// files.
    pub(super) fn become_child(&self, state: &mut State) {
        state.pid = std::process::id();
        state.forked_at = clock::monotonic();
        fork_gate::in_child();
        self.context.reset_map();
        self.images().start_generation();
        // The threads that make these system calls exist only in the parent.
        state.changes = MemoryChanges::default();
        self.waiting_threads.store(0, Ordering::Relaxed);
        for kind in SinkKind::ALL {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.replay_inherited[kind as usize] |= sink.forked() == SinkState::Lost;
        }
    }

    /// Handles a change of the user (`setuid(2)`): new files are created with the new user's permissions and ownership.
    pub(super) fn become_user(&self, state: &mut State) {
        state.user = effective_user();
        self.images().start_generation();
        for kind in SinkKind::ALL.into_iter().filter(|_| user_is_final()) {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.replay_inherited[kind as usize] |= sink.user_changed() == SinkState::Lost;
        }
        log_line!(Info, "the process changed to user {}", state.user);
    }

    /// Replays the inherited objects to the child's files, before its first own object.
    pub(super) fn replay_inherited_objects(&self, state: &mut State) {
        for kind in SinkKind::ALL {
            if std::mem::take(&mut state.replay_inherited[kind as usize]) {
                self.replay_live_objects(state, kind);
            }
        }
    }
}

/// The locked state, held by the forking thread in the parent and then in the child. The parent just drops it.
pub struct ForkGuard {
    objects: &'static LiveObjects,
    state: MutexGuard<'static, State>,
    log: crate::log::QueueGuard,
    _gate: fork_gate::ClosedGate,
}

impl ForkGuard {
    /// Detaches the state from the parent, in the child of the fork.
    pub fn in_child(self) {
        let ForkGuard { objects, mut state, log, _gate } = self;
        drop(log);
        objects.become_child(&mut state);
    }
}

impl HeldAcrossFork for ForkGuard {
    fn slot() -> &'static ForkSlot<ForkGuard> {
        static SLOT: ForkSlot<ForkGuard> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<ForkGuard> {
        LiveObjects::process().map(LiveObjects::lock_for_fork)
    }

    fn in_child(self) {
        ForkGuard::in_child(self);
    }
}
