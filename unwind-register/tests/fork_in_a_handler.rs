//! A signal handler that forks while its thread registers: the handler of `fork` must not wait for what the thread
//! holds.

#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::code::Page;
use unwind_register::{ByHost, Registry, Section};

static FORKS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn forks(_: i32) {
    // SAFETY: the child does nothing but end.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child => libc::waitpid(child, std::ptr::null_mut(), 0),
        };
    }
    FORKS.fetch_add(1, Relaxed);
}

/// The only thread of its process: a `fork` among threads waits for the allocator, too, which the handler may have
/// interrupted.
fn main() {
    // SAFETY: ends the process where it would wait for ever.
    unsafe { libc::alarm(60) };
    let page = Page::map(4096);
    let chain = page.chain(0, 16);
    let (eh_frame, text) = (chain.eh_frame(), [chain.text()]);
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Nothing);
    let handler: extern "C" fn(i32) = forks;
    // SAFETY: the handler forks, which POSIX allowed it until 2024; the timer interrupts this process only.
    unsafe {
        libc::signal(libc::SIGPROF, handler as libc::sighandler_t);
        let often = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        libc::setitimer(
            libc::ITIMER_PROF,
            &libc::itimerval { it_interval: often, it_value: often },
            std::ptr::null_mut(),
        );
    }
    while FORKS.load(Relaxed) < 200 {
        for _ in 0..100 {
            // SAFETY: the code outlives the registration.
            drop(unsafe { Registry::process().register(&section) }.expect("a good section"));
        }
    }
    // SAFETY: no signal comes after this.
    unsafe { libc::signal(libc::SIGPROF, libc::SIG_IGN) };
}
