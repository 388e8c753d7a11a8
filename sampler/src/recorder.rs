//! Recordings: one at a time, any number one after the other.

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

use crate::code_map::UNKNOWN_CODE;
use crate::disposition::{self, SIGNAL, end_process};
use crate::event_name::Counter;
use crate::events::{self, Observer};
use crate::handler;
use crate::interpose;
use crate::options::Options;
use crate::output::{self, Output};
use crate::perf_data::Attribute;
use crate::process::Process;
use crate::slot::PROCESS;
use crate::threads::{self, ACTIVE, SAMPLED, WITHOUT_TIMER};
use crate::writer::{
    self, ABANDON, COUNTERS, End, GAIT, HAS_NO_FILE, Inherited, MAKE_FILE, PLACED, STOP, WORK, WRITTEN, Writer,
};
use crate::{clock, code_map, fatal, leaving, measure, process, python, sanitizer, slot, timer, vdso, wake};

/// Names the process that has begun the file, for itself after `exec(2)`.
const BEGUN: &str = "JITLISTEN_RECORD_BEGUN";
const VARIABLE: &str = "JITLISTEN_RECORD";

/// Why there is no recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// One is being made already.
    AlreadyRecording,
    /// None is being made.
    NotRecording,
    /// What was asked for makes no sense.
    Options(String),
    /// The file cannot be written.
    Output(std::path::PathBuf, std::io::Error),
    /// Every signal that could be taken is in use.
    NoSignal,
    /// There is no thread to be had.
    NoThread(i32),
    /// This machine's registers are not known.
    Machine,
    /// The process that wanted it is gone.
    RecorderGone,
    /// The program has a runtime that cannot be recorded.
    ThreadSanitizer,
    /// The kernel does not count that event for us.
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
            Error::NoThread(number) => write!(f, "start a thread: error {number}"),
            Error::RecorderGone => f.write_str("the process that asked for the recording has ended"),
            Error::ThreadSanitizer => f.write_str("a program with ThreadSanitizer cannot be recorded"),
            Error::Machine => f.write_str("threads are sampled on x86_64 and aarch64 only"),
            Error::Counter(name, error) => write!(f, "cannot count {name}: {error}: {}", Counter::reason(error)),
        }
    }
}

impl std::error::Error for Error {}

/// What a recording consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Samples in the file.
    pub samples: u64,
    /// Of those, with a stack that does not reach the thread's start.
    pub incomplete: u64,
    /// Of those that reach it not, cut off because they were too deep.
    pub truncated: u64,
    /// Samples for which there was no space.
    pub lost: u64,
    /// Threads that were sampled.
    pub threads: u64,
    /// Threads for which no timer was to be had.
    pub threads_without_timer: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether the file could not be written to its end.
    pub failures: u64,
}

struct Running {
    options: Options,
    path: PathBuf,
    enabled_images: bool,
}

/// The recorder is gone, and the recording has ended with it.
static ABANDONED: AtomicBool = AtomicBool::new(false);

static STATE: Mutex<Option<Running>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<Running>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a recording.
///
/// # Errors
/// See [`Error`].
pub fn start(options: Options) -> Result<(), Error> {
    look_around()?;
    start_in(&mut state(), options, None, false, |_| false)
}

/// Learns of the process; asks the loader.
fn look_around() -> Result<(), Error> {
    vdso::look();
    fatal::look();
    if sanitizer::look() { Err(Error::ThreadSanitizer) } else { Ok(()) }
}

/// Ends it. The file is whole when this returns.
///
/// # Errors
/// When none is being made.
pub fn stop() -> Result<Statistics, Error> {
    stop_in(&mut state())
}

/// Has the writer end the recording. Wherever the caller is: takes no lock, and allocates nothing. Returns 0 if there
/// is none, 1 while it is written, 2 when the file is whole.
pub fn end_soon() -> u32 {
    let Ok(state) = STATE.try_lock() else { return 1 };
    if state.is_none() || PROCESS.load(Ordering::Acquire) != std::process::id() {
        return 0;
    }
    if WRITTEN.load(Ordering::Acquire) {
        return 2;
    }
    ABANDON.store(true, Ordering::Release);
    wake::writer();
    1
}

