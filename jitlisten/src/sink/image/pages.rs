//! Exchange of pages under running code.
//!
//! `mmap(MAP_FIXED)` over a mapping is atomic for all other threads, because the kernel holds the address-space lock
//! while it replaces the pages. A thread that faults meanwhile waits for that lock. The bytes stay the same, so code
//! that runs there is not disturbed.
//!
//! **The rule.** If a thread *wrote* to the pages during the exchange, it would lose its write permission, or the bytes
//! that it stores between our copy and our `mmap`. No system call compares and exchanges pages. Therefore pages are
//! exchanged or restored only while no thread can write to them
//! ([`Images::copy_if_exchangeable`](super::images::Images)):
//!
//! * The pages are private, anonymous (or mapped from our images) and not writable.
//! * No hooked system call that could change the pages is running, and none can start, because each is announced with
//!   the session locked (`ledger/changes.rs`).
//! * No other call changes the pages. Either all objects in them were placed by LLVM memory managers, whose calls are
//!   hooked; or the producer has promised to leave them alone from *finalized* to *freeing*; or this thread is the only
//!   one. If the process has `/proc/self/mem` open, only the last condition suffices.
//!
//! Pages that do not meet these conditions get no image. `exchange_model.rs` tries every interleaving. A debugger may
//! write at any time. Therefore we compare the code again right before the `mmap`, so only a window of about a
//! microsecond remains.
//!
//! `mmap` is atomic, but not always transactional: before Linux 6.12, a late failure can leave the range unmapped.
//! Therefore we first check that the file can be mapped as executable ([`can_execute`]). We also keep the bytes, and
//! restore them if the hole is still unmapped.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr;

use crate::process::checked_read;
use crate::{Address, AddressRange};

