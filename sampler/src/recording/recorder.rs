//! Starts and stops recordings, one at a time.

use std::ffi::c_void;
use std::fs;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{
    ForkSlot, HeldAcrossFork, HostStateGuard, OwnThread, began, exempt_signal, follow_forks, without_write_signals,
};
use jitlisten::{Session, log_line};

use crate::handler::code_map::UNKNOWN_CODE;
use crate::handler::{clock, code_map, vdso};
use crate::recording::event_name::Counter;
use crate::recording::options::Options;
use crate::recording::process::Process;
use crate::recording::{event_config, process};
use crate::thread::arming::{self, ACTIVE, SAMPLED_THREADS, THREADS_WITHOUT_TIMER};
use crate::thread::slots::RECORDED_PID;
use crate::thread::{creation, slots, timer};
use crate::transparency::disposition::{self, SAMPLING_SIGNAL, end_process};
use crate::transparency::{exit, fatal, next, sanitizer};
use crate::writer::code_events::{self, Observer};
use crate::writer::output::{self, Output};
use crate::writer::perf_data::Attribute;
use crate::writer::wake;
use crate::writer::{
    self, ABANDON_REQUESTED, COUNTERS, End, FILE_CREATED, FILE_PENDING, FILE_REQUESTED, Inherited, RECORDING_WRITTEN,
    STOP_REQUESTED, WRITER_MODE, WRITER_STATE, Writer,
};
use crate::{handler, python};

/// Environment variable with the PID of the process that created the file. That process recognizes itself after
/// `exec(2)`.
const FILE_OWNER_VARIABLE: &str = "JITLISTEN_RECORD_BEGUN";
/// Environment variable that requests a recording; its value is parsed by [`Options`].
const RECORD_VARIABLE: &str = "JITLISTEN_RECORD";

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
    /// The writer thread cannot be created; the `errno` value.
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
            Error::NoThread(errno) => write!(f, "start a thread: error {errno}"),
            Error::RecorderGone => f.write_str("the process that asked for the recording has ended"),
            Error::ThreadSanitizer => f.write_str("a program with ThreadSanitizer cannot be recorded"),
            Error::Machine => f.write_str("threads are sampled on x86_64 and aarch64 only"),
            Error::Counter(name, error) => write!(f, "cannot count {name}: {error}: {}", Counter::reason(error)),
        }
    }
}

impl std::error::Error for Error {}

/// Counters of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Samples in the file.
    pub samples: u64,
    /// Samples whose stack could not be unwound to the thread's start.
    pub incomplete: u64,
    /// Samples whose stack was truncated because it was too deep.
    pub truncated: u64,
    /// Samples that were dropped for lack of space.
    pub lost: u64,
    /// Threads that were sampled.
    pub threads: u64,
    /// Threads that could not be sampled, because no timer was available.
    pub threads_without_timer: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Write errors; after the first one the recording ends.
    pub failures: u64,
}

/// The recording that is now running.
struct Running {
    options: Options,
    path: PathBuf,
    enabled_images: bool,
}

/// True if the recording has ended by itself, because its recorder has exited.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// The running recording, if any.
static STATE: Mutex<Option<Running>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<Running>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a recording.
///
/// # Errors
/// One of [`Error`], if the recording cannot start.
pub fn start(options: Options) -> Result<(), Error> {
    inspect_process()?;
    start_in(&mut state(), options, None, false, |_| false)
}

/// Inspects the loaded libraries. Calls the loader, so no lock may be held.
fn inspect_process() -> Result<(), Error> {
    vdso::find_functions();
    fatal::detect_interposition();
    if sanitizer::detect() { Err(Error::ThreadSanitizer) } else { Ok(()) }
}

/// Ends the recording. The file is complete when this returns.
///
/// # Errors
/// [`Error::NotRecording`] if no recording is running.
pub fn stop() -> Result<Statistics, Error> {
    stop_in(&mut state())
}

/// Asks the writer to end the recording. May be called anywhere: takes no lock and allocates nothing. Returns 0 if no
/// recording is running, 1 while the file is being written, 2 when it is complete.
pub fn request_end() -> u32 {
    let Ok(state) = STATE.try_lock() else { return 1 };
    if state.is_none() || RECORDED_PID.load(Ordering::Acquire) != std::process::id() {
        return 0;
    }
    if RECORDING_WRITTEN.load(Ordering::Acquire) {
        return 2;
    }
    ABANDON_REQUESTED.store(true, Ordering::Release);
    wake::notify_writer();
    1
}

