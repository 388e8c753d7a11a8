//! Exchanging the pages under running code.
//!
//! `mmap(MAP_FIXED)` over a mapping is one step for every other thread: the kernel holds the lock of the address space
//! from taking the old pages out to putting the new ones in, and a thread that faults in between waits for it. The
//! bytes are the same, so a thread that runs there sees nothing.
//!
//! **The rule.** A thread that *writes* there would lose what it stores between our copy and our `mmap`, or the right
//! to store; no system call compares and exchanges. So pages are exchanged, or given back, only while nobody can write
//! to them ([`Images::fit`](super::images::Images)): they are private, anonymous (or ours) and not writable; no hooked
//! system call that could change that is under way, and none can begin, because each is announced under the session's
//! lock (`ledger/changes.rs`); and no other call is made, because each object in them was placed by a memory manager of
//! LLVM's, which our hooks hear, or its producer has promised to leave them alone from *finalized* to *freeing*, or
//! this thread is the only one. Where the process has `/proc/self/mem` open, the first of these three does not count.
//! All other pages have no image. `exchange_model.rs` tries every interleaving. A debugger promises nothing: the code
//! is compared once more right before the `mmap`, which leaves it a microsecond.
//!
//! `mmap` is one step, but not always one transaction: before Linux 6.12 a failure late in it can leave the hole. So
//! what can fail is tried before ([`can_execute`]); the bytes are kept, and put into the hole if it is still free.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr;

use crate::process::checked_read;
use crate::{Address, AddressRange};

