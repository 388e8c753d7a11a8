//! The program's disposition of the sampling signal, used by the handler and by `signals.rs`.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::transparency::next::{SignalInfo, SignalSet};

/// The program's disposition of one signal.
struct ProgramAction {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// Part of `sa_mask` that the kernel reads: signals 1 to 64.
    mask: AtomicU64,
}

/// What sends a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Timer,
    Counter,
}

struct SamplingSignal {
    /// 0 before the first recording that uses it.
    number: AtomicI32,
    /// The program's disposition of this signal.
    program: ProgramAction,
}

impl SamplingSignal {
    const fn unused() -> SamplingSignal {
        let program = ProgramAction {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        };
        SamplingSignal { number: AtomicI32::new(0), program }
    }

    fn number(&self) -> c_int {
        self.number.load(Ordering::Acquire)
    }
}

/// The program's use of signals, as far as it concerns sampling.
struct ProgramSignals {
    /// By [`Sender`].
    sampling: [SamplingSignal; 2],
    /// True once the program has had a signal stack that may be too small for a second signal frame.
    has_small_stack: AtomicBool,
    /// Sampling signals that the program's handler of each signal blocks only because of [`block_in_handler`].
    hidden_masks: [AtomicU64; 65],
    /// True if the program's calls to `sigaction` reach `signals.rs`.
    are_interposed: AtomicBool,
}

/// Static because dispositions belong to the process, and remain after a recording.
static PROGRAM: ProgramSignals = ProgramSignals {
    sampling: [const { SamplingSignal::unused() }; 2],
    has_small_stack: AtomicBool::new(false),
    hidden_masks: [const { AtomicU64::new(0) }; 65],
    are_interposed: AtomicBool::new(false),
};

/// Returns the signal of a sender; 0 before the first recording that uses it.
pub(crate) fn sampling_signal(sender: Sender) -> c_int {
    PROGRAM.sampling[sender as usize].number()
}

pub(crate) fn sampling_signals() -> impl Iterator<Item = c_int> {
    PROGRAM.sampling.iter().map(SamplingSignal::number).filter(|signal| *signal != 0)
}

pub(crate) fn set_sampling_signal(sender: Sender, signal: c_int) {
    let sampling = &PROGRAM.sampling[sender as usize];
    sampling.program.handler.store(libc::SIG_DFL, Ordering::Release);
    sampling.program.flags.store(0, Ordering::Relaxed);
    sampling.program.mask.store(0, Ordering::Relaxed);
    sampling.number.store(signal, Ordering::Release);
}

/// Returns true if the program's calls to `sigaction` reach `signals.rs`.
pub(super) fn are_interposed() -> bool {
    PROGRAM.are_interposed.load(Ordering::Relaxed)
}

pub(super) fn set_interposed(are_interposed: bool) {
    PROGRAM.are_interposed.store(are_interposed, Ordering::Relaxed);
}

fn program_of(signal: c_int) -> Option<&'static ProgramAction> {
    PROGRAM
        .sampling
        .iter()
        .find(|sampling| signal != 0 && sampling.number() == signal)
        .map(|sampling| &sampling.program)
}

/// Returns the program's disposition of a sampling signal; the default for other signals.
pub(super) fn program_action(signal: c_int) -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    if let Some(program) = program_of(signal) {
        action.sa_sigaction = program.handler.load(Ordering::Acquire);
        action.sa_flags = program.flags.load(Ordering::Relaxed);
        // SAFETY: the set begins with the word that the kernel reads.
        unsafe { kernel_mask_word(&raw const action.sa_mask).write(program.mask.load(Ordering::Relaxed)) };
    }
    action
}

/// Sets the program's disposition of a sampling signal. Returns the previous handler.
pub(super) fn set_program_action(signal: c_int, action: &libc::sigaction) -> libc::sighandler_t {
    let Some(program) = program_of(signal) else { return libc::SIG_ERR };
    program.flags.store(action.sa_flags, Ordering::Relaxed);
    // SAFETY: the set begins with the word that the kernel reads.
    program.mask.store(unsafe { kernel_mask_word(&raw const action.sa_mask).read() }, Ordering::Relaxed);
    program.handler.swap(action.sa_sigaction, Ordering::AcqRel)
}

pub(super) fn note_small_signal_stack() -> bool {
    !PROGRAM.has_small_stack.swap(true, Ordering::AcqRel)
}

pub(super) fn has_small_signal_stack() -> bool {
    PROGRAM.has_small_stack.load(Ordering::Acquire)
}

/// Makes a handler that runs on a small signal stack block the sampling signals. With larger stacks it does not,
/// because a handler that leaves by `longjmp(3)` keeps them blocked. Returns the signals that the program did not block
/// by itself.
pub(super) fn block_in_handler(action: &mut libc::sigaction) -> u64 {
    let has_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if !has_small_signal_stack() || !has_handler || action.sa_flags & libc::SA_ONSTACK == 0 {
        return 0;
    }
    let word = kernel_mask_word(&raw mut action.sa_mask);
    // SAFETY: the set begins with the word that the kernel reads.
    let mask = unsafe { word.read() };
    let sampling_bits = sampling_signals().fold(0, |bits, signal| bits | signal_bit(signal));
    // SAFETY: as above; `action` is borrowed exclusively.
    unsafe { word.write(mask | sampling_bits) };
    sampling_bits & !mask
}

/// Stores the result of [`block_in_handler`] for a signal's new action. Returns that of the previous one.
pub(super) fn exchange_hidden_mask(signal: c_int, hidden: Option<u64>) -> u64 {
    let Some(mask) = usize::try_from(signal).ok().and_then(|signal| PROGRAM.hidden_masks.get(signal)) else { return 0 };
    match hidden {
        Some(hidden) => mask.swap(hidden, Ordering::AcqRel),
        None => mask.load(Ordering::Acquire),
    }
}

/// Removes signals from the mask of an action.
pub(super) fn unblock_in_handler(action: &mut libc::sigaction, hidden: u64) {
    let word = kernel_mask_word(&raw mut action.sa_mask);
    // SAFETY: the set begins with the word that the kernel reads, and `action` is borrowed exclusively.
    unsafe { word.write(word.read() & !hidden) };
}

fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

pub(crate) fn kernel_mask_word(set: *const SignalSet) -> *mut u64 {
    set.cast_mut().cast()
}

/// Applies the program's disposition to a signal that is not a sampler tick. Only call from the handler, in the
/// interrupted thread.
pub(crate) fn forward_signal(signal: c_int, info: *mut SignalInfo, context: *mut libc::ucontext_t) {
    let Some(program) = program_of(signal) else { return };
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
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), crate::system::clock::own_tid(), signal) };
}

/// True if the program has a pending signal that `mask` does not block.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_signal_pending(mask: *const SignalSet) -> bool {
    let mut pending = 0_u64;
    // SAFETY: `rt_sigpending` writes one word.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
    // SAFETY: the set begins with the word that the kernel reads.
    let blocked = unsafe { kernel_mask_word(mask).read() };
    let sampling_bits = sampling_signals().fold(0, |bits, signal| bits | signal_bit(signal));
    pending & !blocked & !sampling_bits != 0
}
