//! Starts and stops recordings, one at a time.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::log_line;
use jitlisten::plumbing::{
    ForkSlot, HeldAcrossFork, LiveObjects, Run, exempt_signals, follow_forks, without_write_signals,
};
use wire::mailbox::Ending;

use crate::handler::{self, code_map};
use crate::python;
use crate::recording::counters::Statistics;
use crate::recording::current::{self, Recording};
use crate::recording::event_name::Counter;
use crate::recording::family;
use crate::recording::options::{self, Clock, Options};
use crate::recording::process::{self, Process};
use crate::recording::process_name;
use crate::system::vdso;
use crate::thread::counter;
use crate::thread::{adoption, arming, scan, slots, timer};
use crate::transparency::disposition::{self, Sender};
use crate::transparency::{fatal, sanitizer, signals};
use crate::writer::code_events::Observation;
use crate::writer::existing_file;
use crate::writer::held_file::{Owner, Role};
use crate::writer::output::Output;
use crate::writer::perf_data::Attribute;
use crate::writer::thread::{self, WriterTask};
use crate::writer::{INHERITED, Inherited, Writer};

/// The reason why a recording failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A recording is already running.
    AlreadyRecording,
    /// No recording is running.
    NotRecording,
    /// The options are invalid.
    Options(String),
    /// The file cannot be written.
    Output(std::path::PathBuf, std::io::Error),
    /// Every candidate signal already has a handler.
    NoSignal,
    /// The writer thread cannot be created; contains the `errno` value.
    NoThread(i32),
    /// This processor architecture is unsupported.
    Machine,
    /// The process that requested the recording has exited.
    RecorderGone,
    /// The program uses ThreadSanitizer, which cannot be recorded.
    ThreadSanitizer,
    /// The kernel refuses to count this event.
    Counter(String, std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::AlreadyRecording => f.write_str("already recording"),
            Error::NotRecording => f.write_str("not recording"),
            Error::Options(text) => f.write_str(text),
            Error::Output(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            Error::NoSignal => f.write_str("every signal that could be taken is in use"),
            Error::NoThread(errno) => {
                write!(f, "cannot start a thread: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Error::RecorderGone => f.write_str("the process that asked for the recording has ended"),
            Error::ThreadSanitizer => f.write_str("a program with ThreadSanitizer cannot be recorded"),
            Error::Machine => f.write_str("threads are sampled on x86_64 and aarch64 only"),
            Error::Counter(name, error) => write!(f, "cannot count {name}: {error}: {}", Counter::reason(error)),
        }
    }
}

impl std::error::Error for Error {}

/// The recording that is now running.
struct Running {
    recording: &'static Recording,
    options: Options,
    path: PathBuf,
    run: Option<Run>,
    observation: Observation,
}

/// The recorder of this process.
struct Recorder {
    /// The running recording, if any.
    state: Mutex<Option<Running>>,
    /// Locks of a thread that forks.
    fork: ForkSlot<HeldLocks>,
}

static RECORDER: Recorder = Recorder { state: Mutex::new(None), fork: ForkSlot::new() };

fn state() -> MutexGuard<'static, Option<Running>> {
    RECORDER.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prevents recordings from starting and stopping. `None` if another thread is starting or stopping one now.
pub(super) fn try_lock() -> Option<impl Drop> {
    RECORDER.state.try_lock().ok()
}

/// Initial state of a recording, besides its options.
pub(super) struct Start {
    /// True for a child, which leaves no file if it ends before its first sample.
    pub(super) is_child: bool,
    pub(super) role: Role,
    /// The command that the process belongs to, if the environment requested its recording.
    pub(super) run: Option<Run>,
    pub(super) gives_signal_stacks: bool,
    /// State inherited from the parent; set in a fork child, which has a single thread.
    pub(super) inherited: Option<Inherited>,
}

/// Starts a recording.
///
/// # Errors
/// Any [`Error`], if the recording cannot start.
pub fn start(options: Options) -> Result<(), Error> {
    let gives_signal_stacks = inspect_process()?;
    let start = Start { is_child: false, role: Role::Program, run: None, gives_signal_stacks, inherited: None };
    start_with(options, start, |_| false)
}

/// Inspects the loaded libraries. Calls the loader, so no lock may be held. Returns true if new threads may get a
/// signal stack.
pub(super) fn inspect_process() -> Result<bool, Error> {
    vdso::find_functions();
    fatal::detect_interposition();
    let sanitizers = sanitizer::detect();
    if sanitizers.is_thread_sanitizer { Err(Error::ThreadSanitizer) } else { Ok(sanitizers.allow_signal_stacks()) }
}

/// Ends the recording. The file is complete when this returns.
///
/// # Errors
/// [`Error::NotRecording`] if no recording is running.
pub fn stop() -> Result<Statistics, Error> {
    stop_in(&mut state())
}

/// Asks the writer to end the recording. May be called anywhere: takes no lock and allocates nothing.
pub fn request_end() -> Ending {
    let Ok(state) = RECORDER.state.try_lock() else { return Ending::Writing };
    match state.as_ref().map(|running| running.recording) {
        Some(recording) if recording.is_of_this_process() => {
            if recording.is_written() {
                return Ending::Complete;
            }
            recording.request(&recording.requests.abandon);
            Ending::Writing
        }
        _ => Ending::NotRecording,
    }
}

/// Ends the recording. The state stays locked until the writer has exited, so that no other thread can start a
/// recording before then.
fn stop_in(state: &mut Option<Running>) -> Result<Statistics, Error> {
    let Running { recording, observation, .. } = state.take().ok_or(Error::NotRecording)?;
    recording.request(&recording.requests.stop);
    recording.writer.join();
    handler::drain_pending_ticks();
    if !recording.is_abandoned() {
        observation.end();
    }
    Ok(recording.counters.statistics())
}

/// Returns the path of the running recording; `Some(None)` until its file has been created (`existing_file.rs`). Never
/// blocks.
pub fn running_path() -> Option<Option<PathBuf>> {
    let state = RECORDER.state.try_lock().ok()?;
    let is_running = |running: &&Running| running.recording.is_of_this_process() && !running.recording.is_written();
    let running = state.as_ref().filter(is_running)?;
    Some(running.recording.has_file().then(|| running.path.clone()))
}

/// Returns the counters of the running recording, or of the last one.
pub fn statistics() -> Statistics {
    current::last().map_or_else(Statistics::default, |recording| recording.counters.statistics())
}

/// Starts a recording. `continues` returns true if this process created an existing file.
pub(super) fn start_with(options: Options, start: Start, continues: impl Fn(&Path) -> bool) -> Result<(), Error> {
    start_in(&mut state(), options.resolve_here().map_err(Error::Options)?, start, continues)
}

fn start_in(
    state: &mut Option<Running>,
    options: Options,
    start: Start,
    continues: impl Fn(&Path) -> bool,
) -> Result<(), Error> {
    check_start(state, &options)?;
    if let Some(parent) = current::last()
        && parent.fork.has_parent_state.swap(false, Ordering::Relaxed)
    {
        forget_parent(parent, start.inherited.is_some());
    }
    let options = options.absolute();
    let owner = Owner { pid: std::process::id(), role: start.role, run: start.run };
    let path = options.path(owner.pid);
    let counter = permitted_counter(&options)?;
    let attribute = Attribute::new(&options, counter.as_ref());
    let continued = existing_file::names(&path, owner.pid).find(|path| continues(path));
    let output = if start.is_child || start.role.is_minor() {
        Output::deferred(continued.as_ref().unwrap_or(&path), owner, continued.is_some(), attribute)
    } else {
        without_write_signals(|| Output::open(&path, owner, continued.as_deref(), attribute))
            .map_err(|error| Error::Output(path.clone(), error))?
    };
    let signal =
        choose_signal(if counter.is_some() { Sender::Counter } else { Sender::Timer }).ok_or(Error::NoSignal)?;
    let user_clock = user_clock(&options);
    exempt_signals([Sender::Timer, Sender::Counter].map(disposition::sampling_signal));
    if !start.is_child && continued.is_none() && output.path() != path {
        log_line!(Error, "another recorder is writing {}: recording into {}", path.display(), output.path().display());
    }
    follow_forks::<HeldLocks>();
    slots::discard_unread_samples();
    code_map::forget_unknown_code();
    process_name::begin_recording();
    let mut recording = Recording::new(options.clock, options.hz, counter, start.gives_signal_stacks);
    recording.user_clock = user_clock;
    recording.exit_key = recording.exit_key.or_else(adoption::create_exit_key);
    if options.children {
        recording.family = recording.family.or_else(family::map);
    }
    let recording = recording.publish();
    *state = Some(run(recording, options, output, start.inherited, continued.is_some())?);
    fatal::install_handlers();
    log_line!(Info, "recording with signal {signal}");
    Ok(())
}

/// Checks that a recording may start here and now. Finishes the previous one, if it has ended by itself.
fn check_start(state: &mut Option<Running>, options: &Options) -> Result<(), Error> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(Error::Machine);
    }
    // The request is too late, because the requesting process no longer waits for it.
    if options.recorder.is_some_and(Process::has_ended) {
        return Err(Error::RecorderGone);
    }
    // The previous recording may not have been stopped yet.
    if state.as_ref().is_some_and(|running| running.recording.is_written()) {
        let _ = stop_in(state);
    }
    if state.is_some() {
        return Err(Error::AlreadyRecording);
    }
    options::checked_hz(options.hz).map(|_| ()).map_err(Error::Options)
}