/// The size of a page.
pub(super) fn page_size() -> u64 {
    // SAFETY: sysconf has no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Maps the first page of `file` executable, anywhere, for a moment: a file system mounted `noexec` and some security
/// modules refuse.
pub(super) fn can_execute(file: &File) -> io::Result<()> {
    let size = page_size() as usize;
    // SAFETY: a new private mapping touches nothing that exists.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, EXECUTABLE, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made, which is known nowhere else.
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

/// Makes the kernel put `pages` into core files. It leaves out what can be read from a file, unless the mapping has
/// been written to (`anon_vma` in `vma_dump_size`, `fs/coredump.c`). So `header` is written there, or the last byte
/// over itself where there is none, as a debugger would do it; the mapping gets pages of its own by it. Some systems
/// forbid it (`proc_mem.force_override`); then the image file is needed.
///
/// # Safety
/// As for [`exchange`]: no other thread may write to that byte between the read and the write.
pub(super) unsafe fn put_into_core(pages: AddressRange, header: &[u8]) -> io::Result<()> {
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    if !header.is_empty() && header.len() as u64 <= pages.size() {
        return memory.write_all_at(header, pages.start().0);
    }
    let last = Address(pages.end().0 - 1);
    let byte = checked_read::copy(AddressRange::new(last, 1).unwrap_or_default())?;
    memory.write_all_at(&byte, last.0)
}

/// Maps `file` from `offset` on over `pages`. It holds `bytes` there, which are those in memory, `code`, up to
/// `pages.end()`, except for header padding in front and unwind tables in zeros that nobody reads.
///
/// # Safety
/// `pages` must be private memory of this process, executable and not writable where `code` is. Nothing may write to
/// it, protect, unmap or replace it during the call; see the module's head. The file must not be changed while it is
/// mapped.
pub(super) unsafe fn exchange(
    pages: AddressRange,
    file: &File,
    offset: u64,
    bytes: &[u8],
    code: &[u8],
) -> Result<(), NotExchanged> {
    let untouched = |error| NotExchanged { error, put_back: false };
    has_bytes(file, offset, bytes).map_err(untouched)?;
    let place = AddressRange::new(Address(pages.end().0 - code.len() as u64), code.len() as u64).unwrap_or_default();
    // A debugger cannot promise anything.
    if !checked_read::copy(place).is_ok_and(|now| now == code) {
        return Err(untouched(io::Error::other("the code has changed")));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let (start, size) = (pages.start().0 as *mut _, pages.size() as usize);
    // SAFETY: the caller vouches that the pages may be replaced by a file with the same bytes.
    let mapped = unsafe { libc::mmap(start, size, EXECUTABLE, flags, file.as_raw_fd(), offset as i64) };
    if mapped != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let put_back = fill_hole(place, code);
    if let Some(padding) = AddressRange::new(pages.start(), pages.size() - place.size()).filter(|_| put_back) {
        claim(padding, WRITABLE);
    }
    Err(NotExchanged { error, put_back })
}

/// An exchange that failed and changed nothing.
#[derive(Debug)]
pub(super) struct NotExchanged {
    pub(super) error: io::Error,
    /// Whether that took an effort.
    pub(super) put_back: bool,
}

/// Returns whether the file can be mapped and holds `bytes` from `offset` on, tried elsewhere.
fn has_bytes(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, offset)?;
    if found == bytes { Ok(()) } else { Err(io::Error::other("the file differs from what was written")) }
}

/// Puts `code` back where a failed mmap has left a hole. Returns whether there was one. Where another mapping is,
/// nothing changes.
fn fill_hole(place: AddressRange, code: &[u8]) -> bool {
    // SAFETY: the place was claimed just now: only we know it.
    claim(place, libc::PROT_NONE) && unsafe { put_anonymous(place, code) }.is_ok()
}

/// Maps anonymous memory at `place` if nothing is there.
fn claim(place: AddressRange, protection: i32) -> bool {
    let (start, size) = (place.start().0 as *mut libc::c_void, place.size() as usize);
    if size == 0 {
        return false;
    }
    // SAFETY: NOREPLACE never touches a mapping that exists.
    let claimed = unsafe { libc::mmap(start, size, protection, ANONYMOUS | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if claimed != libc::MAP_FAILED && claimed != start {
        // A kernel before 4.17 takes the place for a hint.
        // SAFETY: the mapping made just now, which is known nowhere else.
        unsafe { libc::munmap(claimed, size) };
    }
    claimed == start
}

/// Makes anonymous memory of pages that are mapped from an image, with their bytes and the same protection, in one
/// step; and of the header padding in front of them, which then is as it was when it was reserved.
///
/// # Safety
/// Both must be mapped from an image and have no other owner. As for [`exchange`], nothing may change the pages during
/// the call.
pub(super) unsafe fn withdraw(pages: AddressRange, padding: Option<AddressRange>) -> io::Result<()> {
    let bytes = checked_read::copy(pages)?;
    // SAFETY: the pages hold `bytes`, copied just now, and the caller vouches that nothing else owns them.
    unsafe { put_anonymous(pages, &bytes) }?;
    if let Some(padding) = padding {
        // SAFETY: the caller vouches that these pages are ours; nothing uses them.
        unsafe { empty(padding) };
    }
    Ok(())
}

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const EXECUTABLE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Puts executable anonymous memory with `bytes` over `pages`. It is made elsewhere, so that a thread that runs there
/// sees the old pages or the new ones.
///
/// # Safety
/// The pages must hold `bytes`, or nothing, and have no other owner.
unsafe fn put_anonymous(pages: AddressRange, bytes: &[u8]) -> io::Result<()> {
    let size = bytes.len();
    // SAFETY: a new private mapping touches nothing that exists.
    let made = unsafe { libc::mmap(ptr::null_mut(), size, WRITABLE, ANONYMOUS, -1, 0) };
    if made == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: writable memory of that size was mapped just now.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), made.cast(), size) };
    // SAFETY: the mapping made above, which nothing else refers to yet.
    let protected = unsafe { libc::mprotect(made, size, EXECUTABLE) };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let target = pages.start().0 as *mut libc::c_void;
    if protected == 0 {
        // SAFETY: the caller vouches for the pages that this takes the place of.
        let moved = unsafe { libc::mremap(made, size, size, flags, target) };
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
    }
    let error = io::Error::last_os_error();
    // SAFETY: the memory made above; it was not moved.
    unsafe { libc::munmap(made, size) };
    Err(error)
}

/// Maps zeros at `pages`.
///
/// # Safety
/// The pages must be ours.
unsafe fn empty(pages: AddressRange) {
    let (start, size) = (pages.start().0 as *mut libc::c_void, pages.size() as usize);
    // SAFETY: the caller vouches that these pages are ours to replace.
    unsafe { libc::mmap(start, size, WRITABLE, ANONYMOUS | libc::MAP_FIXED, -1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const CODE: &[u8] = &[0xc3; 4096];
    #[cfg(target_arch = "aarch64")]
    const CODE: &[u8] = [[0xc0, 0x03, 0x5f, 0xd6]; 1024].as_flattened();

    /// Three anonymous pages, the last one executable, full of `ret`: padding in front, a page behind, code.
    fn code() -> (AddressRange, AddressRange) {
        let size = 3 * page_size() as usize;
        // SAFETY: a new private mapping touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, WRITABLE, ANONYMOUS, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let pages = AddressRange::new(Address(start as u64), size as u64).unwrap();
        let code = AddressRange::new(Address(pages.end().0 - 4096), 4096).unwrap();
        // SAFETY: the page was mapped just now.
        unsafe { ptr::copy_nonoverlapping(CODE.as_ptr(), code.start().0 as *mut u8, CODE.len()) };
        // SAFETY: the same page.
        unsafe { libc::mprotect(code.start().0 as *mut _, 4096, libc::PROT_READ | libc::PROT_EXEC) };
        (pages, code)
    }

    /// The page runs: it returns at once.
    fn runs(code: AddressRange) {
        // SAFETY: the page holds `ret`.
        let function: extern "C" fn() = unsafe { std::mem::transmute(code.start().0 as usize as *const ()) };
        function();
    }

    fn file(test: &str, code: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("jitlisten-pages-{test}-{}", std::process::id()));
        std::fs::write(&path, [&[0; 8192], code].concat()).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    fn is_file(range: AddressRange) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = u64::from_str_radix(rest.split_once(' ').unwrap().0, 16).unwrap();
            (u64::from_str_radix(start, 16).unwrap()..end).contains(&range.start().0)
        });
        line.unwrap().contains("(deleted)")
    }

    /// Maps the file over all three pages.
    fn exchange_all(pages: AddressRange, file: &File, offset: u64) -> Result<(), NotExchanged> {
        let bytes = [&[0; 8192], CODE].concat();
        // SAFETY: the pages are the test's own, and the file is not changed.
        unsafe { exchange(pages, file, offset, &bytes, CODE) }
    }

    #[test]
    fn pages_come_from_the_file_and_go_back() {
        let (pages, code) = code();
        exchange_all(pages, &file("exchange", CODE), 0).unwrap();
        runs(code);
        assert!(is_file(code) && is_file(pages));
        let padding = AddressRange::new(pages.start(), pages.size() - 4096);
        // SAFETY: both are mapped from the file just now.
        unsafe { withdraw(code, padding) }.unwrap();
        runs(code);
        assert_eq!(checked_read::copy(code).unwrap(), CODE);
        assert!(!is_file(code) && !is_file(pages));
    }

    #[test]
    fn a_file_with_other_bytes_or_too_few_is_refused() {
        let (pages, code) = code();
        for (test, bytes) in [("other", &[0xcc; 4096][..]), ("short", &[])] {
            let refused = exchange_all(pages, &file(test, bytes), 0).unwrap_err();
            assert!(!refused.put_back);
            runs(code);
            assert!(!is_file(code) && !is_file(pages));
        }
    }

    #[test]
    fn code_that_has_changed_stays() {
        let (pages, code) = code();
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[0x90], code.start().0 + 8).unwrap();
        assert!(!exchange_all(pages, &file("changed", CODE), 0).unwrap_err().put_back);
        assert!(!is_file(code) && checked_read::copy(code).unwrap()[8] == 0x90);
    }

    /// In a child, which has one thread: a hole of the test's process could be filled by another test.
    #[test]
    fn a_hole_is_filled_and_nothing_else() {
        let (_, code) = code();
        assert!(crate::process::in_child(|| {
            let is_nothing_filled = !fill_hole(code, CODE);
            // SAFETY: the test's own page.
            unsafe { libc::munmap(code.start().0 as *mut _, 4096) };
            let is_filled = fill_hole(code, CODE);
            runs(code);
            is_nothing_filled && is_filled && checked_read::copy(code).is_ok_and(|bytes| bytes == CODE)
        }));
    }

    #[test]
    fn what_is_refused_early_changes_nothing() {
        let (pages, code) = code();
        // An offset that is no multiple of a page is refused.
        let refused = exchange_all(pages, &file("early", CODE), 1).unwrap_err();
        assert!(!refused.put_back);
        runs(code);
    }
}
