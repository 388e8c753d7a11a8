//! Ranges of addresses that a signal handler can search, without lock, allocation or wait.
//!
//! ```text
//!   table --> sorted entries, and beside them up to 128 newest; full, all are merged into a new table
//! ```
//!
//! A replaced table is retired, and freed when no reader can be in it ([`Changing::reclaim`]): readers that start after
//! the exchange find the new table.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// The newest entries, before they are merged.
const NEWEST: usize = 128;

/// An entry.
pub trait Ranged {
    /// Its first address.
    fn start(&self) -> u64;
    /// The first address behind it.
    fn end(&self) -> u64;
    /// Whether it is still to be found.
    fn is_alive(&self) -> bool;
}

#[derive(Debug)]
struct Table<T> {
    sorted: Box<[Arc<T>]>,
    newest: [OnceLock<Arc<T>>; NEWEST],
}

impl<T: Ranged> Table<T> {
    fn new(mut entries: Vec<Arc<T>>) -> Self {
        entries.sort_by_key(|entry| entry.start());
        Table { sorted: entries.into_boxed_slice(), newest: [const { OnceLock::new() }; NEWEST] }
    }

    /// Those that are alive.
    fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        let newest = self.newest.iter().map_while(OnceLock::get);
        self.sorted.iter().chain(newest).filter(|entry| entry.is_alive())
    }

    fn find(&self, address: u64) -> Option<&T> {
        let holds = |entry: &&Arc<T>| entry.start() <= address && address < entry.end() && entry.is_alive();
        let newest = self.newest.iter().rev().filter_map(OnceLock::get).find(holds);
        let sorted = || {
            let after = self.sorted.partition_point(|entry| entry.start() <= address);
            self.sorted.get(after.checked_sub(1)?).filter(holds)
        };
        newest.or_else(sorted).map(|entry| &**entry)
    }
}

/// The entries, and what belongs to the thread that changes them.
#[derive(Debug)]
pub struct Published<T, Own> {
    table: AtomicPtr<Table<T>>,
    /// Never taken by a reader.
    first: Mutex<Change<T, Own>>,
    /// Replaces `first` in the child of a fork during which another thread held that. Never freed.
    later: AtomicPtr<Mutex<Change<T, Own>>>,
}

#[derive(Debug)]
struct Change<T, Own> {
    retired: Vec<Retired<T>>,
    own: Own,
}

/// A table that was exchanged.
#[derive(Debug)]
struct Retired<T>(*mut Table<T>);

// SAFETY: an owning pointer to what may be sent.
unsafe impl<T: Send + Sync> Send for Retired<T> {}

/// The one thread that changes the entries.
#[derive(Debug)]
pub struct Changing<'a, T, Own> {
    published: &'a Published<T, Own>,
    change: MutexGuard<'a, Change<T, Own>>,
}

impl<T: Ranged, Own> Published<T, Own> {
    /// Without entries.
    pub const fn new(own: Own) -> Self {
        Published {
            table: AtomicPtr::new(ptr::null_mut()),
            first: Mutex::new(Change { retired: Vec::new(), own }),
            later: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The entry at `address`, of overlapping ones the newest.
    ///
    /// # Safety
    /// Until the result is dropped, what [`Changing::reclaim`] asks returns false.
    pub unsafe fn find(&self, address: u64) -> Option<&T> {
        // SAFETY: the caller's promise.
        unsafe { self.table() }?.find(address)
    }

    /// All entries that are alive.
    ///
    /// # Safety
    /// As for [`Published::find`].
    pub unsafe fn all(&self) -> impl Iterator<Item = &T> {
        // SAFETY: the caller's promise.
        unsafe { self.table() }.into_iter().flat_map(Table::all).map(|entry| &**entry)
    }

    /// # Safety
    /// As for [`Published::find`], or by the thread that changes it.
    unsafe fn table(&self) -> Option<&Table<T>> {
        // Sequentially consistent, as are the exchange, and what readers say before they come here and `reclaim` asks
        // for: a reader that was not seen there reads the new table. SAFETY: null, or made by `exchange` and not freed;
        // see above.
        unsafe { self.table.load(Ordering::SeqCst).as_ref() }
    }

    fn lock(&self) -> &Mutex<Change<T, Own>> {
        // SAFETY: null, or made by `change_in_child` and never freed.
        unsafe { self.later.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.first)
    }

    /// Waits for the other threads that change it.
    pub fn change(&self) -> Changing<'_, T, Own> {
        let change = self.lock().lock().unwrap_or_else(PoisonError::into_inner);
        Changing { published: self, change }
    }

    /// Waits for no thread: those of the parent are not there, whatever they held. What one was changing is leaked.
    pub fn change_in_child(&self, fresh: Own) -> Changing<'_, T, Own> {
        let change = match self.lock().try_lock() {
            Ok(change) => change,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let fresh = Mutex::new(Change { retired: Vec::new(), own: fresh });
                self.later.store(Box::into_raw(Box::new(fresh)), Ordering::Release);
                self.table.store(ptr::null_mut(), Ordering::Release);
                return self.change();
            }
        };
        Changing { published: self, change }
    }
}

impl<T: Ranged, Own> Changing<'_, T, Own> {
    /// What the owner of the entries keeps under the same lock.
    pub fn own(&mut self) -> &mut Own {
        &mut self.change.own
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: Arc<T>) {
        // SAFETY: only this thread exchanges it.
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

    /// These entries and no others.
    pub fn replace(&mut self, entries: Vec<Arc<T>>) {
        self.exchange(Some(Table::new(entries)));
    }

    /// No entries.
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
            // SAFETY: made by `Box::into_raw` and exchanged; no reader is in it, and one that begins now finds the new
            // one.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}
