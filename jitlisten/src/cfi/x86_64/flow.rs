//! Analysis of every path through a function.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

use super::state::State;
use crate::cfi::rows::{self, UnwindRow};
use crate::{Address, Offset};

/// Maximum size of a function; longer ones get no rules. The state of each instruction takes at least a hundred bytes.
const MAX_FUNCTION_BYTES: usize = 1 << 18;

/// Computes the state before each reachable instruction, keyed by the instruction's offset.
///
/// An indirect jump is either a tail call (the only form in the large code model) or a `switch`. No direct branch leads
/// to the cases of a `switch`, where the stack layout is the same as at the jump. Therefore, after an indirect jump,
/// all unreached code is assumed to be a case; if that contradicts the other states, `None` is returned. Without an
/// indirect jump, unreached code is padding or follows a call that does not return, so it never runs.
pub(in crate::cfi) fn states(code: &[u8], address: Address) -> Option<BTreeMap<u64, State>> {
    address.checked_add(code.len() as u64).filter(|_| code.len() <= MAX_FUNCTION_BYTES)?;
    let mut flow = Flow { code, address, states_by_offset: BTreeMap::new(), ends: BTreeMap::new(), indirect: None };
    flow.follow(0, State::at_entry())?;
    let mut search_start = 0;
    while let Some(state) = flow.indirect.clone() {
        // All code before the last case has been analysed, but the cases may have revealed new gaps there.
        match first_case(code, &flow.ends, search_start) {
            Some(case_start) => {
                flow.follow(case_start, state)?;
                search_start = case_start;
            }
            None if search_start > 0 => search_start = 0,
            None => break,
        }
    }
    Some(flow.states_by_offset)
}

/// Analysis results so far.
struct Flow<'a> {
    code: &'a [u8],
    address: Address,
    states_by_offset: BTreeMap<u64, State>,
    /// End offset of each reached instruction, by its start offset.
    ends: BTreeMap<u64, u64>,
    /// Joined state of all indirect jumps.
    indirect: Option<State>,
}

impl Flow<'_> {
    /// Follows every path from `start`.
    fn follow(&mut self, start: u64, state: State) -> Option<()> {
        let mut decoder = Decoder::with_ip(64, self.code, self.address.0, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        self.states_by_offset.insert(start, state);
        let mut pending_offsets = vec![start];
        while let Some(offset) = pending_offsets.pop() {
            decoder.set_position(usize::try_from(offset).ok()?).ok()?;
            decoder.set_ip(self.address.0.checked_add(offset)?);
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return None;
            }
            self.ends.insert(offset, instruction.next_ip().wrapping_sub(self.address.0));
            let before = self.states_by_offset.get(&offset)?.clone();
            if instruction.flow_control() == FlowControl::IndirectBranch {
                let joined = self.indirect.as_ref().map_or(Some(before.clone()), |previous| previous.join(&before));
                self.indirect = Some(joined?);
            }
            for (target, state) in successors(&instruction, offset, self.code.len() as u64, &before, &mut info)? {
                if self.join_at(target, state)? {
                    pending_offsets.push(target);
                }
            }
        }
        Some(())
    }

    /// Joins `state` into the state at `offset`; returns true if that changed it.
    fn join_at(&mut self, offset: u64, state: State) -> Option<bool> {
        let joined = match self.states_by_offset.get(&offset) {
            None => state,
            Some(previous) => previous.join(&state)?,
        };
        let is_changed = self.states_by_offset.get(&offset) != Some(&joined);
        self.states_by_offset.insert(offset, joined);
        Some(is_changed)
    }
}

/// Offset of the first unreached instruction after `search_start` that is not padding. `ends` maps the start offset of
/// each reached instruction to its end offset.
fn first_case(code: &[u8], ends: &BTreeMap<u64, u64>, search_start: u64) -> Option<u64> {
    let starts = ends.range(search_start..).map(|(&start, _)| start).skip(1).chain([code.len() as u64]);
    ends.range(search_start..).map(|(_, end)| end).zip(starts).find_map(|(end, start)| {
        let gap = code.get(usize::try_from(*end).ok()?..usize::try_from(start).ok()?)?;
        let mut instructions = Decoder::with_ip(64, gap, *end, DecoderOptions::NONE).into_iter();
        instructions.find(|instruction| !is_padding(instruction.code())).map(|instruction| instruction.ip())
    })
}

fn is_padding(code: Code) -> bool {
    let is_filler = matches!(code, Code::Nopw | Code::Nopd | Code::Nopq | Code::Int3 | Code::Ud2);
    is_filler || matches!(code, Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64)
}

/// Offsets of the instructions that can execute next, with their states.
fn successors(
    instruction: &Instruction,
    offset: u64,
    length: u64,
    before: &State,
    info: &mut InstructionInfoFactory,
) -> Option<Vec<(u64, State)>> {
    let next_offset = offset + instruction.len() as u64;
    let target = offset.wrapping_add(instruction.near_branch_target().wrapping_sub(instruction.ip()));
    match instruction.flow_control() {
        FlowControl::Next => {
            (next_offset < length).then_some(vec![(next_offset, before.after_instruction(instruction, info)?)])
        }
        FlowControl::UnconditionalBranch => jump(target, length, before),
        FlowControl::ConditionalBranch => {
            let mut targets = jump(target, length, before)?;
            targets.push((next_offset, before.clone()));
            (next_offset < length).then_some(targets)
        }
        FlowControl::Call | FlowControl::IndirectCall => {
            // A call into the same function is not a real call. It is used to read the program counter.
            let calls_into_itself = instruction.is_call_near() && target != 0 && target < length;
            // The code may end with a call that never returns.
            let state = (!calls_into_itself).then(|| before.after_instruction(instruction, info)).flatten()?;
            Some(if next_offset < length { vec![(next_offset, state)] } else { Vec::new() })
        }
        FlowControl::Return => before.is_like_entry().then(Vec::new),
        // `ud2` and `int3` end a path.
        FlowControl::Exception | FlowControl::Interrupt => Some(Vec::new()),
        // `states` looks for the targets of indirect jumps.
        FlowControl::IndirectBranch => Some(Vec::new()),
        FlowControl::XbeginXabortXend => None,
    }
}

/// Successors of a direct jump. A jump out of the function is a tail call and has no successors.
fn jump(target: u64, length: u64, before: &State) -> Option<Vec<(u64, State)>> {
    if target < length {
        return Some(vec![(target, before.clone())]);
    }
    before.is_like_entry().then(Vec::new)
}

/// Derives the unwind rows; see [`synthesise`](crate::cfi::synthesise).
pub(in crate::cfi) fn synthesise(code: &[u8], address: Address) -> Option<Vec<UnwindRow>> {
    let mut rows = Vec::new();
    for (offset, state) in states(code, address)? {
        let row = UnwindRow { offset: Offset(offset), cfa: state.cfa()?, saved: state.saved() };
        rows::push(&mut rows, row);
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn unwritten_code_takes_no_memory() {
        // The code consists of `nop`s and a `ret`.
        let code = |length: usize| [&vec![0x90; length - 1][..], &[0xc3]].concat();
        assert_eq!(
            states(&code(MAX_FUNCTION_BYTES), Address(0x1000)).map(|states| states.len()),
            Some(MAX_FUNCTION_BYTES)
        );
        assert_eq!(states(&code(MAX_FUNCTION_BYTES + 1), Address(0x1000)), None);
    }
}
