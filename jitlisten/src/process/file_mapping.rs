//! Read-only mapping of a part of a file. Only the pages that are read take memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

/// Alignment of file offsets, for all page sizes.
const OFFSET_ALIGNMENT: u64 = 1 << 16;

/// A private mapping of bytes of a file.
#[derive(Debug)]
pub struct FileMapping {
    start: NonNull<u8>,
    mapped_size: usize,
    /// Position of the first requested byte, which need not begin a page.
    skipped: usize,
}

// SAFETY: the mapping is read-only, and only its owner unmaps it.
unsafe impl Send for FileMapping {}
// SAFETY: the mapping is read-only, so threads may read it concurrently.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `size` bytes at `offset`; the whole range must be in the file.
    pub fn new(file: &File, offset: u64, size: u64) -> io::Result<FileMapping> {
        let skipped = offset % OFFSET_ALIGNMENT;
        if offset.checked_add(size).is_none_or(|end| end > file.metadata().map_or(0, |metadata| metadata.len())) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mapped_size = usize::try_from(skipped + size).map_err(io::Error::other)?;
        let (flags, start) = (libc::MAP_PRIVATE, (offset - skipped) as libc::off_t);
        // SAFETY: creating a private read-only mapping at an address chosen by the kernel does not affect existing
        // memory.
        let result =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_size, libc::PROT_READ, flags, file.as_raw_fd(), start) };
        match NonNull::new(result.cast()) {
            Some(start) if result != libc::MAP_FAILED => {
                Ok(FileMapping { start, mapped_size, skipped: skipped as usize })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The requested bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range stays mapped for reading until this value is dropped. Truncating the file would raise
        // SIGBUS, but libraries are replaced by renaming, and the loader's own mapping of the file would fail as well.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.skipped), self.mapped_size - self.skipped) }
    }

    /// Lets the kernel take the memory back. The bytes are read from the file again when they are used.
    pub fn release_pages(&self) {
        self.advise(libc::MADV_DONTNEED);
    }

    /// Starts to read the bytes into the kernel's cache, so that a later reader need not wait for the disk.
    pub fn read_ahead(&self) {
        self.advise(libc::MADV_WILLNEED);
    }

    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the mapping is our own and never written, so neither piece of advice changes its bytes.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.mapped_size, advice) };
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped_size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_release_of_their_pages() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let content = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let size = content.len() as u64;
        for (offset, length) in [(0, size), (1, 100), (70_001, 70_001), (size - 1, 1)] {
            let mapping = FileMapping::new(&file, offset, length).unwrap();
            mapping.read_ahead();
            for _ in 0..2 {
                assert_eq!(mapping.bytes(), &content[offset as usize..][..length as usize]);
                mapping.release_pages();
            }
        }
        assert!(FileMapping::new(&file, size - 1, 2).is_err());
        assert!(FileMapping::new(&file, u64::MAX, 2).is_err());
        assert!(FileMapping::new(&file, 0, 0).is_err());
    }
}
