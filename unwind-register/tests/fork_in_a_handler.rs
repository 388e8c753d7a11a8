//! Test with a signal handler that forks while its own thread registers code: our `fork` handler must not wait for a
//! lock that this thread holds.

#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::code::Page;
use unwind_register::{ByHost, Registry, Section};

static FORKS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn fork_child(_: i32) {
    // SAFETY: the child exits immediately.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child => libc::waitpid(child, std::ptr::null_mut(), 0),
        };
    }
    FORKS.fetch_add(1, Relaxed);
}

/// Runs in a single-threaded process: in a multi-threaded one, `fork` also waits for the allocator's locks, which the
/// handler may have interrupted.
fn main() {
    // SAFETY: the alarm kills this process if it hangs.
    unsafe { libc::alarm(60) };
    let page = Page::map(4096);
    let chain = page.chain(0, 16);
    let (eh_frame, text) = (chain.eh_frame(), [chain.text()]);
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Nothing);
    let handler: extern "C" fn(i32) = fork_child;
    // SAFETY: the handler forks, which POSIX allowed until 2024; the timer interrupts only this process.
    unsafe {
        libc::signal(libc::SIGPROF, handler as libc::sighandler_t);
        let interval = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        libc::setitimer(
            libc::ITIMER_PROF,
            &libc::itimerval { it_interval: interval, it_value: interval },
            std::ptr::null_mut(),
        );
    }
    while FORKS.load(Relaxed) < 200 {
        for _ in 0..100 {
            // SAFETY: the code outlives the registration.
            drop(unsafe { Registry::process().register(&section) }.expect("a good section"));
        }
    }
    // SAFETY: no signal arrives after this call.
    unsafe { libc::signal(libc::SIGPROF, libc::SIG_IGN) };
}
