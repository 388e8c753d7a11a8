//! Tables of address ranges that a signal handler can search, without locking, allocating or waiting.
//!
//! ```text
//!   table --> sorted entries, plus up to 128 unsorted new ones; beyond that, all are merged into a new table
//! ```
//!
//! A replaced table is retired. It is freed once no reader can use it any longer ([`Changing::reclaim`]); readers that
//! start after the replacement use the new table.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Maximum number of unsorted entries before they are merged into the sorted part.
const MAX_NEWEST: usize = 128;

/// Entry of a table, which covers a range of addresses.
pub trait Ranged {
    /// First address of the range.
    fn start(&self) -> u64;
    /// Address after the last byte of the range.
    fn end(&self) -> u64;
    /// True until the entry is withdrawn.
    fn is_alive(&self) -> bool;
}

#[derive(Debug)]
struct Table<T> {
    sorted: Box<[Arc<T>]>,
    newest: [OnceLock<Arc<T>>; MAX_NEWEST],
}

impl<T: Ranged> Table<T> {
    fn new(mut entries: Vec<Arc<T>>) -> Self {
        entries.sort_by_key(|entry| entry.start());
        Table { sorted: entries.into_boxed_slice(), newest: [const { OnceLock::new() }; MAX_NEWEST] }
    }

    /// Entries that are not withdrawn.
    fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        let newest = self.newest.iter().map_while(OnceLock::get);
        self.sorted.iter().chain(newest).filter(|entry| entry.is_alive())
    }

    fn find(&self, address: u64) -> Option<&T> {
        let matches = |entry: &&Arc<T>| entry.start() <= address && address < entry.end() && entry.is_alive();
        let newest = self.newest.iter().rev().filter_map(OnceLock::get).find(matches);
        let sorted = || {
            let next_index = self.sorted.partition_point(|entry| entry.start() <= address);
            self.sorted.get(next_index.checked_sub(1)?).filter(matches)
        };
        newest.or_else(sorted).map(|entry| &**entry)
    }
}

/// Table of address ranges that is published to readers, and the writers' own data.
#[derive(Debug)]
pub struct Published<T, Own> {
    table: AtomicPtr<Table<T>>,
    /// Lock for writers. Readers never take it.
    initial_lock: Mutex<Change<T, Own>>,
    /// Replaces `initial_lock` in the child of a fork if another thread held that lock. Never freed.
    child_lock: AtomicPtr<Mutex<Change<T, Own>>>,
}

#[derive(Debug)]
struct Change<T, Own> {
    retired: Vec<Retired<T>>,
    own: Own,
}

#[derive(Debug)]
struct Retired<T>(*mut Table<T>);

// SAFETY: the pointer owns data that may be sent between threads.
unsafe impl<T: Send + Sync> Send for Retired<T> {}

/// Guard with exclusive access for changing the entries.
#[derive(Debug)]
pub struct Changing<'a, T, Own> {
    published: &'a Published<T, Own>,
    change: MutexGuard<'a, Change<T, Own>>,
}

impl<T: Ranged, Own> Published<T, Own> {
    /// Creates an empty table.
    pub const fn new(own: Own) -> Self {
        Published {
            table: AtomicPtr::new(ptr::null_mut()),
            initial_lock: Mutex::new(Change { retired: Vec::new(), own }),
            child_lock: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Finds the entry that contains `address`; the newest one if entries overlap.
    ///
    /// # Safety
    /// While the result is in use, the closure passed to [`Changing::reclaim`] must return false.
    pub unsafe fn find(&self, address: u64) -> Option<&T> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.table() }?.find(address)
    }

    /// All entries that are not withdrawn.
    ///
    /// # Safety
    /// Same contract as [`Published::find`].
    pub unsafe fn entries(&self) -> impl Iterator<Item = &T> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.table() }.into_iter().flat_map(Table::all).map(|entry| &**entry)
    }

    /// # Safety
    /// Same contract as [`Published::find`], or called by the thread that changes the entries.
    unsafe fn table(&self) -> Option<&Table<T>> {
        // SAFETY: the pointer is null, or was created by `exchange` and is not freed while the caller's contract holds.
        // The load is sequentially consistent, as are the exchange, the readers' registration before this load, and the
        // check in `reclaim`: a reader that `reclaim` did not count therefore reads the new table.
        unsafe { self.table.load(Ordering::SeqCst).as_ref() }
    }

    fn lock(&self) -> &Mutex<Change<T, Own>> {
        // SAFETY: the pointer is null, or was created by `change_in_child` and is never freed.
        unsafe { self.child_lock.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.initial_lock)
    }

    /// Locks the entries for changes, waiting for other threads.
    pub fn change(&self) -> Changing<'_, T, Own> {
        let change = self.lock().lock().unwrap_or_else(PoisonError::into_inner);
        Changing { published: self, change }
    }

    /// Locks the entries in the child of a fork, without waiting, because the parent's threads do not exist there. If
    /// one of them held the lock, the table is abandoned (leaked) and replaced by an empty one with the data `fresh`.
    pub fn change_in_child(&self, fresh: Own) -> Changing<'_, T, Own> {
        let change = match self.lock().try_lock() {
            Ok(change) => change,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let child_lock = Mutex::new(Change { retired: Vec::new(), own: fresh });
                self.child_lock.store(Box::into_raw(Box::new(child_lock)), Ordering::Release);
                self.table.store(ptr::null_mut(), Ordering::Release);
                return self.change();
            }
        };
        Changing { published: self, change }
    }
}

impl<T: Ranged, Own> Changing<'_, T, Own> {
    /// Owner's data, protected by the same lock.
    pub fn writer_data(&mut self) -> &mut Own {
        &mut self.change.own
    }

    /// Adds an entry, merging the table when its unsorted part is full.
    pub fn add(&mut self, entry: Arc<T>) {
        // SAFETY: only this thread replaces the table.
        let table = unsafe { self.published.table() };
        let free = table.and_then(|table| table.newest.iter().find(|slot| slot.get().is_none()));
        match free {
            Some(slot) => drop(slot.set(entry)),
            None => {
                let all = table.into_iter().flat_map(Table::all).map(Arc::clone).chain([entry]).collect();
                self.exchange(Some(Table::new(all)));
            }
        }
    }

    /// Replaces all entries.
    pub fn replace(&mut self, entries: Vec<Arc<T>>) {
        self.exchange(Some(Table::new(entries)));
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.exchange(None);
    }

    fn exchange(&mut self, table: Option<Table<T>>) {
        let new = table.map_or(ptr::null_mut(), |table| Box::into_raw(Box::new(table)));
        let old = self.published.table.swap(new, Ordering::SeqCst);
        if !old.is_null() {
            self.change.retired.push(Retired(old));
        }
    }

    /// Frees the retired tables if `no_reader_runs`.
    pub fn reclaim(&mut self, no_reader_runs: impl Fn() -> bool) {
        if self.change.retired.is_empty() || !no_reader_runs() {
            return;
        }
        for Retired(table) in self.change.retired.drain(..) {
            // SAFETY: `table` was created by `Box::into_raw` and has been replaced. No reader uses it, and a reader
            // that starts now gets the new table.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}
