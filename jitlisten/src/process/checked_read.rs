//! Fault-free reads of memory that other code may unmap: debug objects, LLVM's list entries, text ranges.
//!
//! `process_vm_readv(2)` on our own process copies memory, and returns `EFAULT` where a plain load would crash the
//! host.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;

use crate::{Address, AddressRange};

/// Maximum size of a copy. No compiler emits an object of this size, so a larger size is a caller error. A second copy
/// of such an object would exhaust the host's memory.
const MAX_COPY_BYTES: usize = 1 << 30;

/// Copies `range`.
pub fn copy(range: AddressRange) -> io::Result<Vec<u8>> {
    copy_in(std::process::id(), range)
}

/// Copies `range`; for callers that already know the PID of this process. Looking it up costs a system call.
pub(crate) fn copy_in(pid: u32, range: AddressRange) -> io::Result<Vec<u8>> {
    let size = usize::try_from(range.size()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: every bit pattern is a valid `u8`.
    unsafe { copy_array(pid, range.start(), size) }
}

/// Copies an array of `count` plain structures at `address`.
///
/// # Safety
/// Same contract as [`copy_struct`].
pub unsafe fn copy_structs<T: Copy>(address: Address, count: usize) -> io::Result<Vec<T>> {
    // SAFETY: the caller upholds the same contract.
    unsafe { copy_array(std::process::id(), address, count) }
}

/// Copies an array of `count` values at `address` in process `pid`, which must be this process.
///
/// # Safety
/// Same contract as [`copy_struct`].
unsafe fn copy_array<T: Copy>(pid: u32, address: Address, count: usize) -> io::Result<Vec<T>> {
    if count.saturating_mul(size_of::<T>()) > MAX_COPY_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than a gigabyte"));
    }
    let mut values = Vec::<T>::new();
    values.try_reserve_exact(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let spare = &mut values.spare_capacity_mut()[..count];
    // SAFETY: the slice covers exactly the bytes of `spare`, which is borrowed mutably; `read` only writes to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast(), size_of_val(spare)) };
    read(pid, address, bytes)?;
    // SAFETY: `read` succeeded, so all bytes of the first `count` values, which were reserved above, are initialised.
    // The caller guarantees that every bit pattern is valid.
    unsafe { values.set_len(count) };
    Ok(values)
}

/// Copies a plain structure from `address`.
///
/// # Safety
/// Every bit pattern must be a valid `T` (integers and raw pointers, no padding that matters).
pub unsafe fn copy_struct<T: Copy>(address: Address) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has `size_of::<T>()` bytes of memory, and `MaybeUninit` bytes may hold anything.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    read(std::process::id(), address, bytes)?;
    // SAFETY: `read` succeeded, so every byte is initialised. The caller guarantees that every bit pattern is valid.
    Ok(unsafe { value.assume_init() })
}

/// Copies words from several addresses, each given with its word count. Takes one system call for up to four addresses.
pub fn copy_words<const COUNT: usize>(sources: &[(Address, usize)]) -> io::Result<[usize; COUNT]> {
    const MAX_IOVECS: usize = 4;
    let mut words = [0_usize; COUNT];
    let total_count: usize = sources.iter().map(|source| source.1).sum();
    if total_count != COUNT {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let iovec =
        |address: u64, count: usize| libc::iovec { iov_base: address as *mut _, iov_len: count * size_of::<usize>() };
    let local = iovec(words.as_mut_ptr() as u64, COUNT);
    let mut remote = [iovec(0, 0); MAX_IOVECS];
    remote.iter_mut().zip(sources).for_each(|(remote, source)| *remote = iovec(source.0.0, source.1));
    let pid = std::process::id();
    if sources.len() <= MAX_IOVECS {
        // SAFETY: `local` describes writable memory that we own; the kernel checks `remote`.
        let copied = unsafe {
            libc::process_vm_readv(pid as libc::pid_t, &local, 1, remote.as_ptr(), sources.len() as libc::c_ulong, 0)
        };
        if copied == (COUNT * size_of::<usize>()) as isize {
            return Ok(words);
        }
    }
    // The combined read failed or was incomplete. Read each address separately to get the error.
    let mut next_word = 0;
    for &(address, count) in sources {
        let part = &mut words[next_word..next_word + count];
        // SAFETY: the slice covers exactly the bytes of `part`, which is borrowed mutably. Every bit pattern is a valid
        // integer.
        let bytes = unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), size_of_val(part)) };
        read(pid, address, bytes)?;
        next_word += count;
    }
    Ok(words)
}

/// Writes a word, or fails with `EFAULT` if the memory is not writable. This is safe even if another thread changes the
/// protection concurrently, because the kernel performs the store by copying the word from our memory.
///
/// # Safety
/// Same contract as a plain store: the caller must be allowed to change the memory at `address`.
pub unsafe fn write_word(address: Address, value: usize) -> io::Result<()> {
    let value_address = Address(&raw const value as u64);
    // SAFETY: the caller upholds the contract of a store; the kernel checks the address.
    unsafe { read_to(std::process::id(), value_address, address.0 as *mut u8, size_of::<usize>()) }
}