pub(crate) fn page_size() -> u64 {
    // SAFETY: sysconf has no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Maps the first page of `file` as executable, anywhere, and unmaps it. Fails on file systems mounted `noexec`, and
/// with some security modules.
pub(super) fn can_execute(file: &File) -> io::Result<()> {
    let size = page_size() as usize;
    // SAFETY: a new private mapping overlaps no existing one.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, EXECUTABLE, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was just made, and nothing else refers to it.
    unsafe { libc::munmap(mapped, size) };
    Ok(())
}

/// Also maps the first page of `file` as writable (a private copy that is never written to), and keeps it mapped.
/// valgrind reads the debug information of a file once it has seen both an executable and a writable mapping
/// (`di_notify_mmap`).
pub(super) fn show_to_valgrind(file: &File) {
    let (size, protection) = (page_size() as usize, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new private mapping overlaps no existing one. If it fails, valgrind shows no names.
    unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
}

/// Makes the kernel include `pages` in core files. The kernel omits pages that can be read from a file, unless the
/// mapping was written to (`anon_vma` in `vma_dump_size`, `fs/coredump.c`). Therefore we write `header` to the first
/// page as a debugger would, or the last byte over itself if there is no header. Some systems forbid such writes
/// (`proc_mem.force_override`); there, a reader of the core file needs the image file.
///
/// # Safety
/// As for [`exchange`]: no other thread may write to the last byte between the read and the write.
pub(super) unsafe fn include_in_core_dumps(pages: AddressRange, header: &[u8]) -> io::Result<()> {
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    if !header.is_empty() && header.len() as u64 <= pages.size() {
        return memory.write_all_at(header, pages.start().0);
    }
    let last_byte = Address(pages.end().0 - 1);
    let byte = checked_read::copy(AddressRange::new(last_byte, 1).unwrap_or_default())?;
    memory.write_all_at(&byte, last_byte.0)
}

/// Maps `file` at `offset` over `pages`. `bytes` is the content of the file there, and `code` that of the memory up to
/// `pages.end()`. Both must be equal, except for header padding before the code, and unwind tables in unused zeros.
///
/// # Safety
/// `pages` must be private memory of this process, and executable and not writable where `code` is. During the call,
/// nothing may write to, protect, unmap or replace this memory; see the module documentation. The file must not change
/// while it is mapped.
pub(super) unsafe fn exchange(
    pages: AddressRange,
    file: &File,
    offset: u64,
    bytes: &[u8],
    code: &[u8],
) -> Result<(), ExchangeError> {
    let unchanged = |error| ExchangeError { error, is_restored: false };
    check_file_bytes(file, offset, bytes).map_err(unchanged)?;
    let code_pages =
        AddressRange::new(Address(pages.end().0 - code.len() as u64), code.len() as u64).unwrap_or_default();
    // A debugger may have written to the pages since they were copied.
    if !checked_read::copy(code_pages).is_ok_and(|current| current == code) {
        return Err(unchanged(io::Error::other("the code has changed")));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let (start, size) = (pages.start().0 as *mut _, pages.size() as usize);
    // SAFETY: the caller guarantees that the pages may be replaced by a file with the same bytes.
    let mapped = unsafe { libc::mmap(start, size, EXECUTABLE, flags, file.as_raw_fd(), offset as i64) };
    if mapped != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let is_restored = fill_hole(code_pages, code);
    if let Some(padding) = AddressRange::new(pages.start(), pages.size() - code_pages.size()).filter(|_| is_restored) {
        map_if_free(padding, WRITABLE);
    }
    Err(ExchangeError { error, is_restored })
}

/// Error of an exchange. The memory is the same as before the exchange.
#[derive(Debug)]
pub(super) struct ExchangeError {
    pub(super) error: io::Error,
    /// True if the failed `mmap` left a hole, which was then filled.
    pub(super) is_restored: bool,
}

/// Returns an error unless the file has `bytes` at `offset`.
fn check_file_bytes(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut content = vec![0; bytes.len()];
    file.read_exact_at(&mut content, offset)?;
    if content == bytes { Ok(()) } else { Err(io::Error::other("the file differs from what was written")) }
}

/// Maps `code` again if a failed `mmap` has left a hole. Returns true if a hole was filled. Never replaces another
/// mapping.
fn fill_hole(range: AddressRange, code: &[u8]) -> bool {
    // SAFETY: `map_if_free` has just reserved the pages, so nothing else refers to them.
    map_if_free(range, libc::PROT_NONE) && unsafe { replace_with_anonymous(range, code) }.is_ok()
}

/// Maps anonymous memory at `range` if it is free.
fn map_if_free(range: AddressRange, protection: i32) -> bool {
    let (start, size) = (range.start().0 as *mut libc::c_void, range.size() as usize);
    if size == 0 {
        return false;
    }
    // SAFETY: `MAP_FIXED_NOREPLACE` never touches an existing mapping.
    let mapped = unsafe { libc::mmap(start, size, protection, ANONYMOUS | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if mapped != libc::MAP_FAILED && mapped != start {
        // Kernels before 4.17 treat the address as a hint.
        // SAFETY: the mapping was just made, and nothing else refers to it.
        unsafe { libc::munmap(mapped, size) };
    }
    mapped == start
}

/// Replaces image pages with anonymous memory that has the same bytes and protection, in one atomic step. The header
/// padding before the pages is zeroed again.
///
/// # Safety
/// `pages` and `padding` must be mapped from an image and have no other owner. As for [`exchange`], nothing may change
/// the pages during the call.
pub(super) unsafe fn withdraw(pages: AddressRange, padding: Option<AddressRange>) -> io::Result<()> {
    let bytes = checked_read::copy(pages)?;
    // SAFETY: the pages contain the bytes just copied, and the caller guarantees that nothing else owns them.
    unsafe { replace_with_anonymous(pages, &bytes) }?;
    if let Some(padding) = padding {
        // SAFETY: the caller guarantees that the padding belongs to us; nothing uses it.
        unsafe { map_zeros(padding) };
    }
    Ok(())
}

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const EXECUTABLE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Replaces `pages` with executable anonymous memory that contains `bytes`. The new memory is prepared elsewhere and
/// then moved into place, so that a running thread sees either the old pages or the new ones.
///
/// # Safety
/// The pages must have the content `bytes`, or be reserved and unused. They must have no other owner.
unsafe fn replace_with_anonymous(pages: AddressRange, bytes: &[u8]) -> io::Result<()> {
    let size = bytes.len();
    // SAFETY: a new private mapping overlaps no existing one.
    let copy = unsafe { libc::mmap(ptr::null_mut(), size, WRITABLE, ANONYMOUS, -1, 0) };
    if copy == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was just mapped as writable memory of that size.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), size) };
    // SAFETY: the mapping was made above, and nothing else refers to it yet.
    let protected = unsafe { libc::mprotect(copy, size, EXECUTABLE) };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let target_addr = pages.start().0 as *mut libc::c_void;
    if protected == 0 {
        // SAFETY: the caller guarantees that the pages may be replaced.
        let moved = unsafe { libc::mremap(copy, size, size, flags, target_addr) };
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
    }
    let error = io::Error::last_os_error();
    // SAFETY: the memory was mapped above and was not moved.
    unsafe { libc::munmap(copy, size) };
    Err(error)
}

/// Replaces `pages` with zeros.
///
/// # Safety
/// The pages must belong to us.
unsafe fn map_zeros(pages: AddressRange) {
    let (start, size) = (pages.start().0 as *mut libc::c_void, pages.size() as usize);
    // SAFETY: the caller guarantees that these pages are ours to replace.
    unsafe { libc::mmap(start, size, WRITABLE, ANONYMOUS | libc::MAP_FIXED, -1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const CODE: &[u8] = &[0xc3; 4096];
    #[cfg(target_arch = "aarch64")]
    const CODE: &[u8] = [[0xc0, 0x03, 0x5f, 0xd6]; 1024].as_flattened();

    /// Maps three anonymous pages: two of padding, and an executable page full of `ret`. Returns the range of all
    /// three, and that of the executable page.
    fn code() -> (AddressRange, AddressRange) {
        let size = 3 * page_size() as usize;
        // SAFETY: a new private mapping overlaps no existing one.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, WRITABLE, ANONYMOUS, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let pages = AddressRange::new(Address(start as u64), size as u64).unwrap();
        let code = AddressRange::new(Address(pages.end().0 - 4096), 4096).unwrap();
        // SAFETY: the page was just mapped.
        unsafe { ptr::copy_nonoverlapping(CODE.as_ptr(), code.start().0 as *mut u8, CODE.len()) };
        // SAFETY: the page was just mapped.
        unsafe { libc::mprotect(code.start().0 as *mut _, 4096, libc::PROT_READ | libc::PROT_EXEC) };
        (pages, code)
    }

    /// Executes the code page, which returns immediately.
    fn run_page(code: AddressRange) {
        // SAFETY: the page is full of `ret`.
        let function: extern "C" fn() = unsafe { std::mem::transmute(code.start().0 as usize as *const ()) };
        function();
    }

    fn file_with_code(test: &str, code: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("jitlisten-pages-{test}-{}", std::process::id()));
        std::fs::write(&path, [&[0; 8192], code].concat()).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    fn is_mapped_from_file(range: AddressRange) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = u64::from_str_radix(rest.split_once(' ').unwrap().0, 16).unwrap();
            (u64::from_str_radix(start, 16).unwrap()..end).contains(&range.start().0)
        });
        line.unwrap().contains("(deleted)")
    }

    /// Maps the file over all three pages.
    fn exchange_all(pages: AddressRange, file: &File, offset: u64) -> Result<(), ExchangeError> {
        let bytes = [&[0; 8192], CODE].concat();
        // SAFETY: the pages belong to the test, and the file is not changed.
        unsafe { exchange(pages, file, offset, &bytes, CODE) }
    }

    #[test]
    fn pages_are_exchanged_and_withdrawn() {
        let (pages, code) = code();
        exchange_all(pages, &file_with_code("exchange", CODE), 0).unwrap();
        run_page(code);
        assert!(is_mapped_from_file(code) && is_mapped_from_file(pages));
        let padding = AddressRange::new(pages.start(), pages.size() - 4096);
        // SAFETY: the pages and the padding were just mapped from the file.
        unsafe { withdraw(code, padding) }.unwrap();
        run_page(code);
        assert_eq!(checked_read::copy(code).unwrap(), CODE);
        assert!(!is_mapped_from_file(code) && !is_mapped_from_file(pages));
    }

    #[test]
    fn a_file_with_different_or_missing_bytes_is_rejected() {
        let (pages, code) = code();
        for (test, bytes) in [("other", &[0xcc; 4096][..]), ("short", &[])] {
            let error = exchange_all(pages, &file_with_code(test, bytes), 0).unwrap_err();
            assert!(!error.is_restored);
            run_page(code);
            assert!(!is_mapped_from_file(code) && !is_mapped_from_file(pages));
        }
    }

    #[test]
    fn changed_code_is_not_replaced() {
        let (pages, code) = code();
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[0x90], code.start().0 + 8).unwrap();
        assert!(!exchange_all(pages, &file_with_code("changed", CODE), 0).unwrap_err().is_restored);
        assert!(!is_mapped_from_file(code) && checked_read::copy(code).unwrap()[8] == 0x90);
    }

    /// Runs in a child process with a single thread, because another test in this process could fill the hole.
    #[test]
    fn only_a_hole_is_filled() {
        let (_, code) = code();
        assert!(crate::process::in_child(|| {
            let nothing_was_filled = !fill_hole(code, CODE);
            // SAFETY: the page belongs to the test.
            unsafe { libc::munmap(code.start().0 as *mut _, 4096) };
            let hole_was_filled = fill_hole(code, CODE);
            run_page(code);
            nothing_was_filled && hole_was_filled && checked_read::copy(code).is_ok_and(|bytes| bytes == CODE)
        }));
    }

    #[test]
    fn a_rejected_exchange_changes_nothing() {
        let (pages, code) = code();
        // The kernel rejects an offset that is not a multiple of the page size.
        let error = exchange_all(pages, &file_with_code("early", CODE), 1).unwrap_err();
        assert!(!error.is_restored);
        run_page(code);
    }
}
