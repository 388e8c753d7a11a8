//! The signal handler, which stores a stack sample in the thread's ring.
//!
//! It allocates nothing, takes no lock and uses no thread-local variable except `errno`. It reads its slot, published
//! tables, and the stack. In steady state a sample takes one system call, `getrusage`, which tells how often the thread
//! waits: the time comes through the vDSO, and the bounds of the thread's stack are known. For wall-clock time, two
//! more read the thread's CPU clock; after an expensive sample, two more `getrusage` tell whether it was preempted.
//! With a perf counter, it makes four more, and a few others when a thread changes its clock. One more call wakes the
//! writer, if the ring is more than half full or the recording is younger than 0.1 s. If the stack bounds are unknown,
//! `stack_memory` makes at most two calls.

pub(crate) mod code_map;
pub(crate) mod stack_memory;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use crate::python::{EVALUATOR_MARK, Evaluators};
use crate::recording::current::{self, Recording};
use crate::system::clock::{self, ThreadUsage};
use crate::thread::clock_choice::Choice;
use crate::thread::counter::OpenCounter;
use crate::thread::ring::{MAX_NATIVE_FRAMES, MAX_SAMPLE_WORDS, Sample};
use crate::thread::slot::Slot;
use crate::thread::source::Measure;
use crate::thread::timer::{self, SI_TIMER};
use crate::thread::{arming, counter, slots};
use crate::transparency::disposition::{self, Sender};
use crate::unwind::{self, Outcome, REGISTERS, Registers};
use crate::writer::wall_clock;
use code_map::ProcessCode;
use stack_memory::StackMemory;

/// `siginfo_t` of a file descriptor signal (`_sigpoll`).
#[repr(C)]
struct PollInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    padding: c_int,
    band: i64,
    descriptor: c_int,
}

/// `siginfo_t` of a timer signal; the libc crate lacks accessors for its fields.
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

/// Free bytes on the stack that [`record`] and its callees need, with a margin.
const MIN_STACK_BYTES: usize = 4096;

enum SignalSource {
    /// Sent by a sampling timer: its slot, the slot's generation, and the number of missed intervals.
    Timer { index: usize, generation: u32, overrun: u64 },
    /// Sent by a perf counter, with the index of its slot if known.
    Counter(Option<usize>),
    /// Sent by the program or another process.
    Elsewhere,
}

/// Decodes the origin of a signal.
///
/// # Safety
/// `info` must be a valid `siginfo_t` from the kernel.
unsafe fn signal_source(info: *const libc::siginfo_t) -> SignalSource {
    // SAFETY: a timer signal has these fields; for any other signal they are still within siginfo_t.
    let timer = unsafe { &*info.cast::<TimerInfo>() };
    // SAFETY: a descriptor signal has these fields; for any other signal they are still within siginfo_t.
    let poll = unsafe { &*info.cast::<PollInfo>() };
    match (timer.code, timer::decode_signal_value(timer.value)) {
        (SI_TIMER, Some((index, generation))) => {
            SignalSource::Timer { index, generation, overrun: u64::try_from(timer.overrun).unwrap_or(0) }
        }
        // The program may use the timer's signal for its own descriptors.
        (code, _)
            if timer.signal == disposition::sampling_signal(Sender::Counter)
                && counter::SIGNAL_CODES.contains(&code) =>
        {
            SignalSource::Counter(counter::find_slot(code, poll.descriptor))
        }
        _ => SignalSource::Elsewhere,
    }
}

