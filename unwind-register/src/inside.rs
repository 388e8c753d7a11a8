//! A reentrancy guard per thread, without thread-local variables.
//!
//! The loader may announce a change while we ask it for a library that is there already (glibc 2.41 does, for
//! `dlopen(RTLD_NOLOAD)`); a hook that is called then and asks again would do so without end. A thread-local flag would
//! be the usual guard, but the first use of one in a thread may take the loader's lock. So threads are entered into a
//! table, under the address of their descriptor (`pthread_self`).
//!
//! A table that is crowded lets a thread in without a note: the guard is then missing, never the work.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const PLACES: usize = 1024;

/// How many places a thread may be found in.
const PROBES: usize = 32;

/// One piece of code, and the threads inside.
#[derive(Debug)]
pub struct Inside {
    threads: [AtomicUsize; PLACES],
    /// The process the threads are of: the child of a fork has only one of them.
    pid: AtomicU32,
}

/// A thread is inside until this is dropped, by that thread.
#[derive(Debug)]
#[must_use = "dropping it leaves"]
pub struct Entered<'a> {
    place: Option<(&'a AtomicUsize, usize)>,
    _of_this_thread: PhantomData<*mut ()>,
}

impl Inside {
    /// No thread is inside.
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Inside {
        Inside { threads: [const { AtomicUsize::new(0) }; PLACES], pid: AtomicU32::new(0) }
    }

    /// Enters, or returns `None` where this thread is inside already. Signals whose handlers may come here must be
    /// blocked.
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.forget_other_processes();
        // SAFETY: pthread_self has no precondition.
        let thread = unsafe { libc::pthread_self() } as usize;
        // Descriptors lie pages apart.
        let first = (thread >> 6) ^ (thread >> 12);
        let places = || (0..PROBES).map(|probe| &self.threads[first.wrapping_add(probe) % PLACES]);
        if places().any(|place| place.load(Ordering::Relaxed) == thread) {
            return None;
        }
        let free =
            |place: &&AtomicUsize| place.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let place = places().find(free).map(|place| (place, thread));
        Some(Entered { place, _of_this_thread: PhantomData })
    }

    /// Whether this thread is inside.
    pub fn is_inside(&self) -> bool {
        self.enter().is_none()
    }

    fn forget_other_processes(&self) {
        let pid = std::process::id();
        if self.pid.load(Ordering::Relaxed) != pid && self.pid.swap(pid, Ordering::Relaxed) != pid {
            self.threads.iter().for_each(|thread| thread.store(0, Ordering::Relaxed));
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some((place, thread)) = self.place {
            // After a fork the place may be another thread's.
            let _ = place.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once_and_others_too() {
        static INSIDE: Inside = Inside::new();
        let entered = INSIDE.enter();
        assert!(entered.is_some() && INSIDE.enter().is_none() && INSIDE.is_inside());
        std::thread::spawn(|| assert!(INSIDE.enter().is_some())).join().expect("it ends");
        drop(entered);
        assert!(!INSIDE.is_inside() && INSIDE.enter().is_some());
    }
}
