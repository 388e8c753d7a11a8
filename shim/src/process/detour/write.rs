//! Writes into read-only or executable pages.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

use super::arch::{flush_instructions, valgrind_request};

/// The size of a page of this system.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no precondition.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Replaces code bytes. Other threads may be running from the page: it stays executable throughout.
pub(super) fn write_code(address: usize, bytes: &[u8]) -> io::Result<()> {
    match write_through_proc(address, bytes) {
        Ok(()) => {}
        Err(_) => write_through_rwx(address, bytes)?,
    }
    flush_instructions(address, bytes.len());
    discard_translations(address, bytes.len());
    Ok(())
}

/// `/proc/self/mem` writes like a debugger: through the permissions, into a private copy of the page.
fn write_through_proc(address: usize, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(bytes, address as u64)
}

fn write_through_rwx(address: usize, bytes: &[u8]) -> io::Result<()> {
    let code = libc::PROT_READ | libc::PROT_EXEC;
    let opened = Permission::change(address, bytes.len(), code | libc::PROT_WRITE, code)?;
    for (offset, &byte) in bytes.iter().enumerate() {
        // SAFETY: the page was made writable above; the callers in `arch` own these bytes.
        unsafe { ((address + offset) as *mut u8).write_volatile(byte) };
    }
    drop(opened);
    Ok(())
}

/// valgrind runs its translation of the old code on, where it has one: it watches for changes only in memory that is no
/// file's. Elsewhere the request is a handful of instructions that change nothing.
fn discard_translations(address: usize, size: usize) {
    /// `VG_USERREQ__DISCARD_TRANSLATIONS` of `valgrind/valgrind.h`
    const DISCARD_TRANSLATIONS: usize = 0x1002;
    valgrind_request(&[DISCARD_TRANSLATIONS, address, size, 0, 0, 0]);
}

/// Pages with another protection for a while.
pub(crate) struct Permission {
    start: usize,
    size: usize,
    after: libc::c_int,
}

impl Permission {
    /// Gives the pages of `address..address + size` the protection `during`, and `after` when dropped.
    pub(crate) fn change(address: usize, size: usize, during: i32, after: i32) -> io::Result<Permission> {
        let start = address & !(page_size() - 1);
        let size = (address + size - start).next_multiple_of(page_size());
        // SAFETY: only the protection changes, and only to one that allows what was allowed before.
        match unsafe { libc::mprotect(start as *mut _, size, during) } {
            0 => Ok(Permission { start, size, after }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        // SAFETY: gives the pages back the protection they had. A failure leaves them more open, which does no harm.
        unsafe { libc::mprotect(self.start as *mut _, self.size, self.after) };
    }
}

/// Replaces an aligned pointer in data of a library, which may be read-only (`RELRO`, `.dynsym`), in one store.
///
/// # Safety
/// `address` must be the address of a pointer-sized, aligned word of mapped data whose page has the protection `now`,
/// once the library is relocated.
pub(crate) unsafe fn write_pointer(address: usize, value: usize, now: i32) -> io::Result<()> {
    if now & libc::PROT_WRITE == 0 {
        // A page that will be read-only and is not yet is one in which the loader is at work, for another thread: were
        // its protection changed and changed back, the loader's next store would end the process. It may be sealed at
        // any moment, so the kernel looks and stores.
        // SAFETY: the word is data of a library, which the caller may change.
        match unsafe { checked_read::write_word(Address(address as u64), value) } {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
            done => return done,
        }
    }
    let writable = now | libc::PROT_WRITE;
    let opened =
        (now != writable).then(|| Permission::change(address, size_of::<usize>(), writable, now)).transpose()?;
    // SAFETY: the caller vouches for the word; the page is writable now; other threads read it with plain loads.
    unsafe { AtomicUsize::from_ptr(address as *mut usize) }.store(value, Ordering::SeqCst);
    drop(opened);
    Ok(())
}

/// Puts `code` into new executable memory at a place that `reached` accepts, near `around`.
pub(super) fn near(around: usize, code: &[u8], reached: impl Fn(usize) -> bool) -> Option<usize> {
    const STEP: usize = 1 << 20;
    const FARTHEST: usize = 1 << 31;
    let below = (1..FARTHEST / STEP).map(|steps| around.checked_sub(steps * STEP));
    let above = (1..FARTHEST / STEP).map(|steps| around.checked_add(steps * STEP));
    let candidates = below.zip(above).flat_map(|(below, above)| [below, above]).flatten();
    let mut places = candidates.map(|at| at & !(STEP - 1)).filter(|&at| reached(at) && at >= STEP);
    places.find_map(|at| map_code(at, code).ok())
}

/// Maps one page at `place` if it is free, with `code` in it.
fn map_code(place: usize, code: &[u8]) -> io::Result<usize> {
    let size = page_size();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: NOREPLACE never touches a mapping that exists.
    let page = unsafe { libc::mmap(place as *mut _, size, writable, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A kernel before 4.17 ignores the flag and takes the place for a hint.
    // SAFETY: the page is ours alone, and `code` is shorter than a page.
    unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len()) };
    // SAFETY: the page is ours alone.
    let protected = unsafe { libc::mprotect(page, size, libc::PROT_READ | libc::PROT_EXEC) };
    if protected != 0 || page as usize != place {
        let error = io::Error::last_os_error();
        // SAFETY: the page is ours alone and unused.
        unsafe { libc::munmap(page, size) };
        return Err(error);
    }
    flush_instructions(page as usize, code.len());
    Ok(page as usize)
}
