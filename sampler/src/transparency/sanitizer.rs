//! Sanitizers in the program, whose runtimes interpose libc functions before ours.

use std::ffi::c_void;

use crate::recording::process::{self, object_base};

pub(crate) struct Sanitizers {
    /// True if ThreadSanitizer's runtime is in this process. The runtime cannot see our synchronization, delays
    /// signals, and crashes in threads whose start function is ours.
    pub(crate) is_thread_sanitizer: bool,
    /// True if another `pthread_create`, from a library or the program, is called before ours.
    has_outer_interposer: bool,
}

/// Detects sanitizers. Calls the loader, so it must not be called under locks or in a fork child.
pub(crate) fn detect() -> Sanitizers {
    let first_object = process::symbol_object_base(c"pthread_create");
    let has_outer_interposer = first_object.is_some() && first_object != object_base(detect as *const c_void);
    // SAFETY: the name is NUL-terminated.
    let is_shared = !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null();
    let is_static =
        || has_outer_interposer && first_object.is_some_and(|object| contains_text(object, b"TSAN_OPTIONS"));
    Sanitizers { is_thread_sanitizer: is_shared || is_static(), has_outer_interposer }
}

impl Sanitizers {
    /// Returns true if a new thread may get a signal stack. In a thread whose start function is ours, a sanitizer takes
    /// that stack for its own and unmaps it when the thread exits.
    pub(crate) fn allow_signal_stacks(&self) -> bool {
        !self.has_outer_interposer
    }
}

/// Returns true if the read-only data of a program or library contains this string. Detects statically linked
/// runtimes, whose symbols gcc does not export.
fn contains_text(object: *const u8, text: &[u8]) -> bool {
    const PT_LOAD: u32 = 1;
    const PF_W: u32 = 2;
    // SAFETY: the loader has mapped the object's headers there, and nothing unmaps an object that is in use.
    let header = unsafe { object.cast::<libc::Elf64_Ehdr>().read_unaligned() };
    let is_fixed = header.e_type == 2;
    let base = if is_fixed { std::ptr::null() } else { object };
    (0..usize::from(header.e_phnum)).any(|number| {
        let offset = header.e_phoff as usize + number * size_of::<libc::Elf64_Phdr>();
        // SAFETY: the loader has mapped the program headers as well.
        let segment = unsafe { object.add(offset).cast::<libc::Elf64_Phdr>().read_unaligned() };
        let is_constant = segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0;
        let start = base.wrapping_add(segment.p_vaddr as usize);
        is_constant && {
            // SAFETY: the loader has mapped the segment, and no longer writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(start, segment.p_memsz as usize) };
            memchr::memmem::find(bytes, text).is_some()
        }
    })
}