pub(crate) extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `__errno_location` has no precondition.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to a thread-local of this thread.
    let saved_errno = unsafe { errno.read() };
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    match unsafe { signal_source(info) } {
        SignalSource::Elsewhere => disposition::forward_signal(signal, info, context),
        // Ignore a late signal meant for the slot's previous owner.
        SignalSource::Timer { index, generation, overrun } => {
            let is_owner = |slot: &Slot| slot.state.generation() == generation;
            // SAFETY: the kernel provides the context, which is valid while the handler runs.
            record_if_armed(Some(index), is_owner, Cause::Timer { overrun }, unsafe { &mut *context });
        }
        SignalSource::Counter(index) => {
            let is_owner = |slot: &Slot| slot.state.tid() == clock::own_tid();
            // SAFETY: the kernel provides the context, which is valid while the handler runs.
            record_if_armed(index, is_owner, Cause::Counter, unsafe { &mut *context });
        }
    }
    // SAFETY: `errno` points to a thread-local of this thread.
    unsafe { errno.write(saved_errno) };
}

/// Returns true if a dequeued signal is a sampler tick; no sample is taken for it.
pub(crate) fn discard_tick(info: &libc::siginfo_t) -> bool {
    // SAFETY: `info` is a valid `siginfo_t`.
    match unsafe { signal_source(info) } {
        SignalSource::Elsewhere => false,
        SignalSource::Timer { .. } => true,
        SignalSource::Counter(index) => {
            index.and_then(slots::get).inspect(|slot| slot.resume_counter());
            true
        }
    }
}

/// Dequeues the sampler's signals that are pending because the calling thread blocks them. The program's signals with
/// the same number are queued again in their original order.
pub(crate) fn drain_pending_ticks() {
    disposition::sampling_signals().for_each(drain_pending_signals);
}

fn drain_pending_signals(signal: c_int) {
    const MAX_SIGNALS: usize = 32;
    let (set, no_timeout) = (1_u64 << (signal - 1), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let (mut program_signals, mut count) = ([MaybeUninit::<libc::siginfo_t>::zeroed(); MAX_SIGNALS], 0);
    while let Some(info) = program_signals.get_mut(count) {
        // SAFETY: the call reads the set and the timeout, and writes to `info`.
        let result = unsafe {
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, info.as_mut_ptr(), &raw const no_timeout, 8_usize)
        };
        if result != signal.into() {
            break;
        }
        // SAFETY: the call above has initialized `info`.
        count += usize::from(!discard_tick(unsafe { info.assume_init_ref() }));
    }
    for info in program_signals.iter().take(count) {
        // SAFETY: the kernel has initialized all of `info`.
        let is_directed_at_thread = unsafe { info.assume_init_ref() }.si_code == libc::SI_TKILL;
        let (pid, tid) = (std::process::id(), clock::own_tid());
        // SAFETY: a process may queue a signal with any information to itself.
        unsafe {
            if is_directed_at_thread {
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info.as_ptr());
            } else {
                libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, info.as_ptr());
            }
        }
    }
}

/// What causes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Timer { overrun: u64 },
    Counter,
}

/// Takes a sample if the slot belongs to the calling thread. The handler must not write to a slot with a new owner.
fn record_if_armed(
    index: Option<usize>,
    is_owner: impl Fn(&Slot) -> bool,
    cause: Cause,
    context: &mut libc::ucontext_t,
) {
    let Some(index) = index else { return };
    let Some(slot) = slots::get(index) else { return };
    let _handler = slot.state.enter_handler();
    let is_owner = is_owner(slot);
    if is_owner
        && slot.state.is_armed()
        && let Some(recording) = current::last()
    {
        if has_stack_space(&context.uc_stack) {
            record(recording, index, slot, cause, context);
        } else {
            slot.ring.count_lost();
        }
        if cause == Cause::Counter {
            slot.resume_counter();
        }
    }
    if is_owner {
        wall_clock::restart_system_call(slot, context);
    }
}

/// Returns false if the signal stack has too little free space. It may be the program's own stack: small, or already in
/// use.
fn has_stack_space(stack: &libc::stack_t) -> bool {
    let local = 0_u8;
    let remaining = (&raw const local as usize).wrapping_sub(stack.ss_sp as usize);
    remaining >= stack.ss_size || remaining >= MIN_STACK_BYTES
}

