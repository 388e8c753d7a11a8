//! All slots of the process. They are allocated in blocks that are never unmapped, because a signal may arrive late,
//! and a thread may use the signal stack in its slot.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::thread::slot::Slot;
use crate::thread::slot_state::State;

const SLOTS_PER_BLOCK: usize = 32;
const MAX_BLOCKS: usize = 512;
const MAX_SLOTS: usize = SLOTS_PER_BLOCK * MAX_BLOCKS;

struct Slots {
    blocks: [AtomicPtr<Slot>; MAX_BLOCKS],
    used_slots: AtomicUsize,
    /// Index below which all slots are in use, except recently released ones.
    first_free_hint: AtomicUsize,
    /// Owner of each slot. A separate array, because visiting thousands of slots, which are far apart in memory, is
    /// slow.
    owners: [AtomicU32; MAX_SLOTS],
}

/// Static because handlers of an ended recording's late signals use slots, and threads keep theirs.
static SLOTS: Slots = Slots {
    blocks: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_BLOCKS],
    used_slots: AtomicUsize::new(0),
    first_free_hint: AtomicUsize::new(0),
    owners: [const { AtomicU32::new(0) }; MAX_SLOTS],
};

/// Returns the slot with this index, if its block is allocated.
pub(crate) fn get(index: usize) -> Option<&'static Slot> {
    let block = SLOTS.blocks.get(index / SLOTS_PER_BLOCK)?.load(Ordering::Acquire);
    if block.is_null() {
        return None;
    }
    // SAFETY: a block contains this many slots and is never unmapped, and all zeros is a valid slot.
    Some(unsafe { &*block.add(index % SLOTS_PER_BLOCK) })
}

/// Iterates over all slots that were ever used, with their indexes.
pub(crate) fn iter() -> impl Iterator<Item = (usize, &'static Slot)> {
    (0..SLOTS.used_slots.load(Ordering::Acquire)).filter_map(|index| Some((index, get(index)?)))
}

/// Iterates over the slots whose last owner is this thread.
pub(crate) fn find_by_tid(tid: u32) -> impl Iterator<Item = (usize, &'static Slot)> {
    let owners = SLOTS.owners.iter().take(SLOTS.used_slots.load(Ordering::Acquire)).enumerate();
    let slots = owners.filter(move |(_, owner)| owner.load(Ordering::Acquire) == tid);
    slots.filter_map(|(index, _)| Some((index, get(index)?)))
}

/// Claims a slot for a thread and leaves it [`State::Claimed`]. Returns `None` if all are in use. Prefers the thread's
/// previous slot, because the thread may still use the signal stack in it.
pub(crate) fn claim(tid: u32) -> Option<(usize, &'static Slot)> {
    for (index, slot) in find_by_tid(tid) {
        if slot.state.change(State::Ended, State::Claimed) {
            if reset_for_owner(index, slot, tid) {
                return Some((index, slot));
            }
            slot.state.set(State::Ended);
        }
    }
    let (start, mut first_busy) = (SLOTS.first_free_hint.load(Ordering::Acquire), None);
    for index in (start..MAX_SLOTS).chain(0..start) {
        let slot = match get(index) {
            Some(slot) => slot,
            None => {
                make_block(index / SLOTS_PER_BLOCK)?;
                get(index)?
            }
        };
        if slot.state.change(State::Free, State::Claimed) {
            SLOTS.used_slots.fetch_max(index + 1, Ordering::AcqRel);
            SLOTS.first_free_hint.fetch_max(index + 1, Ordering::AcqRel);
            if reset_for_owner(index, slot, tid) {
                // A slot that was passed over, because a late handler was still using it, will be free soon.
                SLOTS.first_free_hint.fetch_min(first_busy.unwrap_or(usize::MAX), Ordering::AcqRel);
                return Some((index, slot));
            }
            slot.state.set(State::Free);
            first_busy = first_busy.or(Some(index));
        }
    }
    None
}

fn make_block(number: usize) -> Option<()> {
    let size = SLOTS_PER_BLOCK * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the call creates a mapping at an address that the kernel chooses.
    let block = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if block == libc::MAP_FAILED {
        return None;
    }
    let entry = SLOTS.blocks.get(number)?;
    let published = entry.compare_exchange(ptr::null_mut(), block.cast(), Ordering::AcqRel, Ordering::Acquire);
    if published.is_err() {
        // SAFETY: the block was mapped above and is not published, because another thread has published
        // one in the meantime.
        unsafe { libc::munmap(block, size) };
    }
    Some(())
}

