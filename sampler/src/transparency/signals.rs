//! Interposed signal functions: for the signal that the sampler uses, they behave as if the sampler were absent.
//!
//! The preloaded library exports these libc functions. For other signals they call libc's own versions.
//!
//! ```text
//!   sigaction, signal        the program's handler is stored here; the sampler's stays installed and forwards signals
//!   sigaction                of another signal: a handler on a small signal stack blocks the sampler's signals
//!   sigwait, sigwaitinfo, sigtimedwait      a sampler tick is discarded, and the wait continues
//!   signalfd, sigpending     never report the signal
//!   sigsuspend               blocks the signal until it returns
//!   sigaction, signal        for a fatal signal: SIG_DFL may stand for our handler (`fatal.rs`)
//! ```
//! Programs that make these system calls directly, or find libc's functions with `dlsym`, are not covered.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use jitlisten::plumbing::HostStateGuard;

use crate::handler;
use crate::recording::current::{self, Recording};
use crate::thread::{adoption, arming};
use crate::transparency::disposition::{self, sampling_signals};
use crate::transparency::fatal;
use crate::transparency::next::{self, SignalInfo, SignalSet, errno, set_errno};

fn is_sampling_signal(signal: c_int) -> bool {
    sampling_signals().any(|sampling_signal| signal == sampling_signal)
}

/// Returns a copy of `set` with the signals added or removed.
fn copy_set(set: *const SignalSet, signals: impl Iterator<Item = c_int>, are_members: bool) -> SignalSet {
    // SAFETY: the caller provides a valid set.
    let mut copy = unsafe { set.read() };
    for signal in signals {
        if are_members {
            // SAFETY: `copy` is a valid set.
            unsafe { libc::sigaddset(&raw mut copy, signal) };
        } else {
            // SAFETY: `copy` is a valid set.
            unsafe { libc::sigdelset(&raw mut copy, signal) };
        }
    }
    copy
}

fn contains(set: *const SignalSet, signal: c_int) -> bool {
    // SAFETY: the caller provides a valid set.
    !set.is_null() && unsafe { libc::sigismember(set, signal) } == 1
}

/// Interposed `sigaction(2)`.
///
/// # Safety
/// Same contract as `sigaction(2)`.
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller guarantees a valid pointer. Copy it first, because `old` may be the same memory.
    let new_action = if action.is_null() { None } else { Some(unsafe { action.read() }) };
    if !is_sampling_signal(signal) {
        // SAFETY: the caller guarantees a null or valid pointer.
        return unsafe { replace_action(signal, new_action, old) };
    }
    if !old.is_null() {
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { old.write(disposition::program_action(signal)) };
    }
    if let Some(new_action) = new_action {
        disposition::set_program_action(signal, &new_action);
    }
    0
}

/// Replaces the action of a signal that the sampler does not use, and hides what the sampler changes about it.
///
/// # Safety
/// `old` must be null or valid.
unsafe fn replace_action(signal: c_int, mut action: Option<libc::sigaction>, old: *mut libc::sigaction) -> c_int {
    // A vfork child has actions of its own, but its parent's memory.
    let is_own_process = current::last().is_none_or(Recording::is_of_this_process);
    let hidden = action.as_mut().filter(|_| is_own_process).map(disposition::block_in_handler);
    let new = action.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the arguments are the caller's, or equally valid ones.
    let result = unsafe { next::sigaction(signal, new, old) };
    if result != 0 {
        return result;
    }
    let old_hidden = disposition::exchange_hidden_mask(signal, hidden);
    // SAFETY: the caller guarantees a valid pointer, and the call has written to it.
    if let Some(old) = unsafe { old.as_mut() } {
        disposition::unblock_in_handler(old, old_hidden);
        if fatal::may_have_handler(signal) && fatal::visible_handler(old.sa_sigaction) != old.sa_sigaction {
            // SAFETY: all zeros is a valid `sigaction`: the default disposition.
            *old = unsafe { MaybeUninit::zeroed().assume_init() };
        }
    }
    if action.is_some_and(|action| action.sa_sigaction == libc::SIG_DFL) {
        fatal::install_handler(signal);
    }
    result
}

