//! Interposed `fopen`, which leaves the writer thread out of `/proc/self/stat`: Python 3.12 and newer read the number of
//! threads there, and warn at `os.fork` if there are several. With `-W error`, the warning is an exception.

use std::ffi::{CStr, c_char};

use jitlisten::plumbing::HostStateGuard;

use crate::recording::current;
use crate::thread::scan;
use crate::transparency::next::interpose;

const STAT: &CStr = c"/proc/self/stat";
/// Index of the number of threads among the fields that follow the name.
const THREADS: usize = 17;

interpose! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, |call| open(path, call);
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, |call| open(path, call);
}

fn open(path: *const c_char, call: impl FnOnce() -> *mut libc::FILE) -> *mut libc::FILE {
    // SAFETY: the caller passes a string or null, and the comparison ends at the first difference.
    let is_stat = !path.is_null() && unsafe { libc::strcmp(path, STAT.as_ptr()) } == 0;
    let file = call();
    if !is_stat || file.is_null() || !has_writer() {
        return file;
    }
    let _host_state = HostStateGuard::enter();
    let mut text = [0; 1024];
    // SAFETY: the file is open, and belongs to this call alone.
    let length = unsafe {
        let length = libc::fread(text.as_mut_ptr().cast(), 1, text.len(), file);
        libc::rewind(file);
        length
    };
    let changed = text.get(..length).and_then(without_one_thread).and_then(|text| file_in_memory(&text));
    let Some(changed) = changed else { return file };
    // SAFETY: the program has not seen this file.
    unsafe { libc::fclose(file) };
    changed
}

fn has_writer() -> bool {
    current::own().is_some_and(|recording| scan::thread_exists(recording.pid, recording.writer.tid()))
}

/// Returns the text of `/proc/self/stat` with one thread less.
fn without_one_thread(text: &[u8]) -> Option<String> {
    let (name, fields) = std::str::from_utf8(text).ok()?.rsplit_once(") ")?;
    let mut fields: Vec<_> = fields.split(' ').map(str::to_owned).collect();
    let threads = fields.get_mut(THREADS)?;
    *threads = threads.parse::<u32>().ok()?.checked_sub(1).filter(|count| *count > 0)?.to_string();
    Some(format!("{name}) {}", fields.join(" ")))
}

/// Returns a file with this content, at its begin; `None` without memory.
fn file_in_memory(text: &str) -> Option<*mut libc::FILE> {
    // SAFETY: libc allocates the memory of the file, and frees it when the file is closed.
    let file = unsafe { libc::fmemopen(std::ptr::null_mut(), text.len() + 1, c"w+".as_ptr()) };
    if file.is_null() {
        return None;
    }
    // SAFETY: the file is open, and has space for the text.
    unsafe {
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), file);
        libc::rewind(file);
    }
    Some(file)
}

#[cfg(test)]
mod tests {
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
    fn a_file_in_memory_reads_like_any_other() {
        let file = file_in_memory("one two").unwrap();
        let mut text = [0; 32];
        // SAFETY: the file is open, and the buffer is large enough.
        let length = unsafe { libc::fread(text.as_mut_ptr().cast(), 1, text.len(), file) };
        assert_eq!(&text[..length], b"one two");
        // SAFETY: the file is open.
        unsafe { libc::fclose(file) };
    }
}
