//! Reads memory of this process that others may unmap: debug objects, list entries of LLVM, text ranges.
//!
//! `process_vm_readv(2)` of our own process copies it, and returns `EFAULT` where a plain load would kill the host.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;

use crate::{Address, AddressRange};

/// No compiler emits as much at once; a caller that says that there is more is mistaken, and the host has no memory for
/// a second one of that size.
const LARGEST: usize = 1 << 30;

/// Copies `range`, or says why it cannot be read.
pub fn copy(range: AddressRange) -> io::Result<Vec<u8>> {
    copy_in(std::process::id(), range)
}

/// The same, for a caller that has asked for the number of this process already.
pub(crate) fn copy_in(pid: u32, range: AddressRange) -> io::Result<Vec<u8>> {
    let size = usize::try_from(range.size()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: bytes take every bit pattern.
    unsafe { copy_array(pid, range.start(), size) }
}

/// Copies `count` plain structures that stand one behind the other from `address` on.
///
/// # Safety
/// As for [`copy_struct`].
pub unsafe fn copy_structs<T: Copy>(address: Address, count: usize) -> io::Result<Vec<T>> {
    // SAFETY: passed on.
    unsafe { copy_array(std::process::id(), address, count) }
}

/// # Safety
/// As for [`copy_struct`].
unsafe fn copy_array<T: Copy>(pid: u32, address: Address, count: usize) -> io::Result<Vec<T>> {
    if count.saturating_mul(size_of::<T>()) > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than a gigabyte"));
    }
    let mut values = Vec::<T>::new();
    values.try_reserve_exact(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let spare = &mut values.spare_capacity_mut()[..count];
    // SAFETY: the bytes of `spare`, which is borrowed mutably; `read` only writes to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast(), size_of_val(spare)) };
    read(pid, address, bytes)?;
    // SAFETY: `read` succeeded, so every byte of the first `count` values, which were reserved above, is initialised,
    // and the caller vouches for the bit pattern.
    unsafe { values.set_len(count) };
    Ok(values)
}

/// Copies a plain structure from `address`.
///
/// # Safety
/// `T` must be valid for every bit pattern (integers and raw pointers, no padding that matters).
pub unsafe fn copy_struct<T: Copy>(address: Address) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the memory of `value` is `size_of::<T>()` bytes, and bytes that may be uninitialised fit any content.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    read(std::process::id(), address, bytes)?;
    // SAFETY: `read` succeeded, so every byte is initialised, and the caller vouches for the bit pattern.
    Ok(unsafe { value.assume_init() })
}

/// Copies words from several places, by one system call where there are at most four: each place with how many.
pub fn copy_words<const COUNT: usize>(places: &[(Address, usize)]) -> io::Result<[usize; COUNT]> {
    const MOST: usize = 4;
    let mut words = [0_usize; COUNT];
    let wanted: usize = places.iter().map(|place| place.1).sum();
    if wanted != COUNT {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let iovec =
        |address: u64, count: usize| libc::iovec { iov_base: address as *mut _, iov_len: count * size_of::<usize>() };
    let local = iovec(words.as_mut_ptr() as u64, COUNT);
    let mut remote = [iovec(0, 0); MOST];
    remote.iter_mut().zip(places).for_each(|(remote, place)| *remote = iovec(place.0.0, place.1));
    let pid = std::process::id();
    if places.len() <= MOST {
        // SAFETY: `local` is writable memory of ours for its length; the kernel checks `remote`.
        let copied = unsafe {
            libc::process_vm_readv(pid as libc::pid_t, &local, 1, remote.as_ptr(), places.len() as libc::c_ulong, 0)
        };
        if copied == (COUNT * size_of::<usize>()) as isize {
            return Ok(words);
        }
    }
    // One by one, for the reason.
    let mut done = 0;
    for &(address, count) in places {
        let part = &mut words[done..done + count];
        // SAFETY: the bytes of `part`, which is borrowed mutably; integers take every bit pattern.
        let bytes = unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), size_of_val(part)) };
        read(pid, address, bytes)?;
        done += count;
    }
    Ok(words)
}

/// Writes a word where memory may be written, and fails with `EFAULT` where not, even if another thread changes that
/// meanwhile: the kernel stores the word, which it reads from us.
///
/// # Safety
/// As for a store: whatever is there is the caller's to change.
pub unsafe fn write_word(address: Address, value: usize) -> io::Result<()> {
    let from = Address(&raw const value as u64);
    // SAFETY: the caller's promise; the kernel checks the place.
    unsafe { read_to(std::process::id(), from, address.0 as *mut u8, size_of::<usize>()) }
}

