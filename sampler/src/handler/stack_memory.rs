//! Reads the sampled thread's stack without faulting, and with at most two system calls per walk.
//!
//! ```text
//!   low                stack pointer                      high
//!   |    own stack     | this thread's frames             |      in place: mapped as long as the thread runs
//!   the page of the stack pointer, on any other stack            in place: no thread unmaps a page in use by another
//!   anywhere else                                                a copy by the kernel: 16 KiB, then 64 KiB
//! ```
//! The bounds of the main thread's own stack come from `/proc/self/maps` and `RLIMIT_STACK`; those of a thread that
//! `pthread_create` has started during the recording come from its attributes. Any other thread's stack is probed:
//! glibc keeps the thread's block (`pthread_self`) right above the frames. If every page from the stack pointer up to
//! that block is readable, the pages form one stack. A coroutine's stack is not contiguous with the block, and another
//! thread may unmap it at any time, so it is always copied.

use std::ffi::c_void;

use crate::thread::slot::{STACK_COPY_BYTES, Slot};
use crate::unwind::Memory;

const PAGE: u64 = 4096;
const MAX_CALLS_PER_WALK: u32 = 2;
/// Number of stack bytes that a walk copies first. If the walk needs more, a second copy fills the buffer.
const FIRST_COPY_BYTES: u64 = 16 << 10;
/// Number of bytes to copy below the requested address, where the function may have saved registers.
const COPY_MARGIN_BYTES: u64 = 256;
/// Maximum number of pages per probe: `UIO_MAXIOV`.
const MAX_PROBED_PAGES: u64 = 1024;
/// Readable stack memory of a sampled thread. Only for the handler of the slot's thread.
pub(crate) struct StackMemory<'a> {
    pid: u32,
    slot: &'a Slot,
    /// Start of the memory that is read in place.
    mapped_start: u64,
    /// End of the memory that is read in place.
    mapped_end: u64,
    /// System calls that this walk may still make.
    remaining_calls: u32,
    /// Start of the copy in the slot's buffer.
    copy_start: u64,
    /// End of the copy in the slot's buffer.
    copy_end: u64,
}

impl<'a> StackMemory<'a> {
    pub(crate) fn new(pid: u32, slot: &'a Slot, stack_pointer: u64) -> Self {
        let mut memory = StackMemory {
            pid,
            slot,
            mapped_start: 0,
            mapped_end: 0,
            remaining_calls: MAX_CALLS_PER_WALK,
            copy_start: 0,
            copy_end: 0,
        };
        memory.handle_stack_change(stack_pointer);
        memory
    }

    fn own_stack_end(&mut self, stack_pointer: u64) -> Option<u64> {
        let (low, high) = self.slot.stack.get();
        if (low..high).contains(&stack_pointer) {
            return Some(high);
        }
        // SAFETY: `pthread_self` has no precondition, and POSIX lists it as async-signal-safe.
        let high = if high == 0 { next_page(unsafe { libc::pthread_self() } as u64) } else { high };
        let (probe_start, known_start) = (next_page(stack_pointer), if low == 0 { high } else { low });
        let pages = known_start.checked_sub(probe_start)? / PAGE;
        let may_probe = self.remaining_calls != 0 && pages <= MAX_PROBED_PAGES && self.slot.stack.may_probe();
        if !may_probe || !self.is_readable(probe_start, pages) {
            return None;
        }
        self.slot.stack.set_probed(probe_start - PAGE, high);
        Some(high)
    }

    /// Returns true if all these pages are mapped. Lets the kernel copy one byte of each page.
    fn is_readable(&mut self, start: u64, pages: u64) -> bool {
        self.remaining_calls -= 1;
        // The buffer has space for the iovec list, followed by the bytes.
        let list = self.slot.stack_copy().cast::<libc::iovec>();
        for number in 0..pages.min(MAX_PROBED_PAGES) {
            let byte = libc::iovec { iov_base: (start + number * PAGE) as *mut c_void, iov_len: 1 };
            // SAFETY: the buffer belongs to the handler, and is larger than the list.
            unsafe { list.add(number as usize).write(byte) };
        }
        self.copy_end = 0;
        // SAFETY: the buffer has space for the list and the bytes.
        let bytes = unsafe { list.add(MAX_PROBED_PAGES as usize) }.cast();
        pages == 0 || fetch(self.pid, bytes, pages, list, pages) == Some(pages)
    }

    /// Copies the stack around `address`, which may be unmapped at any time, up to the first unmapped page.
    fn copy_around(&mut self, address: u64) -> Option<()> {
        self.remaining_calls = self.remaining_calls.checked_sub(1)?;
        let size = if self.remaining_calls == 0 { STACK_COPY_BYTES as u64 } else { FIRST_COPY_BYTES };
        let lowest_start = if address >= self.mapped_start { self.mapped_start } else { address & !(PAGE - 1) };
        let start = (address.saturating_sub(COPY_MARGIN_BYTES) & !7).max(lowest_start);
        let end = start.checked_add(size)?;
        // Use one iovec per page, so that the copy ends before the first unmapped page.
        let mut pages =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; STACK_COPY_BYTES / PAGE as usize + 1];
        let (mut page_start, mut count) = (start, 0);
        for page in &mut pages {
            let page_end = next_page(page_start).min(end);
            *page = libc::iovec { iov_base: page_start as *mut c_void, iov_len: (page_end - page_start) as usize };
            count += u64::from(page_end > page_start);
            page_start = page_end;
        }
        let copied = fetch(self.pid, self.slot.stack_copy().cast(), size, pages.as_ptr(), count)?;
        (self.copy_start, self.copy_end) = (start, start + copied);
        Some(())
    }

    fn read_copy(&self, address: u64, end: u64) -> Option<u64> {
        if address < self.copy_start || end > self.copy_end {
            return None;
        }
        // SAFETY: the word lies within the copy in the buffer, which belongs to the handler.
        let word = unsafe { self.slot.stack_copy().byte_add((address - self.copy_start) as usize) };
        // SAFETY: `end` was checked, so eight copied bytes start at this address.
        Some(unsafe { word.read_unaligned() })
    }
}

