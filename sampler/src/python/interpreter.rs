//! The CPython of this process: where its state is, and which thread's state is the caller's.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::layout::{Layout, NONE};
use super::memory::Reader;
use super::tasks::Tasks;
use crate::slot::Slot;

/// `_status.active` of a thread state: it holds the GIL, or is attached.
const ACTIVE: u32 = 1 << 4;
/// Interpreters, and threads of all of them, that are looked at.
const MOST_INTERPRETERS: u32 = 64;
const MOST_THREADS: u32 = 4096;

type State = unsafe extern "C" fn() -> *mut c_void;

/// Addresses of the types of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(super) code: u64,
    pub(super) text: u64,
    pub(super) bytes: u64,
    pub(super) coroutine: u64,
    pub(super) generator: u64,
}

/// An interpreter that was found.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub(super) layout: Layout,
    pub(super) types: Types,
    /// `_PyRuntime`
    pub(super) runtime: u64,
    /// `PyGILState_GetThisThreadState`, which reads a key of the thread, up to 3.13.
    pub(super) this_state: u64,
    /// `_PyThreadState_UncheckedGet`, which reads a variable of the process, up to 3.11; else 0.
    pub(super) current_state: u64,
    /// `_PyEval_EvalFrameDefault`
    pub(super) evaluator: std::ops::Range<u64>,
    /// The code of its library or program.
    pub(super) code: std::ops::Range<u64>,
    /// From when on asyncio is there.
    pub(super) tasks: OnceLock<Tasks>,
}

/// The one that handlers read; never freed, there are few.
static PUBLISHED: AtomicPtr<Interpreter> = AtomicPtr::new(std::ptr::null_mut());

/// The interpreter whose frames are read.
pub(crate) fn published() -> Option<&'static Interpreter> {
    // SAFETY: null, or leaked by `publish`.
    unsafe { PUBLISHED.load(Ordering::SeqCst).as_ref() }
}

/// Lets handlers read its frames.
pub(super) fn publish(interpreter: Interpreter) {
    PUBLISHED.store(Box::into_raw(Box::new(interpreter)), Ordering::SeqCst);
}

/// No handler that begins now reads any.
pub(super) fn withdraw() {
    PUBLISHED.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Calls a function that takes nothing and returns a pointer.
///
/// # Safety
/// There is one at that address.
unsafe fn call(function: u64) -> u64 {
    // SAFETY: the caller's promise.
    let function = unsafe { std::mem::transmute::<usize, State>(function as usize) };
    // SAFETY: the caller's promise: it takes nothing.
    unsafe { function() as u64 }
}

impl Interpreter {
    /// Whether an evaluator's frame is known by where its code is: it leaves no anchor.
    pub(crate) fn is_evaluator(&self, address: u64) -> bool {
        self.layout.release.minor <= 10 && self.evaluator.contains(&address)
    }

    /// Whether code there may be an evaluator's: greenlet's own code, too, has something of the interpreter's on the
    /// stack.
    pub(super) fn has_code(&self, address: u64) -> bool {
        self.code.contains(&address)
    }

    pub(super) fn is_finalizing(&self) -> bool {
        let place = self.runtime + u64::from(self.layout.release.finalizing);
        // SAFETY: `_PyRuntime` is a variable of a library that is not unloaded; the field is a pointer in it.
        unsafe { (place as *const u64).read_volatile() != 0 }
    }

    /// The state of the calling thread, the one it used last if it has several; 0: none.
    pub(crate) fn thread_state(&self, slot: &Slot) -> u64 {
        if self.this_state == 0 {
            return self.listed_state(slot);
        }
        // SAFETY: the function of that name: it reads the process's key and this thread's value of it, by
        // `pthread_getspecific`, which takes no lock and allocates nothing.
        let state = unsafe { call(self.this_state) };
        if self.current_state == 0 {
            return state;
        }
        // That of a thread's first interpreter; it may be in another one.
        match self.current() {
            current if current != 0 && current != state && self.is_of_this_thread(current) => current,
            _ => state,
        }
    }

    /// The state that has the GIL, up to 3.11.
    fn current(&self) -> u64 {
        // SAFETY: the function of that name: it reads one variable.
        unsafe { call(self.current_state) }
    }

    fn is_of_this_thread(&self, state: u64) -> bool {
        // It may be another thread's, which frees it now.
        let place = state + u64::from(self.layout.release.thread_id);
        let mut id = 0_u64;
        // SAFETY: has no precondition.
        let own = unsafe { libc::pthread_self() } as u64;
        super::memory::fetch(place, (&raw mut id).cast(), size_of::<u64>()).is_some() && id == own
    }

    /// Whether the state holds the GIL, or is attached: no other thread frees it then.
    pub(super) fn is_held(&self, state: u64, reader: &mut Reader) -> bool {
        match self.layout.release.thread_status {
            NONE => self.current() == state,
            offset => reader.half(state + u64::from(offset)).is_some_and(|status| status & ACTIVE != 0),
        }
    }

    /// From 3.14 on: looked for in the interpreters' lists, and remembered by the slot.
    fn listed_state(&self, slot: &Slot) -> u64 {
        let own = u64::from(slot.tid.load(Ordering::Relaxed));
        let mut reader = Reader::new(false);
        let id = u64::from(self.layout.threads.native_id);
        let is_own = |state: u64, reader: &mut Reader| state != 0 && reader.word(state + id) == Some(own);
        let known = slot.python_state.load(Ordering::Relaxed);
        if is_own(known, &mut reader) {
            return known;
        }
        // A thread without a state is not looked for in every sample.
        let misses = slot.python_misses.fetch_add(1, Ordering::Relaxed);
        if misses > 4 && !misses.is_multiple_of(32) {
            return 0;
        }
        let found = self.find_state(&mut reader, |state, reader| is_own(state, reader)).unwrap_or(0);
        slot.python_state.store(found, Ordering::Relaxed);
        found
    }

    fn find_state(&self, reader: &mut Reader, is_own: impl Fn(u64, &mut Reader) -> bool) -> Option<u64> {
        let threads = &self.layout.threads;
        let mut interpreter = reader.word(self.runtime + u64::from(threads.interpreters_head))?;
        let mut left = MOST_THREADS;
        for _ in 0..MOST_INTERPRETERS {
            if interpreter == 0 {
                return None;
            }
            let mut state = reader.word(interpreter + u64::from(threads.threads_head))?;
            while state != 0 && left != 0 {
                if is_own(state, reader) {
                    return Some(state);
                }
                state = reader.word(state + u64::from(threads.thread_next))?;
                left -= 1;
            }
            interpreter = reader.word(interpreter + u64::from(threads.interpreter_next))?;
        }
        None
    }
}
