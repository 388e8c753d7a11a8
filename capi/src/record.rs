//! Recordings of this process, and the interposed libc functions that the sampler needs.

use std::ffi::{OsString, c_char};
#[cfg(feature = "interpose")]
use std::ffi::{c_int, c_long, c_ulong};
use std::os::unix::ffi::OsStringExt as _;

#[cfg(feature = "interpose")]
use jitlisten_sampler::CStringArray;
use jitlisten_sampler::{Clock, Counter, Error, Options, Process, Statistics};

use crate::borrowed::{self, Plain};
use crate::guard::guarded;
use crate::status::{Failure, Status};

const WALL: u32 = 1;
const CHILDREN: u32 = 2;
const NO_IMAGES: u32 = 4;
const NO_PYTHON: u32 = 8;

/// `struct jitlisten_record_options` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordOptions {
    size: usize,
    hz: u32,
    flags: u32,
    seconds: u32,
    recorder: u32,
    event: *const c_char,
    recorder_start: u64,
}

const _: () = assert!(size_of::<RecordOptions>() == 40);

// SAFETY: integers and a pointer, for which zero is valid.
unsafe impl Plain for RecordOptions {}

/// Starts a recording.
///
/// # Safety
/// `path` and `options` must be null or as the header describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_record_start(path: *const c_char, options: *const RecordOptions) -> i32 {
    guarded(|| {
        // SAFETY: the caller passes null or a C string.
        let path = OsString::from_vec(unsafe { borrowed::read_text(path, "path") }?.to_vec());
        let mut sampler_options = Options::new(path);
        if !options.is_null() {
            // SAFETY: the caller guarantees that `options` is readable.
            let options = unsafe { borrowed::copy_sized(options, size_of::<usize>(), "options") }?;
            if options.flags & !(WALL | CHILDREN | NO_IMAGES | NO_PYTHON) != 0 {
                return Err(Failure::argument(format_args!("unknown flags {:#x}", options.flags)));
            }
            if options.hz != 0 {
                sampler_options.hz = options.hz;
            }
            if options.flags & WALL != 0 {
                sampler_options.clock = Clock::Wall;
            }
            sampler_options.children = options.flags & CHILDREN != 0;
            sampler_options.images = options.flags & NO_IMAGES == 0;
            sampler_options.python = options.flags & NO_PYTHON == 0;
            if !options.event.is_null() {
                // SAFETY: the caller guarantees that the name of the event is a C string.
                let event =
                    String::from_utf8_lossy(unsafe { borrowed::read_text(options.event, "event") }?).into_owned();
                sampler_options.counter = Some(Counter::named(&event).map_err(Failure::argument)?);
            }
            sampler_options.recorder =
                (options.recorder != 0).then_some(Process { pid: options.recorder, start: options.recorder_start });
            sampler_options.seconds = (options.seconds != 0).then_some(options.seconds);
        }
        jitlisten_sampler::start(sampler_options).map_err(|error| failure(&error))
    })
}

/// Ends the recording.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_record_stop() -> i32 {
    guarded(|| jitlisten_sampler::stop().map(drop).map_err(|error| failure(&error)))
}

/// Copies the path of the current recording.
///
/// # Safety
/// `path` must be null, or point to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_record_path(path: *mut c_char, size: usize) -> i32 {
    guarded(|| {
        borrowed::check_output(path, "path")?;
        let current = jitlisten_sampler::running_path().ok_or(Status::WrongOrder)?;
        let current = current.unwrap_or_default().into_os_string().into_vec();
        if current.len() >= size {
            return Err(Failure::argument(format_args!("the path has {} bytes", current.len())));
        }
        // SAFETY: the caller vouches for `size` bytes, which is more than the length of the path.
        unsafe { std::ptr::copy_nonoverlapping(current.as_ptr().cast(), path, current.len()) };
        // SAFETY: the terminator is also within those `size` bytes.
        unsafe { path.add(current.len()).write(0) };
        Ok(())
    })
}