/// Makes the handlers that the program has already installed on a small signal stack block the sampler's signals.
pub(crate) fn block_in_installed_handlers() {
    const MAX_ATTEMPTS: usize = 8;
    if adoption::signal_stack().is_some_and(|stack| is_small(&stack)) {
        disposition::note_small_signal_stack();
    }
    if !disposition::has_small_signal_stack() {
        return;
    }
    for signal in (1..=64).filter(|signal| !is_sampling_signal(*signal)) {
        let Some(mut action) = exchange_action(signal, None) else { continue };
        let mut installed = action;
        for attempt in 0..MAX_ATTEMPTS {
            let hidden = disposition::block_in_handler(&mut action);
            if hidden == 0 && attempt == 0 {
                break;
            }
            let all_hidden = hidden | disposition::exchange_hidden_mask(signal, None);
            disposition::exchange_hidden_mask(signal, Some(all_hidden));
            // Another thread may have replaced the action in the meantime. If so, its action was lost: install that.
            let Some(old) = exchange_action(signal, Some(&action)) else { break };
            if (old.sa_sigaction, old.sa_flags) == (installed.sa_sigaction, installed.sa_flags) {
                break;
            }
            (installed, action) = (action, old);
        }
    }
}

/// Returns the action of a signal, and sets a new one. `None` if the C library refuses.
fn exchange_action(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the call reads the new action and writes the old one.
    let result = unsafe { next::sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &raw mut old) };
    (result == 0).then_some(old)
}

/// Interposed `signal(2)`.
///
/// # Safety
/// Same contract as `signal(2)`.
pub unsafe extern "C-unwind" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if !is_sampling_signal(signal) {
        if !fatal::may_have_handler(signal) {
            // SAFETY: the caller's arguments are passed on unchanged.
            return unsafe { next::signal(signal, handler) };
        }
        // SAFETY: the caller's arguments are passed on unchanged.
        let old = unsafe { next::signal(signal, handler) };
        if handler == libc::SIG_DFL && old != libc::SIG_ERR {
            fatal::install_handler(signal);
        }
        return fatal::visible_handler(old);
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_RESTART);
    disposition::set_program_action(signal, &action)
}

/// Interposed `sigtimedwait(2)`.
///
/// # Safety
/// Same contract as `sigtimedwait(2)`.
pub unsafe extern "C-unwind" fn sigtimedwait(
    set: *const SignalSet,
    info: *mut SignalInfo,
    time: *const libc::timespec,
) -> c_int {
    let deadline = if time.is_null() {
        None
    } else {
        // SAFETY: the caller guarantees a valid pointer.
        let time = unsafe { time.read() };
        let time = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        Some(crate::system::clock::monotonic().saturating_add(time))
    };
    let mut remaining_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut time = time;
    loop {
        let mut received = MaybeUninit::<SignalInfo>::zeroed();
        // SAFETY: the arguments are the caller's, or equally valid ones.
        let signal = unsafe { next::sigtimedwait(set, received.as_mut_ptr(), time) };
        // SAFETY: the value was zeroed, or the call has written it.
        let received = unsafe { received.assume_init() };
        if is_sampling_signal(signal) && handler::discard_tick(&received) {
            if let Some(deadline) = deadline {
                let remaining_ns = deadline.saturating_sub(crate::system::clock::monotonic());
                remaining_time.tv_sec = (remaining_ns / 1_000_000_000) as libc::time_t;
                remaining_time.tv_nsec = (remaining_ns % 1_000_000_000) as _;
                time = &raw const remaining_time;
            }
            continue;
        }
        if signal > 0 && !info.is_null() {
            // SAFETY: the caller guarantees a valid pointer.
            unsafe { info.write(received) };
        }
        return signal;
    }
}

/// Interposed `sigwaitinfo(2)`.
///
/// # Safety
/// Same contract as `sigwaitinfo(2)`.
pub unsafe extern "C-unwind" fn sigwaitinfo(set: *const SignalSet, info: *mut SignalInfo) -> c_int {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { sigtimedwait(set, info, ptr::null()) }
}

/// Interposed `sigwait(3)`, which no signal interrupts.
///
/// # Safety
/// Same contract as `sigwait(3)`.
pub unsafe extern "C-unwind" fn sigwait(set: *const SignalSet, number: *mut c_int) -> c_int {
    let saved_errno = errno();
    loop {
        // SAFETY: the caller guarantees a valid pointer.
        let signal = unsafe { sigtimedwait(set, ptr::null_mut(), ptr::null()) };
        if signal > 0 {
            // SAFETY: the caller guarantees a valid pointer.
            unsafe { number.write(signal) };
        }
        let error = errno();
        set_errno(saved_errno);
        match signal {
            1.. => return 0,
            _ if error == libc::EINTR => {}
            _ => return error,
        }
    }
}

/// Interposed `signalfd(2)`.
///
/// # Safety
/// Same contract as `signalfd(2)`.
pub unsafe extern "C-unwind" fn signalfd(descriptor: c_int, set: *const SignalSet, flags: c_int) -> c_int {
    let has_ours = sampling_signals().any(|signal| contains(set, signal));
    let filtered_set = has_ours.then(|| copy_set(set, sampling_signals(), false));
    let set = filtered_set.as_ref().map_or(set, ptr::from_ref);
    // SAFETY: the arguments are the caller's, or equally valid ones.
    unsafe { next::signalfd(descriptor, set, flags) }
}

