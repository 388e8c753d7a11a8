//! The recording of this process: one at a time, published for handlers, hooks and interposed functions.
//!
//! ```text
//!   CURRENT --> Recording     plain fields: its parameters; atomic fields: its progress
//! ```
//! A thread may hold a reference at any time, so a recording is never freed; it takes a few hundred bytes. It stays
//! published after its end, and in a fork child, for its counters and for the facts that the next recording takes over.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::recording::counters::Counters;
use crate::recording::event_name::Counter;
use crate::recording::family::{EndedTime, Family};
use crate::recording::options::Clock;
use crate::thread::counter::UnusedCounter;
use crate::thread::source::Measure;
use crate::thread::stack_bounds::StackBounds;
use crate::thread::ticks::{ShortThreads, TickClock};
use crate::writer::event_queue::EventQueue;
use crate::writer::handle::WriterHandle;
use crate::writer::wake::Wake;

/// A recording of this process.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The recorded process. A vfork child shares this memory, but has another PID.
    pub(crate) pid: u32,
    pub(crate) clock: Clock,
    /// Samples per second.
    pub(crate) hz: u32,
    /// Ticks that become samples of CPU time.
    pub(crate) ticks: TickClock,
    pub(crate) short_threads: ShortThreads,
    /// The event that is counted instead of time.
    pub(crate) counter: Option<Counter>,
    /// Clock for threads that often switch (`clock_choice.rs`), if the kernel permits it (`unused_clock`).
    pub(crate) user_clock: Option<Counter>,
    /// Unset if the kernel refuses the user clock. Keeps its perf events enabled while threads may open theirs in a
    /// handler. Belongs to the writer's thread: the kernel switches a thread with a counter more slowly.
    pub(crate) unused_clock: OnceLock<UnusedCounter>,
    /// True if new threads may get a signal stack: see `sanitizer.rs`.
    pub(crate) gives_signal_stacks: bool,
    /// Thread-specific key whose destructor reports a thread's exit; `None` if no key was available.
    pub(crate) exit_key: Option<libc::pthread_key_t>,
    /// Stack of the main thread.
    pub(crate) main_stack: StackBounds,
    pub(crate) counters: Counters,
    pub(crate) code_events: EventQueue,
    pub(crate) wake: Wake,
    pub(crate) writer: WriterHandle,
    pub(crate) requests: Requests,
    pub(crate) fork: ForkedState,
    /// Times that are shared with children; `None` if no recording had children.
    pub(crate) family: Option<&'static Family>,
    /// Time of ended threads, if the recording has no family.
    ended: EndedTime,
    is_sampling: AtomicBool,
    has_file: AtomicBool,
    is_written: AtomicBool,
    is_abandoned: AtomicBool,
}

/// State of a fork child before its first recording, when the recorder's state is still that of its parent.
#[derive(Debug, Default)]
pub(crate) struct ForkedState {
    pub(crate) has_parent_state: AtomicBool,
    /// Signal stack of the forking thread, which is the child's main thread.
    pub(crate) signal_stack: AtomicPtr<c_void>,
}

/// Requests from other threads to the writer.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Finish the file, and exit.
    pub(crate) stop: AtomicBool,
    /// Finish the file and exit, without a thread that waits for the writer.
    pub(crate) abandon: AtomicBool,
    /// Create the file now, even without a sample.
    pub(crate) file: AtomicBool,
    /// Pause the writer thread: one of the modes in `pause.rs`.
    pub(crate) pause: AtomicU32,
}

impl Requests {
    /// True if the recording has to end.
    pub(crate) fn end_is_requested(&self) -> bool {
        [&self.stop, &self.abandon].iter().any(|request| request.load(Ordering::Acquire))
    }
}

static CURRENT: AtomicPtr<Recording> = AtomicPtr::new(ptr::null_mut());

/// Returns the running recording, or the last one. Safe in a signal handler.
pub(crate) fn last() -> Option<&'static Recording> {
    // SAFETY: the pointer is null, or `publish` leaked the recording.
    unsafe { CURRENT.load(Ordering::SeqCst).as_ref() }
}