/// Ends the recording. The state stays locked until the writer has exited, so no other thread starts a recording
/// before.
fn stop_in(state: &mut Option<Running>) -> Result<Statistics, Error> {
    let running = state.take().ok_or(Error::NotRecording)?;
    STOP_REQUESTED.store(true, Ordering::Release);
    wake::notify_writer();
    wake::join_writer();
    handler::drain_pending_ticks();
    if !ABANDONED.swap(false, Ordering::AcqRel) {
        stop_observing_code(running.enabled_images);
    }
    Ok(statistics())
}

/// Returns the path of the running recording; `Some(None)` until its file has been created (`existing_file.rs`). Never blocks.
pub fn running_path() -> Option<Option<PathBuf>> {
    let state = STATE.try_lock().ok()?;
    let is_running =
        RECORDED_PID.load(Ordering::Acquire) == std::process::id() && !RECORDING_WRITTEN.load(Ordering::Acquire);
    let running = state.as_ref().filter(|_| is_running)?;
    Some(FILE_CREATED.load(Ordering::Acquire).then(|| running.path.clone()))
}

/// Returns the counters of the running recording, or of the last one.
pub fn statistics() -> Statistics {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Statistics {
        samples: get(&COUNTERS.samples),
        incomplete: get(&COUNTERS.incomplete),
        truncated: get(&COUNTERS.truncated),
        lost: get(&COUNTERS.lost),
        threads: get(&SAMPLED_THREADS),
        threads_without_timer: get(&THREADS_WITHOUT_TIMER),
        bytes: get(&COUNTERS.bytes),
        failures: get(&COUNTERS.failures),
    }
}

/// Starts a recording with the state locked. `inherited` is set in a fork child, which has a single thread. A child
/// that ends before its first sample leaves no file. `continues` returns true if this process created the existing
/// file.
fn start_in(
    state: &mut Option<Running>,
    options: Options,
    inherited: Option<Inherited>,
    is_child: bool,
    continues: impl FnOnce(&Path) -> bool,
) -> Result<(), Error> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(Error::Machine);
    }
    // The request is too late: the requesting process no longer waits for it.
    if options.recorder.is_some_and(Process::has_ended) {
        return Err(Error::RecorderGone);
    }
    // The previous recording has ended by itself, and may not have been stopped yet.
    if ABANDONED.load(Ordering::Acquire) || RECORDING_WRITTEN.load(Ordering::Acquire) {
        let _ = stop_in(state);
    }
    if state.is_some() {
        return Err(Error::AlreadyRecording);
    }
    crate::recording::options::checked_hz(options.hz).map_err(Error::Options)?;
    let options = options.absolute();
    let path = options.path(std::process::id(), &process::host_and_release().0);
    let counter = permitted_counter(&options)?;
    let append = continues(&path);
    let attribute = Attribute::new(&options, counter.as_ref());
    let output = if is_child {
        Output::deferred(&path, append, attribute)
    } else {
        without_write_signals(|| Output::open(&path, append, attribute))
            .map_err(|error| Error::Output(path.clone(), error))?
    };
    let signal = choose_signal(counter.is_some()).ok_or(Error::NoSignal)?;
    exempt_signal(signal);
    follow_forks::<HeldLocks>();
    COUNTERS.reset();
    SAMPLED_THREADS.store(0, Ordering::Relaxed);
    THREADS_WITHOUT_TIMER.store(0, Ordering::Relaxed);
    STOP_REQUESTED.store(false, Ordering::Release);
    ABANDON_REQUESTED.store(false, Ordering::Release);
    FILE_REQUESTED.store(false, Ordering::Release);
    FILE_PENDING.store(output.is_deferred(), Ordering::Release);
    RECORDING_WRITTEN.store(false, Ordering::Release);
    FILE_CREATED.store(!output.is_deferred(), Ordering::Release);
    slots::discard_unread_samples();
    UNKNOWN_CODE.store(false, Ordering::Relaxed);
    RECORDED_PID.store(std::process::id(), Ordering::Release);
    event_config::configure(options.clock, options.hz, counter.as_ref());
    let enabled_images = observe_code(&options);
    let deadline = options.seconds.map(|seconds| clock::monotonic() + u64::from(seconds) * 1_000_000_000);
    let is_forked = inherited.is_some();
    let writer = Writer::new(output, deadline, options.python, options.recorder, inherited.unwrap_or_default());
    let mut writer = Box::new(writer);
    without_write_signals(|| writer.write_preamble(append));
    ACTIVE.store(true, Ordering::Release);
    creation::adopt_this_thread(0, 0);
    if !is_forked {
        arming::arm_all();
    }
    match start_writer(WriterTask { writer, enabled_images }) {
        Ok(()) => {
            fatal::install_handlers();
            log_line!(Info, "recording with signal {signal}");
            *state = Some(Running { options, path, enabled_images });
            Ok(())
        }
        Err((errno, _)) => {
            ACTIVE.store(false, Ordering::SeqCst);
            slots::iter().for_each(|(_, slot)| arming::disarm(slot));
            stop_observing_code(enabled_images);
            Err(Error::NoThread(errno))
        }
    }
}

