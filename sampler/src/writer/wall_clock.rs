//! Wall-clock time ([`Clock::Wall`](crate::Clock)): samples waiting threads without disturbing them.
//!
//! ```text
//!   writer, at each interval       has the thread run since its last sample?   no:  repeat its last stack (`idle_ns`)
//!                                                                              yes: set its timer, to send a signal
//!   handler                        takes a sample, and restarts the system call that it has interrupted
//! ```
//! The thread's CPU clock and its time on the run queue (`schedstat`) divide the time between two checks. Time that it
//! ran belongs to the next sample of the running thread. Checks come at random times, so code before a wait loses as
//! much to the code after it as that loses to later code. Time that it waited belongs to a sample of the waiting
//! thread: the last sample, if it is one and the thread now runs, else the next. Until a thread on the run queue runs,
//! it looks as if it waited; then that time is taken back. Time on the run queue belongs to no sample.
//!
//! Threads and child processes may end without a sample. Their time goes to the first samples of later ones, so that a
//! first sample stands for the interval in which the check was due, as far as such time is available. So does the time
//! that others ran after their last samples; a wait at the end belongs to the sample of that wait.
//!
//! A thread that starts to wait receives one signal. The kernel then restarts most system calls. Calls that fail with
//! `EINTR` instead, such as `pause` and `poll`, are restarted by [`restart_system_call`], on x86_64. A transfer that
//! may have begun, such as a `write` to a full pipe, would be cut short. A thread in such a call receives no signal;
//! the writer reads its stack, without Python frames. The same applies on aarch64 to a thread in `pause`.

#![forbid(unsafe_code)]

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use crate::handler::code_map::{self, ProcessCode};
use crate::python;
use crate::recording::current::Recording;
use crate::recording::family::EndedTime;
use crate::recording::options::Clock;
use crate::system::clock;
use crate::thread::ring::MAX_NATIVE_FRAMES;
use crate::thread::run_queue::SchedulerTimes;
use crate::thread::slot::Slot;
use crate::thread::slot_state::State;
use crate::thread::timer::{self, Timer};
use crate::thread::wait::InterruptedCall;
use crate::thread::{arming, slots};
use crate::transparency::disposition::{self, Sender};
use crate::unwind::{Memory, Outcome, Registers, RuleCache, walk};
use crate::writer::mappings;
use crate::writer::system_call::SystemCall;

/// Minimum time between two checks of a thread, per thread that is sampled. A check takes some 15 us, and a signal as
/// much again.
const CHECK_INTERVAL_PER_THREAD_NS: u64 = 100_000;
/// The same for each thread above [`MANY_THREADS`]: their samples add up to enough.
const CHECK_INTERVAL_PER_FURTHER_THREAD_NS: u64 = 500_000;
const MANY_THREADS: u64 = 20;
/// Maximum time between two checks of a waiting thread.
const MAX_CHECK_INTERVAL_NS: u64 = 50_000_000;
/// The delay until a waiting thread's next check is its waiting time so far, divided by this number.
const WAIT_TIME_DIVISOR: u64 = 16;
/// CPU time that a thread needs to return from the handler into its system call, without the handler itself.
const SYSCALL_RETURN_NS: u64 = 50_000;
/// CPU time below which a thread that was in a transfer at the last check is assumed to be still in it.
const MAX_BRIEF_RUN_NS: u64 = 200_000;
/// A thread on the run queue for more than this part of its running time is preempted by others than the writer.
const QUEUE_TIME_DIVISOR: u64 = 4;
/// Time of ended threads that is kept for the first samples that need it, in multiples of the time that a sample stands
/// for. Without it, the earlier a first sample came, the more time it would lack.
const RESERVED_INTERVALS: u64 = 4;
/// If there is more, each first sample gets up to this part of the rest, because fewer threads are sampled than should
/// be.
const ENDED_TIME_DIVISOR: u64 = 8;
/// Maximum of that part, in multiples of the time that the sample stands for.
const MAX_ENDED_INTERVALS: u64 = 4;
/// Maximum number of bytes to copy from a waiting thread's stack.
const MAX_STACK_COPY_BYTES: u64 = 64 << 10;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Running,
    Waiting,
}

/// Time of a thread that belongs to no sample yet, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenTime {
    running: u64,
    waiting: u64,
}