/// The state is held until the writer is gone: another thread must not start the next recording before that.
fn stop_in(state: &mut Option<Running>) -> Result<Statistics, Error> {
    let running = state.take().ok_or(Error::NotRecording)?;
    STOP.store(true, Ordering::Release);
    wake::writer();
    wake::join_writer();
    handler::take_ours();
    if !ABANDONED.swap(false, Ordering::AcqRel) {
        leave_code(running.enabled_images);
    }
    Ok(statistics())
}

/// The file of the recording that is being made; `Some(None)` until the file has its place: see `place.rs`. Waits for
/// nothing.
pub fn current() -> Option<Option<PathBuf>> {
    let state = STATE.try_lock().ok()?;
    let is_running = PROCESS.load(Ordering::Acquire) == std::process::id() && !WRITTEN.load(Ordering::Acquire);
    let running = state.as_ref().filter(|_| is_running)?;
    Some(PLACED.load(Ordering::Acquire).then(|| running.path.clone()))
}

/// The counters of the recording that is being made, or of the last one.
pub fn statistics() -> Statistics {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Statistics {
        samples: get(&COUNTERS.samples),
        incomplete: get(&COUNTERS.incomplete),
        truncated: get(&COUNTERS.truncated),
        lost: get(&COUNTERS.lost),
        threads: get(&SAMPLED),
        threads_without_timer: get(&WITHOUT_TIMER),
        bytes: get(&COUNTERS.bytes),
        failures: get(&COUNTERS.failures),
    }
}

/// `inherited` is the child's of a fork, which has one thread. Many children end before their first sample: those leave
/// no file. `continues` tells of the file whether this process began it.
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
    // A request that came late: its caller has stopped waiting.
    if options.recorder.is_some_and(Process::has_ended) {
        return Err(Error::RecorderGone);
    }
    // It has ended by itself, and may not have been stopped.
    if ABANDONED.load(Ordering::Acquire) || WRITTEN.load(Ordering::Acquire) {
        let _ = stop_in(state);
    }
    if state.is_some() {
        return Err(Error::AlreadyRecording);
    }
    crate::options::checked_hz(options.hz).map_err(Error::Options)?;
    let options = options.absolute();
    let path = options.path(std::process::id(), &process::system().0);
    let counter = permitted(&options)?;
    let append = continues(&path);
    let attribute = Attribute::new(&options, counter.as_ref());
    let output = if is_child {
        Output::later(&path, append, attribute)
    } else {
        without_write_signals(|| Output::open(&path, append, attribute))
            .map_err(|error| Error::Output(path.clone(), error))?
    };
    let signal = signal(counter.is_some()).ok_or(Error::NoSignal)?;
    exempt_signal(signal);
    follow_forks::<Held>();
    COUNTERS.reset();
    SAMPLED.store(0, Ordering::Relaxed);
    WITHOUT_TIMER.store(0, Ordering::Relaxed);
    STOP.store(false, Ordering::Release);
    ABANDON.store(false, Ordering::Release);
    MAKE_FILE.store(false, Ordering::Release);
    HAS_NO_FILE.store(output.is_later(), Ordering::Release);
    WRITTEN.store(false, Ordering::Release);
    PLACED.store(!output.is_later(), Ordering::Release);
    slot::discard_all();
    UNKNOWN_CODE.store(false, Ordering::Relaxed);
    PROCESS.store(std::process::id(), Ordering::Release);
    measure::configure(options.clock, options.hz, counter.as_ref());
    let enabled_images = observe_code(&options);
    let until = options.seconds.map(|seconds| clock::monotonic() + u64::from(seconds) * 1_000_000_000);
    let is_forked = inherited.is_some();
    let writer = Writer::new(output, until, options.python, options.recorder, inherited.unwrap_or_default());
    let mut writer = Box::new(writer);
    without_write_signals(|| writer.begin(append));
    ACTIVE.store(true, Ordering::Release);
    interpose::adopt_this_thread(0, 0);
    if !is_forked {
        threads::arm_all();
    }
    match start_writer(Work { writer, enabled_images }) {
        Ok(()) => {
            fatal::handle_all();
            log_line!(Info, "recording with signal {signal}");
            *state = Some(Running { options, path, enabled_images });
            Ok(())
        }
        Err((number, _)) => {
            ACTIVE.store(false, Ordering::SeqCst);
            slot::all().for_each(|(_, slot)| threads::disarm(slot));
            leave_code(enabled_images);
            Err(Error::NoThread(number))
        }
    }
}