fn reset_for_owner(index: usize, slot: &Slot, tid: u32) -> bool {
    set_owner(index, tid);
    slot.reset_for_owner(tid)
}

fn set_owner(index: usize, tid: u32) {
    SLOTS.owners.get(index).inspect(|owner| owner.store(tid, Ordering::Release));
}

/// Frees a slot that is [`State::Claimed`].
pub(crate) fn release(index: usize, slot: &Slot) {
    slot.state.set(State::Free);
    SLOTS.first_free_hint.fetch_min(index, Ordering::AcqRel);
}

/// Frees the slot of a thread that has exited, unless a new thread with the same id has claimed it.
pub(crate) fn free_ended(index: usize, slot: &Slot) {
    if slot.state.change(State::Ended, State::Claimed) {
        release(index, slot);
    }
}

/// True if no sampled thread is running the handler at this moment.
pub(crate) fn no_handler_is_running() -> bool {
    iter().all(|(_, slot)| slot.state.has_no_handler())
}

/// Discards samples that arrived after the end of the previous recording. Only call while no handler writes.
pub(crate) fn discard_unread_samples() {
    for (_, slot) in iter() {
        slot.ring.discard_unread();
        slot.pace.take_skipped();
    }
}

/// Resets all slots in a fork child. The sampled threads do not exist there, and timers are not inherited: timers with
/// the same ids belong to the program. The only thread, now `tid`, keeps the slot that contains its signal stack.
pub(crate) fn reset_all_in_child(tid: u32, signal_stack: *mut c_void) {
    iter().for_each(|(index, slot)| reset_in_child(index, slot, tid, signal_stack));
    SLOTS.first_free_hint.store(0, Ordering::Relaxed);
}

fn reset_in_child(index: usize, slot: &Slot, tid: u32, signal_stack: *mut c_void) {
    slot.reset_in_child();
    let uses_signal_stack = slot.signal_stack().cast() == signal_stack;
    if uses_signal_stack {
        set_owner(index, tid);
        slot.state.rename_owner(tid);
    }
    slot.state.set(if uses_signal_stack { State::Ended } else { State::Free });
}

/// Serializes tests that use process-wide state: slots, published code, the recorder.
#[cfg(test)]
pub(crate) fn lock_for_test() -> std::sync::MutexGuard<'static, ()> {
    static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::source::Measure;
    use crate::thread::timer::Timer;

    /// A handler that has checked the slot's owner must not share the ring with the next owner.
    #[test]
    fn a_slot_in_use_by_a_late_handler_gets_no_new_owner() {
        let _lock = lock_for_test();
        let (index, slot) = claim(15).unwrap();
        assert!(ptr::eq(get(index).unwrap(), slot));
        let handler = slot.state.enter_handler();
        release(index, slot);
        let (second_index, _) = claim(16).unwrap();
        assert_ne!(second_index, index);
        drop(handler);
        assert_eq!(claim(17).unwrap().0, index);
        for index in [index, second_index] {
            release(index, get(index).unwrap());
        }
    }

    /// If two threads shared a signal stack, they would overwrite each other's frames.
    #[test]
    fn the_forking_thread_keeps_its_signal_stack_in_the_child() {
        let _lock = lock_for_test();
        let ((kept_index, kept), (other_index, other_slot)) = (claim(11).unwrap(), claim(12).unwrap());
        for (index, slot) in [(kept_index, kept), (other_index, other_slot)] {
            slot.source.begin(Measure::CpuTime, 11);
            slot.source.set_timer(Timer(0));
            slot.state.set(State::Armed);
            reset_in_child(index, slot, 13, kept.signal_stack().cast());
            assert_eq!(slot.source.timer(), None, "the program may have a timer of that number");
        }
        assert_eq!(other_slot.state.get(), State::Free);
        // `reset_all_in_child` also resets the hint.
        SLOTS.first_free_hint.store(0, Ordering::Relaxed);
        assert!(!ptr::eq(claim(14).unwrap().1, kept) && ptr::eq(claim(13).unwrap().1, kept));
    }
}