/// Copies the counters of the current recording, or of the last one.
///
/// # Safety
/// `statistics` must be null, or point to as many writable bytes as its first member says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_get_record_statistics(statistics: *mut RecordStatistics) -> i32 {
    guarded(|| {
        borrowed::check_output(statistics, "statistics")?;
        // SAFETY: not null and aligned; the caller vouches for at least the first member.
        let size = unsafe { (*statistics).size };
        if size < size_of::<usize>() {
            return Err(Failure::argument(format_args!("its size says {size}")));
        }
        let copied_size = size.min(size_of::<RecordStatistics>());
        let snapshot = RecordStatistics::new(copied_size, &jitlisten_sampler::statistics());
        // SAFETY: the caller vouches for `size` bytes; newer members after them are not written.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const snapshot).cast::<u8>(), statistics.cast::<u8>(), copied_size)
        };
        Ok(())
    })
}

/// `struct jitlisten_record_statistics` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordStatistics {
    size: usize,
    counters: [u64; 8],
}

const _: () = assert!(size_of::<RecordStatistics>() == 9 * 8);

impl RecordStatistics {
    fn new(size: usize, statistics: &Statistics) -> Self {
        let counters = [
            statistics.samples,
            statistics.incomplete,
            statistics.truncated,
            statistics.lost,
            statistics.threads,
            statistics.threads_without_timer,
            statistics.bytes,
            statistics.failures,
        ];
        RecordStatistics { size, counters }
    }
}

/// Converts an error of the sampler to a failed API call.
pub(crate) fn failure(error: &Error) -> Failure {
    let status = match error {
        Error::AlreadyRecording | Error::NotRecording | Error::RecorderGone => Status::WrongOrder,
        Error::Options(_) | Error::Output(..) | Error::Counter(..) => Status::InvalidArgument,
        _ => Status::Internal,
    };
    Failure::new(status, error)
}

/// Defines libc's signal functions, which forward to `jitlisten_sampler`.
macro_rules! interpose_signal_functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// Interposes libc's function: see `jitlisten_sampler`.
        ///
        /// # Safety
        /// Same contract as libc's function.
        #[cfg(feature = "interpose")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: forwards the caller's arguments under the same contract.
            unsafe { jitlisten_sampler::$name($($argument),*) }
        }
    )*};
}

interpose_signal_functions! {
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    sigtimedwait(set: *const libc::sigset_t, info: *mut libc::siginfo_t, time: *const libc::timespec) -> c_int;
    sigwaitinfo(set: *const libc::sigset_t, info: *mut libc::siginfo_t) -> c_int;
    sigwait(set: *const libc::sigset_t, number: *mut c_int) -> c_int;
    signalfd(descriptor: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int;
    sigpending(set: *mut libc::sigset_t) -> c_int;
    sigsuspend(set: *const libc::sigset_t) -> c_int;
    sigaltstack(stack: *const libc::stack_t, old: *mut libc::stack_t) -> c_int;
}

/// Interposes `_exit(2)`: see `jitlisten_sampler::_exit`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    jitlisten_sampler::_exit(status)
}

/// Interposes `_Exit(3)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    jitlisten_sampler::_Exit(status)
}

/// Interposes `quick_exit(3)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub extern "C" fn quick_exit(status: c_int) -> ! {
    jitlisten_sampler::quick_exit(status)
}

/// Defines libc's functions that execv another program, which forward to `jitlisten_sampler`.
macro_rules! interpose_exec_functions {
    ($($name:ident($($argument:ident),*) = $replacement:ident;)*) => {$(
        /// Interposes libc's function: see `jitlisten_sampler`.
        ///
        /// # Safety
        /// Same contract as libc's function.
        #[cfg(feature = "interpose")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: *const c_char, $($argument: CStringArray),*) -> c_int {
            // SAFETY: `warn` has the same contract as the interposed call.
            unsafe { crate::left_behind::warn(file, interpose_exec_functions!(@environment $($argument),*)) };
            // SAFETY: forwards the caller's arguments under the same contract.
            unsafe { jitlisten_sampler::$replacement(file, $($argument),*) }
        }
    )*};
    (@environment $arguments:ident) => { std::ptr::null() };
    (@environment $arguments:ident, $environment:ident) => { $environment };
}