/// Starts the writer of a published recording, and arms all threads.
fn run(
    recording: &'static Recording,
    options: Options,
    output: Output,
    inherited: Option<Inherited>,
    append: bool,
) -> Result<Running, Error> {
    let observation = Observation::begin(options.images);
    let (is_forked, path, run) = (inherited.is_some(), output.path().to_owned(), output.owner().run);
    let mut writer = Box::new(Writer::new(recording, output, &options, inherited.unwrap_or_default()));
    without_write_signals(|| writer.write_preamble(append));
    recording.set_sampling(true);
    adoption::adopt_this_thread(0, 0);
    if !is_forked {
        scan::arm_all(recording);
    }
    if let Err((errno, _)) = thread::start(recording, WriterTask { recording, writer, observation }) {
        recording.set_sampling(false);
        slots::iter().for_each(|(_, slot)| arming::disarm(slot));
        observation.end();
        return Err(Error::NoThread(errno));
    }
    Ok(Running { recording, options, path, run, observation })
}

/// Returns the counter, restricted to user mode if the kernel requires that.
fn permitted_counter(options: &Options) -> Result<Option<Counter>, Error> {
    let Some(counter) = &options.counter else { return Ok(None) };
    let permitted = counter.clone().permitted(options.hz);
    permitted.map(Some).map_err(|error| Error::Counter(counter.name(), error))
}