/// Returns the time or events that a sample of this signal stands for. `None` if none is to be taken.
fn new_period(recording: &Recording, slot: &Slot, cause: Cause, context: &libc::ucontext_t) -> Option<u64> {
    let ticks = recording.ticks;
    let period = match (slot.source.measure(), cause) {
        // The writer has already added the period to `pending`. Without one, this is a duplicate signal.
        (Measure::WallTime, _) => {
            let voluntary_switches = ThreadUsage::of_caller().voluntary_switches;
            let is_accepted = slot.wait.accepts_signal(voluntary_switches, system_call_return(context));
            return (is_accepted && slot.source.has_pending()).then_some(0);
        }
        (_, Cause::Counter) if slot.source.is_first_signal_late() => return None,
        (Measure::Events, _) => return Some(slot.take_unaccounted()),
        (Measure::CpuTime, Cause::Counter) => {
            slot.ticks.count_clock_sample(recording.period_ns());
            recording.counters.by_user_clock.add(1);
            recording.period_ns()
        }
        (Measure::CpuTime, Cause::Timer { overrun }) if slot.source.counter().is_some() => {
            slot.ticks.count_rest(ticks, overrun, system_call_return(context).is_some())
        }
        (Measure::CpuTime, Cause::Timer { overrun }) => {
            let voluntary_switches = || ThreadUsage::of_caller().voluntary_switches;
            slot.ticks.count(ticks, &recording.short_threads, overrun, voluntary_switches)
        }
    };
    (period != 0).then_some(period)
}

/// Chooses the clock of a thread that is sampled by CPU time.
fn choose_clock(recording: &Recording, index: usize, slot: &Slot) {
    let usage = ThreadUsage::of_caller();
    slot.ticks.set_switches(usage.voluntary_switches);
    let has_user_clock = slot.source.counter().is_some();
    match slot.clock_choice.update(usage) {
        Some(Choice::UserClock) if !has_user_clock => arming::start_user_clock(recording, index, slot, 0),
        // The program has closed the descriptor. The next decision opens another.
        Some(Choice::UserClock) if !slot.source.counter().is_some_and(OpenCounter::is_open) => {
            arming::end_user_clock(slot);
        }
        Some(Choice::Tick | Choice::TickDespiteSwitches) if has_user_clock => arming::end_user_clock(slot),
        _ => {}
    }
    if slot.clock_choice.is_inexact_at_ticks() && slot.source.counter().is_none() {
        recording.counters.inexact.add(1);
    }
}

/// Returns the address that the thread's system call returns to, if it was in one: the kernel then returns with that
/// address in `rcx` and the flags in `r11` (the `SYSCALL` instruction, AMD64 Architecture Programmer's Manual, volume
/// 3).
#[cfg(target_arch = "x86_64")]
fn system_call_return(context: &libc::ucontext_t) -> Option<u64> {
    let register = |number: c_int| context.uc_mcontext.gregs.get(number as usize).copied();
    let is_after_call =
        register(libc::REG_RCX) == register(libc::REG_RIP) && register(libc::REG_R11) == register(libc::REG_EFL);
    register(libc::REG_RIP).filter(|_| is_after_call).map(|address| address as u64)
}

/// Returns `None`: the registers of the other architectures do not tell.
#[cfg(not(target_arch = "x86_64"))]
fn system_call_return(_context: &libc::ucontext_t) -> Option<u64> {
    None
}

