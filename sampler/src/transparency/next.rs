//! Calls the next definition of each interposed libc function, after this library in the loader's search order.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Arguments or an environment, as for `execve(2)`.
pub type CStringArray = *const *const c_char;
/// Start function of a thread.
pub type ThreadFunction = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
pub(crate) type SignalSet = libc::sigset_t;
pub(crate) type SignalInfo = libc::siginfo_t;
type CharPointer = *const c_char;
type Thread = libc::pthread_t;
type Timespec = libc::timespec;

/// Defines a function for each libc function, and a table of their addresses. A `resolved` function looks up its
/// address at the first call. A `cached` function may be called under any lock, so only [`resolve_libc_functions`]
/// looks up its address. Without an address, the function sets `ENOSYS` and returns the given value.
macro_rules! define_next_functions {
    ($($lookup:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:expr;)*) => {
        #[expect(non_camel_case_types, reason = "the names in libc")]
        #[derive(Clone, Copy)]
        enum Function { $($name),* }

        const NAMES: &[&str] = &[$(concat!(stringify!($name), "\0")),*];
        static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

        $(
            /// Calls the next function of this name.
            ///
            /// # Safety
            /// Same contract as libc's function.
            #[allow(non_snake_case)]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let address = $lookup(Function::$name);
                if address.is_null() {
                    set_errno(libc::ENOSYS);
                    $missing
                } else {
                    // SAFETY: libc's function of that name has this type.
                    let function = unsafe {
                        mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(address)
                    };
                    // SAFETY: the caller upholds the contract of libc's function.
                    unsafe { function($($argument),*) }
                }
            }
        )*
    };
}

define_next_functions! {
    cached _exit(status: c_int) -> !, exit_group(status);
    cached _Exit(status: c_int) -> !, exit_group(status);
    resolved quick_exit(status: c_int) -> !, exit_group(status);
    cached execve(file: CharPointer, arguments: CStringArray, environment: CStringArray) -> c_int, -1;
    cached execvp(file: CharPointer, arguments: CStringArray) -> c_int, -1;
    cached execvpe(file: CharPointer, arguments: CStringArray, environment: CStringArray) -> c_int, -1;
    cached fexecve(file: c_int, arguments: CStringArray, environment: CStringArray) -> c_int, -1;
    cached execveat(
        directory: c_int, file: CharPointer, arguments: CStringArray, environment: CStringArray, flags: c_int
    ) -> c_int, -1;
    resolved prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int, -1;
    resolved syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long, -1;
    resolved unshare(flags: c_int) -> c_int, -1;
    resolved setns(descriptor: c_int, kind: c_int) -> c_int, -1;
    resolved capset(header: *mut c_void, data: *const c_void) -> c_int, -1;
    resolved setuid(user: libc::uid_t) -> c_int, -1;
    resolved seteuid(user: libc::uid_t) -> c_int, -1;
    resolved setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int, -1;
    resolved setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int, -1;
    resolved chroot(path: CharPointer) -> c_int, -1;
    resolved fopen(path: CharPointer, mode: CharPointer) -> *mut libc::FILE, ptr::null_mut();
    resolved fopen64(path: CharPointer, mode: CharPointer) -> *mut libc::FILE, ptr::null_mut();
    resolved pthread_create(
        thread: *mut Thread, attributes: *const libc::pthread_attr_t, start: ThreadFunction, argument: *mut c_void
    ) -> c_int, libc::ENOSYS;
    resolved pthread_join(thread: Thread, result: *mut *mut c_void) -> c_int, libc::ENOSYS;
    resolved pthread_timedjoin_np(thread: Thread, result: *mut *mut c_void, deadline: *const Timespec) -> c_int,
        libc::ENOSYS;
    resolved sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, -1;
    resolved signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    resolved sigaltstack(stack: *const libc::stack_t, old: *mut libc::stack_t) -> c_int, -1;
    resolved signalfd(descriptor: c_int, set: *const SignalSet, flags: c_int) -> c_int, -1;
    resolved sigpending(set: *mut SignalSet) -> c_int, -1;
    resolved sigsuspend(set: *const SignalSet) -> c_int, -1;
    resolved sigtimedwait(set: *const SignalSet, info: *mut SignalInfo, time: *const Timespec) -> c_int, -1;
}

/// Resolves all functions, in a constructor.
pub fn resolve_libc_functions() {
    for (name, cached) in NAMES.iter().zip(&ADDRESSES) {
        resolve(name, cached);
    }
}

/// Returns the address if it has been resolved; else null. Safe in a signal handler.
fn cached(function: Function) -> *mut c_void {
    ADDRESSES.get(function as usize).map_or(ptr::null_mut(), |address| address.load(Ordering::Acquire))
}

/// Returns the address, resolving it if necessary. Null if the function does not exist, which does not happen with
/// glibc.
fn resolved(function: Function) -> *mut c_void {
    let index = function as usize;
    NAMES.get(index).zip(ADDRESSES.get(index)).map_or(ptr::null_mut(), |(name, cached)| resolve(name, cached))
}

fn resolve(name: &str, cached: &AtomicPtr<c_void>) -> *mut c_void {
    let mut address = cached.load(Ordering::Acquire);
    if address.is_null()
        && let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes())
    {
        // SAFETY: the name is NUL-terminated.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        cached.store(address, Ordering::Release);
    }
    address
}

/// Ends the process by a system call, in case libc's own exit function was not found.
fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: `exit_group` ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Defines interposed functions that do more than call the next function of their name. The body receives a closure
/// that calls the next function with the caller's arguments and `errno`.
macro_rules! interpose {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, |$call:ident| $body:expr;)*) => {$(
        #[doc = concat!("Interposed `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// Same contract as libc's function.
        #[allow(non_snake_case)]
        pub unsafe fn $name($($argument: $type),*) -> $result {
            let errno = $crate::transparency::next::errno();
            let $call = || {
                $crate::transparency::next::set_errno(errno);
                // SAFETY: the caller's arguments are passed on unchanged.
                unsafe { $crate::transparency::next::$name($($argument),*) }
            };
            $body
        }
    )*};
}

pub(crate) use interpose;

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: errno is a thread-local of libc.
    unsafe { *libc::__errno_location() = value };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: errno is a thread-local of libc.
    unsafe { *libc::__errno_location() }
}
