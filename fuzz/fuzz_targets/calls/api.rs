//! Declarations of `include/jitlisten.h`, written independently of the header, and checks of every call's contract.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

// Link the crate for its C functions; it exports no Rust items.
use jitlisten_capi as _;

pub(crate) const OK: i32 = 0;
pub(crate) const INVALID_ARGUMENT: i32 = 1;
pub(crate) const NOT_OPEN: i32 = 2;
pub(crate) const UNKNOWN_SINK: i32 = 3;
pub(crate) const INTERNAL: i32 = 5;
pub(crate) const UNKNOWN_OBJECT: i32 = 6;
pub(crate) const WRONG_ORDER: i32 = 7;
pub(crate) const NOT_UNDERSTOOD: i32 = 8;
pub(crate) const ALREADY_OPEN: i32 = 11;
pub(crate) const CLOSED: i32 = 12;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) size: usize,
    pub(crate) sinks: *const c_char,
    pub(crate) directory: *const c_char,
    pub(crate) log: *const c_char,
    pub(crate) frame_pointers: *const c_char,
    pub(crate) names: *const c_char,
    pub(crate) listen: u32,
    pub(crate) reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Section {
    pub(crate) name: *const c_char,
    pub(crate) address: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) name: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) address: u64,
    pub(crate) file: *const c_char,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Code {
    pub(crate) size: usize,
    pub(crate) functions: *const Function,
    pub(crate) function_count: usize,
    pub(crate) lines: *const Line,
    pub(crate) line_count: usize,
    pub(crate) eh_frame: *const u8,
    pub(crate) eh_frame_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) size: usize,
    pub(crate) objects_loaded: u64,
    pub(crate) objects_finalized: u64,
    pub(crate) objects_freed: u64,
    pub(crate) objects_refused: u64,
    pub(crate) functions: u64,
    pub(crate) functions_without_frame_pointer: u64,
    pub(crate) objects_without_frame_pointers: u64,
    pub(crate) functions_without_unwind_table: u64,
    pub(crate) perfmap_bytes_written: u64,
    pub(crate) perfmap_failures: u64,
    pub(crate) unwind_failures: u64,
    pub(crate) jitdump_bytes_written: u64,
    pub(crate) jitdump_failures: u64,
    pub(crate) image_bytes_written: u64,
    pub(crate) image_failures: u64,
    pub(crate) images_written: u64,
    pub(crate) images_without_padding: u64,
    pub(crate) images_refused: u64,
    pub(crate) images_withdrawn: u64,
    pub(crate) images_put_back: u64,
    pub(crate) log_lines_lost: u64,
    pub(crate) unwind_tables_refused: u64,
}

pub(crate) type Callback = unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char);

unsafe extern "C" {
    pub(crate) fn jitlisten_status_text(status: i32) -> *const c_char;
    pub(crate) fn jitlisten_last_error() -> *const c_char;
    pub(crate) fn jitlisten_version() -> *const c_char;
    pub(crate) fn jitlisten_open() -> i32;
    pub(crate) fn jitlisten_open_with(options: *const Options) -> i32;
    pub(crate) fn jitlisten_close() -> i32;
    pub(crate) fn jitlisten_enable(sink: *const c_char) -> i32;
    pub(crate) fn jitlisten_disable(sink: *const c_char) -> i32;
    pub(crate) fn jitlisten_object_loaded(
        elf: *const u8,
        elf_size: usize,
        sections: *const Section,
        section_count: usize,
        object: *mut u64,
    ) -> i32;
    pub(crate) fn jitlisten_code_loaded(code: *const Code, object: *mut u64) -> i32;
    pub(crate) fn jitlisten_owns_pages(object: u64) -> i32;
    pub(crate) fn jitlisten_finalized(object: u64) -> i32;
    pub(crate) fn jitlisten_freeing(object: u64) -> i32;
    pub(crate) fn jitlisten_unwind_register(
        eh_frame: *const u8,
        eh_frame_size: usize,
        text: u64,
        text_size: usize,
        out: *mut u64,
    ) -> i32;
    pub(crate) fn jitlisten_unwind_deregister(registration: u64) -> i32;
    pub(crate) fn jitlisten_set_log(callback: Option<Callback>, user: *mut c_void, level: i32) -> i32;
    pub(crate) fn jitlisten_get_statistics(statistics: *mut Statistics) -> i32;
}

