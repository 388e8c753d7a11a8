//! `backtrace_symbols(3)`: glibc calls an internal function of the loader, so it writes only addresses for compiled
//! frames. We replace the text of these frames, and keep its text for the others.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::mem;
use std::ptr;

use jitlisten::plumbing::keeping_errno;

use super::real::{BACKTRACE_SYMBOLS, BACKTRACE_SYMBOLS_FD, Text, real, with_name};

/// The most that is written of one frame; what is longer is cut.
const LONGEST: usize = 1024;

type Symbols = unsafe extern "C-unwind" fn(*const *mut c_void, c_int) -> *mut *mut c_char;
type SymbolsFd = unsafe extern "C-unwind" fn(*const *mut c_void, c_int, c_int);

/// One line, without an allocation.
struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

/// `file(function+0x12) [0x7f0000001012]`, as glibc writes it (without the space to a file); `None` for what is not
/// ours.
fn line(address: *mut c_void, space: &str) -> Option<Line> {
    with_name(address as u64, |name, path, offset| {
        let mut line = Line { bytes: [0; LONGEST], length: 0 };
        let mut left = &mut line.bytes[..];
        let path = path.map_or(&b""[..], CStr::to_bytes);
        let name = name.map_or(&b""[..], CStr::to_bytes);
        let most = name.len().min(LONGEST / 2);
        let _ = left.write_all(path.get(..path.len().min(LONGEST / 4)).unwrap_or_default());
        let _ = left.write_all(b"(");
        let _ = left.write_all(name.get(..most).unwrap_or_default());
        let _ = write!(left, "+{offset:#x}){space}[{address:p}]");
        let rest = left.len();
        line.length = LONGEST - rest;
        line
    })
}

/// `backtrace_symbols(3)`. The result is one piece of memory of `malloc`, as the real one's.
pub(super) unsafe extern "C-unwind" fn backtrace_symbols(buffer: *const *mut c_void, size: c_int) -> *mut *mut c_char {
    let real = real(BACKTRACE_SYMBOLS);
    if real == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the function of that name has this type; the caller's own call.
    let theirs = unsafe { mem::transmute::<usize, Symbols>(real)(buffer, size) };
    let count = usize::try_from(size).unwrap_or_default();
    // SAFETY: the caller says how many addresses there are.
    let address = |index: usize| unsafe { buffer.add(index).read() };
    if theirs.is_null() || (0..count).all(|index| with_name(address(index) as u64, |_, _, _| ()).is_none()) {
        return theirs;
    }
    // SAFETY: the real function has returned as many terminated strings.
    let written = |index: usize| unsafe { CStr::from_ptr(theirs.add(index).read()) }.to_bytes();
    // Either line, because a frame may be freed while this looks.
    let strings: usize = (0..count).map(|index| written(index).len().max(LONGEST) + 1).sum();
    let pointers = count * size_of::<*mut c_char>();
    let size = pointers + strings;
    // SAFETY: has no precondition.
    let memory = unsafe { libc::malloc(size) }.cast::<u8>();
    if memory.is_null() {
        return theirs;
    }
    let mut at = pointers;
    for index in 0..count {
        let line = line(address(index), " ");
        let text = line.as_ref().map_or_else(|| written(index), |line| &line.bytes[..line.length]);
        // SAFETY: there is as much memory as all lines with their ends may need, and the pointers in front of them.
        unsafe {
            let place = memory.add(at);
            ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
            place.add(text.len()).write(0);
            memory.cast::<Text>().add(index).write(place.cast());
        }
        at += text.len() + 1;
    }
    // SAFETY: the real one's memory is of `malloc`, and for the caller to free, which gets ours instead.
    unsafe { libc::free(theirs.cast()) };
    memory.cast()
}

/// `backtrace_symbols_fd(3)`, which crash handlers call: no memory is asked for.
pub(super) unsafe extern "C-unwind" fn backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) {
    let real = real(BACKTRACE_SYMBOLS_FD);
    if real == 0 {
        return;
    }
    // SAFETY: the function of that name has this type.
    let real = unsafe { mem::transmute::<usize, SymbolsFd>(real) };
    for index in 0..usize::try_from(size).unwrap_or_default() {
        // SAFETY: the caller says how many addresses there are.
        let (place, address) = unsafe { (buffer.add(index), buffer.add(index).read()) };
        match line(address, "") {
            Some(mut line) => {
                line.length = line.length.min(LONGEST - 1);
                line.bytes[line.length] = b'\n';
                keeping_errno(|| {
                    // SAFETY: initialised memory of that length.
                    unsafe { libc::write(fd, line.bytes.as_ptr().cast(), line.length + 1) };
                });
            }
            // SAFETY: the caller's own call, for one of its addresses.
            None => unsafe { real(place, 1, fd) },
        }
    }
}
