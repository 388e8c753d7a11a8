//! Makes tools that keep their own list of modules reload that list.
//!
//! memray and heaptrack replace `dlopen` and `dlclose`, and invalidate their list after a successful call. We therefore
//! call `dlopen` for the program itself, which loads nothing. The call takes the loader's lock, so we make it where
//! neither LLVM nor we hold a lock: after llvmlite has finalized an engine's code, before it returns to Python.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use jitlisten::plumbing::modules;
use jitlisten::plumbing::preserving_errno;

use super::imports::Imports;

/// Total number of modules that had been added at the time of the last announcement.
static ANNOUNCED_MODULE_COUNT: AtomicU64 = AtomicU64::new(0);

/// Announces new modules, if any. The caller must not hold any LLVM lock, or any of our own.
pub(crate) fn announce_new_modules() {
    let adds = modules::counts().adds;
    if !Imports::are_hooked() || ANNOUNCED_MODULE_COUNT.swap(adds, Ordering::AcqRel) == adds {
        return;
    }
    preserving_errno(|| {
        // SAFETY: a null name means the program itself, which is already loaded.
        let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !program.is_null() {
            // SAFETY: the handle was opened above and is closed only here.
            unsafe { libc::dlclose(program) };
        }
    });
}
