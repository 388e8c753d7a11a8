//! Sanitizers in the program: runtimes that stand in front of libc.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::{self, object_base};

/// True if another library's `pthread_create`, or the program's, is called before ours.
static IS_PRECEDED: AtomicBool = AtomicBool::new(false);

/// Returns whether the runtime of ThreadSanitizer is in this process. It does not see our synchronisation, delays
/// signals, and crashes in threads that begin with our function. Asks the loader: not under locks, nor in the child of
/// a fork.
pub(crate) fn detect() -> bool {
    let first = process::symbol_object_base(c"pthread_create");
    let is_preceded = first.is_some() && first != object_base(detect as *const c_void);
    IS_PRECEDED.store(is_preceded, Ordering::Relaxed);
    // SAFETY: a terminated name.
    let is_shared = !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null();
    is_shared || is_preceded && first.is_some_and(|object| contains_text(object, b"TSAN_OPTIONS"))
}

/// Returns whether a new thread may get a signal stack. A sanitizer's thread that begins with our function takes the
/// stack for its own, and unmaps it at the end.
pub(crate) fn may_give_signal_stack() -> bool {
    !IS_PRECEDED.load(Ordering::Relaxed)
}

/// Returns whether the constants of a program or library have this text. gcc exports no name of a runtime that is
/// linked statically.
fn contains_text(object: *const u8, text: &[u8]) -> bool {
    const PT_LOAD: u32 = 1;
    const PF_W: u32 = 2;
    // SAFETY: the loader has mapped the object's headers there, and nothing unmaps an object that is in use.
    let header = unsafe { object.cast::<libc::Elf64_Ehdr>().read_unaligned() };
    let is_fixed = header.e_type == 2;
    let base = if is_fixed { std::ptr::null() } else { object };
    (0..usize::from(header.e_phnum)).any(|number| {
        let at = header.e_phoff as usize + number * size_of::<libc::Elf64_Phdr>();
        // SAFETY: as above.
        let segment = unsafe { object.add(at).cast::<libc::Elf64_Phdr>().read_unaligned() };
        let is_constant = segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0;
        let start = base.wrapping_add(segment.p_vaddr as usize);
        is_constant && {
            // SAFETY: the loader has mapped the segment, and does not write to it any more.
            let bytes = unsafe { std::slice::from_raw_parts(start, segment.p_memsz as usize) };
            memchr::memmem::find(bytes, text).is_some()
        }
    })
}
