//! Reading memory that belongs to somebody else in this process, and may be gone.
//!
//! A debug object, a list entry of LLVM's or a text range is memory we do not own. `process_vm_readv(2)` on ourselves
//! copies it and answers `EFAULT` where a plain load would kill the host.

use std::io;
use std::mem::MaybeUninit;

use crate::{Address, AddressRange};

/// Copies `range`, or says why it cannot be read.
pub fn copy(range: AddressRange) -> io::Result<Vec<u8>> {
    let size = usize::try_from(range.size()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    read(range.start(), &mut bytes.spare_capacity_mut()[..size])?;
    // SAFETY: `read` succeeded, so the first `size` bytes, which were reserved above, are initialised.
    unsafe { bytes.set_len(size) };
    Ok(bytes)
}

/// Copies several ranges with one system call, or says why not all of them can be read.
pub fn copy_all(ranges: &[AddressRange]) -> io::Result<Vec<Vec<u8>>> {
    let mut copies = Vec::with_capacity(ranges.len());
    let (mut local, mut remote) = (Vec::with_capacity(ranges.len()), Vec::with_capacity(ranges.len()));
    for range in ranges {
        let size = usize::try_from(range.size()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        local.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size });
        remote.push(libc::iovec { iov_base: range.start().0 as usize as *mut _, iov_len: size });
        copies.push(bytes);
    }
    // SAFETY: getpid has no precondition.
    let pid = unsafe { libc::getpid() };
    let count = ranges.len() as libc::c_ulong;
    // SAFETY: every local part is memory of ours of that size; the kernel checks the others and answers EFAULT.
    let copied = unsafe { libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    let wanted: usize = local.iter().map(|part| part.iov_len).sum();
    if usize::try_from(copied) != Ok(wanted) {
        return ranges.iter().map(|&range| copy(range)).collect();
    }
    for (bytes, part) in copies.iter_mut().zip(&local) {
        // SAFETY: all parts were filled, and `iov_len` bytes were reserved for this one.
        unsafe { bytes.set_len(part.iov_len) };
    }
    Ok(copies)
}

/// Copies a plain structure from `address`.
///
/// # Safety
/// `T` must be valid for every bit pattern (integers and raw pointers, no padding that matters).
pub unsafe fn copy_struct<T: Copy>(address: Address) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the memory of `value` is `size_of::<T>()` bytes, and bytes that may be uninitialised fit any content.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    read(address, bytes)?;
    // SAFETY: `read` succeeded, so every byte is initialised, and the caller vouches for the bit pattern.
    Ok(unsafe { value.assume_init() })
}

fn read(address: Address, into: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: (address.0 as usize + done) as *mut _, iov_len: rest.len() };
        // SAFETY: getpid has no precondition.
        let pid = unsafe { libc::getpid() };
        // SAFETY: `local` is writable memory of ours for its length; the kernel checks `remote` and answers EFAULT.
        let copied = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match copied {
            1.. => done += copied as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return read_file(address.0 + done as u64, &mut into[done..], io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// `/proc/self/mem`, where a seccomp filter refuses `process_vm_readv`.
fn read_file(address: u64, into: &mut [MaybeUninit<u8>], refused: io::Error) -> io::Result<()> {
    if !matches!(refused.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return Err(refused);
    }
    let memory = std::fs::File::open("/proc/self/mem")?;
    into.fill(MaybeUninit::new(0));
    // SAFETY: every byte was initialised on the line above.
    let bytes = unsafe { &mut *(into as *mut [MaybeUninit<u8>] as *mut [u8]) };
    std::os::unix::fs::FileExt::read_exact_at(&memory, bytes, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_an_error() {
        let here = [1_u8, 2, 3];
        let range = |address, size| AddressRange::new(Address(address), size).unwrap();
        assert_eq!(copy(range(here.as_ptr() as u64, 3)).unwrap(), here);
        assert!(copy(range(16, 8)).is_err());
        let parts = [range(here.as_ptr() as u64, 2), range(here.as_ptr() as u64 + 1, 2)];
        assert_eq!(copy_all(&parts).unwrap(), [&here[..2], &here[1..]]);
        assert!(copy_all(&[parts[0], range(16, 8)]).is_err());
        // SAFETY: integers take every bit pattern.
        assert_eq!(unsafe { copy_struct::<[u8; 2]>(Address(here.as_ptr() as u64)) }.unwrap(), [1, 2]);
    }
}
