//! Exchanging the pages under running code.
//!
//! `mmap(MAP_FIXED)` over a mapping is one step for every other thread: the kernel holds the lock of the address space
//! from taking the old pages out to putting the new ones in, and a thread that faults in between waits for it. The
//! bytes are the same, so a thread that runs there sees nothing.
//!
//! One step, but not always one transaction: before Linux 6.12 a failure late in it can leave the hole. So what can
//! fail is tried before, elsewhere ([`can_execute`]); the bytes are kept; and after a failure they are looked for and
//! put back.

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
    let (size, protection) = (page_size() as usize, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: a new private mapping touches nothing that exists.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
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
/// been written to (`anon_vma` in `vma_dump_size`, `fs/coredump.c`). So `header` is written there, or one byte over
/// itself where there is none, as a debugger would do it; the mapping gets pages of its own by it. Some systems forbid
/// it (`proc_mem.force_override`); then the image file is needed.
pub(super) fn put_into_core(pages: AddressRange, header: &[u8]) -> io::Result<()> {
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    if !header.is_empty() && header.len() as u64 <= pages.size() {
        return memory.write_all_at(header, pages.start().0);
    }
    let byte = checked_read::copy(AddressRange::new(pages.start(), 1).unwrap_or_default())?;
    memory.write_all_at(&byte, pages.start().0)
}

/// Maps `file` from `offset` on over `pages`, where its bytes are what is in memory already: `before`, from
/// `pages.end() - before.len()` on. What lies in front of that has no owner.
///
/// # Safety
/// `pages` must be mapped private memory of this process, executable and not writable where `before` is, that its owner
/// does not unmap or protect during the call; the file must not be changed while it is mapped.
pub(super) unsafe fn exchange(
    pages: AddressRange,
    file: &File,
    offset: u64,
    before: &[u8],
) -> Result<(), NotExchanged> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let (start, size) = (pages.start().0 as *mut _, pages.size() as usize);
    // SAFETY: the caller vouches that the pages may be replaced by a file with the same bytes.
    let mapped = unsafe { libc::mmap(start, size, protection, flags, file.as_raw_fd(), offset as i64) };
    let error = (mapped == libc::MAP_FAILED).then(io::Error::last_os_error);
    // SAFETY: passed on.
    let put_back = unsafe { restore_if_lost(pages, before) };
    match error {
        Some(error) => Err(NotExchanged { error, put_back }),
        None if put_back => {
            let error = io::Error::other("the mapping differs from the file");
            Err(NotExchanged { error, put_back })
        }
        None => Ok(()),
    }
}

/// Why pages are as they were.
#[derive(Debug)]
pub(super) struct NotExchanged {
    pub(super) error: io::Error,
    /// Whether that took an effort.
    pub(super) put_back: bool,
}

/// Looks for `before` at the end of `pages`; where it is not, makes anonymous memory of them that has it, as LLVM had
/// it. Returns whether that was so.
///
/// # Safety
/// As for [`exchange`].
unsafe fn restore_if_lost(pages: AddressRange, before: &[u8]) -> bool {
    let code = AddressRange::new(Address(pages.end().0 - before.len() as u64), before.len() as u64).unwrap_or_default();
    if checked_read::copy(code).is_ok_and(|now| now == before) {
        return false;
    }
    if let Some(padding) =
        AddressRange::new(pages.start(), pages.size() - code.size()).filter(|padding| !padding.is_empty())
    {
        // SAFETY: the caller vouches that these pages are ours; nothing uses them.
        unsafe { empty(padding) };
    }
    // SAFETY: the caller vouches that the code was there, and is to be there.
    let _ = unsafe { put_anonymous(code, before) };
    true
}

/// Makes anonymous memory of pages that are mapped from an image, with their bytes and the same protection, in one
/// step; and of the header padding in front of them, which then is as it was when it was reserved.
///
/// # Safety
/// Both must be mapped from an image and have no other owner.
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
    let protected = unsafe { libc::mprotect(made, size, libc::PROT_READ | libc::PROT_EXEC) };
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

/// Maps nothing but zeros there.
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

    #[test]
    fn pages_come_from_the_file_and_go_back() {
        let (pages, code) = code();
        // SAFETY: the pages are the test's own, and the file is not changed.
        unsafe { exchange(pages, &file("exchange", CODE), 0, CODE) }.unwrap();
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
    fn a_file_with_other_bytes_does_not_stay() {
        let (pages, code) = code();
        // SAFETY: the pages are the test's own, and nothing runs there now.
        let refused = unsafe { exchange(pages, &file("other", &[0xcc; 4096]), 0, CODE) }.unwrap_err();
        assert!(refused.put_back);
        runs(code);
        assert!(!is_file(code) && !is_file(pages));
    }

    #[test]
    fn a_file_that_ends_early_does_not_stay() {
        let (pages, code) = code();
        // SAFETY: as above.
        let refused = unsafe { exchange(pages, &file("short", &[]), 0, CODE) }.unwrap_err();
        assert!(refused.put_back);
        runs(code);
    }

    #[test]
    fn a_hole_is_filled() {
        let (pages, code) = code();
        let (start, size) = (pages.start().0 as *mut _, pages.size() as usize);
        // A real hole could be filled by another test.
        // SAFETY: the test's own pages; this is as good as what a failing mmap may do.
        unsafe { libc::mmap(start, size, libc::PROT_NONE, ANONYMOUS | libc::MAP_FIXED, -1, 0) };
        assert!(checked_read::copy(code).is_err());
        // SAFETY: as above.
        assert!(unsafe { restore_if_lost(pages, CODE) });
        runs(code);
        // SAFETY: as above.
        assert!(!unsafe { restore_if_lost(pages, CODE) }, "nothing is lost");
    }

    #[test]
    fn what_is_refused_early_changes_nothing() {
        let (pages, code) = code();
        // SAFETY: an offset that is no multiple of a page is refused.
        let refused = unsafe { exchange(pages, &file("early", CODE), 1, CODE) }.unwrap_err();
        assert!(!refused.put_back);
        runs(code);
    }
}
