//! A model of one page, of threads that write to it, unmap it and put an image over it: every interleaving is tried.
//!
//! Each step is what no other thread can divide: a system call, a store, a part of the work under the session's lock.
//! The list of changes is the real one. What the rule of `pages.rs` forbids is tried as well: it loses bytes.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::ledger::{MemoryChange, MemoryChanges};
use crate::{Address, AddressRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A lock of the program's own, around everything a JIT does to the page.
    TakeHostLock,
    GiveHostLock,
    TakeLock,
    GiveLock,
    /// Steps of the hooks under the lock, before and after the program's call.
    Begin,
    End,
    /// An image of the page becomes anonymous memory, in two steps.
    CopyToWithdraw,
    Withdraw,
    Protect {
        writable: bool,
    },
    Store,
    Unmap,
    /// Another thread gets the addresses, if they are free, and stores there.
    MapOther,
    StoreOther,
    /// The image sink: looks, copies, and maps.
    Look {
        minds_changes: bool,
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

/// One byte of the page belongs to each thread.
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
    at: usize,
    change: Option<MemoryChange>,
    copy: Option<Bytes>,
    stored: u8,
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

    /// The world after a step of a thread; `None` while that waits. An error is harm.
    fn after(&self, id: usize, step: Step) -> Result<Option<World>, &'static str> {
        let mut world = self.clone();
        let World { page, bytes, lock, host_lock, changes, threads } = &mut world;
        let thread = &mut threads[id];
        thread.at += 1;
        match step {
            TakeLock if lock.is_some() => return Ok(None),
            TakeLock => *lock = Some(id),
            GiveLock => *lock = None,
            TakeHostLock if host_lock.is_some() => return Ok(None),
            TakeHostLock => *host_lock = Some(id),
            GiveHostLock => *host_lock = None,
            Begin => thread.change = Some(changes.begin(self::page())),
            End => {
                if let Some(change) = thread.change.take() {
                    changes.end(&change);
                }
            }
            Protect { writable } => match page {
                Page::Code { writable: now, .. } => *now = writable,
                Page::Free | Page::Other => {}
            },
            Store => match page {
                Page::Code { writable: true, .. } => {
                    thread.stored += 1;
                    bytes[id] = thread.stored;
                }
                _ => return Err("a store of the program is refused"),
            },
            Unmap => *page = Page::Free,
            MapOther if *page == Page::Free => (*page, *bytes) = (Page::Other, [0; 3]),
            StoreOther if *page == Page::Other => {
                thread.stored += 1;
                bytes[id] = thread.stored;
            }
            MapOther | StoreOther => {}
            Look { minds_changes } => {
                let is_final = matches!(page, Page::Code { writable: false, .. });
                let may_exchange = is_final && !(minds_changes && changes.overlap(self::page()));
                // Without an image: on to giving the lock back.
                thread.at += if may_exchange { 0 } else { 2 };
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
        let owned = |(thread, &byte): (&Thread, &u8)| thread.stored == byte;
        let keeps_stores = *page == Page::Free || threads.iter().zip(&*bytes).all(owned);
        if keeps_stores || *page == Page::Other { Ok(Some(world)) } else { Err("a store is lost") }
    }
}

/// Tries every interleaving of the threads. Returns how many worlds there are, or the harm that one comes to.
fn try_all(programs: &[Vec<Step>]) -> Result<usize, &'static str> {
    let mut seen = BTreeSet::from([World::new(programs.len())]);
    let mut open: Vec<World> = seen.iter().cloned().collect();
    while let Some(world) = open.pop() {
        for (id, program) in programs.iter().enumerate() {
            let Some(&step) = program.get(world.threads[id].at) else { continue };
            if let Some(next) = world.after(id, step)?
                && seen.insert(next.clone())
            {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

/// A call that the hooks see; they withdraw the image where the page becomes writable.
fn hooked(call: Step) -> Vec<Step> {
    let mut steps = vec![TakeLock, Begin];
    if call == (Protect { writable: true }) {
        steps.extend([CopyToWithdraw, Withdraw]);
    }
    [steps, vec![GiveLock, call, TakeLock, End, GiveLock]].concat()
}

/// A JIT compiles one function into the page.
fn compiles(call: impl Fn(Step) -> Vec<Step>) -> Vec<Step> {
    let (begin, end) = (call(Protect { writable: true }), call(Protect { writable: false }));
    [vec![TakeHostLock], begin, vec![Store], end, vec![GiveHostLock]].concat()
}

fn makes_image(minds_changes: bool) -> Vec<Step> {
    vec![TakeLock, Look { minds_changes }, Copy, Map, GiveLock]
}

fn unhooked(call: Step) -> Vec<Step> {
    vec![call]
}

#[test]
fn nothing_is_lost_where_calls_are_hooked() {
    let writer = [compiles(hooked), makes_image(true)].concat();
    let enables = [makes_image(true), makes_image(true)].concat();
    let worlds = try_all(&[writer.clone(), writer, enables]);
    assert!(worlds.is_ok_and(|worlds| worlds > 1_000), "{worlds:?}");
}

#[test]
fn nothing_of_others_is_replaced_where_calls_are_hooked() {
    let other = vec![MapOther, StoreOther, StoreOther];
    let enables = [makes_image(true), makes_image(true)].concat();
    let worlds = try_all(&[hooked(Unmap), other, enables]);
    assert!(worlds.is_ok_and(|worlds| worlds > 100), "{worlds:?}");
}

/// The promise of a producer: whoever writes to the page reports it before, and after.
#[test]
fn nothing_is_lost_where_the_writer_makes_the_image() {
    let alone = [compiles(unhooked), makes_image(true), compiles(unhooked), makes_image(true)].concat();
    assert!(try_all(&[alone]).is_ok());
}

#[test]
fn what_the_rule_forbids_does_harm() {
    let harm = |programs: &[Vec<Step>]| try_all(programs).err();
    // The hooks let the lock go before the call, and the sink does not mind the list.
    let writer = [compiles(hooked), makes_image(false)].concat();
    assert!(harm(&[writer.clone(), writer]).is_some());
    let other = vec![MapOther, StoreOther];
    assert!(harm(&[hooked(Unmap), other, makes_image(false)]).is_some());
    // Another thread writes there, and no hook hears of it: `bump.c`.
    let writer = [compiles(unhooked), makes_image(true)].concat();
    assert!(harm(&[writer.clone(), writer]).is_some());
    // One that writes through `/proc/self/mem` needs no call before.
    let stores = vec![Protect { writable: true }, Store];
    assert!(harm(&[stores, makes_image(true)]).is_some());
}
