//! The signal handler: puts a stack into a ring.
//!
//! It allocates nothing, takes no lock and uses no thread-local variable but `errno`. It reads its slot, published
//! tables, and the stack. In a steady thread it makes no system call (four for a counter; one to wake the writer when
//! its ring fills up, or in the first 0.1 s): the vDSO reads the time, the signal contains the sample's period, and the
//! thread's stack is known (`stack_memory`, which makes two at most).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use crate::code_map::{self, ProcessCode};
use crate::measure::{counter_of, expired};
use crate::python::{EVALUATOR, Evaluators};
use crate::slot::{self, MOST_FRAMES, PROCESS, Sample, Slot};
use crate::stack_memory::StackMemory;
use crate::timer::{self, SI_TIMER};
use crate::unwind::{self, Outcome, REGISTERS, Registers};
use crate::{clock, counter, disposition, measure, waiting, wake};

/// What a descriptor's signal says (`_sigpoll`).
#[repr(C)]
struct PollInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    padding: c_int,
    band: i64,
    descriptor: c_int,
}

/// Of these `siginfo_t` has no accessors in libc.
#[repr(C)]
struct TimerInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    padding: c_int,
    timer: c_int,
    overrun: c_int,
    value: u64,
}

const _: () = assert!(std::mem::offset_of!(TimerInfo, value) == 24);

/// Bytes of stack for [`record`] and all that it calls, and some more.
const NEEDED: usize = 4096;

/// Where a signal comes from.
enum Source {
    /// The slot's number and its owner's, and how many intervals were left out.
    Timer {
        index: usize,
        generation: u32,
        overrun: c_int,
    },
    Counter(Option<usize>),
    Elsewhere,
}

/// # Safety
/// `info` is the kernel's.
unsafe fn source(info: *const libc::siginfo_t) -> Source {
    // SAFETY: a timer's has these fields, and for any other signal they are in a siginfo_t, too.
    let timer = unsafe { &*info.cast::<TimerInfo>() };
    // SAFETY: a descriptor's has these fields, and for any other signal they are in a siginfo_t, too.
    let poll = unsafe { &*info.cast::<PollInfo>() };
    match (timer.code, timer::of_signal_value(timer.value)) {
        (SI_TIMER, Some((index, generation))) => Source::Timer { index, generation, overrun: timer.overrun },
        (code, _) if counter::CODES.contains(&code) => Source::Counter(counter::slot_of(code, poll.descriptor)),
        _ => Source::Elsewhere,
    }
}

pub(crate) extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno is a thread-local of libc's, whose place does not change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to a thread-local of this thread.
    let before = unsafe { errno.read() };
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel has made it for a handler with SA_SIGINFO.
    match unsafe { source(info) } {
        Source::Elsewhere => disposition::forward(signal, info, context),
        // A late signal of the slot's owner before is none of this one's.
        Source::Timer { index, generation, overrun } => {
            let is_its = |slot: &Slot| slot.generation.load(Ordering::SeqCst) == generation;
            // SAFETY: the kernel's, for as long as the handler runs.
            enter(slot::get(index), is_its, overrun, unsafe { &mut *context });
        }
        Source::Counter(index) => {
            let is_its = |slot: &Slot| slot.tid.load(Ordering::SeqCst) == clock::own_tid();
            // SAFETY: the kernel's, for as long as the handler runs.
            enter(index.and_then(slot::get), is_its, 0, unsafe { &mut *context });
        }
    }
    // SAFETY: `errno` points to a thread-local of this thread.
    unsafe { errno.write(before) };
}

/// Whether a signal is one of ours. It was taken out of the queue, and there is no sample for it.
pub(crate) fn pass_over(info: &libc::siginfo_t) -> bool {
    // SAFETY: the kernel's.
    match unsafe { source(info) } {
        Source::Elsewhere => false,
        Source::Timer { .. } => true,
        Source::Counter(index) => {
            if let Some(counter) = index.and_then(slot::get).and_then(counter_of) {
                counter.go_on();
            }
            true
        }
    }
}

/// Takes the sampler's signal out of the calling thread's queue, where it waits because the thread blocks it. Signals
/// of the program's with that number are sent again, in their order.
pub(crate) fn take_ours() {
    const MAX_SIGNALS: usize = 32;
    let signal = disposition::SIGNAL.load(Ordering::Acquire);
    if signal == 0 {
        return;
    }
    let (set, now) = (1_u64 << (signal - 1), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let (mut theirs, mut count) = ([MaybeUninit::<libc::siginfo_t>::zeroed(); MAX_SIGNALS], 0);
    while let Some(came) = theirs.get_mut(count) {
        // SAFETY: reads the word of the set and the time, writes what has come.
        let taken = unsafe {
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, came.as_mut_ptr(), &raw const now, 8_usize)
        };
        if taken != signal.into() {
            break;
        }
        // SAFETY: written by the call.
        count += usize::from(!pass_over(unsafe { came.assume_init_ref() }));
    }
    for info in theirs.iter().take(count) {
        // SAFETY: all of it was written by the kernel.
        let is_threads = unsafe { info.assume_init_ref() }.si_code == libc::SI_TKILL;
        let (pid, tid) = (std::process::id(), clock::own_tid());
        // SAFETY: a process may say of its own signals what it wants.
        unsafe {
            if is_threads {
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info.as_ptr());
            } else {
                libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, info.as_ptr());
            }
        }
    }
}