/// Returns the high-resolution clock for threads that often switch, if a signal is free. The writer finds out whether
/// the kernel permits it: a thread of the program that opens a counter is switched more slowly ever after.
fn user_clock(options: &Options) -> Option<Counter> {
    let is_wanted = options.counter.is_none() && options.clock == Clock::Cpu && !process::has_seccomp_filter();
    let clock = is_wanted.then(|| Counter::user_clock(options.hz)).filter(|clock| !clock.may_hang_kernel())?;
    choose_signal(Sender::Counter).map(|_| clock)
}

/// Returns the sender's signal of the last recording if our handler is still installed for it; else installs the
/// handler for a new signal.
fn choose_signal(sender: Sender) -> Option<i32> {
    let last = disposition::sampling_signal(sender);
    if last != 0 && timer::is_installed(last, handler::handler) {
        return Some(last);
    }
    let signal = timer::install(handler::handler, sender)?;
    disposition::set_sampling_signal(sender, signal);
    signals::block_in_installed_handlers();
    Some(signal)
}

/// Ends the recording because the process exits, and writes all pending samples. Returns immediately if another thread
/// holds the recorder's lock.
pub fn finish_at_exit() {
    if let Ok(mut state) = RECORDER.state.try_lock()
        && state.as_ref().is_some_and(|running| running.recording.is_of_this_process())
    {
        arming::retire_caller();
        let _ = stop_in(&mut state);
    }
}

/// Locks held by the forking thread.
struct HeldLocks {
    state: MutexGuard<'static, Option<Running>>,
    inherited: MutexGuard<'static, Inherited>,
}