interpose_exec_functions! {
    execv(arguments) = execv;
    execve(arguments, environment) = execve;
    execvp(arguments) = execvp;
    execvpe(arguments, environment) = execvpe;
}

/// Interposes `fexecve(3)`.
///
/// # Safety
/// Same contract as `fexecve(3)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, arguments: CStringArray, environment: CStringArray) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { jitlisten_sampler::fexecve(file, arguments, environment) }
}

/// Interposes `execveat(2)`.
///
/// # Safety
/// Same contract as `execveat(2)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    file: *const c_char,
    arguments: CStringArray,
    environment: CStringArray,
    flags: c_int,
) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { jitlisten_sampler::execveat(directory, file, arguments, environment, flags) }
}

/// Defines variadic functions whose arguments are all words. The replacement gets the first argument and an array of
/// the others: the registers are stored next to the arguments that the caller has put on the stack.
macro_rules! interpose_variadic_exec_functions {
    ($($name:ident = $replacement:ident;)*) => {$(
        #[doc = concat!("Interposes `", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// Same contract as the function of this name in `exec(3)`.
        #[cfg(feature = "interpose")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                sym $replacement
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {}",
                "ldp x29, x30, [sp], #80",
                "ret",
                sym $replacement
            );
        }
    )*};
}

interpose_variadic_exec_functions! {
    execl = execl_with_array;
    execlp = execlp_with_array;
    execle = execle_with_array;
}

#[cfg(feature = "interpose")]
unsafe extern "C" fn execl_with_array(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { execv(file, arguments) }
}

#[cfg(feature = "interpose")]
unsafe extern "C" fn execlp_with_array(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { execvp(file, arguments) }
}

#[cfg(feature = "interpose")]
unsafe extern "C" fn execle_with_array(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: the arguments end with null, followed by the environment.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(file, arguments, end.add(1).read().cast())
    }
}

/// Defines libc's functions by which a program drops privileges, which forward to `jitlisten_sampler`.
macro_rules! interpose_privilege_functions {
    ($($name:ident($($argument:ident: $type:ty),*) = $replacement:ident;)*) => {$(
        /// Interposes libc's function: see `jitlisten_sampler`.
        ///
        /// # Safety
        /// Same contract as libc's function.
        #[cfg(feature = "interpose")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: forwards the caller's arguments under the same contract.
            unsafe { jitlisten_sampler::$replacement($($argument),*) }
        }
    )*};
}

interpose_privilege_functions! {
    setuid(user: libc::uid_t) = setuid;
    seteuid(user: libc::uid_t) = seteuid;
    setreuid(real: libc::uid_t, effective: libc::uid_t) = setreuid;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) = setresuid;
    chroot(path: *const c_char) = chroot;
    unshare(flags: c_int) = unshare;
    setns(descriptor: c_int, kind: c_int) = setns;
}

/// Interposes `prctl(2)`. Its arguments are words, whatever their number.
///
/// # Safety
/// Same contract as `prctl(2)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { jitlisten_sampler::prctl(option, [a, b, c, d]) }
}

/// Interposes `syscall(2)`. Its arguments are words, whatever their number.
///
/// # Safety
/// Same contract as `syscall(2)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { jitlisten_sampler::syscall(number, a, b, c, d, e, f) }
}

/// Interposes `pthread_create(3)`: see `jitlisten_sampler::pthread_create`.
///
/// # Safety
/// Same contract as `pthread_create(3)`.
#[cfg(feature = "interpose")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: jitlisten_sampler::ThreadFunction,
    argument: *mut std::ffi::c_void,
) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { jitlisten_sampler::pthread_create(thread, attributes, start, argument) }
}