/// Interposed `sigpending(2)`.
///
/// # Safety
/// Same contract as `sigpending(2)`.
pub unsafe extern "C-unwind" fn sigpending(set: *mut SignalSet) -> c_int {
    // SAFETY: the arguments are the caller's, or equally valid ones.
    let result = unsafe { next::sigpending(set) };
    for signal in sampling_signals() {
        if result == 0 && contains(set, signal) {
            // SAFETY: the caller guarantees a valid pointer, and the call has written to it.
            unsafe { libc::sigdelset(set, signal) };
        }
    }
    result
}

/// Interposed `sigsuspend(2)`. It returns when a handler has run, so a sampler tick must not interrupt it.
///
/// # Safety
/// Same contract as `sigsuspend(2)`.
pub unsafe extern "C-unwind" fn sigsuspend(set: *const SignalSet) -> c_int {
    let is_unused =
        |signal: &c_int| matches!(disposition::program_action(*signal).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let extended_set = (!set.is_null()).then(|| copy_set(set, sampling_signals().filter(is_unused), true));
    let set = extended_set.as_ref().map_or(set, ptr::from_ref);
    // SAFETY: the arguments are the caller's, or equally valid ones.
    unsafe { next::sigsuspend(set) }
}

/// Interposed `sigaltstack(2)`. A stack of ours is not shown. If the kernel's signal frame does not fit on the new stack,
/// any signal kills the process, so the thread is no longer sampled.
///
/// # Safety
/// Same contract as `sigaltstack(2)`.
pub unsafe extern "C-unwind" fn sigaltstack(stack: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller guarantees a valid pointer.
    let new_stack = unsafe { stack.as_ref() };
    if let Some(stack) = new_stack.filter(|stack| stack.ss_flags & libc::SS_DISABLE == 0 && is_small(stack)) {
        let _host_state = HostStateGuard::enter();
        if disposition::note_small_signal_stack() && current::own().is_some() {
            block_in_installed_handlers();
        }
        if let Some(recording) = current::sampling()
            && stack.ss_size < signal_frame_bytes()
            && let Some(slot) = arming::find_armed(crate::system::clock::own_tid())
        {
            arming::retire_slot(slot);
            recording.counters.threads_without_timer.add(1);
        }
    }
    // SAFETY: the arguments are the caller's.
    let result = unsafe { next::sigaltstack(stack, old) };
    if result == 0
        // SAFETY: the caller guarantees a valid pointer, and a successful call has written to it.
        && let Some(old) = unsafe { old.as_mut() }
        && arming::find_armed(crate::system::clock::own_tid())
            .is_some_and(|slot| slot.signal_stack() == old.ss_sp.cast())
    {
        *old = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    }
    result
}

/// True if a signal stack may be too small for two signal frames and the stack use of their handlers.
fn is_small(stack: &libc::stack_t) -> bool {
    stack.ss_size < 3 * full_signal_frame_bytes()
}

/// Size of a signal frame with all processor state (`AT_MINSIGSTKSZ`, since Linux 5.14).
fn full_signal_frame_bytes() -> usize {
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: `getauxval` has no precondition.
    let bytes = unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize;
    bytes.max(libc::MINSIGSTKSZ)
}

/// Maximum size of a signal frame of this process. The kernel does not grant AMX to a process whose signal stacks are
/// too small.
fn signal_frame_bytes() -> usize {
    full_signal_frame_bytes().saturating_sub(unused_tiles()).max(libc::MINSIGSTKSZ)
}

/// Size of the AMX tile data that the processor supports and this process may not use.
#[cfg(target_arch = "x86_64")]
fn unused_tiles() -> usize {
    const ARCH_GET_XCOMP_SUPP: c_int = 0x1021;
    const ARCH_GET_XCOMP_PERM: c_int = 0x1022;
    const TILE_DATA: u64 = 1 << 18;
    const TILE_BYTES: usize = 8192;
    let has_tiles = |request: c_int| {
        let mut features = 0_u64;
        // SAFETY: the kernel writes one word, or refuses (before Linux 5.16).
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, request, &raw mut features) };
        result == 0 && features & TILE_DATA != 0
    };
    if has_tiles(ARCH_GET_XCOMP_SUPP) && !has_tiles(ARCH_GET_XCOMP_PERM) { TILE_BYTES } else { 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn unused_tiles() -> usize {
    0
}
