//! The interpreter's memory, read in the handler so that nothing faults.
//!
//! A thread that holds the GIL (or is attached, in a free-threaded build) is stopped in our handler. The memory of its
//! frames, their code objects and their texts stays mapped, because no other thread frees it. Each page is checked
//! once, against torn pointers, and then read. The thread that ends the interpreter may free any other thread's state:
//! there, the kernel copies.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use crate::slot::RECORDED_PID;

const PAGE: u64 = 4096;
/// `SYS_rt_sigprocmask` with this is refused after its first argument has been read.
const NO_SUCH_HOW: c_int = -1;
/// Pages that are remembered.
const PAGES: usize = 16;
/// Words that are copied at once.
const COPIED: usize = 32;

pub(super) struct Reader {
    is_held: bool,
    pages: [u64; PAGES],
    copy_start: u64,
    copy: [u64; COPIED],
}

impl Reader {
    /// `is_held`: no other thread frees what is read.
    pub(super) fn new(is_held: bool) -> Reader {
        Reader { is_held, pages: [1; PAGES], copy_start: 1, copy: [0; COPIED] }
    }

    /// Whether no other thread frees what is read from now on.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    fn has_page(&mut self, address: u64) -> bool {
        let page = address & !(PAGE - 1);
        let Some(known) = self.pages.get_mut((page / PAGE) as usize % PAGES) else { return false };
        if *known != page {
            if !is_readable(page) {
                return false;
            }
            *known = page;
        }
        true
    }

    /// The word at `address`.
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 || address < PAGE {
            return None;
        }
        if !self.is_held {
            match self.copied(address) {
                None if is_refused() => {}
                copied => return copied,
            }
        }
        // SAFETY: the page is there, and stays: see the module's head.
        self.has_page(address).then(|| unsafe { (address as *const u64).read_volatile() })
    }

    /// The half word at `address`.
    pub(super) fn half(&mut self, address: u64) -> Option<u32> {
        let word = self.word(address & !7)?;
        Some((word >> ((address & 4) * 8)) as u32)
    }

    pub(super) fn byte(&mut self, address: u64) -> Option<u8> {
        let word = self.word(address & !7)?;
        Some((word >> ((address & 7) * 8)) as u8)
    }

    fn copied(&mut self, address: u64) -> Option<u64> {
        let start = address & !(8 * COPIED as u64 - 1);
        if self.copy_start != start {
            self.copy_start = 1;
            fetch(start, self.copy.as_mut_ptr().cast(), 8 * COPIED)?;
            self.copy_start = start;
        }
        self.copy.get((address - start) as usize / 8).copied()
    }

    /// Copies bytes to memory of ours, of which there are so many.
    pub(super) fn copy(&mut self, address: u64, to: *mut u8, size: usize) -> bool {
        if !self.is_held {
            if fetch(address, to, size).is_some() {
                return true;
            }
            if !is_refused() {
                return false;
            }
        }
        let mut done = 0;
        while done < size {
            let from = address.wrapping_add(done as u64);
            let part = ((PAGE - from % PAGE) as usize).min(size - done);
            if from < PAGE || !self.has_page(from) {
                return false;
            }
            // SAFETY: the page is there, and stays, as above; the caller's memory has `size` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.add(done), part) };
            done += part;
        }
        true
    }
}

/// Whether a page can be read: the kernel copies the set before it looks at what is to be done with it, and refuses
/// that. Any other result says nothing of the page: at address zero no set is read, and a filter may have refused the
/// call.
fn is_readable(page: u64) -> bool {
    let nothing: *mut c_void = std::ptr::null_mut();
    // SAFETY: changes nothing: there is no such `how`.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_HOW, page, nothing, 8_usize) };
    result == -1 && errno() == libc::EINVAL
}

/// After a [`fetch`] that has failed: not because of the address.
fn is_refused() -> bool {
    errno() != libc::EFAULT
}

fn errno() -> c_int {
    // SAFETY: errno is a thread-local of libc's.
    unsafe { *libc::__errno_location() }
}

/// Copies memory that may go away at any time to memory of ours that has so many bytes.
pub(super) fn fetch(address: u64, to: *mut u8, size: usize) -> Option<()> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size };
    let pid = RECORDED_PID.load(Ordering::Relaxed);
    // SAFETY: writes memory of ours; a bad address is an error, not a fault.
    let copied = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, pid, &raw const local, 1_usize, &raw const remote, 1_usize, 0_usize)
    };
    (usize::try_from(copied) == Ok(size)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read() {
        let _lock = crate::slot::lock_for_test();
        crate::slot::RECORDED_PID.store(std::process::id(), std::sync::atomic::Ordering::Relaxed);
        let words = [1_u64 << 32 | 7, 0x0807_0605_0403_0201];
        let here = words.as_ptr() as u64;
        for is_held in [true, false] {
            let mut reader = Reader::new(is_held);
            assert_eq!(
                (reader.word(here), reader.half(here + 4), reader.byte(here + 10)),
                (Some(words[0]), Some(1), Some(3))
            );
            for nowhere in [0, 8, here + 1, PAGE, !(PAGE - 1), 1 << 60] {
                assert_eq!(reader.word(nowhere), None, "{nowhere:#x}");
            }
        }
        let mut bytes = [0; 8];
        let mut reader = Reader::new(true);
        assert!(reader.copy(here + 8, bytes.as_mut_ptr(), 8) && bytes == [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!reader.copy(PAGE - 4, bytes.as_mut_ptr(), 8) && !reader.copy(!0, bytes.as_mut_ptr(), 8));
    }
}
