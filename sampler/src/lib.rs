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
//! lines` can read. It uses no `perf_event_open` (unless an event is counted), no ptrace and no root. x86_64 and
//! AArch64.
//!
//! The handler allocates nothing, takes no lock and is bounded ([`unwind`]). The host can see one real-time signal in
//! use and a thread named `jitlisten`. Lock order: this crate's locks, then the session's; the session's callbacks take
//! none of ours (`events`).
//!
//! To try it: `JITLISTEN_RECORD=f.data LD_PRELOAD=libjitlisten.so python program.py; perf report -i f.data`.

mod clock;
mod code_map;
mod counter;
mod disposition;
mod event_name;
mod events;
mod fatal;
mod handler;
mod interpose;
mod leaving;
mod mappings;
mod measure;
mod options;
mod output;
mod pace;
mod perf_data;
mod place;
mod process;
#[cfg(any(test, feature = "fuzzing"))]
pub mod python;
#[cfg(not(any(test, feature = "fuzzing")))]
mod python;
mod recorder;
mod rights;
mod sanitizer;
mod signals;
mod slot;
mod stack_memory;
mod threads;
mod timer;
pub mod unwind;
mod vdso;
mod waiting;
mod wake;
mod writer;

pub use event_name::Counter;
pub use interpose::{Start, create};
pub use leaving::{
    Strings, execute, execute_at, execute_found, execute_found_in, execute_in, execute_open, exit_now, exit_now_c,
    exit_quickly, find_exits,
};
pub use options::{Clock, Options};
pub use place::{check_place, set_aside};
pub use process::Process;
pub use recorder::{
    Error, Heirs, Statistics, current, end_soon, ending, stands_before, start, start_by_environment, statistics, stop,
};
pub use rights::{
    call_system, change_root, control, find_calls, is_confined, join_namespace, set_all_users, set_effective_user,
    set_user, set_users, unshare,
};
pub use signals::{
    sigaction, sigaltstack, signal, signalfd, sigpending, sigsuspend, sigtimedwait, sigwait, sigwaitinfo,
};
