//! Wall-clock time ([`Clock::Wall`](crate::Clock)): samples waiting threads without disturbing them.
//!
//! ```text
//!   writer, at each interval       thread has run since its last sample?   no:  its last stack again (`Slot::idle`)
//!                                                                          yes: its timer sends the signal
//!   handler                        a sample; a system call that it has interrupted is made again
//! ```
//! So a thread that begins to wait is sent one signal. Most system calls are made again by the kernel then; those that
//! it ends with `EINTR`, as `pause` and `poll`, [`go_on`] makes again, on x86_64. A transfer that may have begun, as a
//! `write` to a full pipe, would be cut short: a thread in one is sent no signal, and its stack is read by the writer,
//! without frames of the interpreter's. On aarch64 a thread in `pause`, too.

#![forbid(unsafe_code)]

use std::fs;
use std::sync::atomic::Ordering;

use crate::code_map::{self, ProcessCode};
use crate::slot::{self, MOST_FRAMES, Slot};
use crate::timer::Timer;
use crate::unwind::{Memory, Outcome, Registers, RuleCache, walk};
use crate::{clock, mappings, measure, python};

/// Between two looks at a thread that waits, at most.
const LONGEST: u64 = 50_000_000;
/// A thread that waits is looked at after this part of the time that it has waited.
const PART: u64 = 16;
/// Processor time of the way from the handler back into the system call; the handler's own comes on top.
const RETURN: u64 = 50_000;
/// A thread that was in a transfer at the last look, and has used less processor time since, is in it still.
const BRIEF: u64 = 200_000;
/// So often a thread that runs between two looks may be found on no processor.
const MISSED: u32 = 3;
/// Bytes of a waiting thread's stack that are copied, at most.
const COPY: u64 = 64 << 10;

/// Where a thread waits, as `/proc/self/task/TID/syscall` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: i64,
    arguments: [u64; 6],
    stack: u64,
    address: u64,
}

impl Call {
    /// `None` if the thread runs, or that cannot be had.
    fn of(tid: u32) -> Option<Call> {
        Call::parse(&fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?)
    }

    /// `NUMBER ARGUMENT... STACK ADDRESS`; `-1 STACK ADDRESS` where it waits otherwise; or `running`.
    fn parse(line: &str) -> Option<Call> {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut arguments = [0; 6];
        if number >= 0 {
            for argument in &mut arguments {
                *argument = word()?;
            }
        }
        Some(Call { number, arguments, stack: word()?, address: word()? })
    }

    /// Whether one that has ended with `EINTR` has done nothing.
    fn is_made_again(&self) -> bool {
        /// Calls that aarch64 does not have.
        #[cfg(target_arch = "x86_64")]
        const OWN: [i64; 4] = [libc::SYS_epoll_wait, libc::SYS_pause, libc::SYS_poll, libc::SYS_select];
        #[cfg(not(target_arch = "x86_64"))]
        const OWN: [i64; 0] = [];
        const CALLS: [i64; 28] = [
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_clock_nanosleep,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_fcntl,
            libc::SYS_flock,
            libc::SYS_futex,
            libc::SYS_io_getevents,
            libc::SYS_mq_timedreceive,
            libc::SYS_mq_timedsend,
            libc::SYS_msgrcv,
            libc::SYS_msgsnd,
            libc::SYS_nanosleep,
            libc::SYS_ppoll,
            libc::SYS_pread64,
            libc::SYS_preadv,
            libc::SYS_pselect6,
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_rt_sigsuspend,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_wait4,
            libc::SYS_waitid,
        ];
        CALLS.contains(&self.number) || OWN.contains(&self.number)
    }

    /// Whether the program would notice that a signal has ended it: with a part of the work done, or `pause` where
    /// [`go_on`] does nothing.
    fn is_noticed(&self) -> bool {
        self.is_transfer() || cfg!(not(target_arch = "x86_64")) && self.is_pause()
    }

    /// On aarch64 `pause` waits for no file and no time.
    fn is_pause(&self) -> bool {
        let no_file_no_time = self.arguments[..3] == [0; 3];
        (self.number == libc::SYS_ppoll && no_file_no_time) || self.number == libc::SYS_rt_sigsuspend
    }

    /// Whether a signal may end it with a part of the work done.
    fn is_transfer(&self) -> bool {
        /// The argument that has the flags, if it is one with flags, of which `MSG_WAITALL` says so.
        const TRANSFERS: [(i64, Option<usize>); 13] = [
            (libc::SYS_write, None),
            (libc::SYS_writev, None),
            (libc::SYS_pwrite64, None),
            (libc::SYS_pwritev, None),
            (libc::SYS_sendto, None),
            (libc::SYS_sendmsg, None),
            (libc::SYS_sendmmsg, None),
            (libc::SYS_sendfile, None),
            (libc::SYS_splice, None),
            (libc::SYS_vmsplice, None),
            (libc::SYS_recvmmsg, None),
            (libc::SYS_recvfrom, Some(3)),
            (libc::SYS_recvmsg, Some(2)),
        ];
        let waits_for_all =
            |at: usize| self.arguments.get(at).is_some_and(|flags| flags & libc::MSG_WAITALL as u64 != 0);
        TRANSFERS.iter().any(|(number, flags)| *number == self.number && flags.is_none_or(waits_for_all))
    }
}