fn read(pid: u32, address: Address, into: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    // SAFETY: writable memory of ours.
    unsafe { read_to(pid, address, into.as_mut_ptr().cast(), into.len()) }
}

/// # Safety
/// What is at `into`, if anything, must be the caller's to change.
unsafe fn read_to(pid: u32, address: Address, into: *mut u8, size: usize) -> io::Result<()> {
    let mut done = 0;
    while done < size {
        let part = |start: usize| libc::iovec { iov_base: (start + done) as *mut _, iov_len: size - done };
        let (local, remote) = (part(into as usize), part(address.0 as usize));
        // SAFETY: the caller's promise; the kernel checks both places and returns EFAULT.
        let copied = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match copied {
            1.. => done += copied as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let refused = io::Error::last_os_error();
                if !matches!(refused.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
                    return Err(refused);
                }
                // SAFETY: the caller's promise.
                return unsafe { read_file(address.0 + done as u64, into.wrapping_add(done), size - done) };
            }
        }
    }
    Ok(())
}

/// `/proc/self/mem`, where a seccomp filter refuses `process_vm_readv`.
///
/// # Safety
/// As for [`read_to`].
unsafe fn read_file(address: u64, into: *mut u8, size: usize) -> io::Result<()> {
    let memory = std::fs::File::open("/proc/self/mem")?;
    let mut done = 0;
    while done < size {
        let (at, place) = ((address + done as u64) as libc::off64_t, into.wrapping_add(done));
        // SAFETY: the caller's promise; the kernel checks both places.
        match unsafe { libc::pread64(memory.as_raw_fd(), place.cast(), size - done, at) } {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read @ 1.. => done += read as usize,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_written_where_that_is_allowed() {
        let page = 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let address = Address(mapped as u64);
        // SAFETY: that memory.
        let write = |value| unsafe { write_word(address, value) };
        write(0x1122_3344_5566_7788).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(mapped, page, libc::PROT_READ) }, 0);
        assert_eq!(write(1).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        // SAFETY: as above.
        unsafe {
            assert!(read_file(&raw const page as u64, mapped.cast(), 8).is_err());
            assert_eq!(mapped.cast::<usize>().read(), 0x1122_3344_5566_7788);
            let mut copy = 0_usize;
            read_file(mapped as u64, (&raw mut copy).cast(), 8).unwrap();
            assert_eq!(copy, 0x1122_3344_5566_7788);
            libc::munmap(mapped, page);
        }
        assert!(write(1).is_err());
    }

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_an_error() {
        let here = [1_u8, 2, 3];
        let range = |address, size| AddressRange::new(Address(address), size).unwrap();
        assert_eq!(copy(range(here.as_ptr() as u64, 3)).unwrap(), here);
        assert!(copy(range(16, 8)).is_err());
        // SAFETY: integers take every bit pattern.
        assert_eq!(unsafe { copy_struct::<[u8; 2]>(Address(here.as_ptr() as u64)) }.unwrap(), [1, 2]);
        let words = [1_u32, 2, 3];
        // SAFETY: as above.
        assert_eq!(unsafe { copy_structs::<u32>(Address(words.as_ptr() as u64), 3) }.unwrap(), words);
        // SAFETY: as above.
        assert!(unsafe { copy_structs::<u32>(Address(words.as_ptr() as u64), usize::MAX) }.is_err());
    }

    #[test]
    fn words_of_several_places_are_copied_together_or_not_at_all() {
        let (one, two) = ([1_usize, 2], [3_usize]);
        let at = |words: &[usize]| Address(words.as_ptr() as u64);
        assert_eq!(copy_words::<3>(&[(at(&two), 1), (at(&one), 2)]).unwrap(), [3, 1, 2]);
        let five = [(at(&one), 1); 5];
        assert_eq!(copy_words::<5>(&five).unwrap(), [1; 5]);
        assert!(copy_words::<2>(&[(at(&one), 1), (Address(16), 1)]).is_err());
        assert!(copy_words::<3>(&[(at(&one), 2)]).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no mappings without memory")]
    fn code_of_more_than_a_gigabyte_is_refused() {
        let (size, flags) = (LARGEST + 4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping, which nothing writes to and which is known nowhere else.
        let zeros = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(zeros, libc::MAP_FAILED);
        let range = |size| AddressRange::new(Address(zeros as u64), size).unwrap();
        assert!(copy(range(4096)).is_ok() && copy(range(size as u64)).is_err());
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(zeros, size) };
    }
}
