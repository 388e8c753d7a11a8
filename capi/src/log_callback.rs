//! The log, for a program that has one of its own.
//!
//! Messages are made under locks, so they wait in a queue, and are handed over at the end of a call of ours, when no
//! lock is held. One thread at a time hands over. Nothing here is a lock: a child of a fork must not inherit one that
//! is held.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

use jitlisten::log::{self, Level};

/// `jitlisten_log_callback`
pub(crate) type Function = unsafe extern "C-unwind" fn(user: *mut c_void, level: i32, message: *const c_char);

struct Callback {
    function: Function,
    user: *mut c_void,
    /// The one before, which is never freed: another thread may be about to call it.
    before: *mut Callback,
}

/// A callback that makes messages by calling us would never see the end of them.
const MOST_AT_ONCE: usize = 4096;

static CALLBACK: AtomicPtr<Callback> = AtomicPtr::new(ptr::null_mut());
/// Every callback there was.
static KEPT: AtomicPtr<Callback> = AtomicPtr::new(ptr::null_mut());
/// Which thread hands over: the process in the upper half, the thread in the lower; or 0.
static HOLDER: AtomicU64 = AtomicU64::new(0);
/// How many callbacks have returned.
static RETURNED: AtomicU64 = AtomicU64::new(0);

/// Removes the callback, and returns when no other thread is in it.
pub(crate) fn remove() {
    log::listen(None);
    CALLBACK.store(ptr::null_mut(), SeqCst);
    wait_for_others();
}

/// Messages of `level` and graver go to `function` from now on; no other thread is in the one before when this returns.
pub(crate) fn set(function: Function, user: *mut c_void, level: Level) {
    let new = Box::into_raw(Box::new(Callback { function, user, before: ptr::null_mut() }));
    // SAFETY: it is known only here until it is stored in CALLBACK.
    unsafe { (*new).before = KEPT.swap(new, SeqCst) };
    CALLBACK.store(new, SeqCst);
    log::listen(Some(level));
    wait_for_others();
}

/// Until no other thread is in the callback that was replaced.
fn wait_for_others() {
    let (me, before) = (this_thread(), RETURNED.load(SeqCst));
    let busy = || {
        let holder = HOLDER.load(SeqCst);
        holder != me && is_of_this_process(holder, me)
    };
    while busy() && RETURNED.load(SeqCst) == before {
        std::thread::yield_now();
    }
}

/// Hands over what waits. Called where no lock of ours is held.
pub(crate) fn hand_over() {
    let mut left = MOST_AT_ONCE;
    // A thread that finds another one at it leaves its messages to that one, which therefore looks again when it is
    // done.
    while log::waits() && left > 0 {
        let Some(turn) = Turn::take() else { return };
        while let Some((level, text)) = (left > 0).then(log::take).flatten() {
            left -= 1;
            notify(level, text);
        }
        drop(turn);
    }
}

fn notify(level: Level, text: String) {
    // Control characters, NUL among them, have been replaced.
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: callbacks are never freed.
    if let Some(callback) = unsafe { CALLBACK.load(SeqCst).as_ref() } {
        // SAFETY: the program that set the callback vouches for it; the text lives until it returns.
        unsafe { (callback.function)(callback.user, level as i32, text.as_ptr()) };
    }
    RETURNED.fetch_add(1, SeqCst);
}

/// The right to hand over.
struct Turn;

impl Turn {
    /// `None` if another thread has it, or this one, whose callback calls us.
    fn take() -> Option<Turn> {
        let (holder, me) = (HOLDER.load(SeqCst), this_thread());
        // A holder that stayed behind in the parent of a fork never gives it back.
        let free = !is_of_this_process(holder, me);
        // No `then_some`: it would create a turn, whose drop releases that of another thread.
        (free && HOLDER.compare_exchange(holder, me, SeqCst, SeqCst).is_ok()).then(|| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOLDER.store(0, SeqCst);
    }
}

fn is_of_this_process(holder: u64, me: u64) -> bool {
    holder >> 32 == me >> 32
}

fn this_thread() -> u64 {
    // SAFETY: gettid has no precondition.
    let thread = unsafe { libc::gettid() };
    u64::from(std::process::id()) << 32 | u64::from(thread as u32)
}
