//! Existing files: untrusted paths from a recording or a process, and paths that the user chose.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::directory::permission_denied;

/// File systems whose file contents the kernel generates on read (`linux/magic.h`). A read may block, have side
/// effects, or consume data meant for another program (`/proc/kmsg`).
const PSEUDO_FILE_SYSTEMS: [u32; 13] = [
    0x9fa0,      // PROC_SUPER_MAGIC
    0x6265_6572, // SYSFS_MAGIC
    0x6462_6720, // DEBUGFS_MAGIC
    0x7472_6163, // TRACEFS_MAGIC
    0x7363_6673, // SECURITYFS_MAGIC
    0x0027_e0eb, // CGROUP_SUPER_MAGIC
    0x6367_7270, // CGROUP2_SUPER_MAGIC
    0xcafe_4a11, // BPF_FS_MAGIC
    0x6265_6570, // CONFIGFS_MAGIC
    0x6165_676c, // PSTOREFS_MAGIC
    0xde5e_81e4, // EFIVARFS_MAGIC
    0xf97c_ff8c, // SELINUX_MAGIC
    0x4249_4e4d, // BINFMTFS_MAGIC
];

/// Opens a regular file for reading. Refuses all other kinds without opening them, because opening a pipe blocks until
/// it has a writer, and opening a device may have side effects. Files in `/proc` and `/sys` are refused, too.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] for any other kind of file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    reopen_regular(retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))?)
}

/// Opens a regular file like [`open_regular`], but through a descriptor opened with `O_PATH`.
///
/// # Errors
/// Same as [`open_regular`].
pub fn reopen_regular(descriptor: impl AsFd) -> io::Result<File> {
    if !FileType::from_raw_mode(rustix::fs::fstat(&descriptor)?.st_mode).is_file() {
        return Err(permission_denied("not a regular file"));
    }
    if PSEUDO_FILE_SYSTEMS.contains(&(rustix::fs::fstatfs(&descriptor)?.f_type as u32)) {
        return Err(permission_denied("a file of the kernel's"));
    }
    // Opening this path opens the same file, even if the original path now names another one.
    let path = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, Mode::empty()))?.into())
}

/// Opens an existing file, pipe or device, and truncates it. Meant for a path that the user chose and that cannot be
/// replaced.
///
/// # Errors
/// If the file cannot be opened.
pub fn open_in_place(path: &Path) -> io::Result<File> {
    File::options().write(true).truncate(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_on_a_disk_are_opened() {
        let directory = std::env::temp_dir().join(format!("jitlisten-regular-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let (file, pipe, link) = (directory.join("file"), directory.join("pipe"), directory.join("link"));
        std::fs::write(&file, "x").unwrap();
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(
            open_regular(&file).is_ok()
                && open_regular(&link).is_ok()
                && open_regular(Path::new("/proc/self/exe")).is_ok()
        );
        let others =
            ["/proc/kmsg", "/proc/self/maps", "/sys/kernel/notes", "/dev/null", "/dev/tty", "/"].map(Path::new);
        for path in others.into_iter().chain([pipe.as_path()]).filter(|path| path.exists()) {
            let error = open_regular(path).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}: {error}", path.display());
        }
        assert_eq!(open_regular(&directory.join("none")).expect_err("missing").kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
