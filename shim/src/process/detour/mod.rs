//! Detours of empty functions. The loader's `_r_debug.r_brk` and LLVM's `__jit_debug_register_code` are empty, because
//! they exist only for breakpoints.
//!
//! ```text
//!   before   [endbr64|bti c] [push rbp; mov rbp, rsp; pop rbp]  ret   <padding>
//!   after    [endbr64|bti c] [push rbp; mov rbp, rsp; pop rbp]  jmp   hook
//! ```
//!
//! On x86-64 the new instruction is longer than the `ret`, and its tail falls on padding that is never executed. The
//! tail is written first and the first byte last, in a single store, so a thread executes either the old function or
//! the new one. On AArch64 one instruction replaces another, but the architecture does not allow replacing a `ret`
//! while another core fetches it, which `exchange` works around. No instruction has to be relocated, because only the
//! final `ret` is replaced. Each architecture has its own file for the encodings.
//!
//! Bytes are written through `/proc/self/mem`, so the page stays executable. If the kernel refuses that, the page is
//! briefly made both writable and executable. A hook more than 2 GiB away is reached through an island. valgrind runs
//! translated code and does not notice changes in file-backed memory, so a client request notifies valgrind; outside
//! valgrind the request is a no-op.
//!
//! Two alternatives were rejected: interposing the symbol, because LLVM's calls are bound within the library, and a
//! breakpoint, because the `SIGTRAP` handler belongs to the host.

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;

#[cfg(any(target_arch = "aarch64", test))]
mod exchange;
mod write;

use std::fmt;
use std::io;

use jitlisten::Address;
use jitlisten::plumbing::{checked_read, is_alone};

pub(crate) use write::{page_size, write_pointer};

/// Reason why a function was not hooked.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The bytes are not those of an empty function followed by padding.
    Unexpected([u8; arch::INSPECTED_BYTES]),
    /// The bytes could not be read or replaced.
    Io(io::Error),
    /// No memory is free for an island near the function.
    TooFar,
}

/// Threads that may be executing a function while it is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Any thread of the process.
    Any,
    /// No thread, because the library is new and its constructors have not run.
    NoneYet,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unexpected(bytes) => write!(f, "unexpected bytes {bytes:02x?}"),
            Refusal::Io(error) => write!(f, "not readable or not writable: {error}"),
            Refusal::TooFar => write!(f, "no free memory near it"),
        }
    }
}

/// A function of the host that takes no arguments and returns nothing, or a hook of such a function.
pub(crate) type HookFunction = unsafe extern "C" fn();

/// Permanently redirects every call of the empty function at `function` to `hook`.
///
/// # Safety
/// `function` must be the address of mapped code. `hook` must be safe to call, without arguments, from any caller of
/// `function`, until the process exits.
pub(crate) unsafe fn detour(function: usize, hook: HookFunction, callers: Callers) -> Result<(), Refusal> {
    // The bytes after the function may be on another page, and executable memory need not be readable.
    // SAFETY: every bit pattern is a valid byte array.
    let bytes = unsafe { checked_read::copy_struct::<[u8; arch::INSPECTED_BYTES]>(Address(function as u64)) };
    let bytes = bytes.map_err(Refusal::Io)?;
    let patch_offset = arch::empty_function(&bytes).ok_or(Refusal::Unexpected(bytes))?;
    let in_place = callers == Callers::NoneYet || arch::can_patch_while_running(&bytes, patch_offset) || is_alone();
    let from = function + patch_offset;
    let to = if arch::reaches(from, hook as usize) { hook as usize } else { arch::island(from, hook as usize)? };
    let patch = if in_place { arch::write_jump } else { arch::exchange_jump };
    patch(from, to).map_err(Refusal::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn hook() {}

    /// Some compilers do not align functions (`-Os`), so a function may end right before an unreadable page.
    #[test]
    #[cfg_attr(miri, ignore = "miri has no mappings without memory")]
    fn function_before_an_unreadable_page_is_not_hooked() {
        let (page, flags) = (page_size(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the mapping is new, and nothing else refers to it.
        let code = unsafe { libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(code, libc::MAP_FAILED);
        // SAFETY: the mapping has a second page.
        unsafe { libc::mprotect(code.wrapping_byte_add(page), page, libc::PROT_NONE) };
        // SAFETY: the function is not called.
        let refusal = unsafe { detour(code as usize + page - 4, hook, Callers::Any) };
        assert!(matches!(refusal, Err(Refusal::Io(_))), "{refusal:?}");
        // SAFETY: the mapping was created above, and nothing else refers to it.
        unsafe { libc::munmap(code, 2 * page) };
    }
}