// Not inlined, so that its stack frame and those of its callees are allocated after the space check.
#[inline(never)]
fn record(recording: &Recording, index: usize, slot: &Slot, cause: Cause, context: &libc::ucontext_t) {
    let Some(new_period) = new_period(recording, slot, cause, context) else { return };
    let period = slot.source.take_pending() + new_period;
    let (elapsed_ns, interval_ns) = match slot.source.measure() {
        Measure::CpuTime => {
            choose_clock(recording, index, slot);
            let interval_ns = if cause == Cause::Counter { recording.period_ns() } else { recording.ticks.sample_ns };
            (new_period.max(interval_ns), interval_ns)
        }
        Measure::WallTime | Measure::Events => (recording.period_ns(), recording.period_ns()),
    };
    if slot.pace.take_skip(elapsed_ns) {
        slot.source.add_pending(period);
    } else {
        let start = clock::monotonic();
        // The writer compares the cost of samples of waiting threads with the thread's CPU time.
        let is_wall = slot.source.measure() == Measure::WallTime;
        let cost_clock = || if is_wall { clock::thread_cpu(slot.state.tid()) } else { clock::monotonic() };
        let cost_start = if is_wall { cost_clock() } else { start };
        let usage_start = (!is_wall && slot.pace.may_skip(interval_ns)).then(ThreadUsage::of_caller);
        // SAFETY: this is the handler of the slot's thread.
        unsafe { slot.flush_idle(start) };
        if let Some(free_words) = slot.ring.free_words() {
            let new_sample = Sample { time: start, period, outcome: Outcome::Complete, count: 0 };
            if !sample(recording, slot, free_words, new_sample, context) {
                slot.source.add_pending(period);
            }
            let cost = usage_start.and_then(|usage| ThreadUsage::of_caller().cpu_ns_if_preempted_since(&usage));
            slot.pace.record_cost(cost.unwrap_or_else(|| cost_clock().saturating_sub(cost_start)));
            recording.wake.notify_after_sample(start);
        } else {
            slot.ring.count_lost();
        }
    }
    if slot.ring.is_half_full() {
        recording.wake.request_drain();
    }
}

/// Walks the stack and writes one sample. Returns false if the stack does not fit into the ring until it is drained.
fn sample(recording: &Recording, slot: &Slot, free_words: u64, sample: Sample, context: &libc::ucontext_t) -> bool {
    let registers = registers(context);
    let mut memory = StackMemory::new(recording.pid, slot, registers.stack_pointer());
    let mut count = 0;
    let mut put = |word| {
        if count < free_words {
            // SAFETY: this is the handler of the slot's thread, and `count` is less than `free_words`.
            unsafe { slot.ring.put_word(count, word) };
            count += 1;
        }
        count < free_words
    };
    // SAFETY: this handler runs in the slot's thread, is the only user of both fields, and does not nest.
    let (cache, anchors) = unsafe { (&mut *slot.cache(), &mut *slot.anchors()) };
    let mut evaluators = Evaluators::read(slot, sample.time, anchors, free_words / 4 * 3, |word| {
        let _ = put(word);
    });
    let (is_truncated, python_frames) = (evaluators.walked.is_truncated, evaluators.walked.frames);
    let mut frames = 0;
    cache.begin(code_map::generation());
    let outcome = unwind::walk(registers, &ProcessCode, &mut memory, cache, |address, stack| {
        for _ in 0..evaluators.count_before(address, stack) {
            let _ = put(EVALUATOR_MARK);
        }
        frames += 1;
        let is_put = frames <= MAX_NATIVE_FRAMES && put(address);
        is_put && (!evaluators.is_evaluator_at(address) || put(EVALUATOR_MARK))
    });
    if (is_truncated || count == free_words) && free_words < MAX_SAMPLE_WORDS {
        return false;
    }
    let outcome = match outcome {
        _ if is_truncated => Outcome::Truncated,
        // The Python frames are complete, so the writer can append the missing outermost ones to the truncated native
        // frames.
        Outcome::Truncated if python_frames != 0 => Outcome::Broken,
        outcome => outcome,
    };
    // SAFETY: this is the handler of the slot's thread, and `count` words were written.
    unsafe { slot.ring.finish_sample(Sample { outcome, count, ..sample }) };
    true
}

/// Returns the registers at the time of the signal, indexed by DWARF register number.
#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let saved = &context.uc_mcontext;
    let mut values = [0; REGISTERS];
    let saved_registers = saved.regs.iter().chain([&saved.sp, &saved.pc]);
    values.iter_mut().zip(saved_registers).for_each(|(value, &saved)| *value = saved);
    Registers::new(values)
}

/// Returns the registers at the time of the signal, indexed by DWARF register number.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    /// Context registers by DWARF register number: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
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
