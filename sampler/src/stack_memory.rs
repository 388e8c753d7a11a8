//! The stack of the thread that is sampled, read so that nothing faults and, most of the time, without a system call.
//!
//! ```text
//!   low                stack pointer                      high
//!   |                  | this thread's frames             |      no system call: it is in use as long as the thread runs
//!   --- not known yet, a coroutine's, below signal handlers      the first page, asked of the kernel first
//!                                             anywhere else      word by word, copied by the kernel
//! ```
//! The first page is that of the stack pointer: no thread unmaps what another one stands on. Any other page may go between a question
//! and a read. Only where the kernel copies nothing for us (an old kernel's filter) is such a page asked for, and then read.
//!
//! `high` is the end of the main thread's mapping, or the page of the thread's own block (`pthread_self`), which glibc has right
//! above the frames. It is believed only when a complete walk came to within [`NEAR`] of it and every page up to it was there:
//! a walk on a coroutine's stack, which may be unmapped at any time, ends elsewhere. `low` is the lowest page seen so far.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use crate::slot::{PROCESS, Slot};
use crate::unwind::{Memory, Outcome};

const PAGE: u64 = 4096;
/// Pages of thread-local variables between the frames and the thread's block, at most.
const NEAR: u64 = 16;
/// Pages that are asked for at once when a frame is large.
const LARGEST_FRAME: u64 = 8;
/// Words that are copied at once, and a part of one page.
const COPIED: usize = 32;
/// Walks after which a thread's stack is not looked for any more.
const ATTEMPTS: u32 = 8;
/// `SYS_rt_sigprocmask` with this is refused after its first argument has been read.
const NO_SUCH_HOW: c_int = -1;

/// See the module's head. Only for the handler of the thread whose slot it is.
pub(crate) struct StackMemory<'a> {
    slot: &'a Slot,
    /// Pages that are there; the first of them up to `first_end`.
    start: u64,
    first_end: u64,
    end: u64,
    low: u64,
    high: u64,
    /// A copy of the words from there on; 1: of none.
    copy_start: u64,
    copy: [u64; COPIED],
}

impl<'a> StackMemory<'a> {
    pub(crate) fn new(slot: &'a Slot, stack_pointer: u64) -> Self {
        let (low, high) = (slot.stack_low.load(Ordering::Relaxed), slot.stack_high.load(Ordering::Relaxed));
        let start = first_page(stack_pointer);
        let first_end = end_of_page(stack_pointer);
        StackMemory { slot, start, first_end, end: start, low, high, copy_start: 1, copy: [0; COPIED] }
    }

    /// Whether the word at `address`, which is aligned, is on pages that are there.
    fn holds(&mut self, address: u64) -> bool {
        while address >= self.end && address >= self.start {
            // Never on beyond this thread's stack: another thread may unmap what is there between the question and the read.
            if self.low <= self.end && self.end < self.high {
                self.end = self.high;
            } else if self.end != self.high && address - self.end < LARGEST_FRAME * PAGE && is_readable(self.end) {
                self.end += PAGE;
            } else {
                return false;
            }
        }
        address >= self.start
    }

    /// The word at `address`, which is aligned, of a copy made by the kernel.
    fn copied(&mut self, address: u64) -> Option<u64> {
        let start = address & !(8 * COPIED as u64 - 1);
        if self.copy_start != start {
            self.copy_start = 1;
            fetch(start, &mut self.copy)?;
            self.copy_start = start;
        }
        self.copy.get((address - start) as usize / 8).copied()
    }

    /// After a walk: what was learned of where this thread's stack is.
    pub(crate) fn learn(mut self, outcome: Outcome) {
        if self.high != 0 {
            if self.start < self.low && self.end == self.high {
                self.slot.stack_low.store(self.start, Ordering::Relaxed);
            }
            return;
        }
        let attempts = self.slot.stack_attempts.load(Ordering::Relaxed);
        if outcome != Outcome::Complete || attempts >= ATTEMPTS {
            return;
        }
        self.slot.stack_attempts.store(attempts + 1, Ordering::Relaxed);
        // SAFETY: has no precondition; POSIX has it among what a signal handler may call.
        let block = unsafe { libc::pthread_self() } as u64;
        let high = (block & !(PAGE - 1)).wrapping_add(PAGE);
        if high < self.end || high - self.end > NEAR * PAGE || self.start == self.end {
            return;
        }
        while self.end < high {
            if !is_readable(self.end) {
                return;
            }
            self.end += PAGE;
        }
        self.slot.stack_low.store(self.start, Ordering::Relaxed);
        self.slot.stack_high.store(high, Ordering::Relaxed);
    }
}

