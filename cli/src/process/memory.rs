//! Memory of another process: `process_vm_readv(2)` and `process_vm_writev(2)`. If a seccomp filter forbids reading,
//! `/proc/PID/mem` is read instead, which requires the same rights.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Maximum size of one read, larger than any debug object.
const MAX_READ_BYTES: usize = 256 << 20;

/// Reads `size` bytes at `address` of a process.
pub(crate) fn read(pid: u32, address: u64, size: usize) -> io::Result<Vec<u8>> {
    if size > MAX_READ_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: size };
    // SAFETY: the local iovec describes `bytes`, and the kernel checks the remote one.
    let read = unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        _ if read == size as isize => Ok(bytes),
        0.. => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                File::open(format!("/proc/{pid}/mem"))
                    .and_then(|memory| memory.read_exact_at(&mut bytes, address))
                    .map_err(|_| error)?;
                Ok(bytes)
            }
            error => Err(error),
        },
    }
}

/// Writes to memory that is writable for the process itself.
pub(crate) fn write(pid: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: the local iovec describes readable memory, and the kernel checks the remote one.
    let written = unsafe { libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    if written == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
