//! Every path through a function.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

use super::state::State;
use crate::cfi::rows::{self, UnwindRow};
use crate::{Address, Offset};

/// What is known before each instruction that can be reached, by its offset.
///
/// What no jump leads to is padding, or the code behind a call that does not return; nothing runs there.
pub(in crate::cfi) fn states(code: &[u8], address: Address) -> Option<BTreeMap<u64, State>> {
    address.checked_add(code.len() as u64)?;
    let mut decoder = Decoder::with_ip(64, code, address.0, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut known = BTreeMap::from([(0, State::at_entry())]);
    let mut waiting = vec![0];
    let mut ends = BTreeMap::new();
    let mut indirect = false;
    while let Some(offset) = waiting.pop() {
        decoder.set_position(usize::try_from(offset).ok()?).ok()?;
        decoder.set_ip(address.0.checked_add(offset)?);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        ends.insert(offset, instruction.next_ip().wrapping_sub(address.0));
        indirect |= instruction.flow_control() == FlowControl::IndirectBranch;
        let before = known.get(&offset)?.clone();
        for (target, state) in successors(&instruction, offset, code.len() as u64, &before, &mut info)? {
            let joined = match known.get(&target) {
                None => state,
                Some(old) => old.join(&state)?,
            };
            if known.get(&target) != Some(&joined) {
                known.insert(target, joined);
                waiting.push(target);
            }
        }
    }
    (!indirect || is_all_reached(code, &ends)).then_some(known)
}

/// Whether all between the instructions that were reached (by their offset, the offset behind them) is padding.
///
/// An indirect jump is a tail call or a `switch`. The cases of a `switch` are code that nothing else leads to.
fn is_all_reached(code: &[u8], ends: &BTreeMap<u64, u64>) -> bool {
    let starts = ends.keys().copied().skip(1).chain([code.len() as u64]);
    ends.values().zip(starts).all(|(end, start)| {
        let gap =
            usize::try_from(*end).ok().zip(usize::try_from(start).ok()).and_then(|(end, start)| code.get(end..start));
        gap.is_some_and(is_padding)
    })
}

fn is_padding(code: &[u8]) -> bool {
    let fills = |code: Code| matches!(code, Code::Nopw | Code::Nopd | Code::Nopq | Code::Int3 | Code::Ud2);
    let nops = |code: Code| matches!(code, Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64);
    Decoder::new(64, code, DecoderOptions::NONE).iter().all(|found| fills(found.code()) || nops(found.code()))
}

/// The offsets that can come next, with what is known there.
fn successors(
    instruction: &Instruction,
    offset: u64,
    length: u64,
    before: &State,
    info: &mut InstructionInfoFactory,
) -> Option<Vec<(u64, State)>> {
    let next = offset + instruction.len() as u64;
    let target = offset.wrapping_add(instruction.near_branch_target().wrapping_sub(instruction.ip()));
    match instruction.flow_control() {
        FlowControl::Next => (next < length).then_some(vec![(next, before.after(instruction, info)?)]),
        FlowControl::UnconditionalBranch => jump(target, length, before),
        FlowControl::ConditionalBranch => {
            let mut both = jump(target, length, before)?;
            both.push((next, before.clone()));
            (next < length).then_some(both)
        }
        FlowControl::Call | FlowControl::IndirectCall => {
            // A call into the middle of the function is no call: it reads its own address.
            let odd = instruction.is_call_near() && target != 0 && target < length;
            // At the very end there is a call that does not return.
            let state = (!odd).then(|| before.after(instruction, info)).flatten()?;
            Some(if next < length { vec![(next, state)] } else { Vec::new() })
        }
        FlowControl::Return => before.is_like_entry().then(Vec::new),
        // `ud2`, `int3`: the end of a path.
        FlowControl::Exception | FlowControl::Interrupt => Some(Vec::new()),
        // A tail call, if anything: the large code model has no other. See `is_all_reached`.
        FlowControl::IndirectBranch => before.is_like_entry().then(Vec::new),
        FlowControl::XbeginXabortXend => None,
    }
}

/// A jump in the function, or the tail call of another.
fn jump(target: u64, length: u64, before: &State) -> Option<Vec<(u64, State)>> {
    if target < length {
        return Some(vec![(target, before.clone())]);
    }
    before.is_like_entry().then(Vec::new)
}

/// See [`synthesise`](crate::cfi::synthesise).
pub(in crate::cfi) fn synthesise(code: &[u8], address: Address) -> Option<Vec<UnwindRow>> {
    let mut rows = Vec::new();
    for (offset, state) in states(code, address)? {
        let row = UnwindRow { offset: Offset(offset), cfa: state.cfa()?, saved: state.saved() };
        rows::push(&mut rows, row);
    }
    Some(rows)
}
