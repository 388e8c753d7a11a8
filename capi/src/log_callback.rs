//! Delivers log messages to a callback of the program.
//!
//! Messages are logged while locks are held, so they are queued. They are delivered at the end of an API call, when no
//! lock is held, by one thread at a time. This module uses no lock, because a fork child could inherit it locked.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

use jitlisten::log::{self, Level};

/// `jitlisten_log_callback` of `include/jitlisten.h`.
pub(crate) type Function = unsafe extern "C-unwind" fn(user: *mut c_void, level: i32, message: *const c_char);

struct Callback {
    function: Function,
    user: *mut c_void,
    /// Previous callback. Callbacks are never freed, because another thread may be about to call one.
    previous: *mut Callback,
}

/// Maximum number of messages per delivery. Without this limit, a callback that calls us and so causes new messages
/// would never return to the program.
const MAX_MESSAGES_PER_DELIVERY: usize = 4096;

/// Current callback; null if none is set.
static CALLBACK: AtomicPtr<Callback> = AtomicPtr::new(ptr::null_mut());
/// Head of the list of all callbacks that were ever set.
static ALL_CALLBACKS: AtomicPtr<Callback> = AtomicPtr::new(ptr::null_mut());
/// Thread that delivers messages: PID in the upper half, TID in the lower half; 0 if none.
static DELIVERING_THREAD: AtomicU64 = AtomicU64::new(0);
/// Number of callback calls that have returned.
static RETURN_COUNT: AtomicU64 = AtomicU64::new(0);

/// Removes the callback. Returns when no other thread is inside it.
pub(crate) fn remove() {
    log::set_queue_level(None);
    CALLBACK.store(ptr::null_mut(), SeqCst);
    wait_for_running_callback();
}

/// Sends messages of at least this severity to `function`. Returns when no other thread is inside the previous
/// callback.
pub(crate) fn set(function: Function, user: *mut c_void, level: Level) {
    let new = Box::into_raw(Box::new(Callback { function, user, previous: ptr::null_mut() }));
    // SAFETY: no other code knows the pointer until it is stored in CALLBACK.
    unsafe { (*new).previous = ALL_CALLBACKS.swap(new, SeqCst) };
    CALLBACK.store(new, SeqCst);
    log::set_queue_level(Some(level));
    wait_for_running_callback();
}

/// Waits until no other thread is inside the replaced callback.
fn wait_for_running_callback() {
    let (current_thread, initial_count) = (this_thread(), RETURN_COUNT.load(SeqCst));
    let is_busy = || {
        let holder = DELIVERING_THREAD.load(SeqCst);
        holder != current_thread && are_in_same_process(holder, current_thread)
    };
    while is_busy() && RETURN_COUNT.load(SeqCst) == initial_count {
        std::thread::yield_now();
    }
}

/// Delivers the queued messages. Call with none of our locks held.
pub(crate) fn deliver_messages() {
    let mut remaining = MAX_MESSAGES_PER_DELIVERY;
    // If another thread is delivering, leave the messages to it. That thread checks the queue again when it is done.
    while log::has_message() && remaining > 0 {
        let Some(right) = DeliveryRight::try_acquire() else { return };
        while let Some((level, text)) = (remaining > 0).then(log::pop).flatten() {
            remaining -= 1;
            call_callback(level, text);
        }
        drop(right);
    }
}

fn call_callback(level: Level, text: String) {
    // The log has already replaced control characters, including zero bytes.
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the pointer is null or a callback, and callbacks are never freed.
    if let Some(callback) = unsafe { CALLBACK.load(SeqCst).as_ref() } {
        // SAFETY: the program vouches for its callback; the message lives until the callback returns.
        unsafe { (callback.function)(callback.user, level as i32, text.as_ptr()) };
    }
    RETURN_COUNT.fetch_add(1, SeqCst);
}

/// The exclusive right to deliver messages.
struct DeliveryRight;

impl DeliveryRight {
    /// Returns `None` if another thread has the right, or if this thread has it and its callback calls us.
    fn try_acquire() -> Option<DeliveryRight> {
        let (holder, current_thread) = (DELIVERING_THREAD.load(SeqCst), this_thread());
        // After a fork, the holder may be a thread of the parent, which never releases the right in the child.
        let is_free = !are_in_same_process(holder, current_thread);
        // Not `then_some`, which would always create a value; dropping that value would release another thread's right.
        (is_free && DELIVERING_THREAD.compare_exchange(holder, current_thread, SeqCst, SeqCst).is_ok())
            .then(|| DeliveryRight)
    }
}

impl Drop for DeliveryRight {
    fn drop(&mut self) {
        DELIVERING_THREAD.store(0, SeqCst);
    }
}

fn are_in_same_process(holder: u64, thread: u64) -> bool {
    holder >> 32 == thread >> 32
}

fn this_thread() -> u64 {
    // SAFETY: gettid has no precondition.
    let thread = unsafe { libc::gettid() };
    u64::from(std::process::id()) << 32 | u64::from(thread as u32)
}
