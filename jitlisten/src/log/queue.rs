//! Queue of messages for the program's log callback.
//!
//! Messages are created while our locks, LLVM's or the loader's are held, so calling foreign code there could deadlock.
//! They are delivered later, when no lock is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Level;

/// Maximum number of queued messages. Later ones are dropped, and the loss is reported.
const MAX_MESSAGES: usize = 1024;

struct Queue {
    messages: VecDeque<(Level, String)>,
    lost_count: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { messages: VecDeque::new(), lost_count: 0 });
static MAX_LEVEL: AtomicU8 = AtomicU8::new(0);
/// Number of queued messages, readable without the lock.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// Queues messages up to this level for [`pop`]. `None` stops queueing and drops the queued messages.
pub fn set_queue_level(level: Option<Level>) {
    MAX_LEVEL.store(level.map_or(0, |level| level as u8), Ordering::Release);
    if level.is_none() {
        let mut queue = lock();
        queue.messages.clear();
        queue.lost_count = 0;
        QUEUED.store(0, Ordering::Release);
    }
}

/// Removes and returns the oldest queued message.
pub fn pop() -> Option<(Level, String)> {
    if !has_message() {
        return None;
    }
    let mut queue = lock();
    let message = queue.messages.pop_front();
    QUEUED.store(queue.messages.len(), Ordering::Release);
    if queue.messages.is_empty() && queue.lost_count > 0 {
        let lost_count = std::mem::take(&mut queue.lost_count);
        push(&mut queue, Level::Warn, format!("{lost_count} messages were lost: gate took them"));
    }
    message
}

/// Returns true if a message is queued.
pub fn has_message() -> bool {
    QUEUED.load(Ordering::Acquire) > 0
}

pub(super) fn is_wanted(level: Level) -> bool {
    level as u8 <= MAX_LEVEL.load(Ordering::Acquire)
}

pub(super) fn enqueue(level: Level, text: &str) {
    let mut queue = lock();
    if queue.messages.len() < MAX_MESSAGES {
        push(&mut queue, level, text.into());
    } else {
        queue.lost_count += 1;
    }
}

fn push(queue: &mut Queue, level: Level, text: String) {
    queue.messages.push_back((level, text));
    QUEUED.store(queue.messages.len(), Ordering::Release);
}

fn lock() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Guard that holds the queue's lock across a fork. Logging while it exists would deadlock.
pub(crate) struct QueueGuard(#[expect(dead_code, reason = "held, not looked at")] MutexGuard<'static, Queue>);

pub(crate) fn lock_for_fork() -> QueueGuard {
    QueueGuard(lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_in_order_and_the_loss_is_reported() {
        assert!(!is_wanted(Level::Error));
        set_queue_level(Some(Level::Warn));
        assert!(is_wanted(Level::Warn) && !is_wanted(Level::Info));
        (0..MAX_MESSAGES + 3).for_each(|number| enqueue(Level::Warn, &number.to_string()));
        for number in 0..MAX_MESSAGES {
            assert_eq!(pop().unwrap().1, number.to_string());
        }
        assert!(pop().unwrap().1.starts_with("3 messages"));
        assert!(pop().is_none());
        enqueue(Level::Error, "again");
        set_queue_level(None);
        assert!(pop().is_none());
    }
}