impl OpenTime {
    /// Adds the time between two checks. In this time, the thread ran for `ran_ns` and left the run queue after
    /// `queued_ns` on it. Returns the part of `queued_ns` that was before.
    fn add(&mut self, elapsed_ns: u64, ran_ns: u64, queued_ns: u64) -> u64 {
        let ran_ns = ran_ns.min(elapsed_ns);
        self.running += ran_ns;
        self.waiting += elapsed_ns - ran_ns;
        let rest_ns = self.waiting.saturating_sub(queued_ns);
        queued_ns - (std::mem::replace(&mut self.waiting, rest_ns) - rest_ns)
    }

    fn time_of(&mut self, activity: Activity) -> &mut u64 {
        match activity {
            Activity::Running => &mut self.running,
            Activity::Waiting => &mut self.waiting,
        }
    }

    fn add_to(&mut self, activity: Activity, ns: u64) {
        *self.time_of(activity) += ns;
    }

    fn take(&mut self, activity: Activity) -> u64 {
        std::mem::take(self.time_of(activity))
    }

    /// Takes the waiting time of a thread that is back in its call, with the time that it needed to return. Earlier
    /// running time belongs to a sample of the running thread.
    fn take_wait(&mut self, return_ns: u64) -> u64 {
        let return_ns = return_ns.min(self.running);
        self.running -= return_ns;
        self.take(Activity::Waiting) + return_ns
    }
}

impl EndedTime {
    fn add(&self, OpenTime { running, waiting }: OpenTime) {
        self.running.fetch_add(running, Relaxed);
        self.waiting.fetch_add(waiting, Relaxed);
    }

    /// Takes the time that the first sample of a thread lacks of `interval_ns`, and up to several times as much the more
    /// time there is, for the next samples to take equal parts.
    fn take_part(&self, activity: Activity, interval_ns: u64, missing_ns: u64) -> u64 {
        let time = match activity {
            Activity::Running => &self.running,
            Activity::Waiting => &self.waiting,
        };
        let part_of = |time_ns: u64| {
            let surplus_ns = time_ns.saturating_sub(interval_ns * RESERVED_INTERVALS);
            let added_ns = (surplus_ns / ENDED_TIME_DIVISOR).min(interval_ns * MAX_ENDED_INTERVALS);
            (missing_ns + added_ns).min(time_ns)
        };
        let before_ns = time.fetch_update(Relaxed, Relaxed, |time_ns| Some(time_ns - part_of(time_ns)));
        before_ns.map_or(0, part_of)
    }
}

/// The writer's view of the thread in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct WatchedThread {
    generation: u32,
    next_check: u64,
    /// Time when the thread was last found to have run.
    waiting_since: u64,
    /// CPU time at the last check.
    last_cpu_ns: u64,
    /// Time on the run queue at the last check at which the thread had run.
    last_run_queue_ns: u64,
    open: OpenTime,
    /// CPU time when a sample was last requested; 0 if never.
    sampled_cpu_ns: u64,
    /// What the thread did then.
    sampled_activity: Option<Activity>,
    /// True if the thread has not run since it was sent a signal.
    is_signalled: bool,
    call: Option<SystemCall>,
    /// Timer on the thread's CPU clock.
    tick_timer: Option<Timer>,
    /// Time that the first sample stands for; 0 once the sample has been requested.
    first_interval_ns: u64,
}

/// A stack that the writer has read, without a signal to the thread.
#[derive(Debug)]
pub(crate) struct RemoteSample {
    pub(crate) period: u64,
    pub(crate) outcome: Outcome,
    pub(crate) stack: Vec<u64>,
}

impl WatchedThread {
    /// True if the last requested sample has been taken.
    fn is_sampled(&self, slot: &Slot) -> bool {
        self.sampled_cpu_ns != 0 && !slot.source.has_pending()
    }

    /// True if the thread has not run since its last sample, according to its CPU time.
    fn has_not_run_since_sample(&self, slot: &Slot, cpu_ns: u64) -> bool {
        self.is_sampled(slot) && cpu_ns == self.last_cpu_ns
    }

    /// True if the thread has run since the last check, according to its CPU time.
    fn has_run_since_check(&self, slot: &Slot) -> bool {
        clock::thread_cpu(slot.state.tid()) != self.last_cpu_ns
    }

