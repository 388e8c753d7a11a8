//! Writes to read-only or executable pages.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

use super::arch::{flush_instructions, valgrind_request};

/// Page size of the system in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Replaces code bytes. The page stays executable throughout, because other threads may be executing it.
pub(super) fn write_code(address: usize, bytes: &[u8]) -> io::Result<()> {
    match write_through_proc(address, bytes) {
        Ok(()) => {}
        Err(_) => write_through_rwx(address, bytes)?,
    }
    flush_instructions(address, bytes.len());
    discard_translations(address, bytes.len());
    Ok(())
}

/// Writes the way a debugger does, regardless of the page's protection. The kernel writes to a private copy of the
/// page.
fn write_through_proc(address: usize, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(bytes, address as u64)
}

/// Writes while the page is briefly writable and executable.
fn write_through_rwx(address: usize, bytes: &[u8]) -> io::Result<()> {
    let code = libc::PROT_READ | libc::PROT_EXEC;
    let guard = ProtectionGuard::change(address, bytes.len(), code | libc::PROT_WRITE, code)?;
    for (offset, &byte) in bytes.iter().enumerate() {
        // SAFETY: the page was made writable above, and the callers in `arch` are the only writers of these bytes.
        unsafe { ((address + offset) as *mut u8).write_volatile(byte) };
    }
    drop(guard);
    Ok(())
}

/// Makes valgrind discard its translation of the old code, because valgrind notices changes only in anonymous memory.
/// Outside valgrind, the request is a few instructions without effect.
fn discard_translations(address: usize, size: usize) {
    /// Value of `VG_USERREQ__DISCARD_TRANSLATIONS` in `valgrind/valgrind.h`.
    const DISCARD_TRANSLATIONS: usize = 0x1002;
    valgrind_request(&[DISCARD_TRANSLATIONS, address, size, 0, 0, 0]);
}

/// Pages with a temporary protection, which is replaced on drop.
pub(crate) struct ProtectionGuard {
    start: usize,
    size: usize,
    after: libc::c_int,
}

impl ProtectionGuard {
    /// Gives the pages of `address..address + size` the protection `during`, and on drop the protection `after`.
    pub(crate) fn change(address: usize, size: usize, during: i32, after: i32) -> io::Result<ProtectionGuard> {
        let start = address & !(page_size() - 1);
        let size = (address + size - start).next_multiple_of(page_size());
        // SAFETY: only the protection changes, and the new one permits everything that the old one did.
        match unsafe { libc::mprotect(start as *mut _, size, during) } {
            0 => Ok(ProtectionGuard { start, size, after }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for ProtectionGuard {
    fn drop(&mut self) {
        // SAFETY: this restores the protection that the pages had. A failure leaves them more permissive, which is
        // harmless.
        unsafe { libc::mprotect(self.start as *mut _, self.size, self.after) };
    }
}

/// Replaces an aligned pointer in a library's data with a single store, even if the data is read-only (`RELRO`,
/// `.dynsym`).
///
/// # Safety
/// `address` must be the address of a pointer-sized, aligned word of mapped data whose page has the protection
/// `protection` after relocation.
pub(crate) unsafe fn write_pointer(address: usize, value: usize, protection: i32) -> io::Result<()> {
    if protection & libc::PROT_WRITE == 0 {
        // If the page will be read-only but is still writable, the loader is relocating it in another thread. Changing
        // and restoring the protection would make the loader's next store crash. The loader may seal the page at any
        // moment, so the kernel must check the protection and store the value in one step.
        // SAFETY: the word is part of a library's data, which the caller may change.
        match unsafe { checked_read::write_word(Address(address as u64), value) } {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
            result => return result,
        }
    }
    let writable = protection | libc::PROT_WRITE;
    let guard = (protection != writable)
        .then(|| ProtectionGuard::change(address, size_of::<usize>(), writable, protection))
        .transpose()?;
    // SAFETY: the caller vouches for the word. The page is writable now, and other threads read the word with plain
    // loads.
    unsafe { AtomicUsize::from_ptr(address as *mut usize) }.store(value, Ordering::SeqCst);
    drop(guard);
    Ok(())
}

/// Maps executable memory with `code` near `around`, at an address that `is_reachable` accepts.
pub(super) fn map_code_near(around: usize, code: &[u8], is_reachable: impl Fn(usize) -> bool) -> Option<usize> {
    const STEP_BYTES: usize = 1 << 20;
    const MAX_DISTANCE_BYTES: usize = 1 << 31;
    let addresses_below = (1..MAX_DISTANCE_BYTES / STEP_BYTES).map(|steps| around.checked_sub(steps * STEP_BYTES));
    let addresses_above = (1..MAX_DISTANCE_BYTES / STEP_BYTES).map(|steps| around.checked_add(steps * STEP_BYTES));
    let candidates = addresses_below.zip(addresses_above).flat_map(|(below, above)| [below, above]).flatten();
    let mut addresses = candidates
        .map(|address| address & !(STEP_BYTES - 1))
        .filter(|&address| is_reachable(address) && address >= STEP_BYTES);
    addresses.find_map(|address| map_code(address, code).ok())
}

/// Maps one page with `code` at `address`, if that is free.
fn map_code(address: usize, code: &[u8]) -> io::Result<usize> {
    let size = page_size();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: with `MAP_FIXED_NOREPLACE`, the call never replaces an existing mapping.
    let page = unsafe { libc::mmap(address as *mut _, size, writable, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Kernels before 4.17 ignore `MAP_FIXED_NOREPLACE` and treat the address as a hint.
    // SAFETY: nothing else uses the page, and `code` is shorter than a page.
    unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len()) };
    // SAFETY: nothing else uses the page.
    let protected = unsafe { libc::mprotect(page, size, libc::PROT_READ | libc::PROT_EXEC) };
    if protected != 0 || page as usize != address {
        let error = io::Error::last_os_error();
        // SAFETY: nothing uses the page.
        unsafe { libc::munmap(page, size) };
        return Err(error);
    }
    flush_instructions(page as usize, code.len());
    Ok(page as usize)
}
