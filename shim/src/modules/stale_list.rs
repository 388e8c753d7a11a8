//! Tools that keep a list of modules of their own, and reload it when a library was opened or closed.
//!
//! memray and heaptrack replace `dlopen` and `dlclose`, and mark their list as old after a successful call. Therefore
//! we call `dlopen` for the program itself, which loads nothing. It takes the loader's lock, so it is called where no
//! lock of LLVM's or ours is held: when llvmlite has finalized an engine's code, before it returns to Python.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use jitlisten::modules;
use jitlisten::plumbing::keeping_errno;

use super::imports::Imports;

/// How many modules had come when it was announced last.
static ANNOUNCED: AtomicU64 = AtomicU64::new(0);

/// Modules may have come. Must not be called under a lock of LLVM's or of ours.
pub(crate) fn announce() {
    let adds = modules::counts().adds;
    if !Imports::are_hooked() || ANNOUNCED.swap(adds, Ordering::AcqRel) == adds {
        return;
    }
    keeping_errno(|| {
        // SAFETY: no name is the program, which is there already.
        let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !program.is_null() {
            // SAFETY: opened just now.
            unsafe { libc::dlclose(program) };
        }
    });
}