impl Memory for StackMemory<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 || !self.holds(address) {
            let mut word = [0];
            return fetch(address, &mut word).map(|()| word[0]);
        }
        if address >= self.first_end && !(self.low..self.high).contains(&address) {
            match self.copied(address) {
                None if is_refused() => {}
                copied => return copied,
            }
        }
        // SAFETY: the kernel has just read this page, or it is part of the stack that this thread is on.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    fn moved(&mut self, stack_pointer: u64) {
        self.start = first_page(stack_pointer);
        self.first_end = end_of_page(stack_pointer);
        self.end = self.start;
    }
}

/// Of what a function without a frame keeps below its stack pointer (x86-64 psABI, 3.2.2).
fn first_page(stack_pointer: u64) -> u64 {
    stack_pointer.wrapping_sub(128) & !(PAGE - 1)
}

fn end_of_page(address: u64) -> u64 {
    (address & !(PAGE - 1)).saturating_add(PAGE)
}

/// Whether a page can be read: the kernel copies the set before it looks at what is to be done with it, and refuses that. Any other
/// result says nothing of the page: at address zero no set is read, and a filter may have refused the call.
fn is_readable(address: u64) -> bool {
    let nothing: *mut c_void = std::ptr::null_mut();
    // SAFETY: changes nothing: there is no such `how`.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_HOW, address, nothing, 8_usize) };
    // SAFETY: errno is a thread-local of libc's.
    result == -1 && (unsafe { *libc::__errno_location() }) == libc::EINVAL
}

/// After a [`fetch`] that has failed: not because of the address.
fn is_refused() -> bool {
    // SAFETY: errno is a thread-local of libc's.
    (unsafe { *libc::__errno_location() }) != libc::EFAULT
}

/// Copies memory that may go away at any time.
fn fetch(address: u64, words: &mut [u64]) -> Option<()> {
    let size = size_of_val(words);
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size };
    let pid = PROCESS.load(Ordering::Relaxed);
    // SAFETY: writes words of ours; a bad address is an error, not a fault.
    let copied = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, pid, &raw const local, 1_usize, &raw const remote, 1_usize, 0_usize)
    };
    (usize::try_from(copied) == Ok(size)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot;

    /// As another thread may do it between two words of one walk.
    #[test]
    fn a_stack_that_is_unmapped_under_a_walk() {
        let _alone = slot::alone();
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        let slot = slot::claim(21).unwrap().1;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        let stack = unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE as usize, protection, flags, -1, 0) } as u64;
        let mut memory = StackMemory::new(slot, stack + 256);
        assert_eq!((memory.read(stack + 256), memory.read(stack + 2 * PAGE + 8)), (Some(0), Some(0)));
        // SAFETY: of the memory that was mapped above.
        unsafe { libc::munmap((stack + PAGE) as *mut c_void, 3 * PAGE as usize) };
        assert_eq!((memory.read(stack + 264), memory.read(stack + 2 * PAGE + 512)), (Some(0), None));
        slot.state.store(slot::FREE, Ordering::Release);
    }

    #[test]
    fn what_is_not_there_is_not_readable() {
        let here = 0_u64;
        assert!(is_readable(&raw const here as u64 & !(PAGE - 1)));
        // SAFETY: errno is a thread-local of libc's; as it may be where the signal came.
        unsafe { *libc::__errno_location() = 0 };
        for nowhere in [0, PAGE, !(PAGE - 1)] {
            assert!(!is_readable(nowhere), "{nowhere:#x}");
        }
    }
}