fn read(pid: u32, address: Address, destination: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    // SAFETY: `destination` is a slice that we may write to.
    unsafe { read_to(pid, address, destination.as_mut_ptr().cast(), destination.len()) }
}

/// Copies `size` bytes from `address` in process `pid`, which must be this process, to `destination`.
///
/// # Safety
/// The caller must be allowed to change the memory at `destination`, if any is mapped there.
unsafe fn read_to(pid: u32, address: Address, destination: *mut u8, size: usize) -> io::Result<()> {
    let mut completed = 0;
    while completed < size {
        let remaining_iovec =
            |start: usize| libc::iovec { iov_base: (start + completed) as *mut _, iov_len: size - completed };
        let (local, remote) = (remaining_iovec(destination as usize), remaining_iovec(address.0 as usize));
        // SAFETY: the caller may change `destination`; the kernel checks both addresses and returns EFAULT.
        let copied = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match copied {
            1.. => completed += copied as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let error = io::Error::last_os_error();
                if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
                    return Err(error);
                }
                // SAFETY: the caller upholds the same contract.
                return unsafe {
                    read_file(address.0 + completed as u64, destination.wrapping_add(completed), size - completed)
                };
            }
        }
    }
    Ok(())
}

/// Fallback through `/proc/self/mem`, for seccomp filters that deny `process_vm_readv`.
///
/// # Safety
/// Same contract as [`read_to`].
unsafe fn read_file(address: u64, destination: *mut u8, size: usize) -> io::Result<()> {
    let memory = std::fs::File::open("/proc/self/mem")?;
    let mut completed = 0;
    while completed < size {
        let (offset, target) = ((address + completed as u64) as libc::off64_t, destination.wrapping_add(completed));
        // SAFETY: the caller may change `destination`; the kernel checks both addresses.
        match unsafe { libc::pread64(memory.as_raw_fd(), target.cast(), size - completed, offset) } {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read @ 1.. => completed += read as usize,
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
        // SAFETY: the call creates a new mapping.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let address = Address(mapped as u64);
        // SAFETY: `address` is the start of the mapping created above, which only this test uses.
        let write = |value| unsafe { write_word(address, value) };
        write(0x1122_3344_5566_7788).unwrap();
        // SAFETY: only this test uses the mapping.
        assert_eq!(unsafe { libc::mprotect(mapped, page, libc::PROT_READ) }, 0);
        assert_eq!(write(1).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        // SAFETY: only this test uses the mapping, and it is not used after `munmap`.
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
        let bytes = [1_u8, 2, 3];
        let range = |address, size| AddressRange::new(Address(address), size).unwrap();
        assert_eq!(copy(range(bytes.as_ptr() as u64, 3)).unwrap(), bytes);
        assert!(copy(range(16, 8)).is_err());
        // SAFETY: every bit pattern is a valid integer.
        assert_eq!(unsafe { copy_struct::<[u8; 2]>(Address(bytes.as_ptr() as u64)) }.unwrap(), [1, 2]);
        let words = [1_u32, 2, 3];
        // SAFETY: every bit pattern is a valid integer.
        assert_eq!(unsafe { copy_structs::<u32>(Address(words.as_ptr() as u64), 3) }.unwrap(), words);
        // SAFETY: every bit pattern is a valid integer.
        assert!(unsafe { copy_structs::<u32>(Address(words.as_ptr() as u64), usize::MAX) }.is_err());
    }

    #[test]
    fn words_of_several_places_are_copied_together_or_not_at_all() {
        let (pair, single) = ([1_usize, 2], [3_usize]);
        let address_of = |words: &[usize]| Address(words.as_ptr() as u64);
        assert_eq!(copy_words::<3>(&[(address_of(&single), 1), (address_of(&pair), 2)]).unwrap(), [3, 1, 2]);
        let five_sources = [(address_of(&pair), 1); 5];
        assert_eq!(copy_words::<5>(&five_sources).unwrap(), [1; 5]);
        assert!(copy_words::<2>(&[(address_of(&pair), 1), (Address(16), 1)]).is_err());
        assert!(copy_words::<3>(&[(address_of(&pair), 2)]).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no mappings without memory")]
    fn code_of_more_than_a_gigabyte_is_refused() {
        let (size, flags) = (MAX_COPY_BYTES + 4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: the call creates a new mapping, which is never written to.
        let zeros = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(zeros, libc::MAP_FAILED);
        let range = |size| AddressRange::new(Address(zeros as u64), size).unwrap();
        assert!(copy(range(4096)).is_ok() && copy(range(size as u64)).is_err());
        // SAFETY: only this test uses the mapping created above.
        unsafe { libc::munmap(zeros, size) };
    }
}
