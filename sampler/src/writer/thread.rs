//! The thread that runs the writer. It blocks all signals, so that none of the program's handlers run in it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use jitlisten::plumbing::OwnThread;

use crate::recording::current::Recording;
use crate::recording::process;
use crate::transparency::disposition::end_process;
use crate::transparency::next;
use crate::writer::code_events::Observation;
use crate::writer::{End, Writer};

/// Mode of the writer, in `Requests::pause`: run normally.
pub(crate) const RUN: u32 = 0;
/// Mode of the writer: exit as soon as possible, and leave the work for the next writer thread.
pub(crate) const PAUSE: u32 = 1;
/// Mode of the writer: the work has been handed over, and the thread is exiting.
pub(crate) const PAUSED: u32 = 2;

/// The writer, and the other state that its thread needs.
pub(crate) struct WriterTask {
    pub(crate) recording: &'static Recording,
    pub(crate) writer: Box<Writer>,
    pub(crate) observation: Observation,
}

/// Waits until the paused writer thread has exited. Returns its work to the first caller only.
pub(crate) fn join_paused(recording: &Recording) -> Option<WriterTask> {
    let work = recording.writer.join().cast::<WriterTask>();
    // SAFETY: the pointer came from `Box::into_raw` in `run`, and joining makes this thread its only owner.
    (!work.is_null()).then(|| *unsafe { Box::from_raw(work) })
}

/// Starts the writer thread with all signals blocked.
pub(crate) fn start(recording: &Recording, work: WriterTask) -> Result<(), (i32, WriterTask)> {
    let (mut all_signals, mut old_mask) =
        (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: `sigfillset` initializes the set.
    unsafe { libc::sigfillset(all_signals.as_mut_ptr()) };
    // SAFETY: the first set was filled above, and the call writes to the second one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all_signals.as_ptr(), old_mask.as_mut_ptr()) };
    let work = Box::into_raw(Box::new(work));
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the thread function takes ownership of its argument. libc's function does not sample the new thread.
    let error = unsafe { next::pthread_create(thread.as_mut_ptr(), ptr::null(), run, work.cast()) };
    // SAFETY: `old_mask` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old_mask.as_ptr(), ptr::null_mut()) };
    if error != 0 {
        // SAFETY: no thread was created, so the box is still ours.
        return Err((error, *unsafe { Box::from_raw(work) }));
    }
    // SAFETY: `pthread_create` has succeeded and initialized `thread`.
    recording.writer.set_thread(unsafe { thread.assume_init() });
    Ok(())
}

/// Entry point of the thread. Returns its work if it is paused; else null.
extern "C-unwind" fn run(work: *mut c_void) -> *mut c_void {
    // SAFETY: `start` created the box for this thread alone.
    let WriterTask { recording, writer, observation } = *unsafe { Box::from_raw(work.cast::<WriterTask>()) };
    let _own = OwnThread::begin();
    // SAFETY: the name is NUL-terminated and shorter than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"jitlisten".as_ptr()) };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let end = writer.run();
        if matches!(end, Ok(End::Abandoned)) {
            observation.end();
            recording.set_abandoned();
        }
        end
    }));
    match result {
        Err(_) => recording.set_sampling(false),
        // The last thread determines the exit status of the process, which has to be the program's.
        Ok(Ok(End::LastThread)) => end_as_main_thread(),
        Ok(Ok(End::Finished | End::Abandoned)) => {}
        Ok(Err(writer)) => return Box::into_raw(Box::new(WriterTask { recording, writer, observation })).cast(),
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
            // SAFETY: the call ends this thread, which no longer owns anything.
            unsafe { libc::syscall(libc::SYS_exit, libc::WEXITSTATUS(status)) };
        }
    }
}
