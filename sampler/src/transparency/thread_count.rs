//! Interposed `fopen`, which leaves the writer thread out of `/proc/self/stat`: Python 3.12 and newer read the number
//! of threads there, and warn at `os.fork` if there are several. With `-W error`, the warning is an exception.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use jitlisten::plumbing::HostStateGuard;

use crate::recording::current;
use crate::thread::scan;
use crate::transparency::next::interpose;

const STAT: &CStr = c"/proc/self/stat";
/// Index of the number of threads among the fields that follow the name.
const THREADS: usize = 17;
/// First version of Python that counts threads, as `PY_VERSION_HEX`.
const COUNTING_PYTHON: c_ulong = 0x030c_0000;

interpose! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, |call| open(path, call);
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, |call| open(path, call);
}

fn open(path: *const c_char, call: impl FnOnce() -> *mut libc::FILE) -> *mut libc::FILE {
    // SAFETY: the caller passes a string or null, and the comparison ends at the first difference.
    let is_stat = !path.is_null() && unsafe { libc::strcmp(path, STAT.as_ptr()) } == 0;
    let file = call();
    if is_stat && !file.is_null() {
        let _host_state = HostStateGuard::enter();
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: the file is open.
            let descriptor = unsafe { libc::fileno(file) };
            if is_counting_python() && has_writer() {
                replace_content(descriptor);
            }
        });
    }
    file
}

/// Returns true if this process has an interpreter that counts threads. Any other program may read the file for as long
/// as it likes, and expects new values each time.
fn is_counting_python() -> bool {
    // SAFETY: the name is a string.
    let version = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"Py_Version".as_ptr()) };
    // SAFETY: CPython defines `const unsigned long Py_Version`.
    !version.is_null() && unsafe { *version.cast::<c_ulong>() } >= COUNTING_PYTHON
}

fn has_writer() -> bool {
    current::own().is_some_and(|recording| scan::thread_exists(recording.pid, recording.writer.tid()))
}

/// Lets the descriptor, which has not been read yet, refer to a copy of the file with one thread less. Does nothing
/// on failure.
fn replace_content(descriptor: c_int) {
    let text = std::fs::read("/proc/self/stat").ok().and_then(|text| without_one_thread(&text));
    let Some(copy) = text.and_then(|text| file_in_memory(&text)) else { return };
    // SAFETY: both descriptors are open.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFD);
        let close_on_exec = if flags & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
        libc::dup3(copy.as_raw_fd(), descriptor, close_on_exec);
    }
}

/// Returns the text of `/proc/self/stat` with one thread less.
fn without_one_thread(text: &[u8]) -> Option<String> {
    let (name, fields) = std::str::from_utf8(text).ok()?.rsplit_once(") ")?;
    let mut fields: Vec<_> = fields.split(' ').map(str::to_owned).collect();
    let threads = fields.get_mut(THREADS)?;
    *threads = threads.parse::<u32>().ok()?.checked_sub(1).filter(|count| *count > 0)?.to_string();
    Some(format!("{name}) {}", fields.join(" ")))
}

/// Returns a file without a name that has this content, at its begin; `None` without memory or descriptors.
fn file_in_memory(text: &str) -> Option<File> {
    // SAFETY: the name is a string.
    let descriptor = unsafe { libc::memfd_create(c"stat".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: nothing else owns the new descriptor.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(text.as_bytes()).ok()?;
    file.rewind().ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn only_the_number_of_threads_changes() {
        let stat = |threads| {
            format!(
                "7 (a) b) S 1 7 7 0 -1 4194560 110 0 0 0 0 0 0 0 20 0 {threads} 0 7413 2 3 18446744073709551615 1\n"
            )
        };
        assert_eq!(without_one_thread(stat(3).as_bytes()), Some(stat(2)));
        assert_eq!(without_one_thread(stat(1).as_bytes()), None);
        assert_eq!(without_one_thread(b"7 (a) S 1"), None);
    }

    #[test]
    fn an_open_file_gets_other_content() {
        let mut file = File::open("/proc/self/stat").unwrap();
        replace_content(file.as_raw_fd());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&format!("{} (", std::process::id())), "{text}");
        let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(target.to_string_lossy().starts_with("/memfd:stat"), "{target:?}");
    }
}