/// Makes a call that the kernel refuses to a multithreaded process. If the writer is the only other thread, it exits
/// before the call, and a new writer resumes its work afterwards. If resuming fails, the recording ends.
pub(crate) fn without_writer<R>(call: impl FnOnce() -> R) -> R {
    if !exit::is_recorded() || !arming::may_be_single_threaded() {
        return call();
    }
    // A signal handler of the program that forks would otherwise wait for the state.
    let host_state = HostStateGuard::enter();
    let state = STATE.try_lock();
    if state.is_ok() {
        let _ = std::panic::catch_unwind(pause_writer);
    }
    let result = call();
    let saved_errno = next::errno();
    if state.is_ok() {
        let _ = std::panic::catch_unwind(resume_writer);
    }
    drop(state);
    drop(host_state);
    next::set_errno(saved_errno);
    result
}

/// Waits until the writer thread has exited, for a limited time.
fn pause_writer() {
    WRITER_MODE.store(writer::PAUSE, Ordering::Release);
    wake::notify_writer();
    let deadline = clock::monotonic() + exit::WRITER_TIMEOUT_NS;
    let is_writer_alive = || WRITER_MODE.load(Ordering::Acquire) != writer::PAUSED || arming::writer_exists();
    while is_writer_alive() && clock::monotonic() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Starts a new writer thread with the work of the paused one.
fn resume_writer() {
    if WRITER_MODE.swap(writer::RUN, Ordering::AcqRel) != writer::PAUSED {
        return;
    }
    wake::join_writer();
    let work = PAUSED_WRITER.swap(ptr::null_mut(), Ordering::AcqRel);
    if work.is_null() {
        return;
    }
    // SAFETY: created by the writer thread, which has exited; the exchange makes this the only owner.
    let work = *unsafe { Box::from_raw(work) };
    if let Err((errno, work)) = start_writer(work) {
        log_line!(Warn, "the recording ends: start a thread: error {errno}");
        work.writer.finish();
    }
}

/// Returns the counter in the variant that the kernel permits.
fn permitted_counter(options: &Options) -> Result<Option<Counter>, Error> {
    let Some(counter) = &options.counter else { return Ok(None) };
    let permitted = counter.clone().permitted(options.hz);
    permitted.map(Some).map_err(|error| Error::Counter(counter.name(), error))
}

/// Returns the signal of the last recording, if it is still ours and suits this one; else installs a new one.
fn choose_signal(for_counter: bool) -> Option<i32> {
    let last = SAMPLING_SIGNAL.load(Ordering::Acquire);
    let is_still_ours = last != 0 && timer::is_installed(last, handler::handler);
    if is_still_ours && timer::is_suitable(last, for_counter) {
        return Some(last);
    }
    let signal = timer::install(handler::handler, for_counter)?;
    if is_still_ours {
        disposition::return_to_program(last);
    }
    SAMPLING_SIGNAL.store(signal, Ordering::Release);
    Some(signal)
}

/// Observes compiled code, and enables the image sink. Returns true if the sink was disabled.
fn observe_code(options: &Options) -> bool {
    let Some(session) = Session::process().filter(|session| session.options().active) else { return false };
    session.observe(&Observer);
    let enable = options.images && !session.is_enabled(SinkKind::Image);
    if enable {
        session.enable(SinkKind::Image);
    }
    enable
}

/// Undoes [`observe_code`].
fn stop_observing_code(enabled_images: bool) {
    code_events::forget_code();
    if enabled_images && let Some(session) = Session::process() {
        session.disable(SinkKind::Image);
    }
}

/// The writer, with the state that its thread needs.
struct WriterTask {
    writer: Box<Writer>,
    enabled_images: bool,
}

/// The work of a writer thread that has been paused, for the next one.
static PAUSED_WRITER: AtomicPtr<WriterTask> = AtomicPtr::new(ptr::null_mut());

/// Starts the writer thread with all signals blocked.
fn start_writer(work: WriterTask) -> Result<(), (i32, WriterTask)> {
    extern "C-unwind" fn run(work: *mut c_void) -> *mut c_void {
        // SAFETY: created below for this thread alone.
        let WriterTask { writer, enabled_images } = *unsafe { Box::from_raw(work.cast::<WriterTask>()) };
        let _own = OwnThread::begin();
        // SAFETY: the name is NUL-terminated and shorter than 16 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"jitlisten".as_ptr()) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let end = writer.run();
            if matches!(end, Ok(End::Abandoned)) {
                stop_observing_code(enabled_images);
                ABANDONED.store(true, Ordering::Release);
            }
            end
        }));
        match result {
            Err(_) => ACTIVE.store(false, Ordering::Release),
            // The last thread determines the exit status of the process: it has to be the program's.
            Ok(Ok(End::LastThread)) => end_as_main_thread(),
            Ok(Ok(End::Finished | End::Abandoned)) => {}
            Ok(Err(writer)) => {
                PAUSED_WRITER.store(Box::into_raw(Box::new(WriterTask { writer, enabled_images })), Ordering::Release);
            }
        }
        ptr::null_mut()
    }
    /// Ends this thread with the main thread's status. If every thread of the program has exited through libc, libc
    /// ends the process with status 0.
    fn end_as_main_thread() {
        let status = process::main_thread_status();
        if libc::WIFSIGNALED(status) {
            end_process(libc::WTERMSIG(status));
        }
        let empty_set = [0_u64; 16];
        // Unblock signals: the one raised above, and those that `exit(3)` handlers rely on.
        // SAFETY: `empty_set` has the 128 bytes of a signal set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, empty_set.as_ptr().cast(), ptr::null_mut()) };
        match status {
            0 => {}
            status => {
                // SAFETY: ends this thread, which no longer owns anything.
                unsafe { libc::syscall(libc::SYS_exit, libc::WEXITSTATUS(status)) };
            }
        }
    }
    let (mut all_signals, mut old_mask) =
        (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: `sigfillset` initializes the set.
    unsafe { libc::sigfillset(all_signals.as_mut_ptr()) };
    // SAFETY: the first set was filled, the second one is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all_signals.as_ptr(), old_mask.as_mut_ptr()) };
    let work = Box::into_raw(Box::new(work));
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the thread function takes ownership of its argument.
    let error = unsafe { creation::create_unsampled(thread.as_mut_ptr(), run, work.cast()) };
    // SAFETY: `old_mask` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old_mask.as_ptr(), ptr::null_mut()) };
    if error != 0 {
        // SAFETY: no thread was created, so the box is still ours.
        return Err((error, *unsafe { Box::from_raw(work) }));
    }
    // SAFETY: `pthread_create` has succeeded and initialized it.
    wake::set_writer_thread(unsafe { thread.assume_init() });
    Ok(())
}

