//! Queue of messages for the program's log callback.
//!
//! Messages arise under our locks, LLVM's and the loader's, where no foreign code may be called. They are delivered
//! where no lock is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Level;

/// Messages beyond are lost, the newest first, and the loss is reported.
const MOST: usize = 1024;

struct Queue {
    waiting: VecDeque<(Level, String)>,
    lost: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { waiting: VecDeque::new(), lost: 0 });
static WANTED: AtomicU8 = AtomicU8::new(0);
/// How many wait: a look without the lock.
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Keeps messages up to this level for [`take`]; `None`: no more, and those that wait are dropped.
pub fn listen(level: Option<Level>) {
    WANTED.store(level.map_or(0, |level| level as u8), Ordering::Release);
    if level.is_none() {
        let mut queue = lock();
        queue.waiting.clear();
        queue.lost = 0;
        LENGTH.store(0, Ordering::Release);
    }
}

/// The oldest message that waits.
pub fn take() -> Option<(Level, String)> {
    if !waits() {
        return None;
    }
    let mut queue = lock();
    let next = queue.waiting.pop_front();
    LENGTH.store(queue.waiting.len(), Ordering::Release);
    if queue.waiting.is_empty() && queue.lost > 0 {
        let lost = std::mem::take(&mut queue.lost);
        push(&mut queue, Level::Warn, format!("{lost} messages were lost: gate took them"));
    }
    next
}

/// Whether a message waits.
pub fn waits() -> bool {
    LENGTH.load(Ordering::Acquire) > 0
}

pub(super) fn wants(level: Level) -> bool {
    level as u8 <= WANTED.load(Ordering::Acquire)
}

pub(super) fn put(level: Level, text: &str) {
    let mut queue = lock();
    if queue.waiting.len() < MOST {
        push(&mut queue, level, text.into());
    } else {
        queue.lost += 1;
    }
}

fn push(queue: &mut Queue, level: Level, text: String) {
    queue.waiting.push_back((level, text));
    LENGTH.store(queue.waiting.len(), Ordering::Release);
}

fn lock() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, held across a fork. Nothing may be logged meanwhile.
pub(crate) struct QueueGuard(#[expect(dead_code, reason = "held, not looked at")] MutexGuard<'static, Queue>);

pub(crate) fn lock_for_fork() -> QueueGuard {
    QueueGuard(lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_in_order_and_the_loss_is_reported() {
        assert!(!wants(Level::Error));
        listen(Some(Level::Warn));
        assert!(wants(Level::Warn) && !wants(Level::Info));
        (0..MOST + 3).for_each(|number| put(Level::Warn, &number.to_string()));
        for number in 0..MOST {
            assert_eq!(take().unwrap().1, number.to_string());
        }
        assert!(take().unwrap().1.starts_with("3 messages"));
        assert!(take().is_none());
        put(Level::Error, "again");
        listen(None);
        assert!(take().is_none());
    }
}