/// Returns the recording if new threads are sampled. Safe in a signal handler.
pub(crate) fn sampling() -> Option<&'static Recording> {
    last().filter(|recording| recording.is_sampling())
}

/// Returns the recording if it samples this process. `None` in a vfork child, which shares its parent's memory.
pub(crate) fn own() -> Option<&'static Recording> {
    sampling().filter(|recording| recording.is_of_this_process())
}

impl Recording {
    /// Creates a recording of this process, which takes over the last recording's facts about the process.
    pub(crate) fn new(clock: Clock, hz: u32, counter: Option<Counter>, gives_signal_stacks: bool) -> Recording {
        let main_stack = StackBounds::unknown();
        if let Some(last) = last() {
            let (low, high) = last.main_stack.get();
            main_stack.set_exact(low, high);
        }
        Recording {
            pid: std::process::id(),
            clock,
            hz,
            ticks: TickClock::new(period_ns(hz)),
            short_threads: ShortThreads::default(),
            counter,
            user_clock: None,
            unused_clock: OnceLock::new(),
            gives_signal_stacks,
            exit_key: last().and_then(|last| last.exit_key),
            main_stack,
            counters: Counters::default(),
            code_events: EventQueue::default(),
            wake: Wake::default(),
            writer: WriterHandle::default(),
            requests: Requests::default(),
            fork: ForkedState::default(),
            family: last().and_then(|last| last.family),
            ended: EndedTime::default(),
            is_sampling: AtomicBool::new(false),
            has_file: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// Publishes the recording in place of the last one.
    pub(crate) fn publish(self) -> &'static Recording {
        let recording = Box::leak(Box::new(self));
        CURRENT.store(ptr::from_mut(recording), Ordering::SeqCst);
        recording
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Nominal time between two samples of a thread, in ns.
    pub(crate) fn period_ns(&self) -> u64 {
        period_ns(self.hz)
    }

    pub(crate) fn measure(&self) -> Measure {
        match (&self.counter, self.clock) {
            (Some(_), _) => Measure::Events,
            (None, Clock::Wall) => Measure::WallTime,
            (None, Clock::Cpu) => Measure::CpuTime,
        }
    }

    /// Wall-clock time of ended threads, and of ended processes of the family.
    pub(crate) fn ended(&self) -> &EndedTime {
        self.family.map_or(&self.ended, |family| &family.ended)
    }

    /// True in wall-clock mode, where the writer decides when threads are sampled.
    pub(crate) fn uses_wall_clock(&self) -> bool {
        self.measure() == Measure::WallTime
    }

    /// True if new threads are sampled.
    pub(crate) fn is_sampling(&self) -> bool {
        self.is_sampling.load(Ordering::SeqCst)
    }

    pub(crate) fn set_sampling(&self, is_sampling: bool) {
        self.is_sampling.store(is_sampling, Ordering::SeqCst);
    }

    /// True once the file exists, and any earlier recording of that name has been renamed.
    pub(crate) fn has_file(&self) -> bool {
        self.has_file.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_file(&self) {
        self.has_file.store(true, Ordering::Release);
    }

    /// True once everything has been written and the writer thread is about to exit.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }

    /// Marks the recording as written. Threads that wait for the writer check their condition again.
    pub(crate) fn set_written(&self) {
        self.is_written.store(true, Ordering::Release);
        self.wake.complete_last_pass();
    }

    /// True if the recording has ended by itself because its recorder exited, and no longer observes code.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn set_abandoned(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Sends a request to the writer.
    pub(crate) fn request(&self, request: &AtomicBool) {
        request.store(true, Ordering::Release);
        self.wake.notify();
    }

    /// Asks the writer to write all samples in the rings, and waits for it, at most `timeout_ns`.
    pub(crate) fn write_samples(&self, timeout_ns: u64) {
        let ticket = self.wake.request_write();
        self.wake.wait_until(|| self.is_written() || self.wake.is_write_done(ticket), timeout_ns);
    }
}

/// Nominal time between two samples of a thread, in ns.
fn period_ns(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz.max(1))
}

/// Publishes a recording of this process, for tests and fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn publish_for_test() {
    if !last().is_some_and(Recording::is_of_this_process) {
        Recording::new(Clock::Cpu, 1, None, false).publish();
    }
}