/// What the writer knows of the thread in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    generation: u32,
    /// When it is looked at again.
    next: u64,
    /// When it was last seen to have run.
    since: u64,
    /// Its processor time at the last look, and when it was last to be sampled.
    seen: u64,
    sampled: u64,
    call: Option<Call>,
    /// Looks at which it had run since the look before, and was on no processor.
    missed: u32,
}

/// A stack that was read without a signal.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) period: u64,
    pub(crate) outcome: Outcome,
    pub(crate) stack: Vec<u64>,
}

impl Thread {
    /// Whether its last signal has become a sample.
    fn is_sampled(&self, slot: &Slot) -> bool {
        self.sampled != 0 && slot.owed.load(Ordering::Acquire) == 0
    }

    /// Whether it is where its last sample was, by its processor time.
    fn is_still_there(&self, slot: &Slot, seen: u64) -> bool {
        self.is_sampled(slot) && seen == self.seen
    }

    /// What to do with a thread whose time has come.
    fn look(&mut self, slot: &Slot, now: u64) -> Option<Call> {
        let passed = measure::time_since_last(slot);
        let seen = clock::thread_cpu(slot.tid.load(Ordering::Acquire));
        if self.is_still_there(slot, seen) {
            slot.idle.fetch_add(passed, Ordering::AcqRel);
            return None;
        }
        let call = Call::of(slot.tid.load(Ordering::Acquire));
        // Awake for a moment, in the middle of a transfer.
        let is_brief = seen.saturating_sub(self.seen) < BRIEF;
        let call = call.or(self.call.filter(|call| is_brief && call.is_noticed()));
        let is_same_call = call.is_some() && call == self.call;
        let back_again = RETURN + slot.pace.last_cost();
        if !is_same_call || seen.saturating_sub(self.seen) > back_again {
            self.since = now;
        }
        let has_run = std::mem::replace(&mut self.seen, seen) != seen;
        if self.is_sampled(slot) && is_same_call && seen.saturating_sub(self.sampled) <= back_again {
            slot.idle.fetch_add(passed, Ordering::AcqRel);
            return None;
        }
        slot.owed.fetch_add(passed, Ordering::AcqRel);
        if call.is_none() && !self.is_on_processor(slot, has_run) {
            return None;
        }
        (self.sampled, self.call) = (seen, call);
        if call.is_none() {
            self.signal(slot);
        }
        call
    }

    /// Whether it runs at this moment, by its processor time. A thread that is ready, and may be on its way out of a
    /// system call, does not. On a machine with one processor no other thread ever does.
    fn is_on_processor(&mut self, slot: &Slot, has_run: bool) -> bool {
        let runs = clock::thread_cpu(slot.tid.load(Ordering::Acquire)) > self.seen;
        self.missed += u32::from(has_run);
        let is_due = runs || self.missed > MISSED;
        if is_due {
            self.missed = 0;
        }
        is_due
    }

    /// Sends the thread a signal.
    fn signal(&self, slot: &Slot) {
        let call = self.call.filter(Call::is_made_again);
        slot.call_stack.store(call.map_or(0, |call| call.stack), Ordering::Relaxed);
        slot.call.store(call.map_or(0, |call| call.address << 16 | call.number as u64), Ordering::Release);
        let timer = slot.timer.load(Ordering::Acquire);
        if timer >= 0 {
            let _ = Timer(timer).set(1, 0);
        }
    }
}

/// All threads, as the writer has them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    threads: Vec<Thread>,
    cache: Box<RuleCache>,
}

impl Watch {
    /// Looks at the threads whose time has come; `sample` gets the stacks that were read. Returns when to look again.
    pub(crate) fn look(&mut self, now: u64, mut sample: impl FnMut(usize, &Slot, Outside)) -> u64 {
        let (period, mut next) = (measure::period(), now + LONGEST);
        for (index, slot) in slot::all() {
            if slot.state.load(Ordering::Acquire) != slot::ARMED {
                continue;
            }
            if index >= self.threads.len() {
                self.threads.resize(index + 1, Thread::default());
            }
            let Some(thread) = self.threads.get_mut(index) else { break };
            let generation = slot.generation.load(Ordering::Acquire);
            if thread.generation != generation {
                *thread = Thread { generation, ..Thread::default() };
            }
            if thread.next <= now {
                if let Some(call) = thread.look(slot, now) {
                    match outside(&call, thread.seen, slot, &mut self.cache) {
                        Some(found) => sample(index, slot, found),
                        None if call.is_noticed() => {}
                        None => thread.signal(slot),
                    }
                }
                let waited = now.saturating_sub(thread.since);
                thread.next = now + (waited / PART).clamp(period, LONGEST.max(period));
            }
            next = next.min(thread.next);
        }
        next
    }
}

