//! Model of one page and of threads that write to it, unmap it or map an image over it. Tests try every interleaving of
//! their steps.
//!
//! Each step is atomic for other threads: a system call, a store, or work done with the session locked. The list of
//! memory changes is not modelled: the model uses the production code ([`MemoryChanges`]). Some tests break the rule of
//! `pages.rs`, to show that bytes would then be lost.

use std::collections::BTreeSet;

use crate::ledger::{MemoryChange, MemoryChanges};
use crate::{Address, AddressRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Takes a lock of the host, which a JIT holds while it changes the page.
    TakeHostLock,
    ReleaseHostLock,
    TakeLock,
    ReleaseLock,
    /// Runs the hook before the host's call, with the session locked; [`Step::End`] runs the hook after the call.
    Begin,
    End,
    /// Copies the page, the first step of turning an image into anonymous memory; [`Step::Withdraw`] maps the copy.
    CopyToWithdraw,
    Withdraw,
    Protect {
        writable: bool,
    },
    Store,
    Unmap,
    /// Maps the addresses in another thread, if they are free; [`Step::StoreOther`] stores to that mapping.
    MapOther,
    StoreOther,
    /// Checks in the image sink whether the page may be exchanged; [`Step::Copy`] and [`Step::Map`] exchange it.
    Check {
        respects_changes: bool,
    },
    Copy,
    Map,
}

use Step::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Page {
    Free,
    Code { writable: bool, is_image: bool },
    Other,
}

/// Page content, one byte per thread.
type Bytes = [u8; 3];

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    page: Page,
    bytes: Bytes,
    lock: Option<usize>,
    host_lock: Option<usize>,
    changes: MemoryChanges,
    threads: Vec<Thread>,
}

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    position: usize,
    change: Option<MemoryChange>,
    copy: Option<Bytes>,
    store_count: u8,
}

fn page() -> AddressRange {
    AddressRange::new(Address(0x1000), 0x1000).unwrap()
}

impl World {
    fn new(threads: usize) -> World {
        World {
            page: Page::Code { writable: false, is_image: false },
            bytes: [0; 3],
            lock: None,
            host_lock: None,
            changes: MemoryChanges::default(),
            threads: vec![Thread::default(); threads],
        }
    }

    /// Returns the world after one step of a thread, or `None` if the thread has to wait. The error describes the
    /// damage.
    fn step_thread(&self, id: usize, step: Step) -> Result<Option<World>, &'static str> {
        let mut world = self.clone();
        let World { page, bytes, lock, host_lock, changes, threads } = &mut world;
        let thread = &mut threads[id];
        thread.position += 1;
        match step {
            TakeLock if lock.is_some() => return Ok(None),
            TakeLock => *lock = Some(id),
            ReleaseLock => *lock = None,
            TakeHostLock if host_lock.is_some() => return Ok(None),
            TakeHostLock => *host_lock = Some(id),
            ReleaseHostLock => *host_lock = None,
            Begin => thread.change = Some(changes.begin(self::page())),
            End => {
                if let Some(change) = thread.change.take() {
                    changes.end(&change);
                }
            }
            Protect { writable } => match page {
                Page::Code { writable: is_writable, .. } => *is_writable = writable,
                Page::Free | Page::Other => {}
            },
            Store => match page {
                Page::Code { writable: true, .. } => {
                    thread.store_count += 1;
                    bytes[id] = thread.store_count;
                }
                _ => return Err("a store of the program is refused"),
            },
            Unmap => *page = Page::Free,
            MapOther if *page == Page::Free => (*page, *bytes) = (Page::Other, [0; 3]),
            StoreOther if *page == Page::Other => {
                thread.store_count += 1;
                bytes[id] = thread.store_count;
            }
            MapOther | StoreOther => {}
            Check { respects_changes } => {
                let is_final = matches!(page, Page::Code { writable: false, .. });
                let may_exchange = is_final && !(respects_changes && changes.overlap(self::page()));
                // Without an image, skip to `ReleaseLock`.
                thread.position += if may_exchange { 0 } else { 2 };
            }
            Copy => thread.copy = Some(*bytes),
            CopyToWithdraw => {
                let is_image = matches!(page, Page::Code { is_image: true, writable: false });
                thread.copy = is_image.then_some(*bytes);
            }
            Map | Withdraw => {
                if let Some(copy) = thread.copy.take() {
                    if !matches!(page, Page::Code { .. }) {
                        return Err("the memory of another is replaced");
                    }
                    *page = Page::Code { writable: false, is_image: step == Map };
                    *bytes = copy;
                }
            }
        }
        let is_last_stored = |(thread, &byte): (&Thread, &u8)| thread.store_count == byte;
        let keeps_stores = *page == Page::Free || threads.iter().zip(&*bytes).all(is_last_stored);
        if keeps_stores || *page == Page::Other { Ok(Some(world)) } else { Err("a store is lost") }
    }
}