    /// Checks a thread that is due. Returns the system call that it waits in if the writer should read its stack.
    fn check(&mut self, index: usize, slot: &Slot, now: u64, ended: &EndedTime) -> Option<SystemCall> {
        let elapsed_ns = slot.take_unaccounted();
        let cpu_ns = clock::thread_cpu(slot.state.tid());
        if self.has_not_run_since_sample(slot, cpu_ns) {
            match self.sampled_activity {
                Some(Activity::Waiting) => slot.wait.add_idle(elapsed_ns),
                // The thread is on the run queue. A handler may run before the next check, so that nothing could be
                // taken back from its last sample.
                _ => self.open.add_to(Activity::Waiting, elapsed_ns),
            }
            return None;
        }
        let call = SystemCall::read(slot.state.tid());
        // A brief run means that the thread was only awake for a moment, in the middle of a transfer.
        let was_brief = cpu_ns.saturating_sub(self.last_cpu_ns) < MAX_BRIEF_RUN_NS;
        let call = call.or(self.call.filter(|call| was_brief && call.is_interruption_visible()));
        let is_same_call = call.is_some() && call == self.call;
        let return_cost_ns = SYSCALL_RETURN_NS + slot.pace.last_cost_ns();
        if !is_same_call || cpu_ns.saturating_sub(self.last_cpu_ns) > return_cost_ns {
            self.waiting_since = now;
        }
        let ran_ns = cpu_ns.saturating_sub(std::mem::replace(&mut self.last_cpu_ns, cpu_ns));
        let is_sampled = self.is_sampled(slot);
        let is_back = is_sampled && is_same_call && cpu_ns.saturating_sub(self.sampled_cpu_ns) <= return_cost_ns;
        let queued_ns = if ran_ns == 0 { 0 } else { self.take_queued(slot, is_back) };
        let queued_before_ns = self.open.add(elapsed_ns, ran_ns, queued_ns);
        slot.wait.take_back_idle(queued_before_ns);
        if is_back {
            slot.wait.add_idle(self.open.take_wait(ran_ns));
            return None;
        }
        let activity = if call.is_some() { Activity::Waiting } else { Activity::Running };
        // The time since a thread on the run queue was woken looks as if it waited.
        let is_queued = call.is_none() && clock::thread_cpu(slot.state.tid()) == cpu_ns;
        let is_preempted = is_queued && was_preempted(slot, ran_ns, queued_ns);
        let has_waited = is_sampled && self.sampled_activity == Some(Activity::Waiting);
        if has_waited && call.is_none() && (!is_queued || is_preempted) {
            slot.wait.add_idle(self.open.take(Activity::Waiting));
        }
        // It has not run, and may be leaving a system call.
        if is_queued && ran_ns == 0 {
            return None;
        }
        slot.wait.set_wanted(call.map(|call| call.address));
        if let Some(last) = self.sampled_activity.filter(|last| *last != activity) {
            // The thread has not taken the last sample.
            self.open.add_to(last, slot.source.take_pending());
        }
        let open_ns = self.open.take(activity);
        let interval_ns = std::mem::take(&mut self.first_interval_ns);
        let added_ns = ended.take_part(activity, interval_ns, interval_ns.saturating_sub(open_ns));
        // The handler ignores a signal without a period.
        slot.source.add_pending((open_ns + added_ns).max(1));
        (self.sampled_cpu_ns, self.sampled_activity, self.call) = (cpu_ns, Some(activity), call);
        match call {
            Some(_) => {}
            None if is_preempted || is_running(slot) => self.signal(slot),
            None => self.signal_at_tick(index, slot),
        }
        call
    }

    /// Returns the thread's time on the run queue since the last call. A signal to a thread that waits makes it run:
    /// the delay until then is part of the wait that it returns to.
    fn take_queued(&mut self, slot: &Slot, is_back: bool) -> u64 {
        let Some(times) = SchedulerTimes::read(slot.state.tid()) else { return 0 };
        let last_ns = std::mem::replace(&mut self.last_run_queue_ns, times.run_queue_ns);
        let queued_ns = times.run_queue_ns.saturating_sub(last_ns);
        if std::mem::take(&mut self.is_signalled) && is_back {
            slot.run_queue.leave_out(queued_ns);
            return 0;
        }
        queued_ns
    }

    /// Makes the thread's timer send its signal now.
    fn signal(&mut self, slot: &Slot) {
        self.is_signalled = true;
        let call = self.call.filter(SystemCall::is_restartable);
        slot.wait.set_call(call.map(|call| InterruptedCall {
            address: call.address,
            number: call.number as u64,
            stack: call.stack,
        }));
        if let Some(timer) = slot.source.timer() {
            let _ = timer.set(1, 0);
        }
    }

