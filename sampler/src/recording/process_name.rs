//! The name that the program gives to its process, such as that of a worker in a pool.

#![forbid(unsafe_code)]

use std::sync::{Mutex, TryLockError};

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 100;
/// Maximum number of attempts to take the lock, which is held for less than a microsecond.
const MAX_ATTEMPTS: usize = 1000;

/// Name of this process, and whether it is not in the recording yet.
static NAME: Mutex<(String, bool)> = Mutex::new((String::new(), false));

/// Names this process in reports of its recording, now and in later recordings. Empty: removes the name.
pub fn set_process_name(name: &str) {
    let end = (0..=MAX_NAME_BYTES.min(name.len())).rfind(|end| name.is_char_boundary(*end)).unwrap_or(0);
    // A lock that another thread held at a fork stays locked in the child, which then has no name.
    for _ in 0..MAX_ATTEMPTS {
        match NAME.try_lock() {
            Ok(mut entry) => return *entry = (name[..end].to_owned(), true),
            Err(TryLockError::Poisoned(entry)) => return *entry.into_inner() = (name[..end].to_owned(), true),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Returns the name if it is not in the recording yet.
pub(crate) fn take_new() -> Option<String> {
    let mut name = NAME.try_lock().ok()?;
    std::mem::take(&mut name.1).then(|| name.0.clone())
}

/// Writes the name again, because a recording begins.
pub(crate) fn begin_recording() {
    if let Ok(mut name) = NAME.try_lock() {
        name.1 = !name.0.is_empty();
    }
}

/// Removes the name in the child of a fork. A lock that another thread of the parent held stays locked.
pub(crate) fn forget_in_child() {
    if let Ok(mut name) = NAME.try_lock() {
        *name = (String::new(), false);
    }
}
