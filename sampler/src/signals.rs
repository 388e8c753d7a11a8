//! The program's own use of the signal that the sampler has taken: the functions behave as if the sampler were absent.
//!
//! The preloaded library exports these functions of libc. For other signals they call the real ones.
//!
//! ```text
//!   sigaction, signal        kept here: the sampler's handler stays, and passes other signals on
//!   sigwait, sigwaitinfo, sigtimedwait      a tick is taken out of the queue, and the wait goes on
//!   signalfd, sigpending     without the signal
//!   sigsuspend               the signal waits until it has returned
//!   sigaction, signal        of a fatal signal: the default may have a handler (`fatal.rs`)
//! ```
//! Programs that make these system calls themselves, or call libc's functions with `dlsym`, are not covered.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering;

use jitlisten::plumbing::HostStateGuard;

use crate::disposition::{PROGRAM_FLAGS, SignalInfo, PROGRAM_MASK, SAMPLING_SIGNAL, SignalSet, PROGRAM_HANDLER, errno, next_sigaction, next, set_errno, kernel_mask_word};
use crate::handler;
use crate::threads::ACTIVE;
use crate::{fatal, threads};

/// Whether the sampler has taken that signal.
fn is_taken(signal: c_int) -> bool {
    signal != 0 && signal == SAMPLING_SIGNAL.load(Ordering::Acquire)
}

/// A copy of `set` with the signal, or without it.
fn changed(set: *const SignalSet, signal: c_int, has: bool) -> SignalSet {
    // SAFETY: the caller's set.
    let mut copy = unsafe { set.read() };
    if has {
        // SAFETY: `copy` is a set.
        unsafe { libc::sigaddset(&raw mut copy, signal) };
    } else {
        // SAFETY: `copy` is a set.
        unsafe { libc::sigdelset(&raw mut copy, signal) };
    }
    copy
}

fn has(set: *const SignalSet, signal: c_int) -> bool {
    // SAFETY: the caller's set.
    !set.is_null() && unsafe { libc::sigismember(set, signal) } == 1
}

/// Stands in for `sigaction(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_taken(signal) {
        if !fatal::may_have_handler(signal) {
            // SAFETY: the caller's arguments.
            return unsafe { next_sigaction(signal, action, old) };
        }
        // SAFETY: the caller's, read before `old`, which may be the same, is written.
        let becomes_default = unsafe { action.as_ref() }.is_some_and(|action| action.sa_sigaction == libc::SIG_DFL);
        // SAFETY: the caller's arguments.
        let result = unsafe { next_sigaction(signal, action, old) };
        if result == 0 {
            // SAFETY: the caller's, and written by the call.
            if let Some(old) = unsafe { old.as_mut() }.filter(|old| fatal::visible_handler(old.sa_sigaction) != old.sa_sigaction) {
                // SAFETY: all zeros is a valid disposition, the default.
                *old = unsafe { MaybeUninit::zeroed().assume_init() };
            }
            if becomes_default {
                fatal::install_handler(signal);
            }
        }
        return result;
    }
    // SAFETY: the caller's; copied first, as both may be one.
    let wanted = if action.is_null() { None } else { Some(unsafe { action.read() }) };
    if !old.is_null() {
        // SAFETY: all zeros is a valid disposition.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        before.sa_sigaction = PROGRAM_HANDLER.load(Ordering::Acquire);
        before.sa_flags = PROGRAM_FLAGS.load(Ordering::Relaxed);
        // SAFETY: the set begins with the word that the kernel reads.
        unsafe { kernel_mask_word(&raw const before.sa_mask).write(PROGRAM_MASK.load(Ordering::Relaxed)) };
        // SAFETY: the caller's.
        unsafe { old.write(before) };
    }
    if let Some(wanted) = wanted {
        PROGRAM_FLAGS.store(wanted.sa_flags, Ordering::Relaxed);
        // SAFETY: the set begins with the word that the kernel reads.
        PROGRAM_MASK.store(unsafe { kernel_mask_word(&raw const wanted.sa_mask).read() }, Ordering::Relaxed);
        PROGRAM_HANDLER.store(wanted.sa_sigaction, Ordering::Release);
    }
    0
}

/// Stands in for `signal(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn signal(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    if !is_taken(signal) {
        if !fatal::may_have_handler(signal) {
            return next_signal(signal, wanted);
        }
        let old = next_signal(signal, wanted);
        if wanted == libc::SIG_DFL && old != libc::SIG_ERR {
            fatal::install_handler(signal);
        }
        return fatal::visible_handler(old);
    }
    PROGRAM_FLAGS.store(libc::SA_RESTART, Ordering::Relaxed);
    PROGRAM_MASK.store(0, Ordering::Relaxed);
    PROGRAM_HANDLER.swap(wanted, Ordering::AcqRel)
}

