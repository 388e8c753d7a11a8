//! The CPython of this process: its global state, and the thread state of the caller.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::layout::{Layout, NONE};
use super::memory::Reader;
use super::tasks::Tasks;
use crate::thread::slot::Slot;

/// Bit `active` of `_status` in a thread state: the thread holds the GIL, or is attached.
const STATUS_ACTIVE: u32 = 1 << 4;
const MAX_INTERPRETERS: u32 = 64;
/// Maximum number of threads to search, in all interpreters together.
const MAX_THREADS: u32 = 4096;

type GetState = unsafe extern "C" fn() -> *mut c_void;

/// Addresses of type objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(super) code: u64,
    pub(super) text: u64,
    pub(super) bytes: u64,
    pub(super) coroutine: u64,
    pub(super) generator: u64,
}

/// A CPython interpreter in this process.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub(super) layout: Layout,
    pub(super) types: Types,
    /// Address of `_PyRuntime`.
    pub(super) runtime: u64,
    /// Address of `PyGILState_GetThisThreadState`, which reads a thread-specific key, up to 3.13; else 0.
    pub(super) this_state_getter: u64,
    /// Address of `_PyThreadState_UncheckedGet`, which reads a variable of the process, up to 3.11; else 0.
    pub(super) current_state_getter: u64,
    /// Code of `_PyEval_EvalFrameDefault`.
    pub(super) evaluator: std::ops::Range<u64>,
    /// Executable mapping of the interpreter's library or program.
    pub(super) code: std::ops::Range<u64>,
    /// Offsets of asyncio, once it is loaded.
    pub(super) tasks: OnceLock<Tasks>,
}

/// The interpreter whose frames handlers read. Replaced ones are leaked, because handlers may still use them, and only
/// few are ever published.
static PUBLISHED: AtomicPtr<Interpreter> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the interpreter whose frames handlers read.
pub(crate) fn published() -> Option<&'static Interpreter> {
    // SAFETY: the pointer is null, or `publish` leaked the interpreter.
    unsafe { PUBLISHED.load(Ordering::SeqCst).as_ref() }
}

/// Makes handlers read this interpreter's frames.
pub(super) fn publish(interpreter: Interpreter) {
    PUBLISHED.store(Box::into_raw(Box::new(interpreter)), Ordering::SeqCst);
}

