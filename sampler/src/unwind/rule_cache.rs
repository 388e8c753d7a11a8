//! A cache of rules, for one thread.
//!
//! Only plain ones: the canonical frame address is a register and a distance, the return address lies below it
//! (x86_64), and the callee-saved registers and the return address are unchanged or in the frame. That is nearly all of
//! them.

#![forbid(unsafe_code)]

use jitlisten_unwinder::{Cfa, Rule};

use super::machine::{RETURN, SAVED, code_address};
use super::{KEPT, Memory, PROGRAM, REGISTERS, Registers, Row, STACK, Step};

const SLOTS: usize = 256;
const NOT_SAVED: i16 = i16::MIN;
/// Which of the saved ones is the return address; behind them all where it always lies in the frame.
const RETURN_SAVED: usize = if RETURN == PROGRAM { SAVED.len() } else { SAVED.len() - 1 };

/// See the module's head. All zeros is an empty one.
#[derive(Debug)]
#[repr(C)]
pub struct RuleCache {
    slots: [Plain; SLOTS],
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Plain {
    address: u64,
    distance: i32,
    register: u8,
    /// In words from the canonical frame address.
    saved: [i16; SAVED.len()],
}

impl Default for RuleCache {
    fn default() -> Self {
        let empty = Plain { address: 0, distance: 0, register: 0, saved: [0; SAVED.len()] };
        RuleCache { slots: [empty; SLOTS], generation: 0 }
    }
}

impl RuleCache {
    /// Forgets everything that was learned while another generation of code was there.
    pub fn begin(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            for slot in &mut self.slots {
                slot.address = 0;
            }
        }
    }

    fn slot(address: u64) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SLOTS
    }

    pub(crate) fn get(&self, address: u64) -> Option<Plain> {
        self.slots.get(Self::slot(address)).filter(|plain| plain.address == address && address != 0).copied()
    }

    pub(crate) fn put(&mut self, address: u64, row: &Row) {
        if let (Some(plain), Some(slot)) = (Plain::of(address, row), self.slots.get_mut(Self::slot(address))) {
            *slot = plain;
        }
    }
}

impl Plain {
    fn of(address: u64, row: &Row) -> Option<Plain> {
        let Cfa::Register(register, distance) = row.cfa else { return None };
        let mut saved = [NOT_SAVED; SAVED.len()];
        for number in 0..REGISTERS {
            let rule = *row.rules.get(number)?;
            let place = SAVED.iter().position(|&saved| saved == number);
            match (rule, place) {
                (Rule::Offset(-8), None) if number == RETURN => {}
                // A return address that was not saved is in its register, if it has one.
                (Rule::Same, _) if number != RETURN || place.is_some() => {}
                (Rule::Offset(offset), Some(place)) if offset % 8 == 0 => {
                    let words = i16::try_from(offset / 8).ok().filter(|&words| words != NOT_SAVED)?;
                    *saved.get_mut(place)? = words;
                }
                _ => return None,
            }
        }
        Some(Plain { address, distance, register, saved })
    }

    /// Moves to the caller, as [`super::follow`] does by the row.
    pub(super) fn apply(&self, registers: &mut Registers, memory: &mut impl Memory) -> Step {
        let Some(start) = registers.get(u64::from(self.register)) else { return Step::Broken };
        let frame_address = start.wrapping_add(i64::from(self.distance) as u64);
        let place = |words: i16| frame_address.wrapping_add((i64::from(words) * 8) as u64);
        let address = match self.saved.get(RETURN_SAVED) {
            None => memory.read(frame_address.wrapping_sub(8)),
            Some(&NOT_SAVED) => registers.get(RETURN as u64),
            Some(&words) => memory.read(place(words)),
        };
        let Some(address) = address.map(code_address) else { return Step::Broken };
        if address == 0 {
            return Step::Outermost;
        }
        registers.known &= KEPT;
        for (&register, &words) in SAVED.iter().zip(&self.saved) {
            if words != NOT_SAVED && register != RETURN {
                registers.set(register, memory.read(place(words)));
            }
        }
        registers.set(STACK, Some(frame_address));
        registers.set(PROGRAM, Some(address));
        Step::Caller { was_signal_frame: false }
    }
}
