//! Files whose pages may be lost, because a server or its connection fails.

#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;

/// Returns true if the file is on a network file system (`statfs(2)`).
pub fn is_remote(file: &File) -> bool {
    const NETWORK_FILE_SYSTEMS: [u32; 8] = [
        0x6969,      // NFS_SUPER_MAGIC
        0xff53_4d42, // CIFS_SUPER_MAGIC
        0xfe53_4d42, // SMB2_SUPER_MAGIC
        0x517b,      // SMB_SUPER_MAGIC
        0x5346_414f, // AFS_SUPER_MAGIC
        0x00c3_6400, // CEPH_SUPER_MAGIC
        0x0bd0_0bd0, // LUSTRE_SUPER_MAGIC
        0x0102_1997, // V9FS_MAGIC
    ];
    let mut status = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and `status` is writable memory for the structure.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `statfs`, so the structure is valid even if the call has filled only part of
    // it.
    let status = unsafe { status.assume_init() };
    result == 0 && NETWORK_FILE_SYSTEMS.contains(&(status.f_type as u32))
}