/// Makes a call that the kernel refuses a process with several threads: if the writer's is the only other one, it ends
/// before the call, and another one goes on afterwards. Where that may not be, the recording ends.
pub(crate) fn without_writer<R>(call: impl FnOnce() -> R) -> R {
    if !leaving::is_recorded() || !threads::may_be_the_only_one() {
        return call();
    }
    // A handler of the program's that forks would wait for the state.
    let host_state = HostStateGuard::enter();
    let state = STATE.try_lock();
    if state.is_ok() {
        let _ = std::panic::catch_unwind(pause_writer);
    }
    let result = call();
    let failure = disposition::errno();
    if state.is_ok() {
        let _ = std::panic::catch_unwind(resume_writer);
    }
    drop(state);
    drop(host_state);
    disposition::set_errno(failure);
    result
}

/// Waits a while until the writer's thread has ended.
fn pause_writer() {
    GAIT.store(writer::PAUSE, Ordering::Release);
    wake::writer();
    let until = clock::monotonic() + leaving::PATIENCE;
    let is_there = || GAIT.load(Ordering::Acquire) != writer::PAUSED || threads::writer_exists();
    while is_there() && clock::monotonic() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn resume_writer() {
    if GAIT.swap(writer::RUN, Ordering::AcqRel) != writer::PAUSED {
        return;
    }
    wake::join_writer();
    let work = PAUSED.swap(ptr::null_mut(), Ordering::AcqRel);
    if work.is_null() {
        return;
    }
    // SAFETY: made by the writer's thread, which has ended, and taken by the exchange.
    let work = *unsafe { Box::from_raw(work) };
    if let Err((number, work)) = start_writer(work) {
        log_line!(Warn, "the recording ends: start a thread: error {number}");
        work.writer.finish();
    }
}

/// The counter as the kernel allows it.
fn permitted(options: &Options) -> Result<Option<Counter>, Error> {
    let Some(counter) = &options.counter else { return Ok(None) };
    let permitted = counter.clone().permitted(options.hz);
    permitted.map(Some).map_err(|error| Error::Counter(counter.name(), error))
}

/// The signal of the last recording, if it is still ours and for the same, or a new one.
fn signal(is_counted: bool) -> Option<i32> {
    let last = SIGNAL.load(Ordering::Acquire);
    let is_ours = last != 0 && timer::is_installed(last, handler::handler);
    if is_ours && timer::is_for(last, is_counted) {
        return Some(last);
    }
    let signal = timer::install(handler::handler, is_counted)?;
    if is_ours {
        disposition::give_back(last);
    }
    SIGNAL.store(signal, Ordering::Release);
    Some(signal)
}

/// Learns of compiled code, and gives it images. Returns whether they were off.
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
fn leave_code(enabled_images: bool) {
    events::forget_code();
    if enabled_images && let Some(session) = Session::process() {
        session.disable(SinkKind::Image);
    }
}

/// State of the writer's thread.
struct Work {
    writer: Box<Writer>,
    enabled_images: bool,
}

/// From a writer's thread that has ended, for the next one.
static PAUSED: AtomicPtr<Work> = AtomicPtr::new(ptr::null_mut());

/// Starts the writer with every signal blocked.
fn start_writer(work: Work) -> Result<(), (i32, Work)> {
    extern "C-unwind" fn run(work: *mut c_void) -> *mut c_void {
        // SAFETY: made below for this thread alone.
        let Work { writer, enabled_images } = *unsafe { Box::from_raw(work.cast::<Work>()) };
        let _own = OwnThread::begin();
        // SAFETY: a terminated name of less than 16 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"jitlisten".as_ptr()) };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let end = writer.run();
            if matches!(end, Ok(End::Abandoned)) {
                leave_code(enabled_images);
                ABANDONED.store(true, Ordering::Release);
            }
            end
        }));
        match ran {
            Err(_) => ACTIVE.store(false, Ordering::Release),
            // The last thread decides the process's status: it has to be that of the program's.
            Ok(Ok(End::LastThread)) => end_as_main_thread(),
            Ok(Ok(End::Finished | End::Abandoned)) => {}
            Ok(Err(writer)) => {
                PAUSED.store(Box::into_raw(Box::new(Work { writer, enabled_images })), Ordering::Release);
            }
        }
        ptr::null_mut()
    }
    /// libc ends the process if every thread of the program has ended by libc's functions, which is status 0.
    fn end_as_main_thread() {
        let status = process::status_of_main_thread();
        if libc::WIFSIGNALED(status) {
            end_process(libc::WTERMSIG(status));
        }
        let none = [0_u64; 16];
        // Signals come again: that one, and those of handlers of `exit(3)`.
        // SAFETY: an empty set, which has 128 bytes.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr().cast(), ptr::null_mut()) };
        match status {
            0 => {}
            status => {
                // SAFETY: ends this thread, which owns nothing any more.
                unsafe { libc::syscall(libc::SYS_exit, libc::WEXITSTATUS(status)) };
            }
        }
    }
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: writes the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set was filled, the second one is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let work = Box::into_raw(Box::new(work));
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the function takes what it is given.
    let failure = unsafe { interpose::create_unsampled(thread.as_mut_ptr(), run, work.cast()) };
    // SAFETY: the mask that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    if failure != 0 {
        // SAFETY: no thread has got it.
        return Err((failure, *unsafe { Box::from_raw(work) }));
    }
    // SAFETY: written by the call, which has succeeded.
    wake::writer_began(unsafe { thread.assume_init() });
    Ok(())
}

