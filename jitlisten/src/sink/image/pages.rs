//! Exchanging the pages under running code.
//!
//! `mmap(MAP_FIXED)` over a mapping is one step for every other thread: the kernel holds the lock of the address space
//! from taking the old pages out to putting the new ones in, and a thread that faults in between waits for it. The bytes
//! are the same, so a thread that runs there sees nothing.
//!
//! One step, but not always one transaction: before Linux 6.12 a failure late in it can leave the hole. So what can fail is
//! tried before, elsewhere ([`can_execute`]); the bytes are kept; and after a failure they are looked for and put back.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

use crate::{AddressRange, foreign};

/// The size of a page.
pub(super) fn page_size() -> u64 {
    // SAFETY: sysconf has no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Maps the first page of `file` executable, anywhere, for a moment: a file system mounted `noexec` and some security
/// modules refuse.
pub(super) fn can_execute(file: &File) -> io::Result<()> {
    let (size, protection) = (page_size() as usize, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: a new private mapping touches nothing that exists.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made, which nobody else knows.
    unsafe { libc::munmap(mapped, size) };
    Ok(())
}

/// Maps the first page of `file` writable too (a private copy, never written), and lets it be: valgrind reads the debug
/// information of a file when it has seen an executable and a writable mapping of it (`di_notify_mmap`).
pub(super) fn show_to_valgrind(file: &File) {
    let (size, protection) = (page_size() as usize, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new private mapping touches nothing that exists. Where it fails, valgrind shows no names.
    unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
}

/// Maps `file` from `offset` on over `pages`, where its bytes are what is in memory already: `before`, from
/// `pages.end() - before.len()` on. What lies in front of that belongs to nobody.
///
/// # Safety
/// `pages` must be mapped private memory of this process, executable and not writable where `before` is, that its owner
/// does not unmap or protect during the call; the file must not be changed while it is mapped.
pub(super) unsafe fn exchange(pages: AddressRange, file: &File, offset: u64, before: &[u8]) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let (start, size) = (pages.start().0 as *mut _, pages.size() as usize);
    // SAFETY: the caller vouches that the pages may be replaced by a file with the same bytes.
    let mapped = unsafe { libc::mmap(start, size, protection, flags, file.as_raw_fd(), offset as i64) };
    let error = (mapped == libc::MAP_FAILED).then(io::Error::last_os_error);
    let code = AddressRange::new(crate::Address(pages.end().0 - before.len() as u64), before.len() as u64);
    let same = code.and_then(|code| foreign::copy(code).ok()).is_some_and(|now| now == before);
    if !same {
        // SAFETY: `code` is part of `pages`, and its content is known.
        unsafe { put_back(pages, before) };
    }
    match error {
        Some(error) => Err(error),
        None if !same => Err(io::Error::other("what was mapped is not what was written")),
        None => Ok(()),
    }
}

/// Anonymous memory with `bytes` at the end of `pages`, as LLVM had it.
///
/// # Safety
/// As for [`exchange`].
unsafe fn put_back(pages: AddressRange, bytes: &[u8]) {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
    let start = (pages.end().0 - bytes.len() as u64) as *mut libc::c_void;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches that these pages are ours to replace; what was there is lost already.
    let mapped = unsafe { libc::mmap(start, bytes.len(), writable, flags, -1, 0) };
    if mapped != libc::MAP_FAILED {
        // SAFETY: writable memory of that size was mapped there just now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast(), bytes.len()) };
        // SAFETY: the same memory.
        unsafe { libc::mprotect(start, bytes.len(), libc::PROT_READ | libc::PROT_EXEC) };
    }
}
