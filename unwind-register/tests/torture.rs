//! Four threads register and free 100,000 objects at addresses that are used again and again, while two threads walk
//! from signal handlers at full speed, and signals interrupt everyone, mostly in the middle of registering.
//!
//! Every chain has frames of another size, so rules of another chain lead astray. A walk is right only if it shows
//! gamma, beta, alpha of exactly the chain that runs, and then the frames that called it. Walks with the last copy of
//! `UNWIND_REGISTER_LIBUNWIND`.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]
#![allow(clippy::disallowed_methods, reason = "a program of its own")]

mod common;

use common::code::{Chain, Page};
use common::libunwind::{Unwinder, copies};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use unwind_register::{ByHost, Registration, Registry, Section};

static UNWINDER: OnceLock<Unwinder> = OnceLock::new();
static WALKS: AtomicUsize = AtomicUsize::new(0);
static INTERRUPTIONS: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
/// The first wrong stack: what was expected, then the frames.
static EVIDENCE: [AtomicUsize; 17] = [const { AtomicUsize::new(0) }; 17];

thread_local! {
    /// Start of the chain that this thread is about to run, or runs.
    static CHAIN: Cell<usize> = const { Cell::new(0) };
    /// The same, but only while gamma has called back: a signal that arrives earlier or later sees the chain half
    /// built.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
    static SIGNALS: Cell<usize> = const { Cell::new(0) };
}

/// Walks, and compares with the chain this thread is in.
fn check() {
    let Some(unwinder) = UNWINDER.get() else { return };
    let start = INSIDE.get();
    let mut frames = [0; 48];
    let depth = unwinder.walk(&mut frames);
    if start == 0 {
        INTERRUPTIONS.fetch_add(1, Relaxed);
        return;
    }
    WALKS.fetch_add(1, Relaxed);
    let index = |frame: usize| frame.wrapping_sub(1).checked_sub(start).map(|offset| offset / 32).filter(|&i| i < 3);
    let first = frames[..depth].iter().position(|&frame| index(frame).is_some());
    let right = first
        .is_some_and(|at| (0..3).all(|i| frames.get(at + i).copied().and_then(index) == Some(2 - i)) && depth > at + 4);
    if !right && WRONG.fetch_add(1, Relaxed) == 0 {
        EVIDENCE[0].store(start, Relaxed);
        for (slot, frame) in EVIDENCE[1..].iter().zip(frames) {
            slot.store(frame, Relaxed);
        }
    }
}

extern "C" fn on_signal(_: i32) {
    // libunwind changes it, and a handler may not.
    // SAFETY: errno is a thread-local of libc's.
    let errno = unsafe { *libc::__errno_location() };
    check();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The end of a chain: walk from here, then from as many signal handlers as were asked for.
extern "C" fn callback() {
    INSIDE.set(CHAIN.get());
    check();
    for _ in 0..SIGNALS.get() {
        // SAFETY: sends a signal to this thread, whose handler is ours.
        unsafe { libc::raise(libc::SIGPROF) };
    }
    INSIDE.set(0);
}

fn run(chain: &Chain, signals: usize) {
    SIGNALS.set(signals);
    CHAIN.set(chain.functions[0].start);
    chain.call(callback);
}

fn register(chain: &Chain) -> Registration {
    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Everything);
    // SAFETY: the callers keep the code as long as the registration.
    unsafe { Registry::process().register(&section) }.expect("a good section")
}

fn start_signals(microseconds: i64) {
    // SAFETY: installs a handler and a timer, with valid structures.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut());
        let every = libc::timeval { tv_sec: 0, tv_usec: microseconds };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
    }
}

/// The registering threads, while they may be interrupted.
static VICTIMS: Mutex<Vec<libc::pthread_t>> = Mutex::new(Vec::new());

/// Sends signals to the registering threads, wherever they are: most arrive in the middle of registering or dropping.
fn pester(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for &thread in VICTIMS.lock().expect("no panic").iter() {
            // SAFETY: a thread takes itself out of the list, under the lock, before it ends.
            unsafe { libc::pthread_kill(thread, libc::SIGPROF) };
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// One of the registering threads: keeps some objects, replaces them in a random order, runs each of them once.
fn churn(seed: u64, count: usize) {
    // SAFETY: always succeeds.
    let this = unsafe { libc::pthread_self() };
    VICTIMS.lock().expect("no panic").push(this);
    let page = Page::map(64 * 128);
    let mut objects: Vec<Option<(Registration, Chain)>> = (0..64).map(|_| None).collect();
    let mut state = seed;
    for _ in 0..count {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let slot = (state >> 33) as usize % 64;
        drop(objects[slot].take());
        let chain = page.chain(slot * 128, (state >> 40) as u32 % 64 * 16);
        objects[slot] = Some((register(&chain), chain.clone()));
        run(&chain, 0);
    }
    VICTIMS.lock().expect("no panic").retain(|&other| other != this);
}

#[test]
fn walks_from_signals_while_everything_changes() {
    let Some((path, unwinder)) = copies().pop() else { return };
    Registry::process().rescan();
    UNWINDER.get_or_init(|| unwinder);
    let total: usize = std::env::var("UNWIND_REGISTER_TORTURE").map_or(100_000, |n| n.parse().expect("a number"));
    start_signals(1000);
    let (began, stop) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for walker in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let page = Page::map(4096 * 16);
                let chains: Vec<Chain> =
                    (0..16).map(|i| page.chain(i * 4096, (i * 16 + walker * 256) as u32)).collect();
                let _registrations: Vec<Registration> = chains.iter().map(register).collect();
                while !stop.load(Relaxed) {
                    chains.iter().for_each(|chain| run(chain, 4));
                }
            });
        }
        scope.spawn(|| pester(&stop));
        let churners: Vec<_> = (0..4).map(|seed| scope.spawn(move || churn(seed, total / 4))).collect();
        churners.into_iter().for_each(|churner| churner.join().expect("no panic"));
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Relaxed);
    });
    start_signals(0);
    let evidence: Vec<String> = EVIDENCE.iter().map(|word| format!("{:#x}", word.load(Relaxed))).collect();
    println!(
        "{path}: {total} objects, {} walks, {} interruptions elsewhere, {:?}\n{:?}",
        WALKS.load(Relaxed),
        INTERRUPTIONS.load(Relaxed),
        began.elapsed(),
        Registry::process().statistics()
    );
    assert_eq!(WRONG.load(Relaxed), 0, "{evidence:?}");
    assert!(WALKS.load(Relaxed) > total);
    let statistics = Registry::process().statistics();
    assert!(statistics.entry_bytes + statistics.retired_table_bytes < 64 << 20, "memory is used again");
}
