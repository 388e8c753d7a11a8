//! Reads the interpreter's memory in the handler without faulting.
//!
//! A thread that holds the GIL (or is attached, in a free-threaded build) is stopped in our handler. Its frames, their
//! code objects and their strings stay mapped, because no other thread frees them. They are read in place; before the
//! first read of a page, the kernel checks that it is mapped, as a protection against torn pointers. The thread that
//! finalizes the interpreter may free the state of any other thread, so during finalization, and for threads without
//! the GIL, the kernel copies the memory instead.

use std::ffi::{c_int, c_void};

use crate::recording::current;
use crate::transparency::next::errno;

const PAGE: u64 = 4096;
/// Invalid first argument of `SYS_rt_sigprocmask`: the kernel reads the set, then returns an error.
const INVALID_HOW: c_int = -1;
const REMEMBERED_PAGES: usize = 16;
const COPIED_WORDS: usize = 32;

/// Reads words of the interpreter's memory.
pub(super) struct Reader {
    is_held: bool,
    pages: [u64; REMEMBERED_PAGES],
    copy_start: u64,
    copy: [u64; COPIED_WORDS],
}

impl Reader {
    /// `is_held` must be true only if no other thread can free the memory.
    pub(super) fn new(is_held: bool) -> Reader {
        Reader { is_held, pages: [1; REMEMBERED_PAGES], copy_start: 1, copy: [0; COPIED_WORDS] }
    }

    /// Sets whether the memory is held, so that no other thread can free it while it is read.
    pub(super) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns true if the page of `address` is readable. Checks each page only once.
    fn check_page(&mut self, address: u64) -> bool {
        let page = address & !(PAGE - 1);
        let Some(checked_page) = self.pages.get_mut((page / PAGE) as usize % REMEMBERED_PAGES) else { return false };
        if *checked_page != page {
            if !is_readable(page) {
                return false;
            }
            *checked_page = page;
        }
        true
    }

    pub(super) fn read_word(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 || address < PAGE {
            return None;
        }
        if !self.is_held {
            match self.read_copied(address) {
                None if was_refused() => {}
                word => return word,
            }
        }
        // SAFETY: the page is mapped, and stays mapped: see the module documentation.
        self.check_page(address).then(|| unsafe { (address as *const u64).read_volatile() })
    }

    pub(super) fn read_half_word(&mut self, address: u64) -> Option<u32> {
        let word = self.read_word(address & !7)?;
        Some((word >> ((address & 4) * 8)) as u32)
    }

    pub(super) fn read_byte(&mut self, address: u64) -> Option<u8> {
        let word = self.read_word(address & !7)?;
        Some((word >> ((address & 7) * 8)) as u8)
    }

    fn read_copied(&mut self, address: u64) -> Option<u64> {
        let start = address & !(8 * COPIED_WORDS as u64 - 1);
        if self.copy_start != start {
            self.copy_start = 1;
            fetch(start, self.copy.as_mut_ptr().cast(), 8 * COPIED_WORDS)?;
            self.copy_start = start;
        }
        self.copy.get((address - start) as usize / 8).copied()
    }

    /// Copies `size` bytes to `to`. Returns false if they are unreadable.
    pub(super) fn copy(&mut self, address: u64, to: *mut u8, size: usize) -> bool {
        if !self.is_held {
            if fetch(address, to, size).is_some() {
                return true;
            }
            if !was_refused() {
                return false;
            }
        }
        let mut copied = 0;
        while copied < size {
            let source = address.wrapping_add(copied as u64);
            let length = ((PAGE - source % PAGE) as usize).min(size - copied);
            if source < PAGE || !self.check_page(source) {
                return false;
            }
            // SAFETY: the page is mapped, and stays mapped, as above; the caller's memory has `size` bytes.
            unsafe { std::ptr::copy_nonoverlapping(source as *const u8, to.add(copied), length) };
            copied += length;
        }
        true
    }
}

/// Returns true if a page is readable. The kernel copies the signal set before it rejects `how` with `EINVAL`. It reads
/// no set at address zero, and a seccomp filter may refuse the call, so any other result proves nothing.
fn is_readable(page: u64) -> bool {
    let no_old_set: *mut c_void = std::ptr::null_mut();
    // SAFETY: the call changes nothing, because `how` is invalid.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, INVALID_HOW, page, no_old_set, 8_usize) };
    result == -1 && errno() == libc::EINVAL
}

/// True if the last [`fetch`] failed for a reason other than a bad address.
fn was_refused() -> bool {
    errno() != libc::EFAULT
}

/// Copies memory that may be unmapped at any time, through the kernel. `to` must have space for `size` bytes.
pub(super) fn fetch(address: u64, to: *mut u8, size: usize) -> Option<()> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size };
    let pid = current::last().map_or(0, |recording| recording.pid);
    // SAFETY: the call writes to our own memory; a bad source address is an error, not a fault.
    let copied = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, pid, &raw const local, 1_usize, &raw const remote, 1_usize, 0_usize)
    };
    (usize::try_from(copied) == Ok(size)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_not_read() {
        let _lock = crate::thread::slots::lock_for_test();
        current::publish_for_test();
        let words = [1_u64 << 32 | 7, 0x0807_0605_0403_0201];
        let address = words.as_ptr() as u64;
        for is_held in [true, false] {
            let mut reader = Reader::new(is_held);
            assert_eq!(
                (reader.read_word(address), reader.read_half_word(address + 4), reader.read_byte(address + 10)),
                (Some(words[0]), Some(1), Some(3))
            );
            for unmapped in [0, 8, address + 1, PAGE, !(PAGE - 1), 1 << 60] {
                assert_eq!(reader.read_word(unmapped), None, "{unmapped:#x}");
            }
        }
        let mut bytes = [0; 8];
        let mut reader = Reader::new(true);
        assert!(reader.copy(address + 8, bytes.as_mut_ptr(), 8) && bytes == [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!reader.copy(PAGE - 4, bytes.as_mut_ptr(), 8) && !reader.copy(!0, bytes.as_mut_ptr(), 8));
    }
}
