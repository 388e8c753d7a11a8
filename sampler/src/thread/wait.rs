//! State shared by the writer and the handler of a waiting thread in wall-clock mode; see `writer/wall_clock.rs`.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Maximum number of signals in a row that a thread takes no sample for.
const MAX_REFUSALS: u32 = 8;

/// A system call that a signal interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterruptedCall {
    /// Return address of the call.
    pub(crate) address: u64,
    /// Number of the call; has at most 16 bits.
    pub(crate) number: u64,
    pub(crate) stack: u64,
}

/// Waiting state of one thread. All zeros: the thread has not waited.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Time with the stack of the last sample, in ns: the thread has waited there, or has run on for a moment.
    idle_ns: AtomicU64,
    /// Return address << 16 | number of the interrupted call; 0 if none.
    call: AtomicU64,
    /// Stack pointer of the thread in the interrupted call.
    stack: AtomicU64,
    /// True if the next signal asks for a sample of the running thread.
    wants_running: AtomicBool,
    /// Return address of the system call that the thread was last seen to wait in; 0 if none.
    waited_at: AtomicU64,
    /// True if the last sample was of the waiting thread.
    last_waited: AtomicBool,
    /// Number of the thread's voluntary context switches at its last signal.
    switches: AtomicU64,
    /// Number of signals without a sample since the last sample.
    refusals: AtomicU32,
}

impl Wait {
    pub(crate) fn idle_ns(&self) -> u64 {
        self.idle_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn add_idle(&self, ns: u64) {
        self.idle_ns.fetch_add(ns, Ordering::AcqRel);
    }

    /// Takes back at most `ns` of the time.
    pub(crate) fn take_back_idle(&self, ns: u64) {
        let rest = |idle_ns: u64| Some(idle_ns.saturating_sub(ns));
        let _ = self.idle_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest);
    }

    pub(crate) fn take_idle(&self) -> u64 {
        self.idle_ns.swap(0, Ordering::AcqRel)
    }

    /// Tells the handler which system call the next signal interrupts.
    pub(crate) fn set_call(&self, call: Option<InterruptedCall>) {
        self.stack.store(call.map_or(0, |call| call.stack), Ordering::Relaxed);
        self.call.store(call.map_or(0, |call| call.address << 16 | call.number), Ordering::Release);
    }

    /// Tells the handler whether the next signal asks for a sample of the running thread, or of a thread that waits in
    /// the system call with this return address.
    pub(crate) fn set_wanted(&self, waits_at: Option<u64>) {
        self.wants_running.store(waits_at.is_none(), Ordering::Relaxed);
        if let Some(address) = waits_at {
            self.waited_at.store(address, Ordering::Relaxed);
        }
    }

    /// Returns false if the sample would be for time that the thread ran, but the thread has just been woken in the
    /// system call that it waited in, or has not left it. A thread that does not wait runs in its system calls. Gets
    /// the return address of the system call that the signal has interrupted.
    pub(crate) fn accepts_signal(&self, voluntary_switches: u64, returns_to: Option<u64>) -> bool {
        let wants_running = self.wants_running.load(Ordering::Relaxed);
        let has_waited = self.switches.swap(voluntary_switches, Ordering::Relaxed) != voluntary_switches
            || self.last_waited.load(Ordering::Relaxed);
        let refusals = self.refusals.load(Ordering::Relaxed);
        let is_in_wait = returns_to.is_some_and(|address| address == self.waited_at.load(Ordering::Relaxed));
        let is_refused = wants_running && is_in_wait && has_waited && refusals < MAX_REFUSALS;
        self.refusals.store(if is_refused { refusals + 1 } else { 0 }, Ordering::Relaxed);
        if !is_refused {
            self.last_waited.store(!wants_running, Ordering::Relaxed);
        }
        !is_refused
    }

    /// True if a thread with this number of voluntary context switches may have waited since its last signal, apart from
    /// the call that the signal interrupted.
    pub(crate) fn may_have_waited(&self, voluntary_switches: u64) -> bool {
        let known_switches = u64::from(self.last_waited.load(Ordering::Relaxed));
        voluntary_switches > self.switches.load(Ordering::Relaxed) + known_switches
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn take_call(&self) -> Option<InterruptedCall> {
        let call = self.call.swap(0, Ordering::AcqRel);
        let stack = self.stack.load(Ordering::Relaxed);
        (call != 0).then_some(InterruptedCall { address: call >> 16, number: call & 0xffff, stack })
    }

    pub(super) fn reset(&self) {
        self.idle_ns.store(0, Ordering::Relaxed);
        self.call.store(0, Ordering::Relaxed);
        self.waited_at.store(0, Ordering::Relaxed);
        self.last_waited.store(false, Ordering::Relaxed);
        self.switches.store(0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_wait() -> Wait {
        let [idle_ns, call, stack, waited_at, switches] = [const { AtomicU64::new(0) }; 5];
        let [wants_running, last_waited] = [const { AtomicBool::new(false) }; 2];
        Wait { idle_ns, call, stack, wants_running, waited_at, last_waited, switches, refusals: AtomicU32::new(0) }
    }

    #[test]
    fn running_time_gets_no_sample_where_the_thread_waits() {
        let wait = new_wait();
        wait.set_wanted(Some(100));
        assert!(wait.accepts_signal(5, Some(100)), "it waits, as wanted");
        wait.set_wanted(None);
        assert!(!wait.accepts_signal(5, Some(100)), "it is still in the call");
        assert!(!wait.accepts_signal(6, Some(100)), "it has been woken");
        assert!(wait.accepts_signal(7, Some(200)), "it runs in another call");
        assert!(wait.accepts_signal(8, None));
        assert!(wait.accepts_signal(8, Some(100)), "it runs in the call, without waiting");
        let refused = (9..100).take_while(|switches| !wait.accepts_signal(*switches, Some(100))).count();
        assert_eq!(refused, MAX_REFUSALS as usize);
    }

    #[test]
    fn time_is_taken_back_once() {
        let wait = new_wait();
        wait.add_idle(10);
        wait.take_back_idle(4);
        assert_eq!(wait.idle_ns(), 6);
        wait.take_back_idle(9);
        assert_eq!(wait.take_idle(), 0);
    }
}