/// The processes besides the named one that inherit the request in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InheritedBy {
    /// No other process: children are recorded only with the option `children`.
    NoProcess,
    /// Every child process, if this process is a launcher such as a shell.
    Descendants,
}

/// Programs that start another program as a child and wait for it. Children of any other program are not
/// recorded: otherwise a `popen` would take over the recording.
const LAUNCHERS: [&str; 22] = [
    "bash", "busybox", "dash", "fish", "gdb", "ksh", "lldb", "ltrace", "make", "mksh", "perf", "rr", "script",
    "setsid", "sh", "strace", "tcsh", "time", "timeout", "unshare", "watch", "zsh",
];

/// Returns true if the program of a process is a known launcher, with or without a version in its name (`perf_6.1`).
/// `pid` may be `self`.
pub fn is_launcher(pid: &str) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let base_name = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || "._-".contains(letter));
    LAUNCHERS.contains(&base_name)
}

/// Starts a recording if the environment requests one for this process. Only call from a constructor: no other thread
/// may use the environment.
///
/// # Errors
/// One of [`Error`], if a recording is requested and cannot start.
pub fn start_by_environment(inherited_by: InheritedBy) -> Result<bool, Error> {
    let Some(value) = std::env::var_os(RECORD_VARIABLE) else { return Ok(false) };
    let mut options = Options::parse(&value).map_err(Error::Options)?.absolute();
    let pid = std::process::id();
    let (own_pid, file_owner) = (pid.to_string(), std::env::var(FILE_OWNER_VARIABLE).ok());
    let is_child = options.pid.is_some_and(|requested_pid| requested_pid != pid);
    match options.pid {
        Some(_) if is_child && !options.children => return Ok(false),
        Some(_) if is_child => options = options.for_child(),
        Some(_) => {}
        // A child of a program that is already recorded. A Python that a launcher starts is still recorded.
        None if inherited_by == InheritedBy::Descendants
            && file_owner.as_deref().is_some_and(|owner| owner != own_pid && !is_launcher(owner)) =>
        {
            return Ok(false);
        }
        // Name this process: a program that it executes is recorded as well, its children are not.
        None if inherited_by == InheritedBy::NoProcess => {
            set_variable(RECORD_VARIABLE, &Options { pid: Some(pid), ..options.clone() }.to_value());
        }
        None => {}
    }
    inspect_process()?;
    set_variable(FILE_OWNER_VARIABLE, std::ffi::OsStr::new(&own_pid));
    // A fork child has its parent's environment, which says nothing about the child's file. Before its first sample
    // this process may have left an earlier recording in place.
    let continues = |file: &Path| (is_child || file_owner.as_ref() == Some(&own_pid)) && is_of_this_process(file);
    start_in(&mut state(), options, None, is_child, continues)?;
    Ok(true)
}