impl Watch {
    /// Before the last record: the time since the last look.
    pub(crate) fn end(&self) {
        for ((_, slot), thread) in slot::all().zip(&self.threads) {
            let is_armed = slot.state.load(Ordering::Acquire) == slot::ARMED;
            let is_its = slot.generation.load(Ordering::Acquire) == thread.generation;
            if is_armed && is_its && thread.is_still_there(slot, clock::thread_cpu(slot.tid.load(Ordering::Acquire))) {
                slot.idle.fetch_add(measure::time_since_last(slot), Ordering::AcqRel);
            }
        }
    }
}

/// Reads the stack of a thread that waits. `None` if it is not whole, and a signal does no harm; or the thread waits no
/// more.
fn outside(call: &Call, seen: u64, slot: &Slot, cache: &mut RuleCache) -> Option<Outside> {
    let is_noticed = call.is_noticed();
    // Frames of the interpreter's are read by the thread itself.
    if !is_noticed && python::is_read() {
        return None;
    }
    let high = slot.stack_high.load(Ordering::Relaxed);
    let to_end_of_page = 4096 - call.stack % 4096;
    let sizes = [high.wrapping_sub(call.stack).min(COPY), COPY / 4, to_end_of_page];
    let bytes = sizes.into_iter().find_map(|size| mappings::read(call.stack, size))?;
    cache.begin(code_map::generation());
    let (mut stack, registers) = (Vec::new(), Registers::of(call.stack, call.address));
    let outcome = walk(registers, &ProcessCode, &mut Copied { start: call.stack, bytes }, cache, |address, _| {
        stack.push(address);
        (stack.len() as u64) < MOST_FRAMES
    });
    let is_there = clock::thread_cpu(slot.tid.load(Ordering::Acquire)) == seen;
    let is_enough = is_noticed || outcome == Outcome::Complete;
    (is_there && is_enough).then(|| Outside { period: slot.owed.swap(0, Ordering::AcqRel), outcome, stack })
}

struct Copied {
    start: u64,
    bytes: Vec<u8>,
}

impl Memory for Copied {
    fn read(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        Some(u64::from_ne_bytes(self.bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }
}

/// In the handler: a system call that was interrupted, and that the kernel ends with `EINTR` because there is a
/// handler, is made again, unless the program has a signal, too.
#[cfg(target_arch = "x86_64")]
pub(crate) fn go_on(slot: &Slot, context: &mut libc::ucontext_t) {
    let call = slot.call.swap(0, Ordering::AcqRel);
    let stack = slot.call_stack.load(Ordering::Relaxed);
    let is = |register: libc::c_int, value: u64| {
        context.uc_mcontext.gregs.get(register as usize).is_some_and(|is| *is as u64 == value)
    };
    let is_interrupted = call != 0
        && is(libc::REG_RAX, i64::from(-libc::EINTR) as u64)
        && is(libc::REG_RIP, call >> 16)
        && is(libc::REG_RSP, stack);
    if is_interrupted && !crate::disposition::is_signal_waiting(&raw const context.uc_sigmask) {
        let registers = &mut context.uc_mcontext.gregs;
        // Back to the instruction, of two bytes, with the number where the result is. The arguments are where they
        // were.
        registers[libc::REG_RIP as usize] -= 2;
        registers[libc::REG_RAX as usize] = (call & 0xffff) as i64;
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn go_on(_slot: &Slot, _context: &mut libc::ucontext_t) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_as_the_kernel_writes_them() {
        let call = |number: i64, rest: &str| Call::parse(&format!("{number} {rest} 0x7ffd10 0x7f0040\n"));
        assert_eq!((Call::parse("running\n"), Call::parse("")), (None, None));
        let elsewhere = Call::parse("-1 0x7ffd10 0x7f0040\n").unwrap();
        assert_eq!((elsewhere.stack, elsewhere.address), (0x7ffd10, 0x7f0040));
        assert!(!elsewhere.is_transfer() && !elsewhere.is_made_again());
        let write = call(libc::SYS_write, "0x1 0x5 0x1000 0x0 0x0 0x0").unwrap();
        assert_eq!((write.arguments, write.stack), ([1, 5, 4096, 0, 0, 0], 0x7ffd10));
        assert!(write.is_transfer() && !write.is_made_again());
        let all = format!("0x1 0x5 0x1000 {:#x} 0x0 0x0", libc::MSG_WAITALL);
        assert!(call(libc::SYS_recvfrom, &all).unwrap().is_transfer());
        let some = call(libc::SYS_recvfrom, "0x1 0x5 0x1000 0x0 0x0 0x0").unwrap();
        assert!(!some.is_transfer() && some.is_made_again());
        assert_eq!(call(libc::SYS_write, "0x1 0x5"), None);
        let pause = call(libc::SYS_ppoll, "0x0 0x0 0x0 0x0 0x8 0x0").unwrap();
        let poll = call(libc::SYS_ppoll, "0x7ff0 0x1 0x0 0x0 0x8 0x0").unwrap();
        assert!(pause.is_pause() && !poll.is_pause());
    }
}