/// Copies a string that the library returned, which must be valid UTF-8.
fn text(start: *const c_char) -> String {
    assert!(!start.is_null());
    // SAFETY: the header guarantees a non-null, NUL-terminated string.
    unsafe { CStr::from_ptr(start) }.to_str().expect("UTF-8").to_owned()
}

fn last_error() -> String {
    // SAFETY: the function has no preconditions.
    text(unsafe { jitlisten_last_error() })
}

/// Makes a call and checks its contract: a documented status, `errno` unchanged, an error message on failure, and the
/// previous message unchanged on success.
pub(crate) fn call(function: impl FnOnce() -> i32) -> i32 {
    const ERRNO: c_int = 77;
    let old_message = last_error();
    set_errno(ERRNO);
    let status = function();
    assert_eq!(errno(), ERRNO, "errno stays");
    let new_message = last_error();
    assert!((OK..=CLOSED).contains(&status) && status != INTERNAL, "{status}: {new_message}");
    match status {
        OK => assert_eq!(old_message, new_message, "success has no words"),
        _ => assert!(!new_message.is_empty(), "a failure has words"),
    }
    // SAFETY: the function has no preconditions.
    assert_ne!(text(unsafe { jitlisten_status_text(status) }), "");
    status
}

pub(crate) fn version() -> String {
    // SAFETY: the function has no preconditions.
    text(unsafe { jitlisten_version() })
}

fn errno() -> c_int {
    // SAFETY: libc returns the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: libc returns the address of this thread's errno.
    unsafe { *libc::__errno_location() = value };
}

pub(crate) fn statistics() -> Statistics {
    let mut statistics = Statistics { size: size_of::<Statistics>(), ..Statistics::default() };
    // SAFETY: the structure is writable and as large as its size field says.
    assert_eq!(call(|| unsafe { jitlisten_get_statistics(&raw mut statistics) }), OK);
    assert_eq!(statistics.size, size_of::<Statistics>());
    statistics
}

/// Level of the installed log callback; 0 if none is installed.
static LEVEL: AtomicI32 = AtomicI32::new(0);

/// Installs a callback for messages up to `level`, or removes the callback if `level` is 0.
pub(crate) fn receive(level: i32) {
    // Raise the level before the call, because the call itself may deliver messages.
    LEVEL.store(level.max(LEVEL.load(Ordering::Relaxed)), Ordering::Relaxed);
    let callback = (level != 0).then_some(on_message as Callback);
    // SAFETY: the callback only reads its arguments.
    assert_eq!(call(|| unsafe { jitlisten_set_log(callback, USER_DATA as *mut c_void, level) }), OK);
    LEVEL.store(level, Ordering::Relaxed);
}

/// Installs the callback with a level that may not exist.
pub(crate) fn receive_nonsense(level: i32) {
    // SAFETY: the callback only reads its arguments.
    let status = call(|| unsafe { jitlisten_set_log(Some(on_message), USER_DATA as *mut c_void, level) });
    assert_eq!(status == OK, (1..=4).contains(&level));
    receive(LEVEL.load(Ordering::Relaxed));
}

const USER_DATA: usize = 0x1234;

unsafe extern "C" fn on_message(user: *mut c_void, level: i32, message: *const c_char) {
    assert_eq!(user as usize, USER_DATA);
    assert!(level >= 1 && level <= LEVEL.load(Ordering::Relaxed), "level {level}");
    let message = text(message);
    assert!(!message.is_empty() && !message.chars().any(char::is_control), "{message:?}");
    // Would deadlock if the library held a lock while it calls back.
    statistics();
}