/// Returns true if this process created the file before its exec(2): no other process can have had its PID since it
/// started.
fn is_of_this_process(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    output::first_process(path) == Some(std::process::id())
        && began().is_some_and(|began| modified.is_ok_and(|modified| modified >= began))
}

fn set_variable(name: &str, value: &std::ffi::OsStr) {
    // SAFETY: called from a constructor, before the program has threads.
    unsafe { std::env::set_var(name, value) };
}

/// Ends the recording because the process exits, and writes all pending samples. Returns immediately if another thread
/// holds the recorder.
pub fn finish_at_exit() {
    if let Ok(mut state) = STATE.try_lock()
        && RECORDED_PID.load(Ordering::Acquire) == std::process::id()
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
        static SLOT: ForkSlot<HeldLocks> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<HeldLocks> {
        Some(HeldLocks { state: state(), inherited: WRITER_STATE.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    fn in_child(self) {
        let HeldLocks { mut state, inherited: mut shared_state } = self;
        let options = state.take().map(|running| running.options).filter(|options| options.children);
        become_child(options.is_some());
        let inherited = std::mem::take(&mut *shared_state);
        drop(shared_state);
        if let Some(options) = options {
            let _ = start_in(&mut state, options.for_child(), Some(inherited), true, |_| false);
        }
    }
}

/// Resets the recorder in a fork child: timers, writer and file belong to the parent. If the child is recorded, it
/// keeps the published libraries and interpreter, which are still valid.
fn become_child(is_recorded: bool) {
    ACTIVE.store(false, Ordering::Release);
    RECORDED_PID.store(0, Ordering::Release);
    ABANDONED.store(false, Ordering::Release);
    wake::forget_writer_thread();
    slots::reset_all_in_child(clock::own_tid(), creation::signal_stack());
    if !is_recorded {
        python::withdraw();
    }
    // The descriptors of counters are inherited; close the child's copies.
    slots::iter().for_each(|(_, slot)| arming::close_counter(slot));
    if let Some(session) = Session::process() {
        session.stop_observing();
    }
    drop(code_events::take_events());
    code_map::clear_in_child(is_recorded);
    code_map::reclaim(|| true);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The recorder was killed and did not stop the recording: the next one may start.
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
        while !ABANDONED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!ACTIVE.load(Ordering::Acquire));
        start(Options::new(directory.join("2"))).unwrap();
        stop().unwrap();
        assert!(matches!(start(options_with_recorder()), Err(Error::RecorderGone)), "a request that comes too late");
        assert!(matches!(stop(), Err(Error::NotRecording)));
        fs::remove_dir_all(directory).unwrap();
    }

    /// A thread that starts a recording must not clear a stop request meant for the previous one.
    #[test]
    fn threads_that_start_and_stop_at_the_same_time() {
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
