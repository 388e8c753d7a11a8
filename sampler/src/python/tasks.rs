//! Follows asyncio tasks, from CPython 3.14 on: the task that a thread runs, and the tasks that await it.
//!
//! ```text
//!   thread state ---> running task ---> coroutine, whose frame is on the stack
//!                           |
//!                       awaited by ---> future (of gather) ---> task ---> coroutine ---> coroutine that it awaits
//! ```
//! The `.AsyncioDebug` section of `_asyncio`, which is a library or a part of the interpreter, contains the offsets
//! (`Modules/_asynciomodule.c`). Older releases only store callbacks in a future. The callbacks of `gather` and
//! `TaskGroup` are Python functions, so their tasks are not followed.

#![forbid(unsafe_code)]

use super::layout::Coroutines;
use super::memory::Reader;

/// Name of the section with the offsets.
pub(super) const SECTION: &str = ".AsyncioDebug";
/// Size of the section: 13 words.
pub(super) const SECTION_SIZE: u64 = 13 * 8;
/// Maximum number of tasks and futures that are followed from one task.
pub(super) const MAX_WAITERS: u32 = 64;
/// Maximum length of a chain of coroutines in one task, each awaiting the next.
pub(super) const MAX_COROUTINES: usize = 48;
/// Maximum number of entries in a set's table that are searched.
const MAX_SET_ENTRIES: u64 = 32;

/// Field offsets in a task and in the thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tasks {
    awaited_by: u16,
    is_task: u16,
    is_awaited_by_several: u16,
    coroutine: u16,
    running_task: u16,
}

impl Tasks {
    /// Parses the section. `None` if its contents are implausible.
    pub(super) fn parse(section: &[u8]) -> Option<Tasks> {
        let word = |index: usize| Some(u64::from_le_bytes(section.get(index * 8..index * 8 + 8)?.try_into().ok()?));
        let (size, thread_size) = (word(0)?, word(9)?);
        let offset_below =
            |index: usize, limit: u64| u16::try_from(word(index)?).ok().filter(|&offset| u64::from(offset) < limit);
        let tasks = Tasks {
            awaited_by: offset_below(2, size)?,
            is_task: offset_below(3, size)?,
            is_awaited_by_several: offset_below(4, size)?,
            coroutine: offset_below(5, size)?,
            running_task: offset_below(11, thread_size)?,
        };
        let words = [tasks.awaited_by, tasks.coroutine, tasks.running_task];
        words.iter().all(|offset| offset.is_multiple_of(8) && *offset >= 16).then_some(tasks)
    }

    pub(super) fn find_running_task(&self, state: u64, reader: &mut Reader) -> Option<u64> {
        reader.read_word(state.checked_add(u64::from(self.running_task))?).filter(|&task| task != 0)
    }

    /// Returns the coroutine of a task; `None` for a future.
    pub(super) fn coroutine(&self, task: u64, reader: &mut Reader) -> Option<u64> {
        let is_task = reader.read_byte(task.checked_add(u64::from(self.is_task))?)? != 0;
        let coroutine = reader.read_word(task.checked_add(u64::from(self.coroutine))?)?;
        (is_task && coroutine != 0).then_some(coroutine)
    }

    /// Returns the only task or future that awaits `task`.
    pub(super) fn waiter(&self, task: u64, coroutines: &Coroutines, reader: &mut Reader) -> Option<u64> {
        let waiter = reader.read_word(task.checked_add(u64::from(self.awaited_by))?)?;
        let is_set = reader.read_byte(task.checked_add(u64::from(self.is_awaited_by_several))?)? != 0;
        if is_set { coroutines.only_member(waiter, reader) } else { Some(waiter) }.filter(|&waiter| waiter != 0)
    }
}

impl Coroutines {
    pub(super) fn frame(&self, coroutine: u64) -> Option<u64> {
        coroutine.checked_add(u64::from(self.frame))
    }

    /// True if the coroutine is suspended; a running one is already on the stack.
    pub(super) fn is_suspended(&self, coroutine: u64, reader: &mut Reader) -> Option<bool> {
        let state = reader.read_byte(coroutine.checked_add(u64::from(self.state))?)?;
        Some(self.suspended.contains(&(state as i8)))
    }

    /// Returns the object that a suspended coroutine awaits, which is on its frame's stack.
    pub(super) fn awaited(&self, coroutine: u64, reader: &mut Reader) -> Option<u64> {
        let address = self.frame(coroutine)?.checked_add(u64::from(self.stack_pointer))?;
        let top = reader.read_word(address)?;
        let awaited = reader.read_word(top.checked_sub(8 * u64::from(self.awaited_below_top))?)?;
        // References on the stack are tagged.
        Some(awaited & !7)
    }

    /// Returns the only member of a set. `None` if the set does not have exactly one.
    fn only_member(&self, set: u64, reader: &mut Reader) -> Option<u64> {
        let mut field = |offset: u16| reader.read_word(set.checked_add(u64::from(offset))?);
        let (used_count, table, mask) = (field(self.set_used)?, field(self.set_table)?, field(self.set_mask)?);
        if used_count != 1 || mask >= MAX_SET_ENTRIES {
            return None;
        }
        // Entries are pairs of an object and its hash; a removed object has the hash -1.
        let mut members = (0..=mask).filter_map(|index| {
            let entry = table.checked_add(16 * index)?;
            let (member, hash) = (reader.read_word(entry)?, reader.read_word(entry.checked_add(8)?)?);
            (member != 0 && hash != u64::MAX).then_some(member)
        });
        members.next()
    }
}

/// The section in Debian's CPython 3.14.10 for x86_64, except for the offset of the running task.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn example_section(running_task: u64) -> Vec<u8> {
    let words = [168, 136, 96, 108, 109, 128, 152, 225_864, 10_880, 936, 864, running_task, 880];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_asyncio_debug_section_is_parsed() {
        let bytes = example_section(872);
        let tasks = Tasks::parse(&bytes).unwrap();
        assert_eq!((tasks.awaited_by, tasks.coroutine, tasks.running_task), (96, 128, 872));
        assert_eq!(Tasks::parse(&bytes[..88]), None);
        let mut misaligned = bytes.clone();
        misaligned[16] = 97;
        assert_eq!(Tasks::parse(&misaligned), None);
    }
}