/// Which other processes the variable is for, beside the one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heirs {
    /// None: children sample nothing, unless they are asked for.
    Nothing,
    /// Whatever this process starts, if it stands before the program that is meant, as a shell does.
    Descendants,
}

/// Programs that start another one as a child and wait for it. What any other program starts is not meant: a `popen`
/// would take the recording over.
const STANDING_BEFORE: [&str; 22] = [
    "bash", "busybox", "dash", "fish", "gdb", "ksh", "lldb", "ltrace", "make", "mksh", "perf", "rr", "script",
    "setsid", "sh", "strace", "tcsh", "time", "timeout", "unshare", "watch", "zsh",
];

/// Returns whether the program of a process is one of those above, with or without a number after its name
/// (`perf_6.1`). `pid` may be `self`.
pub fn stands_before(pid: &str) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let bare = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || "._-".contains(letter));
    STANDING_BEFORE.contains(&bare)
}

/// Starts a recording if the environment asks this process for one. For a constructor: no other thread may use the
/// environment.
///
/// # Errors
/// When it does and there is none.
pub fn start_by_environment(heirs: Heirs) -> Result<bool, Error> {
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(false) };
    let mut options = Options::parse(&value).map_err(Error::Options)?.absolute();
    let pid = std::process::id();
    let (own, begun) = (pid.to_string(), std::env::var(BEGUN).ok());
    let is_child = options.pid.is_some_and(|meant| meant != pid);
    match options.pid {
        Some(_) if is_child && !options.children => return Ok(false),
        Some(_) if is_child => options = options.for_child(),
        Some(_) => {}
        // A child of the program that is recorded already. A Python further down is meant all the same.
        None if heirs == Heirs::Descendants
            && begun.as_deref().is_some_and(|other| other != own && !stands_before(other)) =>
        {
            return Ok(false);
        }
        // What this process starts with exec(2) is meant, too.
        None if heirs == Heirs::Nothing => {
            set_variable(VARIABLE, &Options { pid: Some(pid), ..options.clone() }.to_value());
        }
        None => {}
    }
    look_around()?;
    set_variable(BEGUN, std::ffi::OsStr::new(&own));
    // The environment of a child after fork(2) is its parent's, and tells nothing of the child's file.
    // Before its first sample this process may have left an earlier recording in its place.
    let continues = |file: &Path| (is_child || begun.as_ref() == Some(&own)) && is_of_this_process(file);
    start_in(&mut state(), options, None, is_child, continues)?;
    Ok(true)
}

