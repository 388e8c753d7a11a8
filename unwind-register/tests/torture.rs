//! Stress test: four threads register and free 100,000 objects at reused addresses. Meanwhile two threads walk from
//! signal handlers at full speed, and signals interrupt every thread, mostly while it registers.
//!
//! Each chain has a different frame size, so the rules of another chain lead to wrong frames. A walk is correct only if
//! it shows gamma, beta, alpha of the running chain, followed by their callers. The test walks with the last copy in
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
static WRONG_WALKS: AtomicUsize = AtomicUsize::new(0);
/// First wrong stack found: the start address of the expected chain, followed by the frames.
static WRONG_STACK: [AtomicUsize; 17] = [const { AtomicUsize::new(0) }; 17];

thread_local! {
    /// Start address of the chain that this thread is running or about to run.
    static CURRENT_CHAIN: Cell<usize> = const { Cell::new(0) };
    /// Start address of the chain while gamma's callback runs; 0 at other times, when a signal sees an incomplete
    /// chain.
    static CHAIN_IN_CALLBACK: Cell<usize> = const { Cell::new(0) };
    static SIGNAL_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Walks the stack and compares it with the chain that this thread is in.
fn check_stack() {
    let Some(unwinder) = UNWINDER.get() else { return };
    let start = CHAIN_IN_CALLBACK.get();
    let mut frames = [0; 48];
    let depth = unwinder.walk(&mut frames);
    if start == 0 {
        INTERRUPTIONS.fetch_add(1, Relaxed);
        return;
    }
    WALKS.fetch_add(1, Relaxed);
    let function_index =
        |frame: usize| frame.wrapping_sub(1).checked_sub(start).map(|offset| offset / 32).filter(|&i| i < 3);
    let first = frames[..depth].iter().position(|&frame| function_index(frame).is_some());
    let is_correct = first.is_some_and(|first_frame| {
        (0..3).all(|i| frames.get(first_frame + i).copied().and_then(function_index) == Some(2 - i))
            && depth > first_frame + 4
    });
    if !is_correct && WRONG_WALKS.fetch_add(1, Relaxed) == 0 {
        WRONG_STACK[0].store(start, Relaxed);
        for (slot, frame) in WRONG_STACK[1..].iter().zip(frames) {
            slot.store(frame, Relaxed);
        }
    }
}

extern "C" fn on_signal(_: i32) {
    // libunwind changes errno, which a handler must preserve.
    // SAFETY: errno is a thread-local variable of libc.
    let errno = unsafe { *libc::__errno_location() };
    check_stack();
    // SAFETY: errno is a thread-local variable of libc.
    unsafe { *libc::__errno_location() = errno };
}

/// Called by the last function of a chain: walks from here, then from the requested number of signal handlers.
extern "C" fn callback() {
    CHAIN_IN_CALLBACK.set(CURRENT_CHAIN.get());
    check_stack();
    for _ in 0..SIGNAL_COUNT.get() {
        // SAFETY: sends a signal to this thread, whose handler is ours.
        unsafe { libc::raise(libc::SIGPROF) };
    }
    CHAIN_IN_CALLBACK.set(0);
}

fn run(chain: &Chain, signal_count: usize) {
    SIGNAL_COUNT.set(signal_count);
    CURRENT_CHAIN.set(chain.functions[0].start);
    chain.call(callback);
}

fn register(chain: &Chain) -> Registration {
    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Everything);
    // SAFETY: the callers keep the code mapped while it is registered.
    unsafe { Registry::process().register(&section) }.expect("a good section")
}

fn start_signals(microseconds: i64) {
    // SAFETY: installs a handler and a timer with valid structures.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut());
        let interval = libc::timeval { tv_sec: 0, tv_usec: microseconds };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
    }
}

/// Registering threads that signals may interrupt.
static INTERRUPTED_THREADS: Mutex<Vec<libc::pthread_t>> = Mutex::new(Vec::new());

/// Sends signals to the registering threads; most arrive while they register or drop.
fn interrupt_threads(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for &thread in INTERRUPTED_THREADS.lock().expect("no panic").iter() {
            // SAFETY: a thread removes itself from the list, under the lock, before it exits.
            unsafe { libc::pthread_kill(thread, libc::SIGPROF) };
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Body of a registering thread: keeps a number of objects, replaces them in random order, and runs each of them once.
fn replace_objects(seed: u64, count: usize) {
    // SAFETY: `pthread_self` always succeeds.
    let own_thread = unsafe { libc::pthread_self() };
    INTERRUPTED_THREADS.lock().expect("no panic").push(own_thread);
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
    INTERRUPTED_THREADS.lock().expect("no panic").retain(|&thread| thread != own_thread);
}

#[test]
fn walks_from_signals_while_everything_changes() {
    let Some((path, unwinder)) = copies().pop() else { return };
    Registry::process().rescan();
    UNWINDER.get_or_init(|| unwinder);
    let total: usize =
        std::env::var("UNWIND_REGISTER_TORTURE").map_or(100_000, |count| count.parse().expect("a number"));
    start_signals(1000);
    let (started, stop) = (Instant::now(), AtomicBool::new(false));
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
        scope.spawn(|| interrupt_threads(&stop));
        let churners: Vec<_> = (0..4).map(|seed| scope.spawn(move || replace_objects(seed, total / 4))).collect();
        churners.into_iter().for_each(|churner| churner.join().expect("no panic"));
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Relaxed);
    });
    start_signals(0);
    let wrong_stack: Vec<String> = WRONG_STACK.iter().map(|word| format!("{:#x}", word.load(Relaxed))).collect();
    println!(
        "{path}: {total} objects, {} walks, {} interruptions elsewhere, {:?}\n{:?}",
        WALKS.load(Relaxed),
        INTERRUPTIONS.load(Relaxed),
        started.elapsed(),
        Registry::process().statistics()
    );
    assert_eq!(WRONG_WALKS.load(Relaxed), 0, "{wrong_stack:?}");
    assert!(WALKS.load(Relaxed) > total);
    let statistics = Registry::process().statistics();
    assert!(statistics.entry_bytes + statistics.retired_table_bytes < 64 << 20, "memory is used again");
}
