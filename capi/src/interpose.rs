//! Exports the libc functions that the sampler interposes, so that the program calls our versions first.

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};

use jitlisten_sampler::{CStringArray, ThreadFunction};

use crate::exec_environment::{self, own_environment};
use crate::missing_preload::warn;

/// Exports functions that forward to the functions of the same name in `jitlisten_sampler`. If `after` is given, that
/// call is made first.
macro_rules! interpose {
    ($(
        extern $abi:literal fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $(, after $before:expr)?;
    )*) => {$(
        #[doc = concat!("Interposes `", stringify!($name), "`: see `jitlisten_sampler`.")]
        ///
        /// # Safety
        /// Same contract as libc's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern $abi fn $name($($argument: $type),*) -> $result {
            // SAFETY: `$before` has the same contract as the interposed call.
            $(unsafe { $before };)?
            // SAFETY: forwards the caller's arguments under the same contract.
            unsafe { jitlisten_sampler::$name($($argument),*) }
        }
    )*};
}

type CharPointer = *const c_char;
type UserId = libc::uid_t;
type SignalSet = libc::sigset_t;
type SignalInfo = libc::siginfo_t;

interpose! {
    extern "C-unwind" fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    extern "C-unwind" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    extern "C-unwind" fn sigtimedwait(
        set: *const SignalSet, info: *mut SignalInfo, time: *const libc::timespec
    ) -> c_int;
    extern "C-unwind" fn sigwaitinfo(set: *const SignalSet, info: *mut SignalInfo) -> c_int;
    extern "C-unwind" fn sigwait(set: *const SignalSet, number: *mut c_int) -> c_int;
    extern "C-unwind" fn signalfd(descriptor: c_int, set: *const SignalSet, flags: c_int) -> c_int;
    extern "C-unwind" fn sigpending(set: *mut SignalSet) -> c_int;
    extern "C-unwind" fn sigsuspend(set: *const SignalSet) -> c_int;
    extern "C-unwind" fn sigaltstack(stack: *const libc::stack_t, old: *mut libc::stack_t) -> c_int;
    extern "C" fn _exit(status: c_int) -> !;
    extern "C" fn _Exit(status: c_int) -> !;
    extern "C" fn quick_exit(status: c_int) -> !;
    extern "C" fn execvp(file: CharPointer, arguments: CStringArray) -> c_int, after warn(file, std::ptr::null());
    extern "C" fn execvpe(file: CharPointer, arguments: CStringArray, environment: CStringArray) -> c_int,
        after warn(file, environment);
    extern "C" fn fexecve(file: c_int, arguments: CStringArray, environment: CStringArray) -> c_int;
    extern "C" fn execveat(
        directory: c_int, file: CharPointer, arguments: CStringArray, environment: CStringArray, flags: c_int
    ) -> c_int;
    extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    extern "C" fn setuid(user: UserId) -> c_int;
    extern "C" fn seteuid(user: UserId) -> c_int;
    extern "C" fn setreuid(real: UserId, effective: UserId) -> c_int;
    extern "C" fn setresuid(real: UserId, effective: UserId, saved: UserId) -> c_int;
    extern "C" fn chroot(path: CharPointer) -> c_int;
    extern "C" fn unshare(flags: c_int) -> c_int;
    extern "C" fn fopen(path: CharPointer, mode: CharPointer) -> *mut libc::FILE;
    extern "C" fn fopen64(path: CharPointer, mode: CharPointer) -> *mut libc::FILE;
    extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int;
    // `prctl` and `syscall` are variadic, but all their arguments are words, so the maximum number is always forwarded.
    extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    extern "C" fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    extern "C" fn pthread_create(
        thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, start: ThreadFunction,
        argument: *mut c_void
    ) -> c_int;
}

/// Interposes `execve(2)`.
///
/// # Safety
/// Same contract as libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(file: CharPointer, arguments: CStringArray, environment: CStringArray) -> c_int {
    // SAFETY: the caller passes the arguments of `execve(2)`, and their memory remains until this function returns.
    unsafe {
        warn(file, environment);
        exec_environment::execute(file, environment, |environment| {
            jitlisten_sampler::execve(file, arguments, environment)
        })
    }
}

/// Interposes `execv(3)`.
///
/// # Safety
/// Same contract as libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(file: CharPointer, arguments: CStringArray) -> c_int {
    // SAFETY: `execv` is `execve` with the environment of the process.
    unsafe { execve(file, arguments, own_environment()) }
}

/// Defines variadic functions whose arguments are all words. Each stores its argument registers next to the stack
/// arguments, then passes the first argument and an array of the others to the replacement.
macro_rules! interpose_variadic_exec_functions {
    ($($name:ident = $replacement:ident;)*) => {$(
        #[doc = concat!("Interposes `", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// Same contract as the function of this name in `exec(3)`.
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

unsafe extern "C" fn execl_with_array(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { execv(file, arguments) }
}

unsafe extern "C" fn execlp_with_array(file: *const c_char, arguments: CStringArray) -> c_int {
    // SAFETY: forwards the caller's arguments under the same contract.
    unsafe { execvp(file, arguments) }
}

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