/// Returns whether this process began the file before its exec(2): no other process has had its number since it began.
fn is_of_this_process(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|about| about.modified());
    output::first_process(path) == Some(std::process::id())
        && began().is_some_and(|began| written.is_ok_and(|written| written >= began))
}

fn set_variable(name: &str, value: &std::ffi::OsStr) {
    // SAFETY: called from a constructor, before the program has threads.
    unsafe { std::env::set_var(name, value) };
}

/// The process ends: what is in the rings is written. Does not wait for a thread that holds the recorder.
pub fn ending() {
    if let Ok(mut state) = STATE.try_lock()
        && PROCESS.load(Ordering::Acquire) == std::process::id()
    {
        threads::caller_ends();
        let _ = stop_in(&mut state);
    }
}

/// Held by the thread that forks.
struct Held {
    state: MutexGuard<'static, Option<Running>>,
    work: MutexGuard<'static, Inherited>,
}

impl HeldAcrossFork for Held {
    fn slot() -> &'static ForkSlot<Held> {
        static SLOT: ForkSlot<Held> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<Held> {
        Some(Held { state: state(), work: WORK.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    fn in_child(self) {
        let Held { mut state, mut work } = self;
        let options = state.take().map(|running| running.options).filter(|options| options.children);
        become_child(options.is_some());
        let inherited = std::mem::take(&mut *work);
        drop(work);
        if let Some(options) = options {
            let _ = start_in(&mut state, options.for_child(), Some(inherited), true, |_| false);
        }
    }
}

/// In the child of a fork: timers and the writer are the parent's, and so is the file. If the child is recorded, what
/// handlers read of libraries and of the interpreter is true of it as well.
fn become_child(is_recorded: bool) {
    ACTIVE.store(false, Ordering::Release);
    PROCESS.store(0, Ordering::Release);
    ABANDONED.store(false, Ordering::Release);
    wake::forget_writer();
    slot::forget_all(clock::own_tid(), interpose::signal_stack());
    if !is_recorded {
        python::forget();
    }
    // Descriptors of counters are the parent's, too; this closes ours.
    slot::all().for_each(|(_, slot)| threads::close_counter(slot));
    if let Some(session) = Session::process() {
        session.stop_observing();
    }
    drop(events::take());
    code_map::clear_in_child(is_recorded);
    code_map::reclaim(|| true);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// It was killed, and did not end the recording: the next one may begin.
    #[test]
    fn a_recording_ends_with_its_recorder() {
        let _alone = slot::alone();
        let directory = std::env::temp_dir().join(format!("jitlisten-recorder-gone-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut recorder = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", recorder.id())).unwrap();
        let ticks = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
        let process = Process { pid: recorder.id(), start: ticks };
        let of_recorder = || Options { recorder: Some(process), ..Options::new(directory.join("1")) };
        start(of_recorder()).unwrap();
        assert!(matches!(start(Options::new(directory.join("2"))), Err(Error::AlreadyRecording)));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        while !ABANDONED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!ACTIVE.load(Ordering::Acquire));
        start(Options::new(directory.join("2"))).unwrap();
        stop().unwrap();
        assert!(matches!(start(of_recorder()), Err(Error::RecorderGone)), "a request that comes too late");
        assert!(matches!(stop(), Err(Error::NotRecording)));
        fs::remove_dir_all(directory).unwrap();
    }

    /// One that starts a recording must not take back what another has said to the writer of the one before.
    #[test]
    fn threads_that_start_and_stop_at_the_same_time() {
        let _alone = slot::alone();
        let directory = std::env::temp_dir().join(format!("jitlisten-recorder-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (ended, end) = mpsc::channel();
        for number in 0..2 {
            let (file, ended) = (directory.join(number.to_string()), ended.clone());
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let _ = start(Options::new(&file));
                    let _ = stop();
                }
                ended.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            end.recv_timeout(Duration::from_secs(120)).expect("a writer that never ends");
        }
        assert!(matches!(stop(), Err(Error::NotRecording)));
        fs::remove_dir_all(directory).unwrap();
    }
}
