//! A per-thread cache of unwind rules.
//!
//! It holds plain rules only, and nearly all rules are plain. In a plain rule, the canonical frame address is a
//! register plus an offset, the return address lies right below it (x86_64), and the callee-saved registers and the
//! return address are unchanged or saved in the frame.

#![forbid(unsafe_code)]

use jitlisten_unwinder::{Cfa, Rule};

use super::machine::{RETURN_COLUMN, SAVED_REGISTERS, code_address};
use super::{Memory, PRESERVED_MASK, PROGRAM, REGISTERS, Registers, Row, STACK, Step};

const CACHE_SLOTS: usize = 256;
const NOT_SAVED: i16 = i16::MIN;
/// Index of the return address among the saved registers; past the end if it is always in the frame.
const RETURN_SAVED_INDEX: usize =
    if RETURN_COLUMN == PROGRAM { SAVED_REGISTERS.len() } else { SAVED_REGISTERS.len() - 1 };

/// A direct-mapped cache of plain rules. Zeroed memory is an empty cache.
#[derive(Debug)]
#[repr(C)]
pub struct RuleCache {
    slots: [PlainRule; CACHE_SLOTS],
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PlainRule {
    address: u64,
    distance: i32,
    register: u8,
    /// Locations of the saved registers, in words from the canonical frame address; `NOT_SAVED` if not saved.
    saved: [i16; SAVED_REGISTERS.len()],
}

impl Default for RuleCache {
    fn default() -> Self {
        let empty = PlainRule { address: 0, distance: 0, register: 0, saved: [0; SAVED_REGISTERS.len()] };
        RuleCache { slots: [empty; CACHE_SLOTS], generation: 0 }
    }
}

impl RuleCache {
    /// Clears the cache if the code has changed since it was filled.
    pub fn begin(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            for slot in &mut self.slots {
                slot.address = 0;
            }
        }
    }

    fn slot(address: u64) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % CACHE_SLOTS
    }

    pub(crate) fn get(&self, address: u64) -> Option<PlainRule> {
        self.slots.get(Self::slot(address)).filter(|rule| rule.address == address && address != 0).copied()
    }

    pub(crate) fn put(&mut self, address: u64, row: &Row) {
        if let (Some(rule), Some(slot)) = (PlainRule::from_row(address, row), self.slots.get_mut(Self::slot(address))) {
            *slot = rule;
        }
    }
}

impl PlainRule {
    fn from_row(address: u64, row: &Row) -> Option<PlainRule> {
        let Cfa::Register(register, distance) = row.cfa else { return None };
        let mut saved = [NOT_SAVED; SAVED_REGISTERS.len()];
        for number in 0..REGISTERS {
            let rule = *row.rules.get(number)?;
            let saved_index = SAVED_REGISTERS.iter().position(|&saved| saved == number);
            match (rule, saved_index) {
                (Rule::Offset(-8), None) if number == RETURN_COLUMN => {}
                // A return address that was not saved is still in its register, if the architecture has such a
                // register.
                (Rule::Same, _) if number != RETURN_COLUMN || saved_index.is_some() => {}
                (Rule::Offset(offset), Some(saved_index)) if offset % 8 == 0 => {
                    let words = i16::try_from(offset / 8).ok().filter(|&words| words != NOT_SAVED)?;
                    *saved.get_mut(saved_index)? = words;
                }
                _ => return None,
            }
        }
        Some(PlainRule { address, distance, register, saved })
    }

    /// Moves to the caller. Has the same result as [`super::apply_row`] for the original row.
    pub(super) fn apply(&self, registers: &mut Registers, memory: &mut impl Memory) -> Step {
        let Some(base) = registers.get(u64::from(self.register)) else { return Step::Broken };
        let frame_address = base.wrapping_add(i64::from(self.distance) as u64);
        let saved_address = |words: i16| frame_address.wrapping_add((i64::from(words) * 8) as u64);
        let address = match self.saved.get(RETURN_SAVED_INDEX) {
            None => memory.read(frame_address.wrapping_sub(8)),
            Some(&NOT_SAVED) => registers.get(RETURN_COLUMN as u64),
            Some(&words) => memory.read(saved_address(words)),
        };
        let Some(address) = address.map(code_address) else { return Step::Broken };
        if address == 0 {
            return Step::Outermost;
        }
        registers.known_mask &= PRESERVED_MASK;
        for (&register, &words) in SAVED_REGISTERS.iter().zip(&self.saved) {
            if words != NOT_SAVED && register != RETURN_COLUMN {
                registers.set(register, memory.read(saved_address(words)));
            }
        }
        registers.set(STACK, Some(frame_address));
        registers.set(PROGRAM, Some(address));
        Step::Caller { was_signal_frame: false }
    }
}