    /// Sends a signal when the kernel's tick next finds the thread running. A thread on the run queue may be in a
    /// system call that has ended, such as a `poll` that has timed out, and another signal would make it fail with
    /// `EINTR`. A call that an earlier signal has interrupted is still restarted.
    fn signal_at_tick(&mut self, index: usize, slot: &Slot) {
        let new_timer = || {
            let signal = disposition::sampling_signal(Sender::Timer);
            let value = timer::encode_signal_value(index, self.generation);
            Timer::new(Clock::Cpu, slot.state.tid(), signal, value).ok()
        };
        let Some(timer) = self.tick_timer.or_else(new_timer) else { return self.signal(slot) };
        self.tick_timer = Some(timer);
        if !self.is_signalled {
            slot.wait.set_call(None);
        }
        let _ = timer.set(1, 0);
    }

    /// Ends the watch of the thread.
    fn end(&mut self) {
        self.tick_timer.take().into_iter().for_each(Timer::delete);
    }

    /// Charges the last `elapsed_ns` of a thread: its last wait to the sample of that wait, and other open time to first
    /// samples of others. A sample of the running thread already stands for the time before it.
    fn charge_end(&mut self, slot: &Slot, elapsed_ns: u64, end: SchedulerTimes, ended: &EndedTime) {
        let last_run_queue_ns = std::mem::replace(&mut self.last_run_queue_ns, end.run_queue_ns);
        let queued_ns = end.run_queue_ns.saturating_sub(last_run_queue_ns);
        let ran_ns = end.cpu_ns.saturating_sub(std::mem::replace(&mut self.last_cpu_ns, end.cpu_ns));
        slot.wait.take_back_idle(self.open.add(elapsed_ns, ran_ns, queued_ns));
        match self.sampled_activity {
            Some(Activity::Waiting) if self.is_sampled(slot) => slot.wait.add_idle(self.open.take(Activity::Waiting)),
            Some(last) => self.open.add_to(last, slot.source.take_pending()),
            None => {}
        }
        ended.add(std::mem::take(&mut self.open));
    }
}

/// Watches all sampled threads on behalf of the writer.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    threads: Vec<WatchedThread>,
    cache: Box<RuleCache>,
    /// Times of the last and the next first check of new threads; 0 before the first call.
    first_checks: (u64, u64),
    /// Number of sampled threads at the last check.
    thread_count: u64,
}

impl Watch {
    /// Charges the time of a thread that has ended since its last check. Called before the last record of its idle
    /// time.
    pub(crate) fn end_thread(&mut self, recording: &Recording, index: usize, slot: &Slot) {
        let Some((thread, _)) = find_thread(&mut self.threads, index, slot) else { return };
        thread.end();
        if let Some(end) = slot.run_queue.end() {
            thread.charge_end(slot, slot.source.take_unaccounted_at_end(), end, recording.ended());
        }
    }

    /// Checks the threads that are due. Passes the stacks that were read to `sample`. Returns the time of the next
    /// check.
    pub(crate) fn check(
        &mut self,
        recording: &Recording,
        now: u64,
        mut sample: impl FnMut(usize, &Slot, RemoteSample),
    ) -> u64 {
        let thread_count = std::mem::take(&mut self.thread_count);
        let min_interval_ns = recording.period_ns().max(min_check_interval_ns(thread_count));
        let mut next_check = now + MAX_CHECK_INTERVAL_NS;
        // Intervals are random, because naps would fall into step with equal ones. The same random number for all
        // threads keeps the writer from waking up for each.
        let random = arming::random(0);
        let is_first = self.first_checks == (0, 0);
        if is_first {
            self.first_checks = surrounding_checks(now, min_interval_ns);
        }
        let (last_first_check, first_check) = (self.first_checks.0, self.first_checks.1.max(now));
        if first_check == now {
            self.first_checks = (now, now + min_interval_ns / 2 + random % min_interval_ns);
        }
        for (index, slot) in slots::iter() {
            if !slot.state.is_armed() {
                continue;
            }
            self.thread_count += 1;
            let Some((thread, is_new)) = find_thread(&mut self.threads, index, slot) else { break };
            if is_new && (!is_first || recording.family.is_some()) {
                // Times that do not depend on the start of the thread, or the child, check it at all ages equally often.
                thread.next_check = first_check;
                thread.first_interval_ns = first_check - last_first_check;
            }
            if thread.next_check <= now {
                if let Some(call) = thread.check(index, slot, now, recording.ended()) {
                    match sample_remotely(&call, thread.last_cpu_ns, slot, &mut self.cache) {
                        Some(remote_sample) => sample(index, slot, remote_sample),
                        // Reading the call and the stack takes a while. A thread that has left the call is checked
                        // again, because the signal would interrupt what it does next.
                        None if call.is_interruption_visible() || thread.has_run_since_check(slot) => {}
                        None => thread.signal(slot),
                    }
                }
                let waited_ns = now.saturating_sub(thread.waiting_since);
                let interval_ns = (waited_ns / WAIT_TIME_DIVISOR).min(MAX_CHECK_INTERVAL_NS).max(min_interval_ns);
                thread.next_check = now + interval_ns / 2 + random % interval_ns;
            }
            next_check = next_check.min(thread.next_check);
        }
        next_check
    }