impl Memory for StackMemory<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let end = address.checked_add(8)?;
        if address & 7 == 0 && self.mapped_start <= address && end <= self.mapped_end {
            // SAFETY: the address is on the stack that this thread runs on: in the page of its stack pointer, or within
            // the known bounds of its own stack.
            return Some(unsafe { (address as *const u64).read_volatile() });
        }
        if let Some(word) = self.read_copy(address, end) {
            return Some(word);
        }
        self.copy_around(address)?;
        self.read_copy(address, end)
    }

    fn handle_stack_change(&mut self, stack_pointer: u64) {
        // Include the red zone below the stack pointer, where a leaf function keeps data (x86-64 psABI, 3.2.2).
        self.mapped_start = stack_pointer.wrapping_sub(128) & !(PAGE - 1);
        self.mapped_end = self.own_stack_end(stack_pointer).unwrap_or_else(|| next_page(stack_pointer));
    }
}

fn next_page(address: u64) -> u64 {
    (address & !(PAGE - 1)).saturating_add(PAGE)
}

/// Copies up to `size` bytes from `count` ranges, up to the first unreadable byte. Returns the number of copied bytes.
fn fetch(pid: u32, buffer: *mut c_void, size: u64, ranges: *const libc::iovec, count: u64) -> Option<u64> {
    let local = libc::iovec { iov_base: buffer, iov_len: size as usize };
    // SAFETY: the call writes at most `size` bytes to the buffer; a bad source address is an error, not a fault.
    let copied = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, pid, &raw const local, 1_usize, ranges, count as usize, 0_usize)
    };
    u64::try_from(copied).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::slot_state::State;
    use crate::thread::slots;

    fn map(pages: u64) -> u64 {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the call creates a new mapping.
        let stack =
            unsafe { libc::mmap(std::ptr::null_mut(), (pages * PAGE) as usize, protection, flags, -1, 0) } as u64;
        for number in 0..pages * PAGE / 8 {
            // SAFETY: the address is within the memory mapped above.
            unsafe { ((stack + number * 8) as *mut u64).write(number) };
        }
        stack
    }

    /// Another thread may unmap the stack between two reads of one walk.
    #[test]
    fn a_stack_may_be_unmapped_during_a_walk() {
        let _lock = slots::lock_for_test();
        let slot = slots::claim(21).unwrap().1;
        let stack = map(64);
        let mut memory = StackMemory::new(std::process::id(), slot, stack + 256);
        memory.remaining_calls = MAX_CALLS_PER_WALK;
        assert_eq!(memory.read(stack + 256), Some(32));
        assert_eq!(memory.read(stack + 2 * PAGE + 8), Some(1025));
        // SAFETY: the call unmaps a part of the memory mapped above.
        unsafe { libc::munmap((stack + PAGE) as *mut c_void, 63 * PAGE as usize) };
        assert_eq!((memory.read(stack + 264), memory.read(stack + 40 * PAGE)), (Some(33), None));
        assert_eq!(memory.remaining_calls, 0);
        slot.state.set(State::Free);
    }

    #[test]
    fn a_walk_makes_at_most_two_system_calls() {
        let _lock = slots::lock_for_test();
        let slot = slots::claim(22).unwrap().1;
        let stack = map(100);
        for _ in 0..3 {
            let mut memory = StackMemory::new(std::process::id(), slot, stack + 256);
            let words = || (0..100 * PAGE / 8).map(|number| stack + number * 8).skip(32);
            let words_read = words().filter(|&address| memory.read(address) == Some((address - stack) / 8)).count();
            assert_eq!(memory.remaining_calls, 0);
            // If this thread's own stack is not far above, a probe uses one of the two calls, so there is only one
            // copy.
            assert!(
                words_read as u64 * 8 >= PAGE - 256 + STACK_COPY_BYTES as u64 - COPY_MARGIN_BYTES,
                "{words_read} words"
            );
        }
        slot.state.set(State::Free);
    }

    /// Reads above a stack frame of more than 300,000 bytes, in a thread with unknown stack bounds.
    #[test]
    fn a_threads_own_stack_is_known_after_one_probe() {
        let _lock = slots::lock_for_test();
        let slot = slots::claim(23).unwrap().1;
        #[inline(never)]
        fn call_with_large_frame(slot: &Slot, base_address: u64) -> [u32; 2] {
            let frame = std::hint::black_box([7_u64; 40_000]);
            let frame_address = frame.as_ptr() as u64;
            assert!(base_address > frame_address + 300_000);
            [(); 2].map(|()| {
                let mut memory = StackMemory::new(std::process::id(), slot, frame_address);
                assert_eq!(memory.read(base_address), Some(0x1234));
                MAX_CALLS_PER_WALK - memory.remaining_calls
            })
        }
        let calls = std::thread::spawn(move || {
            let base = std::hint::black_box([0x1234_u64]);
            call_with_large_frame(slot, base.as_ptr() as u64)
        });
        assert_eq!(calls.join().unwrap(), [1, 0]);
        slot.state.set(State::Free);
    }
}
