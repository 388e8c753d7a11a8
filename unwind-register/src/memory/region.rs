//! Region for blobs: reserved address space that is made writable in steps.

use crate::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Release};

/// Reservation sizes to try, in this order. Inaccessible memory counts towards `RLIMIT_AS`, but not towards overcommit.
/// If the address space is limited, sizes above 1/[`ADDRESS_SPACE_FRACTION`] of the limit are skipped.
const RESERVATION_SIZES: [usize; 7] = [1 << 30, 256 << 20, 128 << 20, 64 << 20, 32 << 20, 16 << 20, 4 << 20];

/// Denominator of the largest fraction of a limited address space that may be reserved.
const ADDRESS_SPACE_FRACTION: usize = 48;

/// Growth increment of the writable part, in bytes.
const GROWTH_BYTES: usize = 1 << 20;

/// Address space for blobs; never unmapped.
pub(crate) struct Region {
    base: NonNull<u8>,
    size: usize,
    /// Length of the writable part at the start.
    writable: usize,
}

// SAFETY: the region is plain memory that belongs to no particular thread. It is changed only through `&mut self` or by
// atomic stores.
unsafe impl Send for Region {}

/// Returns the limit on address space, `RLIMIT_AS`.
fn address_space_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable, and unchanged on failure.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

impl Region {
    /// Reserves the address space.
    pub(crate) fn reserve() -> Result<Region, Error> {
        let max_size =
            (address_space_limit() / ADDRESS_SPACE_FRACTION).max(RESERVATION_SIZES[RESERVATION_SIZES.len() - 1]);
        for size in RESERVATION_SIZES.into_iter().filter(|&size| size <= max_size) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // Call the kernel directly: memory profilers interpose `mmap` and would attribute the region to the host.
            // SAFETY: a new anonymous mapping at an address chosen by the kernel does not affect existing memory.
            let base = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, size, libc::PROT_NONE, flags, -1, 0_usize) };
            if let (false, Some(base)) = (base == -1, NonNull::new(base as *mut u8)) {
                return Ok(Region { base, size, writable: 0 });
            }
        }
        Err(Error::OutOfMemory { wanted: RESERVATION_SIZES[RESERVATION_SIZES.len() - 1] })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the address that offsets in tables are relative to.
    pub(crate) fn base(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Makes the first `end` bytes writable.
    pub(crate) fn grow(&mut self, end: usize) -> Result<(), Error> {
        if end <= self.writable {
            return Ok(());
        }
        let length = (end - self.writable).next_multiple_of(GROWTH_BYTES).min(self.size - self.writable);
        // SAFETY: `writable <= size`, so the start is in (or at the end of) the mapping made by `reserve`.
        let start = unsafe { self.base.add(self.writable) };
        // SAFETY: the range is inside our mapping, which only this module accesses, and no permission is removed.
        let failed = unsafe { libc::mprotect(start.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE) } != 0;
        if failed || end > self.writable + length {
            return Err(Error::OutOfMemory { wanted: length });
        }
        self.writable += length;
        Ok(())
    }

    /// Copies `bytes` to `offset`, which the allocator returned.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.grow(offset + bytes.len())?;
        // SAFETY: `grow` made the destination writable, and no table points to it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        Ok(())
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.writable);
        // SAFETY: the range is in the writable part (checked), and the kernel or `write` has initialised it. Changes
        // require `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), length) }
    }

    /// Sets the length of the FDE at `offset` to 0, which readers treat as "no rules".
    pub(crate) fn clear_length(&mut self, offset: usize) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.writable);
        // SAFETY: the word is aligned and in the writable part (both checked). Concurrent readers are not Rust code.
        // They see the old or the new word, because aligned 32-bit stores do not tear.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }.store(0, Release);
    }
}
