//! The region itself: reserved address space, made writable step by step.

use crate::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Release};

/// What is asked for, in order. Inaccessible memory is not counted against overcommit, but against `RLIMIT_AS`: where
/// that is limited, nothing is asked for that exceeds [`SHARE`] of it.
const SIZES: [usize; 7] = [1 << 30, 256 << 20, 128 << 20, 64 << 20, 32 << 20, 16 << 20, 4 << 20];

/// The part of a limited address space that is taken.
const SHARE: usize = 48;

/// How much is made writable at a time.
const STEP: usize = 1 << 20;

/// Address space for blobs; never unmapped.
pub(crate) struct Region {
    base: NonNull<u8>,
    size: usize,
    writable: usize,
}

// SAFETY: the region is plain memory that belongs to the process, not to a thread; changes to it go through `&mut self`
// or atomic stores.
unsafe impl Send for Region {}

/// What `RLIMIT_AS` allows.
fn address_space() -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writable memory for the result; it stays as it is where there is none.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

impl Region {
    /// Reserves the address space.
    pub(crate) fn reserve() -> Result<Region, Error> {
        let most = (address_space() / SHARE).max(SIZES[SIZES.len() - 1]);
        for size in SIZES.into_iter().filter(|&size| size <= most) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // The kernel is asked, not libc: memory profilers stand in for `mmap`, and would count it as the host's.
            // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
            let base = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, size, libc::PROT_NONE, flags, -1, 0_usize) };
            if let (false, Some(base)) = (base == -1, NonNull::new(base as *mut u8)) {
                return Ok(Region { base, size, writable: 0 });
            }
        }
        Err(Error::OutOfMemory { wanted: SIZES[SIZES.len() - 1] })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The address that distances in tables count from.
    pub(crate) fn base(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Makes the first `end` bytes writable.
    pub(crate) fn grow(&mut self, end: usize) -> Result<(), Error> {
        if end <= self.writable {
            return Ok(());
        }
        let length = (end - self.writable).next_multiple_of(STEP).min(self.size - self.writable);
        // SAFETY: `writable <= size`, so the start lies in (or at the end of) the mapping made by `reserve`.
        let start = unsafe { self.base.add(self.writable) };
        // SAFETY: the range lies inside that mapping, and only this module knows it; nothing loses access.
        let failed = unsafe { libc::mprotect(start.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE) } != 0;
        if failed || end > self.writable + length {
            return Err(Error::OutOfMemory { wanted: length });
        }
        self.writable += length;
        Ok(())
    }

    /// Copies `bytes` to `offset`, which `Places` gave out.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.grow(offset + bytes.len())?;
        // SAFETY: `grow` made everything up to the end of the copy writable, and no table points to it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        Ok(())
    }

    /// The blob of `length` bytes at `offset`.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.writable);
        // SAFETY: in the writable part (checked), initialised by the kernel or by `write`; it changes only by `&mut
        // self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), length) }
    }

    /// Gives the FDE at `offset` the length 0: from now on it is "no rules" to a reader that finds it.
    pub(crate) fn silence(&mut self, offset: usize) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.writable);
        // SAFETY: aligned and in the writable part (both checked); concurrent readers are outside of Rust, and see the
        // old or the new word, as aligned 32-bit stores are not torn.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }.store(0, Release);
    }
}
