//! The signal handler: a stack into a ring.
//!
//! It allocates nothing, takes no lock and touches no thread-local variable but `errno`. What it reads is its slot, published tables,
//! and the stack. In a steady thread it makes no system call (four for a counter; one that wakes the writer when its ring fills up):
//! the time is read by the vDSO, what a sample stands for is in the signal, and the thread's stack is known (`stack_memory`).

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use crate::code_map::{self, ProcessCode};
use crate::measure::{counter_of, expired};
use crate::slot::{self, PROCESS, Sample};
use crate::stack_memory::StackMemory;
use crate::timer::SI_TIMER;
use crate::unwind::{self, REGISTERS, Registers};
use crate::{clock, counter, wake};

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

pub(crate) extern "C" fn handler(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno is a thread-local of libc's, whose place does not change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    // SAFETY: the kernel has made both for a handler with SA_SIGINFO; a timer's has these fields.
    let (timer, context) = unsafe { (&*info.cast::<TimerInfo>(), context.cast::<libc::ucontext_t>()) };
    let is_timer = timer.code == SI_TIMER;
    let slot = if is_timer {
        slot_of_timer(timer.value)
    } else {
        // SAFETY: as above; a descriptor's has these, and for any other signal they are in a siginfo_t, too.
        let poll = unsafe { &*info.cast::<PollInfo>() };
        slot_of_counter(poll.code, poll.descriptor)
    };
    if let Some(slot) = slot.filter(|_| !context.is_null()) {
        // SAFETY: the kernel's, for as long as the handler runs.
        record(slot, if is_timer { timer.overrun } else { 0 }, unsafe { &*context });
    }
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

fn slot_of_timer(value: u64) -> Option<&'static slot::Slot> {
    let (index, generation) = ((value & 0xffff_ffff) as usize, (value >> 32) as u32);
    slot::get(index).filter(|slot| slot.generation.load(Ordering::Acquire) == generation)
}

/// A late signal of a descriptor that is another thread's by now is none of this one's.
fn slot_of_counter(code: c_int, descriptor: c_int) -> Option<&'static slot::Slot> {
    let slot = slot::get(counter::slot_of(code, descriptor)?)?;
    (slot.tid.load(Ordering::Acquire) == clock::own_tid()).then_some(slot)
}

fn record(slot: &slot::Slot, overrun: c_int, context: &libc::ucontext_t) {
    // First this: the thread that ends the sampling changes the state and then looks whether the handler runs.
    slot.running.fetch_add(1, Ordering::SeqCst);
    if slot.state.load(Ordering::SeqCst) == slot::ARMED && PROCESS.load(Ordering::Relaxed) != 0 {
        let period = expired(slot, overrun);
        match slot.space() {
            Some(space) => sample(slot, space, period, context),
            None => drop(slot.lost.fetch_add(1, Ordering::Relaxed)),
        }
        if slot.is_half_full() {
            wake::writer_to_drain();
        }
        if let Some(counter) = counter_of(slot) {
            counter.go_on();
        }
    }
    slot.running.fetch_add(1, Ordering::SeqCst);
}

fn sample(slot: &slot::Slot, space: u64, period: u64, context: &libc::ucontext_t) {
    let registers = registers(context);
    let mut memory = StackMemory::new(slot, registers.stack_pointer());
    let mut count = 0;
    // SAFETY: this is the handler of the slot's thread, the only one to use it, and it is not entered again while it runs.
    let cache = unsafe { &mut *slot.cache() };
    cache.begin(code_map::generation());
    let outcome = unwind::walk(registers, &ProcessCode, &mut memory, cache, |address| {
        if count == space {
            return false;
        }
        // SAFETY: as above, and `count` is less than `space`.
        unsafe { slot.put(count, address) };
        count += 1;
        true
    });
    // SAFETY: as above.
    unsafe { slot.finish(Sample { time: clock::monotonic(), period, outcome, count }) };
    memory.learn(outcome);
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