/// Tries every interleaving of the threads. Returns the number of distinct states, or the first damage.
fn try_all(programs: &[Vec<Step>]) -> Result<usize, &'static str> {
    let mut seen = BTreeSet::from([World::new(programs.len())]);
    let mut unvisited: Vec<World> = seen.iter().cloned().collect();
    while let Some(world) = unvisited.pop() {
        for (id, program) in programs.iter().enumerate() {
            let Some(&step) = program.get(world.threads[id].position) else { continue };
            if let Some(next) = world.step_thread(id, step)?
                && seen.insert(next.clone())
            {
                unvisited.push(next);
            }
        }
    }
    Ok(seen.len())
}

/// Steps of a hooked call. The hooks withdraw the image if the call makes the page writable.
fn hooked_call(call: Step) -> Vec<Step> {
    let mut steps = vec![TakeLock, Begin];
    if call == (Protect { writable: true }) {
        steps.extend([CopyToWithdraw, Withdraw]);
    }
    [steps, vec![ReleaseLock, call, TakeLock, End, ReleaseLock]].concat()
}

/// Steps of a JIT that compiles one function into the page.
fn compile_steps(call: impl Fn(Step) -> Vec<Step>) -> Vec<Step> {
    let (begin, end) = (call(Protect { writable: true }), call(Protect { writable: false }));
    [vec![TakeHostLock], begin, vec![Store], end, vec![ReleaseHostLock]].concat()
}

fn image_steps(respects_changes: bool) -> Vec<Step> {
    vec![TakeLock, Check { respects_changes }, Copy, Map, ReleaseLock]
}

fn unhooked_call(call: Step) -> Vec<Step> {
    vec![call]
}

#[test]
fn no_write_is_lost_if_calls_are_hooked() {
    let writer = [compile_steps(hooked_call), image_steps(true)].concat();
    let enable = [image_steps(true), image_steps(true)].concat();
    let worlds = try_all(&[writer.clone(), writer, enable]);
    assert!(worlds.is_ok_and(|worlds| worlds > 1_000), "{worlds:?}");
}

#[test]
fn no_foreign_mapping_is_replaced_if_calls_are_hooked() {
    let other_thread = vec![MapOther, StoreOther, StoreOther];
    let enable = [image_steps(true), image_steps(true)].concat();
    let worlds = try_all(&[hooked_call(Unmap), other_thread, enable]);
    assert!(worlds.is_ok_and(|worlds| worlds > 100), "{worlds:?}");
}

/// The producer promises to announce each write to the page, and to report when it is done.
#[test]
fn no_write_is_lost_if_the_writer_makes_the_image() {
    let alone =
        [compile_steps(unhooked_call), image_steps(true), compile_steps(unhooked_call), image_steps(true)].concat();
    assert!(try_all(&[alone]).is_ok());
}

#[test]
fn breaking_the_rule_loses_writes() {
    let find_harm = |programs: &[Vec<Step>]| try_all(programs).err();
    // The hooks unlock the session before the call, and the sink ignores the list of changes.
    let writer = [compile_steps(hooked_call), image_steps(false)].concat();
    assert!(find_harm(&[writer.clone(), writer]).is_some());
    let other_thread = vec![MapOther, StoreOther];
    assert!(find_harm(&[hooked_call(Unmap), other_thread, image_steps(false)]).is_some());
    // Another thread writes to the page without a hooked call.
    let writer = [compile_steps(unhooked_call), image_steps(true)].concat();
    assert!(find_harm(&[writer.clone(), writer]).is_some());
    // A write through `/proc/self/mem` is not preceded by a hooked call.
    let stores = vec![Protect { writable: true }, Store];
    assert!(find_harm(&[stores, image_steps(true)]).is_some());
}
