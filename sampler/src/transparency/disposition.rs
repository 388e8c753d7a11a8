//! The program's disposition of the sampling signal, used by the handler and by `signals.rs`.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::transparency::next::{self, SignalInfo, SignalSet};

/// The program's disposition of one signal.
struct ProgramAction {
    handler: AtomicUsize,
    /// `sa_flags`
    flags: AtomicI32,
    /// Part of `sa_mask` that the kernel reads: signals 1 to 64.
    mask: AtomicU64,
}

/// The dispositions that the program sees.
struct Dispositions {
    /// The signal that timers or counters send; 0 before the first recording.
    sampling_signal: AtomicI32,
    /// The program's disposition of this signal.
    program: ProgramAction,
    /// True if the program's calls to `sigaction` reach `signals.rs`.
    are_interposed: AtomicBool,
}

static DISPOSITIONS: Dispositions = Dispositions {
    sampling_signal: AtomicI32::new(0),
    program: ProgramAction {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    },
    are_interposed: AtomicBool::new(false),
};

/// Returns the signal that timers or counters send; 0 before the first recording.
pub(crate) fn sampling_signal() -> c_int {
    DISPOSITIONS.sampling_signal.load(Ordering::Acquire)
}

pub(crate) fn set_sampling_signal(signal: c_int) {
    DISPOSITIONS.sampling_signal.store(signal, Ordering::Release);
}

/// Returns true if the program's calls to `sigaction` reach `signals.rs`.
pub(super) fn are_interposed() -> bool {
    DISPOSITIONS.are_interposed.load(Ordering::Relaxed)
}

pub(super) fn set_interposed(are_interposed: bool) {
    DISPOSITIONS.are_interposed.store(are_interposed, Ordering::Relaxed);
}

/// Returns the program's disposition of the sampling signal.
pub(super) fn program_action() -> libc::sigaction {
    let program = &DISPOSITIONS.program;
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = program.handler.load(Ordering::Acquire);
    action.sa_flags = program.flags.load(Ordering::Relaxed);
    // SAFETY: the set begins with the word that the kernel reads.
    unsafe { kernel_mask_word(&raw const action.sa_mask).write(program.mask.load(Ordering::Relaxed)) };
    action
}

/// Sets the program's disposition of the sampling signal. Returns the previous handler.
pub(super) fn set_program_action(action: &libc::sigaction) -> libc::sighandler_t {
    let program = &DISPOSITIONS.program;
    program.flags.store(action.sa_flags, Ordering::Relaxed);
    // SAFETY: the set begins with the word that the kernel reads.
    program.mask.store(unsafe { kernel_mask_word(&raw const action.sa_mask).read() }, Ordering::Relaxed);
    program.handler.swap(action.sa_sigaction, Ordering::AcqRel)
}

fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the word of a signal set that the kernel reads.
pub(crate) fn kernel_mask_word(set: *const SignalSet) -> *mut u64 {
    set.cast_mut().cast()
}

/// Restores the program's disposition of a signal, once no timer or counter sends the signal. A signal that is still
/// pending in a thread is dropped: the kernel drops pending signals when they become ignored.
pub(crate) fn return_to_program(signal: c_int) {
    // SAFETY: all zeros is a valid `sigaction`: the default disposition.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    let ignored = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..default };
    // SAFETY: no handler is installed.
    unsafe { next::sigaction(signal, &raw const ignored, ptr::null_mut()) };
    let action = program_action();
    set_program_action(&default);
    // SAFETY: `action` is the program's own disposition.
    unsafe { next::sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// Applies the program's disposition to a signal that is not a sampler tick. Only call from the handler, in the
/// interrupted thread.
pub(crate) fn forward_signal(signal: c_int, info: *mut SignalInfo, context: *mut libc::ucontext_t) {
    let program = &DISPOSITIONS.program;
    let (handler, flags) = (program.handler.load(Ordering::Acquire), program.flags.load(Ordering::Relaxed));
    match handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => end_process(signal),
        handler => {
            if flags & libc::SA_RESETHAND != 0 {
                program.handler.store(libc::SIG_DFL, Ordering::Release);
            }
            let own_bit = if flags & libc::SA_NODEFER == 0 { signal_bit(signal) } else { 0 };
            // SAFETY: the kernel provides the context, and restores this mask when the handler returns.
            let old_mask = unsafe { kernel_mask_word(&raw const (*context).uc_sigmask).read() };
            let mask = old_mask | program.mask.load(Ordering::Relaxed) | own_bit;
            let no_old_mask: *mut u64 = ptr::null_mut();
            // SAFETY: `rt_sigprocmask` reads one word.
            unsafe {
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, no_old_mask, 8_usize);
            }
            // SAFETY: this is the program's handler; without SA_SIGINFO it takes only the first argument.
            let handler =
                unsafe { mem::transmute::<usize, extern "C-unwind" fn(c_int, *mut SignalInfo, *mut c_void)>(handler) };
            handler(signal, info, context.cast());
        }
    }
}

/// Installs the default disposition, with a system call that is safe in a handler.
pub(crate) fn restore_default(signal: c_int) {
    // Fields of the kernel's `sigaction`: handler (SIG_DFL), flags, restorer, mask.
    let action = [0_u64; 4];
    let no_old_action: *mut u64 = ptr::null_mut();
    // SAFETY: the array is as large as the kernel's structure on x86_64, which is the largest of all architectures.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), no_old_action, 8_usize) };
}

/// Sends the signal again with its default disposition, so that the process ends when the handler returns.
pub(crate) fn end_process(signal: c_int) {
    restore_default(signal);
    // SAFETY: `tgkill` takes only integers.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), crate::handler::clock::own_tid(), signal) };
}

/// True if the program has a pending signal that `mask` does not block.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_signal_pending(mask: *const SignalSet) -> bool {
    let mut pending = 0_u64;
    // SAFETY: `rt_sigpending` writes one word.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
    // SAFETY: the set begins with the word that the kernel reads.
    let blocked = unsafe { kernel_mask_word(mask).read() };
    let sampling_bit = 1 << (sampling_signal() - 1).clamp(0, 63);
    pending & !blocked & !sampling_bit != 0
}
