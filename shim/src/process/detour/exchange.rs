//! Replacement of code that another core may be fetching, for architectures that do not allow overwriting it.
//!
//! ```text
//!   a second private mapping of the same page of the file:   rw-   the current bytes, with the change
//!                                                            r-x   (the kernel synchronises the caches)
//!   mremap onto the old page:                                one step, under the lock of the address space
//! ```
//! A core sees either the old page or the new one, and neither is modified while it is executable. The new page has the
//! same file and offset as the old one, so `/proc/PID/maps` still shows the library to tools that read it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::ptr;

use jitlisten::Address;
use jitlisten::plumbing::MapsLine;

use super::arch::flush_instructions;
use super::write::page_size;

/// Replaces `bytes` at `address`. All of them must be within one page of code that is privately mapped from a file.
pub(super) fn exchange(address: usize, bytes: &[u8]) -> io::Result<()> {
    let (size, page) = (page_size(), address & !(page_size() - 1));
    if address + bytes.len() > page + size {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut copy = PageCopy::map(&FileMapping::find(page)?, page, size)?;
    copy.change(address - page, bytes);
    copy.make_executable()?;
    copy.move_onto(page)
}

/// The file mapping that contains a page.
#[derive(Debug)]
struct FileMapping {
    path: PathBuf,
    device: (u32, u32),
    inode: u64,
    /// Offset of the page in the file.
    offset: u64,
}

impl FileMapping {
    fn find(page: usize) -> io::Result<FileMapping> {
        let maps = fs::read("/proc/self/maps")?;
        let mapping = MapsLine::parse_all(&maps).find_map(|line| FileMapping::parse(&line, page));
        mapping.ok_or_else(|| io::Error::other("not code that is mapped privately from a file"))
    }

    /// Returns the mapping if `line` contains `page` and describes code that is privately mapped from a file.
    fn parse(line: &MapsLine<'_>, page: usize) -> Option<FileMapping> {
        let is_private_code =
            line.range.contains(Address(page as u64)) && line.permissions == *b"r-xp" && line.inode != 0;
        is_private_code.then(|| FileMapping {
            path: PathBuf::from(OsStr::from_bytes(line.path)),
            device: line.device,
            inode: line.inode,
            offset: line.offset + (page as u64 - line.range.start().0),
        })
    }

    /// Opens the file, provided that it is still the mapped one.
    fn open(&self) -> io::Result<File> {
        let file = File::open(&self.path)?;
        let metadata = file.metadata()?;
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        // Btrfs and overlayfs report one device number in `maps` and another one to `stat`.
        match metadata.ino() == self.inode && (device == self.device || self.device.0 == 0) {
            true => Ok(file),
            false => Err(io::Error::other(format!("{} is not the file that is mapped", self.path.display()))),
        }
    }
}

/// A private copy of one page, unmapped on drop unless it was moved.
struct PageCopy {
    page: *mut libc::c_void,
    size: usize,
}

impl PageCopy {
    /// Maps the page of the file again, and copies the current contents of memory into the new mapping.
    fn map(mapping: &FileMapping, page: usize, size: usize) -> io::Result<PageCopy> {
        let file = mapping.open()?;
        let offset = libc::off_t::try_from(mapping.offset).map_err(io::Error::other)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: the kernel chooses a free address for the mapping.
        let pointer = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, file.as_raw_fd(), offset) };
        if pointer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let copy = PageCopy { page: pointer, size };
        // Memory may differ from the file, because a debugger or another tool may have changed the page, as we do.
        // SAFETY: the two pages are distinct; the old one is readable, the new one writable.
        unsafe { ptr::copy_nonoverlapping(page as *const u8, pointer.cast(), size) };
        Ok(copy)
    }

    fn change(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller has checked that the bytes are within the page, which is writable and used by nothing
        // else.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.page.cast::<u8>().add(offset), bytes.len()) };
    }

    fn make_executable(&mut self) -> io::Result<()> {
        // SAFETY: nothing else uses the page yet.
        if unsafe { libc::mprotect(self.page, self.size, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        flush_instructions(self.page as usize, self.size);
        Ok(())
    }

    /// Moves the copy to the address `page`, where it replaces the existing mapping.
    fn move_onto(self, page: usize) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: in one step, the copy replaces a page that contains the same code. The kernel checks that the move is
        // possible before it unmaps anything. A thread that executes the page meanwhile faults and waits.
        let moved = unsafe { libc::mremap(self.page, self.size, self.size, flags, page as *mut libc::c_void) };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for PageCopy {
    fn drop(&mut self) {
        // SAFETY: the page is our own mapping, and nothing refers to it.
        unsafe { libc::munmap(self.page, self.size) };
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn accepts_only_private_file_mappings_of_code() {
        let text = "7f0000001000-7f0000005000 r-xp 00002000 fe:01 1234                       /usr/lib/a b.so";
        let parse = |text: &str, page| FileMapping::parse(&MapsLine::parse(text.as_bytes())?, page);
        let mapping = parse(text, 0x7f00_0000_3000).expect("the page is there");
        assert_eq!((mapping.path.as_path(), mapping.offset), (Path::new("/usr/lib/a b.so"), 0x4000));
        assert!(parse(text, 0x7f00_0000_5000).is_none(), "behind the end");
        for other in [text.replace("r-xp", "r-xs"), text.replace("r-xp", "rwxp"), text.replace("1234", "0")] {
            assert!(parse(&other, 0x7f00_0000_3000).is_none(), "{other}");
        }
    }

    /// Changes the second of two pages of code and checks that it remains the second page of its file.
    #[test]
    fn exchanged_page_keeps_its_file_and_offset() {
        let size = page_size();
        let path = std::env::temp_dir().join(format!("jitlisten-exchange-{}", std::process::id()));
        fs::write(&path, vec![7_u8; 2 * size]).expect("a file");
        let file = File::open(&path).expect("the file");
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the kernel chooses a free address for the mapping.
        let code = unsafe { libc::mmap(ptr::null_mut(), 2 * size, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(code, libc::MAP_FAILED);
        let address = code as usize + size + 8;
        exchange(address, &[1, 2, 3, 4]).expect("exchanged");
        // SAFETY: the pages are mapped and readable.
        let bytes = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), 2 * size) };
        assert!(bytes[..size + 8].iter().chain(&bytes[size + 12..]).all(|&byte| byte == 7));
        assert_eq!(bytes[size + 8..size + 12], [1, 2, 3, 4]);
        let mapping = FileMapping::find(code as usize + size).expect("still code of a file");
        assert_eq!((mapping.path.as_path(), mapping.offset), (path.as_path(), size as u64));

        exchange(address + 4, &[5]).expect("exchanged again");
        assert_eq!(bytes[size + 8..size + 13], [1, 2, 3, 4, 5], "the first change is kept");
        assert!(exchange(code as usize + 2 * size - 1, &[0, 0]).is_err(), "over the end of the page");
        fs::remove_file(&path).expect("the file is there");
        assert!(exchange(address, &[0]).is_err(), "the file is not there any more");
        assert_eq!(bytes[size + 8], 1);
        // SAFETY: nothing refers to the mapping any longer.
        unsafe { libc::munmap(code, 2 * size) };
    }
}
