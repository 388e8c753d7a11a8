//! Benchmark of registration, and of walks through registered code. It prints ratios measured in one run.
//!
//! ```sh
//! cargo run --release -p unwind-register --example bench_walk [LIBUNWIND] [ORDER]
//! ```
//! `LIBUNWIND` is the library to walk with (`libunwind.so.8`). `ORDER` is the memory layout of the functions: `up`,
//! `down`, `random` or `pages` (three pages apart, as MCJIT places them). Times are CPU time of the thread. A walk's
//! time is the lower quartile of 4000 walks, each with an empty libunwind cache. The A/A ratio (the same measurement
//! twice) shows how much of a ratio is noise.

#![allow(clippy::disallowed_methods, reason = "a program of its own")]
#![allow(clippy::print_stdout, reason = "a program")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::code::{Chain, Page};
use common::libunwind::{Unwinder, has_complete_stack, walk_from};
use std::cell::Cell;
use std::time::{Duration, Instant};
use unwind_register::{ByHost, Registration, Registry, Section};

const OBJECTS: usize = 33_334;
const WALKS: usize = 4000;

thread_local! {
    static UNWINDER: Cell<Option<Unwinder>> = const { Cell::new(None) };
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static SPARE: (Page, Chain) = {
        let page = Page::map(4096);
        let chain = page.chain(0, 0);
        (page, chain)
    };
}

/// Returns the CPU time of this thread.
fn clock() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn register(chain: &Chain) -> Registration {
    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Everything);
    // SAFETY: the pages stay mapped while registered.
    unsafe { Registry::process().register(&section) }.expect("a good section")
}

extern "C" fn measure() {
    let Some(unwinder) = UNWINDER.get() else { return };
    let mut frames = [0; 8];
    let mut times = vec![Duration::ZERO; WALKS];
    for time in &mut times {
        // Dropping a registration flushes libunwind's cache. Not every version has another public way to do that.
        SPARE.with(|(_, chain)| drop(register(chain)));
        let start = clock();
        std::hint::black_box(unwinder.walk(&mut frames));
        *time = clock() - start;
    }
    times.sort();
    TIME.set(times[WALKS / 4]);
}

fn walk_time(chain: &Chain) -> Duration {
    chain.call(measure);
    TIME.get()
}

/// Returns the offsets of `count` chains in the order of their placement.
fn offsets(order: &str, count: usize) -> Vec<usize> {
    let step = if order == "pages" { 3 * 4096 } else { 128 };
    let mut offsets: Vec<usize> = (0..count).map(|i| i * step).collect();
    match order {
        "down" | "pages" => offsets.reverse(),
        "random" => {
            let mut state = 1u64;
            for i in (1..count).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                offsets.swap(i, (state >> 33) as usize % (i + 1));
            }
        }
        _ => {}
    }
    offsets
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let library = arguments.next().unwrap_or_else(|| "libunwind.so.8".to_owned());
    let order = arguments.next().unwrap_or_else(|| "up".to_owned());
    let unwinder = Unwinder::open(&library).expect("the library can be opened");
    let registry = Registry::process();
    registry.rescan();
    let page = Page::map(OBJECTS * if order == "pages" { 3 * 4096 } else { 128 });
    let spare_page = Page::map(4096);
    let chain = spare_page.chain(0, 0);
    // 33 objects with 3 functions each: about 100 functions.
    let offsets = offsets(&order, OBJECTS);
    let mut registrations: Vec<Registration> = vec![register(&chain)];
    registrations.extend(offsets[..32].iter().map(|&offset| register(&page.chain(offset, 0))));
    assert!(has_complete_stack(&chain, &walk_from(&chain, unwinder)));
    UNWINDER.set(Some(unwinder));
    walk_time(&chain);
    let (small_a, small_b) = (walk_time(&chain), walk_time(&chain));

    let chains: Vec<Chain> = offsets[32..].iter().map(|&offset| page.chain(offset, 0)).collect();
    let (started, cpu_time, mut slowest) = (Instant::now(), clock(), Duration::ZERO);
    for chain in &chains {
        let start = clock();
        registrations.push(register(chain));
        slowest = slowest.max(clock() - start);
    }
    let count = chains.len() as u32;
    let (wall_time, cpu_time) = (started.elapsed() / count, (clock() - cpu_time) / count);
    let (large_a, large_b) = (walk_time(&chain), walk_time(&chain));
    let last = chains.last().expect("many");
    assert!(has_complete_stack(last, &walk_from(last, unwinder)), "the last one is walked too");
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    let statistics = registry.statistics();
    let (started, count) = (clock(), registrations.len() as u32);
    drop(registrations);
    let drop_time = (clock() - started) / count;
    println!("{library}, order {order}, {} functions", statistics.functions);
    println!(
        "walk, uncached: {small_a:?} with 100 functions, {large_a:?} with 100,000: ratio {:.2}",
        ratio(large_a, small_a)
    );
    println!("A/A: {:.2} and {:.2}", ratio(small_b, small_a), ratio(large_b, large_a));
    println!(
        "register: {cpu_time:?} amortised ({wall_time:?} on the wall clock), {slowest:?} at most; drop: {drop_time:?}"
    );
    println!("{statistics:?}");
}
