//! Another process, or another user: after `fork(2)`, `_Fork`, `clone(2)` and `setuid(2)` the sinks have files of their
//! own.
//!
//! In the child of a fork the sinks close the parent's files. Before its first own object, all living objects are
//! written to the child's files, in writes of a megabyte. Rejected: a link to the parent's map would give names to a
//! perf that attaches later, but CPython and others append to or truncate `/tmp/perf-PID.map`, in the child or after
//! `exec`, and would change the parent's map. A copy in the kernel would leave a file for each child that only calls
//! `exec`.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{Session, State};
use crate::ledger::MemoryChanges;
use crate::log_line;
use crate::options::SinkKind;
use crate::process::across_fork::{self, ForkSlot, HeldAcrossFork};
use crate::process::write_nosignal::{effective_user, user_is_final};
use crate::process::{clock, fork_gate};
use crate::sink::Forked;

impl Session {
    /// Takes the session's lock across `fork(2)`; call it in the `prepare` handler of `pthread_atfork`.
    #[doc(hidden)]
    pub fn lock_for_fork(&'static self) -> ForkGuard {
        let _gate = fork_gate::ClosedGate::close();
        let state = self.lock();
        ForkGuard { session: self, state, log: crate::log::lock_for_fork(), _gate }
    }

    /// Takes the session's lock across every `fork(2)` from now on, so that the child finds it free and goes on with
    /// files of its own: for a process where nothing else does so. Not for callers of [`Session::lock_for_fork`], as
    /// the shim is.
    #[doc(hidden)]
    pub fn follow_forks(&'static self) {
        across_fork::follow_forks::<ForkGuard>();
    }

    /// In the child of a fork: the parent's files stay the parent's. Nothing is done here that takes longer the more
    /// objects there are, and nothing is written: most children call `exec`, or run what they inherited. The first
    /// object that the child finalizes itself brings everything alive into files of its own.
    pub(super) fn become_child(&self, state: &mut State) {
        state.pid = std::process::id();
        state.forked_at = clock::monotonic();
        fork_gate::in_child();
        self.context.forget_map();
        self.images().begin_anew();
        // The threads that make them are the parent's.
        state.changes = MemoryChanges::default();
        self.waiting.store(0, Ordering::Relaxed);
        for kind in SinkKind::ALL {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.inherits[kind as usize] |= sink.forked() == Forked::KnowsNothing;
        }
    }

    /// The process has become another user (`setuid(2)`): new files are made where that user may, and belong to them.
    pub(super) fn become_user(&self, state: &mut State) {
        state.user = effective_user();
        self.images().begin_anew();
        for kind in SinkKind::ALL.into_iter().filter(|_| user_is_final()) {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.inherits[kind as usize] |= sink.user_changed() == Forked::KnowsNothing;
        }
        log_line!(Info, "the process changed to user {}", state.user);
    }

    /// Before the first object of a child's own: brings what it has inherited into its files.
    pub(super) fn notify_of_inherited(&self, state: &mut State) {
        for kind in SinkKind::ALL {
            if std::mem::take(&mut state.inherits[kind as usize]) {
                self.notify_of_everything(state, kind);
            }
        }
    }
}

/// The session's lock, held by the thread that forks, in the parent and then in the child too. Dropping it is all a
/// parent has to do.
pub struct ForkGuard {
    session: &'static Session,
    state: MutexGuard<'static, State>,
    log: crate::log::QueueGuard,
    _gate: fork_gate::ClosedGate,
}

impl ForkGuard {
    /// In the child: its files are its own from now on.
    pub fn in_child(self) {
        let ForkGuard { session, mut state, log, _gate } = self;
        drop(log);
        session.become_child(&mut state);
    }
}

impl HeldAcrossFork for ForkGuard {
    fn slot() -> &'static ForkSlot<ForkGuard> {
        static SLOT: ForkSlot<ForkGuard> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<ForkGuard> {
        Session::process().map(Session::lock_for_fork)
    }

    fn in_child(self) {
        ForkGuard::in_child(self);
    }
}
