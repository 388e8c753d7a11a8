//! Samples the threads of its own process, which needs no permission, and writes a `perf.data`.
//!
//! ```text
//!   thread 1 --CPU timer--> signal --> handler: stack --> ring \
//!   thread 2 --CPU timer--> signal --> handler: stack --> ring  > writer thread --> perf.data
//!   ...                                    |                   /
//!                                  tables of code: compiled (from the session), libraries (from /proc/self/maps)
//! ```
//!
//! Given a file name and a rate ([`Options`]), it produces a file that `perf report`, `perf script` and `jitlisten
//! lines` can read. It uses no ptrace and no root privileges, and `perf_event_open` only where it is permitted
//! (`thread/clock_choice.rs`). It supports x86_64 and AArch64.
//!
//! The handler allocates nothing, takes no lock and is bounded ([`unwind`]). The host can see two signals in
//! use and a thread named `jitlisten`. Lock order: this crate's locks come before the session's, and the session's
//! callbacks take none of ours (`writer/code_events.rs`).
//!
//! | directory | content |
//! | --- | --- |
//! | `recording/` | starts and stops a recording: options, event, the recorded process |
//! | `thread/` | state of each sampled thread: slot, timer or counter, pace; thread creation |
//! | `system/` | calls to the kernel that all parts make: clocks, descriptors |
//! | `handler/` | the signal handler and its inputs: stack and code |
//! | `unwind/`, `python/` | native frames, and frames of CPython |
//! | `writer/` | the writer thread: mappings, records, the file |
//! | `transparency/` | hides the sampler from the program: signals, exits, privileges, sanitizers |
//!
//! To try it: `JITLISTEN_RECORD=f.data LD_PRELOAD=libjitlisten.so python program.py; perf report -i f.data`.

mod handler;
#[cfg(any(test, feature = "fuzzing"))]
pub mod python;
#[cfg(not(any(test, feature = "fuzzing")))]
mod python;
mod recording;
mod system;
mod thread;
mod transparency;
pub mod unwind;
mod writer;

pub use recording::counters::Statistics;
pub use recording::environment::{InheritedBy, start_by_environment};
pub use recording::event_name::Counter;
pub use recording::launcher::Rank;
pub use recording::options::{Clock, DEFAULT_HZ, MAX_HZ, Options, exact_pattern};
pub use recording::process::{Process, is_launcher};
pub use recording::process_name::set_process_name;
pub use recording::recorder::{Error, finish_at_exit, request_end, running_path, start, statistics, stop};
pub use thread::creation::pthread_create;
pub use transparency::exit::{_Exit, _exit, execve, execveat, execvp, execvpe, fexecve, quick_exit};
pub use transparency::fatal::is_interposed;
pub use transparency::next::{CStringArray, ThreadFunction, resolve_libc_functions};
pub use transparency::privileges::{
    capset, chroot, is_confined, prctl, seteuid, setns, setresuid, setreuid, setuid, syscall, unshare,
};
pub use transparency::signals::{
    sigaction, sigaltstack, signal, signalfd, sigpending, sigsuspend, sigtimedwait, sigwait, sigwaitinfo,
};
pub use transparency::thread_count::{fopen, fopen64};
pub use writer::existing_file::{check_output, rename_existing};
pub use writer::file_names::is_recorded_file;
pub use writer::origin::Origin;