impl HeldAcrossFork for HeldLocks {
    fn slot() -> &'static ForkSlot<HeldLocks> {
        &RECORDER.fork
    }

    fn take() -> Option<HeldLocks> {
        Some(HeldLocks { state: state(), inherited: INHERITED.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    fn in_child(self) {
        let HeldLocks { mut state, inherited: mut shared_state } = self;
        let Some(parent) = current::last() else { return };
        leave_parent(parent);
        match state.take() {
            Some(Running { options, run, .. }) if options.children => {
                let inherited = Some(std::mem::take(&mut *shared_state));
                drop(shared_state);
                let gives_signal_stacks = parent.gives_signal_stacks;
                let role = Role::Program;
                let start = Start { is_child: true, role, run, gives_signal_stacks, inherited };
                let _ = start_in(&mut state, options.for_child(), start, |_| false);
            }
            // Freeing it would copy pages that the child shares with its parent.
            running => std::mem::forget(running),
        }
    }
}

/// Ends what concerns the parent alone in its fork child: the sampling of new threads, and descriptors. Most children
/// are not recorded and end soon. Their time is that of copying pages, so this writes to few; the rest is done by
/// [`forget_parent`].
fn leave_parent(parent: &Recording) {
    parent.set_sampling(false);
    process_name::forget_in_child();
    // In a nested PID namespace parent and child may have one number, and their timers too.
    adoption::forget_exit_key(parent);
    // The descriptors of counters are inherited; close the child's copies.
    if counter::open_count() != 0 {
        slots::iter().for_each(|(_, slot)| slot.source.close_counter());
    }
    if let Some(unused) = parent.unused_clock.get() {
        unused.close();
    }
    if let Some(objects) = LiveObjects::process() {
        objects.stop_observing();
    }
    let signal_stack = adoption::signal_stack().map_or(ptr::null_mut(), |stack| stack.ss_sp);
    parent.fork.signal_stack.store(signal_stack, Ordering::Relaxed);
    parent.fork.has_parent_state.store(true, Ordering::Relaxed);
}

/// Resets the recorder before the first recording of a fork child, because timers, writer and samples belong to the
/// parent. A child that is recorded from its start (`is_recorded`) keeps the published libraries and interpreter, which
/// are still valid.
fn forget_parent(parent: &Recording, is_recorded: bool) {
    parent.writer.forget();
    slots::reset_all_in_child(std::process::id(), parent.fork.signal_stack.load(Ordering::Relaxed));
    if !is_recorded {
        python::withdraw();
        *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = Inherited::default();
    }
    drop(parent.code_events.take());
    code_map::clear_in_child(is_recorded);
    code_map::reclaim(|| true);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A new recording may start after the recorder was killed without stopping the previous recording.
    #[test]
    fn a_recording_ends_with_its_recorder() {
        let _lock = slots::lock_for_test();
        let directory = std::env::temp_dir().join(format!("jitlisten-recorder-gone-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut recorder = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", recorder.id())).unwrap();
        let start_ticks = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
        let process = Process { pid: recorder.id(), start: start_ticks };
        let options_with_recorder = || Options { recorder: Some(process), ..Options::new(directory.join("1")) };
        start(options_with_recorder()).unwrap();
        assert!(matches!(start(Options::new(directory.join("2"))), Err(Error::AlreadyRecording)));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        let recording = current::last().unwrap();
        while !recording.is_abandoned() {
            std::thread::yield_now();
        }
        assert!(!recording.is_sampling());
        start(Options::new(directory.join("2"))).unwrap();
        stop().unwrap();
        assert!(matches!(start(options_with_recorder()), Err(Error::RecorderGone)), "a request that comes too late");
        assert!(matches!(stop(), Err(Error::NotRecording)));
        fs::remove_dir_all(directory).unwrap();
    }

    /// A thread that starts a recording must not clear a stop request meant for the previous one.
    #[test]
    fn threads_may_start_and_stop_recordings_concurrently() {
        let _lock = slots::lock_for_test();
        let directory = std::env::temp_dir().join(format!("jitlisten-recorder-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (sender, receiver) = mpsc::channel();
        for number in 0..2 {
            let (file, sender) = (directory.join(number.to_string()), sender.clone());
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let _ = start(Options::new(&file));
                    let _ = stop();
                }
                sender.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            receiver.recv_timeout(Duration::from_secs(120)).expect("a writer that never ends");
        }
        assert!(matches!(stop(), Err(Error::NotRecording)));
        fs::remove_dir_all(directory).unwrap();
    }
}