    /// Charges the time of all threads since their last checks. Called once none is sampled any more, before the last
    /// records are written.
    pub(crate) fn end(&mut self, recording: &Recording) {
        for (index, slot) in slots::iter().filter(|(_, slot)| slot.state.get() == State::Ended) {
            self.end_thread(recording, index, slot);
        }
    }
}

/// Returns the minimum time between two checks of a thread if this number of threads is sampled.
fn min_check_interval_ns(threads: u64) -> u64 {
    threads.min(MANY_THREADS) * CHECK_INTERVAL_PER_THREAD_NS
        + threads.saturating_sub(MANY_THREADS) * CHECK_INTERVAL_PER_FURTHER_THREAD_NS
}

/// Returns two times with a random interval between them, one before `now` and one after it.
fn surrounding_checks(now: u64, min_interval_ns: u64) -> (u64, u64) {
    // After a few intervals, nothing depends on the start any more. The longer an interval, the likelier it has `now`.
    let (mut last, mut next, mut number) = (0, now.saturating_sub(8 * min_interval_ns), 0);
    while next <= now {
        (last, number) = (next, number + 1);
        next += min_interval_ns / 2 + arming::random(number) % min_interval_ns;
    }
    (last, next)
}

/// Returns the view of the thread in a slot, and true if it is new.
fn find_thread<'a>(
    threads: &'a mut Vec<WatchedThread>,
    index: usize,
    slot: &Slot,
) -> Option<(&'a mut WatchedThread, bool)> {
    if index >= threads.len() {
        threads.resize(index + 1, WatchedThread::default());
    }
    let thread = threads.get_mut(index)?;
    let generation = slot.state.generation();
    let is_new = thread.generation != generation;
    if is_new {
        thread.end();
        let SchedulerTimes { cpu_ns, run_queue_ns } = slot.run_queue.before();
        *thread = WatchedThread {
            generation,
            last_cpu_ns: cpu_ns,
            last_run_queue_ns: run_queue_ns,
            ..WatchedThread::default()
        };
    }
    Some((thread, is_new))
}

/// True if the thread is running at this moment. It may have begun to wait since the check read its files, and a signal
/// would interrupt the wait.
fn is_running(slot: &Slot) -> bool {
    let tid = slot.state.tid();
    clock::thread_cpu(tid) != clock::thread_cpu(tid)
}

/// True if a thread on the run queue, which has run since the last check, has been preempted there and not woken from a
/// wait: the writer often takes the processor of the thread that it checks. Where threads queue for long, the places of
/// preemption say little about where they run.
fn was_preempted(slot: &Slot, ran_ns: u64, queued_ns: u64) -> bool {
    queued_ns < ran_ns / QUEUE_TIME_DIVISOR
        && voluntary_switches(slot.state.tid()).is_some_and(|switches| !slot.wait.may_have_waited(switches))
}

/// Reads the number of a thread's voluntary context switches.
fn voluntary_switches(tid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    let mut numbers = status.lines().filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    numbers.next()?.trim().parse().ok()
}