fn next_signal(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    next!(c"signal", fn(c_int, libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR, signal, wanted)
}

/// Stands in for `sigtimedwait(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigtimedwait(set: *const SignalSet, info: *mut SignalInfo, time: *const libc::timespec) -> c_int {
    let deadline = if time.is_null() {
        None
    } else {
        // SAFETY: the caller's.
        let time = unsafe { time.read() };
        let time = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        Some(crate::clock::monotonic().saturating_add(time))
    };
    let mut rest = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut time = time;
    loop {
        let mut came = MaybeUninit::<SignalInfo>::zeroed();
        let signal = next!(
            c"sigtimedwait",
            fn(*const SignalSet, *mut SignalInfo, *const libc::timespec) -> c_int,
            -1,
            set,
            came.as_mut_ptr(),
            time
        );
        // SAFETY: zeros, or what the call has written.
        let came = unsafe { came.assume_init() };
        if is_taken(signal) && handler::discard_tick(&came) {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_sub(crate::clock::monotonic());
                rest.tv_sec = (left / 1_000_000_000) as libc::time_t;
                rest.tv_nsec = (left % 1_000_000_000) as _;
                time = &raw const rest;
            }
            continue;
        }
        if signal > 0 && !info.is_null() {
            // SAFETY: the caller's.
            unsafe { info.write(came) };
        }
        return signal;
    }
}

/// Stands in for `sigwaitinfo(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigwaitinfo(set: *const SignalSet, info: *mut SignalInfo) -> c_int {
    // SAFETY: the caller's.
    unsafe { sigtimedwait(set, info, ptr::null()) }
}

/// Stands in for `sigwait(3)`, which no signal interrupts.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigwait(set: *const SignalSet, number: *mut c_int) -> c_int {
    let before = errno();
    loop {
        // SAFETY: the caller's.
        let signal = unsafe { sigtimedwait(set, ptr::null_mut(), ptr::null()) };
        if signal > 0 {
            // SAFETY: the caller's.
            unsafe { number.write(signal) };
        }
        let failure = errno();
        set_errno(before);
        match signal {
            1.. => return 0,
            _ if failure == libc::EINTR => {}
            _ => return failure,
        }
    }
}

/// Stands in for `signalfd(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn signalfd(descriptor: c_int, set: *const SignalSet, flags: c_int) -> c_int {
    let taken = SAMPLING_SIGNAL.load(Ordering::Acquire);
    let without = (taken != 0 && has(set, taken)).then(|| changed(set, taken, false));
    let set = without.as_ref().map_or(set, ptr::from_ref);
    next!(c"signalfd", fn(c_int, *const SignalSet, c_int) -> c_int, -1, descriptor, set, flags)
}

/// Stands in for `sigpending(2)`.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigpending(set: *mut SignalSet) -> c_int {
    let result = next!(c"sigpending", fn(*mut SignalSet) -> c_int, -1, set);
    let taken = SAMPLING_SIGNAL.load(Ordering::Acquire);
    if result == 0 && taken != 0 && has(set, taken) {
        // SAFETY: the caller's, which has just been written.
        unsafe { libc::sigdelset(set, taken) };
    }
    result
}

/// Stands in for `sigsuspend(2)`, which returns when a handler has run: not because of a tick.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigsuspend(set: *const SignalSet) -> c_int {
    let taken = SAMPLING_SIGNAL.load(Ordering::Acquire);
    let is_unused = matches!(PROGRAM_HANDLER.load(Ordering::Relaxed), libc::SIG_DFL | libc::SIG_IGN);
    let with = (taken != 0 && is_unused && !set.is_null()).then(|| changed(set, taken, true));
    let set = with.as_ref().map_or(set, ptr::from_ref);
    next!(c"sigsuspend", fn(*const SignalSet) -> c_int, -1, set)
}

/// Stands in for `sigaltstack(2)`. On a stack without space for what the kernel puts there any signal ends the process:
/// the thread is not sampled any more.
///
/// # Safety
/// As that.
pub unsafe extern "C-unwind" fn sigaltstack(stack: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller's.
    if let Some(stack) = unsafe { stack.as_ref() }
        && ACTIVE.load(Ordering::Relaxed)
        && stack.ss_flags & libc::SS_DISABLE == 0
        && is_too_small(stack.ss_size)
        && let Some(slot) = threads::find_armed(crate::clock::own_tid())
    {
        let _host_state = HostStateGuard::enter();
        threads::retire_slot(slot);
        threads::THREADS_WITHOUT_TIMER.fetch_add(1, Ordering::Relaxed);
    }
    next!(c"sigaltstack", fn(*const libc::stack_t, *mut libc::stack_t) -> c_int, -1, stack, old)
}

/// Whether a signal stack has no space for what the kernel puts there: `AT_MINSIGSTKSZ` says how much that is, since
/// Linux 5.14, with all state that the processor has. Tiles of AMX are left out for a process that may not use them:
/// the kernel lets no process use them whose signal stacks are too small for that.
fn is_too_small(size: usize) -> bool {
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: has no precondition.
    let all = unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize;
    size < libc::MINSIGSTKSZ || size < all && size < all.saturating_sub(unused_tiles())
}

/// Bytes of AMX tiles that the processor has and this process may not use.
#[cfg(target_arch = "x86_64")]
fn unused_tiles() -> usize {
    const ARCH_GET_XCOMP_SUPP: c_int = 0x1021;
    const ARCH_GET_XCOMP_PERM: c_int = 0x1022;
    const TILE_DATA: u64 = 1 << 18;
    const SIZE: usize = 8192;
    let has = |what: c_int| {
        let mut features = 0_u64;
        // SAFETY: the kernel writes one word, or refuses (before Linux 5.16).
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, what, &raw mut features) };
        result == 0 && features & TILE_DATA != 0
    };
    if has(ARCH_GET_XCOMP_SUPP) && !has(ARCH_GET_XCOMP_PERM) { SIZE } else { 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn unused_tiles() -> usize {
    0
}
