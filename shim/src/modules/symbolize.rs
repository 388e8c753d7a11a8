//! Hooks of `backtrace_symbols(3)` and `backtrace_symbols_fd(3)`. glibc implements them with an internal function of
//! the loader, so it prints only addresses for compiled frames. We replace the lines of these frames, and keep glibc's
//! lines for all others.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::mem;
use std::ptr;

use jitlisten::plumbing::preserving_errno;

use super::originals::{BACKTRACE_SYMBOLS, BACKTRACE_SYMBOLS_FD, CStringPointer, original, with_symbol};

/// Maximum length of the line for one frame; longer lines are truncated.
const MAX_LINE_BYTES: usize = 1024;

type Symbols = unsafe extern "C-unwind" fn(*const *mut c_void, c_int) -> *mut *mut c_char;
type SymbolsFd = unsafe extern "C-unwind" fn(*const *mut c_void, c_int, c_int);

/// Line for one frame, formatted without allocating memory.
struct Line {
    bytes: [u8; MAX_LINE_BYTES],
    length: usize,
}

/// Formats a frame like glibc: `file(function+0x12) [0x7f0000001012]`. `separator` comes before the bracket; it is
/// empty for output to a file. Returns `None` if the address is not in one of our modules.
fn format_line(address: *mut c_void, separator: &str) -> Option<Line> {
    with_symbol(address as u64, |name, path, offset| {
        let mut line = Line { bytes: [0; MAX_LINE_BYTES], length: 0 };
        let mut output = &mut line.bytes[..];
        let path = path.map_or(&b""[..], CStr::to_bytes);
        let name = name.map_or(&b""[..], CStr::to_bytes);
        let name_bytes = name.len().min(MAX_LINE_BYTES / 2);
        let _ = output.write_all(path.get(..path.len().min(MAX_LINE_BYTES / 4)).unwrap_or_default());
        let _ = output.write_all(b"(");
        let _ = output.write_all(name.get(..name_bytes).unwrap_or_default());
        let _ = write!(output, "+{offset:#x}){separator}[{address:p}]");
        let remaining = output.len();
        line.length = MAX_LINE_BYTES - remaining;
        line
    })
}

/// Hook of `backtrace_symbols(3)`. Like the original, it returns a single `malloc` block.
pub(super) unsafe extern "C-unwind" fn backtrace_symbols(buffer: *const *mut c_void, size: c_int) -> *mut *mut c_char {
    let original = original(BACKTRACE_SYMBOLS);
    if original == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the function with this name has this type, and this forwards the caller's own call.
    let original_lines = unsafe { mem::transmute::<usize, Symbols>(original)(buffer, size) };
    let count = usize::try_from(size).unwrap_or_default();
    // SAFETY: the caller's buffer holds `size` addresses.
    let address = |index: usize| unsafe { buffer.add(index).read() };
    if original_lines.is_null() || (0..count).all(|index| with_symbol(address(index) as u64, |_, _, _| ()).is_none()) {
        return original_lines;
    }
    // SAFETY: the original function has returned `count` null-terminated strings.
    let original_text = |index: usize| unsafe { CStr::from_ptr(original_lines.add(index).read()) }.to_bytes();
    // Reserve room for the longer of the two lines, because a frame's code may be freed meanwhile.
    let strings: usize = (0..count).map(|index| original_text(index).len().max(MAX_LINE_BYTES) + 1).sum();
    let pointers = count * size_of::<*mut c_char>();
    let size = pointers + strings;
    // SAFETY: `malloc` has no preconditions.
    let memory = unsafe { libc::malloc(size) }.cast::<u8>();
    if memory.is_null() {
        return original_lines;
    }
    let mut offset = pointers;
    for index in 0..count {
        let line = format_line(address(index), " ");
        let text = line.as_ref().map_or_else(|| original_text(index), |line| &line.bytes[..line.length]);
        // SAFETY: the block has room for the pointers, followed by the longest possible lines with their terminators.
        unsafe {
            let line_start = memory.add(offset);
            ptr::copy_nonoverlapping(text.as_ptr(), line_start, text.len());
            line_start.add(text.len()).write(0);
            memory.cast::<CStringPointer>().add(index).write(line_start.cast());
        }
        offset += text.len() + 1;
    }
    // SAFETY: the original function allocated this block with `malloc`. Nothing else uses the block, because the caller
    // gets ours instead.
    unsafe { libc::free(original_lines.cast()) };
    memory.cast()
}

/// Hook of `backtrace_symbols_fd(3)`, which crash handlers call, so it allocates no memory.
pub(super) unsafe extern "C-unwind" fn backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) {
    let original = original(BACKTRACE_SYMBOLS_FD);
    if original == 0 {
        return;
    }
    // SAFETY: the function with this name has this type.
    let original = unsafe { mem::transmute::<usize, SymbolsFd>(original) };
    for index in 0..usize::try_from(size).unwrap_or_default() {
        // SAFETY: the caller's buffer holds `size` addresses.
        let (entry, address) = unsafe { (buffer.add(index), buffer.add(index).read()) };
        match format_line(address, "") {
            Some(mut line) => {
                line.length = line.length.min(MAX_LINE_BYTES - 1);
                line.bytes[line.length] = b'\n';
                preserving_errno(|| {
                    // SAFETY: the line's buffer is initialised up to this length.
                    unsafe { libc::write(fd, line.bytes.as_ptr().cast(), line.length + 1) };
                });
            }
            // SAFETY: this forwards one address of the caller's buffer to the original function.
            None => unsafe { original(entry, 1, fd) },
        }
    }
}
