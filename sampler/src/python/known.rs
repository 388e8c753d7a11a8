//! Numbers of code objects: a table for handlers, and the hook that removes freed ones.
//!
//! ```text
//!   handler: code object ---> number          no lock; a miss gives it a new number and defines it (`definitions`)
//!   hook on PyCode_Type.tp_dealloc: code object ---> gone
//! ```
//! A frame holds its code object, so one that is on a stack is not freed; and one that is freed is in no table when
//! another one gets its address. A number is never used twice in a recording.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const SETS: usize = 4096;
const WAYS: usize = 4;
/// Being changed.
const BUSY: u64 = 1;

#[derive(Debug)]
struct Entry {
    code: AtomicU64,
    number: AtomicU64,
}

/// One cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Set([Entry; WAYS]);

static TABLE: [Set; SETS] =
    [const { Set([const { Entry { code: AtomicU64::new(0), number: AtomicU64::new(0) } }; WAYS]) }; SETS];

fn set(code: u64) -> &'static [Entry; WAYS] {
    // Code objects are aligned to 16 bytes, and of similar size.
    let hash = (code >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    TABLE.get(hash as usize % SETS).map_or(&TABLE[0].0, |set| &set.0)
}

/// The number of a code object that is on the caller's stack.
pub(super) fn find(code: u64) -> Option<u64> {
    let is_it = |entry: &&Entry| code > BUSY && entry.code.load(Ordering::Acquire) == code;
    let entry = set(code).iter().find(is_it)?;
    let number = entry.number.load(Ordering::Acquire);
    // Another handler may have put another one in its place meanwhile.
    (entry.code.load(Ordering::Acquire) == code).then_some(number)
}

/// Remembers it. In a full set another one is forgotten, and gets a new number when it is met again.
pub(super) fn insert(code: u64, number: u64) {
    let entries = set(code);
    let free = entries.iter().find(|entry| entry.code.load(Ordering::Relaxed) == 0);
    let Some(entry) = free.or_else(|| entries.get(number as usize % WAYS)) else { return };
    let before = entry.code.load(Ordering::Relaxed);
    let is_mine =
        before != BUSY && entry.code.compare_exchange(before, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if is_mine {
        entry.number.store(number, Ordering::Release);
        entry.code.store(code, Ordering::Release);
    }
}

/// It is freed.
fn remove(code: u64) {
    for entry in set(code) {
        if entry.code.load(Ordering::Relaxed) == code {
            let _ = entry.code.compare_exchange(code, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Before a recording, while no handler runs.
pub(super) fn clear() {
    // In the child of a fork, a page that is written to is copied.
    for entry in TABLE.iter().flat_map(|set| &set.0).filter(|entry| entry.code.load(Ordering::Relaxed) != 0) {
        entry.code.store(0, Ordering::Release);
    }
}

/// The numbers that handlers may still use.
pub(super) fn numbers() -> BTreeSet<u64> {
    let entries = TABLE.iter().flat_map(|set| &set.0);
    let used = entries.filter(|entry| entry.code.load(Ordering::Acquire) != 0);
    used.map(|entry| entry.number.load(Ordering::Acquire)).collect()
}

type Dealloc = unsafe extern "C" fn(*mut c_void);

/// `code_dealloc` of CPython, while the hook is there or a call of it runs.
static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C" fn freed(code: *mut c_void) {
    remove(code as u64);
    let original = ORIGINAL.load(Ordering::Acquire);
    // SAFETY: set before the hook, and never reset: the function whose place this one takes.
    let original = unsafe { std::mem::transmute::<*mut c_void, Dealloc>(original) };
    // SAFETY: the caller's argument.
    unsafe { original(code) };
}

/// Puts the hook into a type. Returns whether it is there.
///
/// # Safety
/// `slot` is the writable `tp_dealloc` of `PyCode_Type`.
pub(super) unsafe fn hook(slot: u64) -> bool {
    // SAFETY: the caller's promise; the interpreter reads it as one word.
    let slot = unsafe { AtomicPtr::<c_void>::from_ptr(slot as *mut *mut c_void) };
    let ours = freed as *mut c_void;
    let before = slot.load(Ordering::Acquire);
    if before == ours {
        return true;
    }
    let known = ORIGINAL.load(Ordering::Acquire);
    // Another interpreter's may run still.
    if before.is_null() || (!known.is_null() && known != before) {
        return false;
    }
    ORIGINAL.store(before, Ordering::Release);
    slot.compare_exchange(before, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes it out, unless another one was put over it.
///
/// # Safety
/// As [`hook`].
pub(super) unsafe fn unhook(slot: u64) {
    // SAFETY: the caller's promise; the interpreter reads it as one word.
    let slot = unsafe { AtomicPtr::<c_void>::from_ptr(slot as *mut *mut c_void) };
    let original = ORIGINAL.load(Ordering::Acquire);
    let _ = slot.compare_exchange(freed as *mut c_void, original, Ordering::AcqRel, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_object_that_is_freed_has_no_number() {
        let _lock = crate::slot::lock_for_test();
        clear();
        for code in 1..=1000_u64 {
            insert(code * 16, code);
        }
        assert!((1..=1000).filter(|code| find(code * 16) == Some(*code)).count() > 990);
        remove(16);
        assert_eq!((find(16), find(0), find(BUSY)), (None, None, None));
        insert(16, 2000);
        assert_eq!(find(16), Some(2000));
        assert!(numbers().contains(&2000) && !numbers().contains(&1));
        clear();
    }
}