/// Reads the stack of a waiting thread. `None` if the thread no longer waits, or if the stack is incomplete and a
/// signal would do no harm.
fn sample_remotely(call: &SystemCall, cpu_ns: u64, slot: &Slot, cache: &mut RuleCache) -> Option<RemoteSample> {
    let is_interruption_visible = call.is_interruption_visible();
    // Python frames can only be read by the thread itself.
    if !is_interruption_visible && python::is_published() {
        return None;
    }
    let high = slot.stack.get().1;
    let to_end_of_page = 4096 - call.stack % 4096;
    let sizes = [high.wrapping_sub(call.stack).min(MAX_STACK_COPY_BYTES), MAX_STACK_COPY_BYTES / 4, to_end_of_page];
    let bytes = sizes.into_iter().find_map(|size| mappings::read_memory(call.stack, size))?;
    cache.begin(code_map::generation());
    let (mut stack, registers) = (Vec::new(), Registers::with_stack_and_program(call.stack, call.address));
    let outcome = walk(registers, &ProcessCode, &mut CopiedStack { start: call.stack, bytes }, cache, |address, _| {
        stack.push(address);
        (stack.len() as u64) < MAX_NATIVE_FRAMES
    });
    let is_still_waiting = clock::thread_cpu(slot.state.tid()) == cpu_ns;
    let is_usable = is_interruption_visible || outcome == Outcome::Complete;
    (is_still_waiting && is_usable).then(|| RemoteSample { period: slot.source.take_pending(), outcome, stack })
}

/// A copy of the upper part of a stack.
struct CopiedStack {
    start: u64,
    bytes: Vec<u8>,
}

impl Memory for CopiedStack {
    fn read(&mut self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        Some(u64::from_ne_bytes(self.bytes.get(offset..offset.checked_add(8)?)?.try_into().ok()?))
    }
}

/// Restarts an interrupted system call that the kernel ended with `EINTR`, unless the program has a pending signal as
/// well. Called in the handler.
#[cfg(target_arch = "x86_64")]
pub(crate) fn restart_system_call(slot: &Slot, context: &mut libc::ucontext_t) {
    let Some(call) = slot.wait.take_call() else { return };
    let register_equals = |register: libc::c_int, value: u64| {
        context.uc_mcontext.gregs.get(register as usize).is_some_and(|register_equals| *register_equals as u64 == value)
    };
    let is_interrupted = register_equals(libc::REG_RAX, i64::from(-libc::EINTR) as u64)
        && register_equals(libc::REG_RIP, call.address)
        && register_equals(libc::REG_RSP, call.stack);
    if is_interrupted && !crate::transparency::disposition::is_signal_pending(&raw const context.uc_sigmask) {
        let registers = &mut context.uc_mcontext.gregs;
        // Move back to the two-byte `syscall` instruction, and put the call's number into the result register. The
        // arguments are still in place.
        registers[libc::REG_RIP as usize] -= 2;
        registers[libc::REG_RAX as usize] = call.number as i64;
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn restart_system_call(_slot: &Slot, _context: &mut libc::ucontext_t) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_two_checks_is_divided() {
        let mut open = OpenTime::default();
        assert_eq!(open.add(10, 4, 5), 0);
        assert_eq!(open, OpenTime { running: 4, waiting: 1 });
        // The thread has been on the run queue since before the last check.
        assert_eq!(open.add(10, 4, 20), 13);
        assert_eq!(open, OpenTime { running: 8, waiting: 0 });
        // Clocks are read one after the other.
        assert_eq!(open.add(10, 11, 0), 0);
        assert_eq!((open.take(Activity::Running), open.take(Activity::Waiting)), (18, 0));
    }

    /// A burst between two checks that found the thread in the same call.
    #[test]
    fn a_thread_that_is_back_in_its_call_keeps_the_time_that_it_ran_before() {
        let mut open = OpenTime::default();
        open.add(10, 6, 0);
        open.add(10, 1, 0);
        assert_eq!(open.take_wait(1), 14);
        assert_eq!(open, OpenTime { running: 6, waiting: 0 });
    }

    /// Threads of half an interval: every second has a sample, at its middle.
    #[test]
    fn first_samples_stand_for_threads_without_a_sample() {
        let ended = EndedTime::default();
        let mut sum = 0;
        for number in 0..1000 {
            let sampled_ns = if number % 2 == 0 { 25 } else { 0 };
            ended.add(OpenTime { running: 50 - sampled_ns, waiting: 0 });
            if sampled_ns != 0 {
                let added_ns = ended.take_part(Activity::Running, 100, 100 - sampled_ns);
                assert!(added_ns <= 150, "{added_ns}");
                sum += sampled_ns + added_ns;
            }
        }
        let rest = ended.running.load(Relaxed);
        assert_eq!(sum + rest, 50_000);
        assert!(rest <= (RESERVED_INTERVALS + 4) * 100, "{rest}");
        assert_eq!(ended.take_part(Activity::Waiting, 100, 100), 0);
    }
}
