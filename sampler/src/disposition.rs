//! The program's disposition of the signal that the sampler has taken, and libc's functions behind our replacements.
//! Used by the handler and `signals.rs`.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

pub(crate) type SignalSet = libc::sigset_t;
pub(crate) type SignalInfo = libc::siginfo_t;

/// The signal of all timers; 0 before the first recording.
pub(crate) static SAMPLING_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// What the program wants to be done for the signal.
pub(crate) static PROGRAM_HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
pub(crate) static PROGRAM_FLAGS: AtomicI32 = AtomicI32::new(0);
/// The kernel's part of `sa_mask`: signals 1 to 64.
pub(crate) static PROGRAM_MASK: AtomicU64 = AtomicU64::new(0);

/// A function of libc's behind this library.
pub(crate) struct NextFunction {
    name: &'static std::ffi::CStr,
    cached: AtomicPtr<c_void>,
}

impl NextFunction {
    pub(crate) const fn new(name: &'static std::ffi::CStr) -> NextFunction {
        NextFunction { name, cached: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, if it was looked up before; else null.
    pub(crate) fn cached_address(&self) -> *mut c_void {
        self.cached.load(Ordering::Acquire)
    }

    /// Its address; null if there is none, which no libc lacks.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut found = self.cached_address();
        if found.is_null() {
            // SAFETY: a terminated name.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.cached.store(found, Ordering::Release);
        }
        found
    }
}

/// Calls the next function of that name and type; `-1` with `ENOSYS` where there is none.
macro_rules! next {
    ($name:literal, fn($($type:ty),*) -> $result:ty, $missing:expr, $($argument:expr),*) => {{
        static NEXT: $crate::disposition::NextFunction = $crate::disposition::NextFunction::new($name);
        $crate::disposition::next!(NEXT, fn($($type),*) -> $result, $missing, $($argument),*)
    }};
    ($next:ident, fn($($type:ty),*) -> $result:ty, $missing:expr, $($argument:expr),*) => {{
        let address = $next.address();
        if address.is_null() {
            $crate::disposition::set_errno(libc::ENOSYS);
            return $missing;
        }
        // SAFETY: a function of that name has this type.
        let function = unsafe {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            std::mem::transmute::<*mut std::ffi::c_void, Function>(address)
        };
        // SAFETY: the caller's arguments, or such as it might have given.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: errno is a thread-local of libc's.
    unsafe { *libc::__errno_location() = value };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: errno is a thread-local of libc's.
    unsafe { *libc::__errno_location() }
}

pub(crate) use next;

fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The word of a set that the kernel reads.
pub(crate) fn kernel_mask_word(set: *const SignalSet) -> *mut u64 {
    set.cast_mut().cast()
}

/// The disposition as the kernel has it, also of the signal that is taken.
///
/// # Safety
/// As `sigaction(2)`.
pub(crate) unsafe fn next_sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    next!(c"sigaction", fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int, -1, signal, action, old)
}

/// Leaves a signal to the program, which gets the disposition that it wants. No timer and no counter sends it any more;
/// one of ours that still waits in some thread is dropped, because the kernel drops what is ignored.
pub(crate) fn return_to_program(signal: c_int) {
    // SAFETY: all zeros is a valid disposition.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = libc::SIG_IGN;
    // SAFETY: no function is called for it.
    unsafe { next_sigaction(signal, &raw const action, ptr::null_mut()) };
    action.sa_sigaction = PROGRAM_HANDLER.swap(libc::SIG_DFL, Ordering::AcqRel);
    action.sa_flags = PROGRAM_FLAGS.swap(0, Ordering::Relaxed);
    // SAFETY: the set begins with the word that the kernel reads.
    unsafe { kernel_mask_word(&raw const action.sa_mask).write(PROGRAM_MASK.swap(0, Ordering::Relaxed)) };
    // SAFETY: the program's own disposition.
    unsafe { next_sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// The signal came from elsewhere: what the program wants is done. From the handler, in the thread that it has
/// interrupted.
pub(crate) fn forward_signal(signal: c_int, info: *mut SignalInfo, context: *mut libc::ucontext_t) {
    let wanted = PROGRAM_HANDLER.load(Ordering::Acquire);
    let flags = PROGRAM_FLAGS.load(Ordering::Relaxed);
    match wanted {
        libc::SIG_IGN => {}
        libc::SIG_DFL => end_process(signal),
        handler => {
            if flags & libc::SA_RESETHAND != 0 {
                PROGRAM_HANDLER.store(libc::SIG_DFL, Ordering::Release);
            }
            let own = if flags & libc::SA_NODEFER == 0 { signal_bit(signal) } else { 0 };
            // SAFETY: the kernel's, which puts this mask back when the handler returns.
            let before = unsafe { kernel_mask_word(&raw const (*context).uc_sigmask).read() };
            let mask = before | PROGRAM_MASK.load(Ordering::Relaxed) | own;
            let none: *mut u64 = ptr::null_mut();
            // SAFETY: reads a word.
            unsafe {
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, none, 8_usize);
            }
            // SAFETY: the program's handler; without SA_SIGINFO it takes the first argument only.
            let handler =
                unsafe { mem::transmute::<usize, extern "C-unwind" fn(c_int, *mut SignalInfo, *mut c_void)>(handler) };
            handler(signal, info, context.cast());
        }
    }
}

/// The default, for a handler.
pub(crate) fn restore_default(signal: c_int) {
    // Handler (SIG_DFL), flags, restorer, mask.
    let action = [0_u64; 4];
    let none: *mut u64 = ptr::null_mut();
    // SAFETY: reads the kernel's structure, which is the largest on x86_64.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), none, 8_usize) };
}

/// Sends the signal again, with its default disposition: this process ends as soon as the handler has returned.
pub(crate) fn end_process(signal: c_int) {
    restore_default(signal);
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), crate::clock::own_tid(), signal) };
}

/// Whether the program has a signal that comes when `mask` is in force.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_signal_pending(mask: *const SignalSet) -> bool {
    let mut pending = 0_u64;
    // SAFETY: writes a word.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
    // SAFETY: the set begins with the word that the kernel reads.
    let blocked = unsafe { kernel_mask_word(mask).read() };
    let own = 1 << (SAMPLING_SIGNAL.load(Ordering::Relaxed) - 1).clamp(0, 63);
    pending & !blocked & !own != 0
}