/// A slot that is another thread's by now must not be written to. So it is asked whose it is after `running` was
/// raised; who takes a slot for another thread looks at that afterwards.
fn enter(slot: Option<&Slot>, is_its: impl Fn(&Slot) -> bool, overrun: c_int, context: &mut libc::ucontext_t) {
    let Some(slot) = slot else { return };
    slot.running.fetch_add(1, Ordering::SeqCst);
    let is_armed = || slot.state.load(Ordering::SeqCst) == slot::ARMED && PROCESS.load(Ordering::Relaxed) != 0;
    let is_its = is_its(slot);
    if is_its && is_armed() {
        if has_space(&context.uc_stack) {
            record(slot, overrun, context);
        } else {
            slot.lost.fetch_add(1, Ordering::Relaxed);
            if let Some(counter) = counter_of(slot) {
                counter.go_on();
            }
        }
    }
    if is_its {
        waiting::go_on(slot, context);
    }
    slot.running.fetch_sub(1, Ordering::SeqCst);
}

/// Whether the handler may go on here: it may be on a signal stack of the program's, which may be small or in use.
fn has_space(stack: &libc::stack_t) -> bool {
    let here = 0_u8;
    let left = (&raw const here as usize).wrapping_sub(stack.ss_sp as usize);
    left >= stack.ss_size || left >= NEEDED
}

// Its frame, and those of what it calls, come after the look at the space.
#[inline(never)]
fn record(slot: &Slot, overrun: c_int, context: &libc::ucontext_t) {
    let period = slot.owed.swap(0, Ordering::Relaxed) + expired(slot, overrun);
    // By wall-clock time: a signal that came twice.
    if period == 0 && counter_of(slot).is_none() {
        return;
    }
    if slot.pace.is_too_early(1 + u64::try_from(overrun).unwrap_or(0)) {
        slot.skipped.fetch_add(1, Ordering::Relaxed);
        slot.owed.fetch_add(period, Ordering::Relaxed);
    } else {
        let began = clock::monotonic();
        // SAFETY: this is the handler of the slot's thread.
        unsafe { slot.end_idle(began) };
        if let Some(space) = slot.space() {
            sample(slot, space, Sample { time: began, period, outcome: Outcome::Complete, count: 0 }, context);
            slot.pace.took(clock::monotonic().saturating_sub(began), measure::period());
            wake::after_sample(began);
        } else {
            slot.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
    if slot.is_half_full() {
        wake::writer_to_drain();
    }
    if let Some(counter) = counter_of(slot) {
        counter.go_on();
    }
}

fn sample(slot: &Slot, space: u64, sample: Sample, context: &libc::ucontext_t) {
    let registers = registers(context);
    let mut memory = StackMemory::new(slot, registers.stack_pointer());
    let mut count = 0;
    let mut put = |word| {
        if count < space {
            // SAFETY: this is the handler of the slot's thread, and `count` is less than `space`.
            unsafe { slot.put(count, word) };
            count += 1;
        }
        count < space
    };
    // SAFETY: this is the handler of the slot's thread, the only one to use them, and it is not entered again while it
    // runs.
    let (cache, anchors) = unsafe { (&mut *slot.cache(), &mut *slot.anchors()) };
    let mut evaluators = Evaluators::look(slot, sample.time, anchors, space / 4 * 3, |word| {
        let _ = put(word);
    });
    let (is_truncated, frames_of_python) = (evaluators.walked.is_truncated, evaluators.walked.frames);
    let mut frames = 0;
    cache.begin(code_map::generation());
    let outcome = unwind::walk(registers, &ProcessCode, &mut memory, cache, |address, stack| {
        for _ in 0..evaluators.before(address, stack) {
            let _ = put(EVALUATOR);
        }
        frames += 1;
        let is_put = frames <= MOST_FRAMES && put(address);
        is_put && (!evaluators.is_at(address) || put(EVALUATOR))
    });
    let outcome = match outcome {
        _ if is_truncated => Outcome::Truncated,
        // The interpreter's frames are whole: the writer has them go on where the native ones end.
        Outcome::Truncated if frames_of_python != 0 => Outcome::Broken,
        outcome => outcome,
    };
    // SAFETY: this is the handler of the slot's thread, and so many words were put.
    unsafe { slot.finish(Sample { outcome, count, ..sample }) };
}

/// The registers at the moment of the signal, in DWARF's order.
#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let saved = &context.uc_mcontext;
    let mut values = [0; REGISTERS];
    let all = saved.regs.iter().chain([&saved.sp, &saved.pc]);
    values.iter_mut().zip(all).for_each(|(value, &saved)| *value = saved);
    Registers::new(values)
}

/// The registers at the moment of the signal, in DWARF's order.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    /// In the order of DWARF: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
    const ORDER: [c_int; REGISTERS] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
        libc::REG_RIP,
    ];
    let saved = &context.uc_mcontext.gregs;
    Registers::new(ORDER.map(|register| saved.get(register as usize).copied().unwrap_or(0) as u64))
}
