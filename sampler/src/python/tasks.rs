//! asyncio from CPython 3.14 on: which task a thread runs, and who awaits it.
//!
//! ```text
//!   thread state ---> running task ---> coroutine, whose frame is on the stack
//!                           |
//!                       awaited by ---> future (of gather) ---> task ---> coroutine ---> coroutine that it awaits
//! ```
//! The section `.AsyncioDebug` of `_asyncio`, a library or a part of the interpreter, has the offsets
//! (`Modules/_asynciomodule.c`). Older releases note only callbacks in a future, and those of `gather` and `TaskGroup`
//! are Python functions; their tasks are not followed.

#![forbid(unsafe_code)]

use super::layout::Coroutines;
use super::memory::Reader;

/// The section, and its words.
pub(super) const SECTION: &str = ".AsyncioDebug";
pub(super) const SECTION_SIZE: u64 = 13 * 8;
/// Tasks and futures in a row that are followed, at most.
pub(super) const MOST_WAITERS: u32 = 64;
/// Coroutines that await each other in one task, at most.
pub(super) const MOST_COROUTINES: usize = 48;
/// Places of a set that are looked at.
const MOST_PLACES: u64 = 32;

/// Offsets in a task, and in the thread's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tasks {
    awaited_by: u16,
    is_task: u16,
    is_awaited_by_several: u16,
    coroutine: u16,
    running_task: u16,
}

impl Tasks {
    /// From the section. `None`: not as it is known.
    pub(super) fn parse(section: &[u8]) -> Option<Tasks> {
        let word = |at: usize| Some(u64::from_le_bytes(section.get(at * 8..at * 8 + 8)?.try_into().ok()?));
        let (size, thread_size) = (word(0)?, word(9)?);
        let within = |at: usize, limit: u64| u16::try_from(word(at)?).ok().filter(|&offset| u64::from(offset) < limit);
        let tasks = Tasks {
            awaited_by: within(2, size)?,
            is_task: within(3, size)?,
            is_awaited_by_several: within(4, size)?,
            coroutine: within(5, size)?,
            running_task: within(11, thread_size)?,
        };
        let words = [tasks.awaited_by, tasks.coroutine, tasks.running_task];
        words.iter().all(|offset| offset.is_multiple_of(8) && *offset >= 16).then_some(tasks)
    }

    /// The task that the thread with this state runs.
    pub(super) fn running(&self, state: u64, reader: &mut Reader) -> Option<u64> {
        reader.word(state.checked_add(u64::from(self.running_task))?).filter(|&task| task != 0)
    }

    /// The coroutine of a task; `None`: it is a future.
    pub(super) fn coroutine(&self, task: u64, reader: &mut Reader) -> Option<u64> {
        let is_task = reader.byte(task.checked_add(u64::from(self.is_task))?)? != 0;
        let coroutine = reader.word(task.checked_add(u64::from(self.coroutine))?)?;
        (is_task && coroutine != 0).then_some(coroutine)
    }

    /// The task or future that awaits `task`, if there is one and no other.
    pub(super) fn waiter(&self, task: u64, coroutines: &Coroutines, reader: &mut Reader) -> Option<u64> {
        let waiter = reader.word(task.checked_add(u64::from(self.awaited_by))?)?;
        let is_set = reader.byte(task.checked_add(u64::from(self.is_awaited_by_several))?)? != 0;
        if is_set { coroutines.only_member(waiter, reader) } else { Some(waiter) }.filter(|&waiter| waiter != 0)
    }
}

impl Coroutines {
    /// The frame of a coroutine.
    pub(super) fn frame(&self, coroutine: u64) -> Option<u64> {
        coroutine.checked_add(u64::from(self.frame))
    }

    /// Whether it waits; one that runs is on the stack already.
    pub(super) fn is_suspended(&self, coroutine: u64, reader: &mut Reader) -> Option<bool> {
        let state = reader.byte(coroutine.checked_add(u64::from(self.state))?)?;
        Some(self.suspended.contains(&(state as i8)))
    }

    /// What a coroutine that waits awaits: it is on the stack of its frame.
    pub(super) fn awaited(&self, coroutine: u64, reader: &mut Reader) -> Option<u64> {
        let place = self.frame(coroutine)?.checked_add(u64::from(self.stack_pointer))?;
        let top = reader.word(place)?;
        let awaited = reader.word(top.checked_sub(8 * u64::from(self.awaited_below_top))?)?;
        // References on it are tagged.
        Some(awaited & !7)
    }

    /// The member of a set that has only one.
    fn only_member(&self, set: u64, reader: &mut Reader) -> Option<u64> {
        let mut field = |offset: u16| reader.word(set.checked_add(u64::from(offset))?);
        let (used, table, mask) = (field(self.set_used)?, field(self.set_table)?, field(self.set_mask)?);
        if used != 1 || mask >= MOST_PLACES {
            return None;
        }
        // Pairs of an object and its hash, which is -1 where an object was.
        let mut places = (0..=mask).filter_map(|at| {
            let place = table.checked_add(16 * at)?;
            let (member, hash) = (reader.word(place)?, reader.word(place.checked_add(8)?)?);
            (member != 0 && hash != u64::MAX).then_some(member)
        });
        places.next()
    }
}

/// The section as CPython 3.14.10 of Debian has it on x86_64, but for the place of the running task.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn sample(running_task: u64) -> Vec<u8> {
    let words = [168, 136, 96, 108, 109, 128, 152, 225_864, 10_880, 936, 864, running_task, 880];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asyncio_says_of_itself() {
        let bytes = sample(872);
        let tasks = Tasks::parse(&bytes).unwrap();
        assert_eq!((tasks.awaited_by, tasks.coroutine, tasks.running_task), (96, 128, 872));
        assert_eq!(Tasks::parse(&bytes[..88]), None);
        let mut other = bytes.clone();
        other[16] = 97;
        assert_eq!(Tasks::parse(&other), None);
    }
}
