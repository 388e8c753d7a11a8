//! Numbers of code objects: a table for handlers, and a hook that removes freed code objects.
//!
//! ```text
//!   handler: code object ---> number          no lock; on a miss, the object is numbered and defined (`definitions`)
//!   hook on PyCode_Type.tp_dealloc: code object ---> removed
//! ```
//! A frame holds a reference to its code object, so an object on a stack is not freed. A freed object is no longer in
//! the table when another object is allocated at its address. Numbers are never reused within a recording.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const SETS: usize = 4096;
/// Entries per set.
const WAYS: usize = 4;
/// Placeholder address of an entry that is being changed.
const BUSY: u64 = 1;
/// Number shared by all code objects that stay unnamed, because space for their definition ran out.
pub(super) const UNNAMED_CODE: u64 = 1;
/// Number shared by all code objects that are internal to the interpreter and not shown.
pub(super) const HIDDEN_CODE: u64 = 2;
const FIRST_NUMBER: u64 = 3;

/// A code object's address and number.
#[derive(Debug)]
struct Entry {
    code: AtomicU64,
    number: AtomicU64,
}

/// A set of entries: one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Set([Entry; WAYS]);

struct CodeNumbers {
    table: [Set; SETS],
    next: AtomicU64,
    /// CPython's `code_dealloc`, while the hook is installed or still running.
    original_dealloc: AtomicPtr<c_void>,
}

/// Static because the hook stays installed while a `code_dealloc` may still run.
static NUMBERS: CodeNumbers = CodeNumbers {
    table: [const { Set([const { Entry { code: AtomicU64::new(0), number: AtomicU64::new(0) } }; WAYS]) }; SETS],
    next: AtomicU64::new(FIRST_NUMBER),
    original_dealloc: AtomicPtr::new(std::ptr::null_mut()),
};

/// Returns the set that may contain a code object.
fn set_of(code: u64) -> &'static [Entry; WAYS] {
    // Mix the address, because code objects are aligned to 16 bytes and have similar sizes.
    let hash = (code >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    NUMBERS.table.get(hash as usize % SETS).map_or(&NUMBERS.table[0].0, |set| &set.0)
}

/// Returns the number of a code object that is on the caller's stack.
pub(super) fn find(code: u64) -> Option<u64> {
    let matches = |entry: &&Entry| code > BUSY && entry.code.load(Ordering::Acquire) == code;
    let entry = set_of(code).iter().find(matches)?;
    let number = entry.number.load(Ordering::Acquire);
    // Another handler may have replaced the entry in the meantime.
    (entry.code.load(Ordering::Acquire) == code).then_some(number)
}

/// Adds a code object. In a full set, replaces another code object, which gets a new number at its next sample.
pub(super) fn insert(code: u64, number: u64) {
    let entries = set_of(code);
    let free_entry = entries.iter().find(|entry| entry.code.load(Ordering::Relaxed) == 0);
    let Some(entry) = free_entry.or_else(|| entries.get(number as usize % WAYS)) else { return };
    let old_code = entry.code.load(Ordering::Relaxed);
    let is_claimed =
        old_code != BUSY && entry.code.compare_exchange(old_code, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if is_claimed {
        entry.number.store(number, Ordering::Release);
        entry.code.store(code, Ordering::Release);
    }
}

/// Removes a code object that is being freed.
fn remove(code: u64) {
    for entry in set_of(code) {
        if entry.code.load(Ordering::Relaxed) == code {
            let _ = entry.code.compare_exchange(code, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Returns a number that no code object has had in this recording.
pub(super) fn next() -> u64 {
    NUMBERS.next.fetch_add(1, Ordering::Relaxed)
}

/// Forgets all numbers before a recording. Only call while no handler runs.
pub(super) fn clear() {
    NUMBERS.next.store(FIRST_NUMBER, Ordering::Release);
    // Write only to used entries, because each written page is copied in a fork child.
    for entry in NUMBERS.table.iter().flat_map(|set| &set.0).filter(|entry| entry.code.load(Ordering::Relaxed) != 0) {
        entry.code.store(0, Ordering::Release);
    }
}

/// Returns the numbers that handlers may still use.
pub(super) fn used_numbers() -> BTreeSet<u64> {
    let entries = NUMBERS.table.iter().flat_map(|set| &set.0);
    let entries_in_use = entries.filter(|entry| entry.code.load(Ordering::Acquire) != 0);
    entries_in_use.map(|entry| entry.number.load(Ordering::Acquire)).collect()
}

type Dealloc = unsafe extern "C" fn(*mut c_void);

/// Replacement for `tp_dealloc` of code objects, which forgets the number and then calls the original function.
unsafe extern "C" fn dealloc_hook(code: *mut c_void) {
    remove(code as u64);
    let original = NUMBERS.original_dealloc.load(Ordering::Acquire);
    // SAFETY: `original` is the replaced `tp_dealloc`. It was set before the hook was installed, and is never reset.
    let original = unsafe { std::mem::transmute::<*mut c_void, Dealloc>(original) };
    // SAFETY: the caller's argument is passed on unchanged.
    unsafe { original(code) };
}

/// Installs the hook in a type. Returns true if it is installed.
///
/// # Safety
/// `slot` must be the address of the writable `tp_dealloc` of `PyCode_Type`.
pub(super) unsafe fn install_hook(slot: u64) -> bool {
    // SAFETY: the caller guarantees a valid slot; the interpreter reads it as one word.
    let slot = unsafe { AtomicPtr::<c_void>::from_ptr(slot as *mut *mut c_void) };
    let hook = dealloc_hook as *mut c_void;
    let installed = slot.load(Ordering::Acquire);
    if installed == hook {
        return true;
    }
    let original = NUMBERS.original_dealloc.load(Ordering::Acquire);
    // The hook of another interpreter may still be running.
    if installed.is_null() || (!original.is_null() && original != installed) {
        return false;
    }
    NUMBERS.original_dealloc.store(installed, Ordering::Release);
    slot.compare_exchange(installed, hook, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Removes the hook, unless another one was installed over it.
///
/// # Safety
/// Same contract as [`install_hook`].
pub(super) unsafe fn remove_hook(slot: u64) {
    // SAFETY: the caller guarantees a valid slot; the interpreter reads it as one word.
    let slot = unsafe { AtomicPtr::<c_void>::from_ptr(slot as *mut *mut c_void) };
    let original = NUMBERS.original_dealloc.load(Ordering::Acquire);
    let _ = slot.compare_exchange(dealloc_hook as *mut c_void, original, Ordering::AcqRel, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_code_object_has_no_number() {
        let _lock = crate::thread::slots::lock_for_test();
        clear();
        for code in 1..=1000_u64 {
            insert(code * 16, code);
        }
        assert!((1..=1000).filter(|code| find(code * 16) == Some(*code)).count() > 990);
        remove(16);
        assert_eq!((find(16), find(0), find(BUSY)), (None, None, None));
        insert(16, 2000);
        assert_eq!(find(16), Some(2000));
        assert!(used_numbers().contains(&2000) && !used_numbers().contains(&1));
        clear();
    }
}