/// Makes handlers stop reading frames. A handler that is already running may continue.
pub(super) fn withdraw() {
    PUBLISHED.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Calls a function without arguments that returns a pointer.
///
/// # Safety
/// The address must be that of such a function.
unsafe fn call_getter(function: u64) -> u64 {
    // SAFETY: the caller upholds this function's contract.
    let function = unsafe { std::mem::transmute::<usize, GetState>(function as usize) };
    // SAFETY: the caller guarantees that the function takes no argument.
    unsafe { function() as u64 }
}

impl Interpreter {
    /// True if an evaluator is recognized by its code address, because it leaves no anchor.
    pub(crate) fn is_evaluator(&self, address: u64) -> bool {
        self.layout.release.minor <= 10 && self.evaluator.contains(&address)
    }

    /// True if the code is the interpreter's, and may thus belong to an evaluator. This excludes greenlet's own code,
    /// whose frames also contain interpreter data.
    pub(super) fn has_code(&self, address: u64) -> bool {
        self.code.contains(&address)
    }

    pub(super) fn is_finalizing(&self) -> bool {
        let address = self.runtime + u64::from(self.layout.release.finalizing);
        // SAFETY: `_PyRuntime` is a variable of a library that is never unloaded; the field is a pointer in it.
        unsafe { (address as *const u64).read_volatile() != 0 }
    }

    /// Returns the calling thread's state: the most recently used one if it has several, 0 if none.
    pub(crate) fn thread_state(&self, slot: &Slot) -> u64 {
        if self.this_state_getter == 0 {
            return self.search_state(slot);
        }
        // SAFETY: `PyGILState_GetThisThreadState` reads the process's key and this thread's value for it by
        // `pthread_getspecific`, which takes no lock and allocates nothing.
        let state = unsafe { call_getter(self.this_state_getter) };
        if self.current_state_getter == 0 {
            return state;
        }
        // `state` belongs to the thread's first interpreter, but the thread may now be running in another interpreter.
        match self.gil_holder() {
            current if current != 0 && current != state && self.belongs_to_this_thread(current) => current,
            _ => state,
        }
    }

    /// Returns the thread state that holds the GIL, up to 3.11.
    fn gil_holder(&self) -> u64 {
        // SAFETY: `_PyThreadState_UncheckedGet` only reads a variable.
        unsafe { call_getter(self.current_state_getter) }
    }

    fn belongs_to_this_thread(&self, state: u64) -> bool {
        // The state may belong to another thread, which may be freeing it.
        let address = state + u64::from(self.layout.release.thread_id);
        let mut id = 0_u64;
        // SAFETY: `pthread_self` has no precondition.
        let own_id = unsafe { libc::pthread_self() } as u64;
        super::memory::fetch(address, (&raw mut id).cast(), size_of::<u64>()).is_some() && id == own_id
    }

    /// True if the state holds the GIL or is attached; in that case, no other thread frees it.
    pub(super) fn is_held(&self, state: u64, reader: &mut Reader) -> bool {
        match self.layout.release.thread_status {
            NONE => self.gil_holder() == state,
            offset => {
                reader.read_half_word(state + u64::from(offset)).is_some_and(|status| status & STATUS_ACTIVE != 0)
            }
        }
    }

    /// Finds the calling thread's state in the interpreters' lists, from 3.14 on. The slot caches it. A thread has a
    /// state for each interpreter that it has entered; at most one is attached.
    fn search_state(&self, slot: &Slot) -> u64 {
        let own_tid = u64::from(slot.state.tid());
        let mut reader = Reader::new(false);
        let id_offset = u64::from(self.layout.threads.native_id);
        let is_own =
            |state: u64, reader: &mut Reader| state != 0 && reader.read_word(state + id_offset) == Some(own_tid);
        let last = Some(slot.python.last()).filter(|last| is_own(*last, &mut reader));
        if let Some(last) = last
            && (self.is_held(last, &mut reader) || !self.has_several_interpreters(&mut reader))
        {
            return last;
        }
        if last.is_none() && !slot.python.may_search() {
            return 0;
        }
        let attached =
            self.find_state(&mut reader, |state, reader| is_own(state, reader) && self.is_held(state, reader));
        let state = attached.or(last).or_else(|| self.find_state(&mut reader, is_own)).unwrap_or(0);
        slot.python.set(state);
        state
    }

    fn has_several_interpreters(&self, reader: &mut Reader) -> bool {
        let threads = &self.layout.threads;
        let first = reader.read_word(self.runtime + u64::from(threads.interpreters_head));
        first
            .and_then(|first| reader.read_word(first + u64::from(threads.interpreter_next)))
            .is_some_and(|next| next != 0)
    }

    fn find_state(&self, reader: &mut Reader, is_wanted: impl Fn(u64, &mut Reader) -> bool) -> Option<u64> {
        let threads = &self.layout.threads;
        let mut interpreter = reader.read_word(self.runtime + u64::from(threads.interpreters_head))?;
        let mut remaining_threads = MAX_THREADS;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                return None;
            }
            let mut state = reader.read_word(interpreter + u64::from(threads.threads_head))?;
            while state != 0 && remaining_threads != 0 {
                if is_wanted(state, reader) {
                    return Some(state);
                }
                state = reader.read_word(state + u64::from(threads.thread_next))?;
                remaining_threads -= 1;
            }
            interpreter = reader.read_word(interpreter + u64::from(threads.interpreter_next))?;
        }
        None
    }
}
