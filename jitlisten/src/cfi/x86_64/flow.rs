//! Every path through a function.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

use super::state::State;
use crate::cfi::rows::{self, UnwindRow};
use crate::{Address, Offset};

/// A longer function gets no rules: the state kept for each instruction takes a hundred bytes and more.
const LONGEST: usize = 1 << 18;

/// The state before each reachable instruction, by its offset.
///
/// An indirect jump is the tail call of another function (the large code model has no other) or a `switch`. The cases
/// of a `switch` are code that nothing else leads to, entered with the stack as it is at the jump: so that is assumed
/// of whatever was not reached, and where that does not fit with the rest, there is no result. Without an indirect
/// jump, what is not reached is padding or stands behind a call that does not return; nothing runs there.
pub(in crate::cfi) fn states(code: &[u8], address: Address) -> Option<BTreeMap<u64, State>> {
    address.checked_add(code.len() as u64).filter(|_| code.len() <= LONGEST)?;
    let mut flow = Flow { code, address, known: BTreeMap::new(), ends: BTreeMap::new(), indirect: None };
    flow.follow(0, State::at_entry())?;
    let mut from = 0;
    while let Some(state) = flow.indirect.clone() {
        // What is before the last case has been looked at, but the cases may have opened new gaps there.
        match first_case(code, &flow.ends, from) {
            Some(case) => {
                flow.follow(case, state)?;
                from = case;
            }
            None if from > 0 => from = 0,
            None => break,
        }
    }
    Some(flow.known)
}

/// What has been found so far.
struct Flow<'a> {
    code: &'a [u8],
    address: Address,
    known: BTreeMap<u64, State>,
    /// The offset behind each instruction.
    ends: BTreeMap<u64, u64>,
    /// The state at every indirect jump.
    indirect: Option<State>,
}

impl Flow<'_> {
    /// Follows every path from `start`.
    fn follow(&mut self, start: u64, state: State) -> Option<()> {
        let mut decoder = Decoder::with_ip(64, self.code, self.address.0, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        self.known.insert(start, state);
        let mut waiting = vec![start];
        while let Some(offset) = waiting.pop() {
            decoder.set_position(usize::try_from(offset).ok()?).ok()?;
            decoder.set_ip(self.address.0.checked_add(offset)?);
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return None;
            }
            self.ends.insert(offset, instruction.next_ip().wrapping_sub(self.address.0));
            let before = self.known.get(&offset)?.clone();
            if instruction.flow_control() == FlowControl::IndirectBranch {
                let all = self.indirect.as_ref().map_or(Some(before.clone()), |others| others.join(&before));
                self.indirect = Some(all?);
            }
            for (target, state) in successors(&instruction, offset, self.code.len() as u64, &before, &mut info)? {
                if self.learn(target, state)? {
                    waiting.push(target);
                }
            }
        }
        Some(())
    }

    /// Whether that was news.
    fn learn(&mut self, offset: u64, state: State) -> Option<bool> {
        let joined = match self.known.get(&offset) {
            None => state,
            Some(old) => old.join(&state)?,
        };
        let news = self.known.get(&offset) != Some(&joined);
        self.known.insert(offset, joined);
        Some(news)
    }
}

/// The first instruction behind one at `from` or later that was not reached and is not padding. `ends` are the
/// instructions that were.
fn first_case(code: &[u8], ends: &BTreeMap<u64, u64>, from: u64) -> Option<u64> {
    let starts = ends.range(from..).map(|(&start, _)| start).skip(1).chain([code.len() as u64]);
    ends.range(from..).map(|(_, end)| end).zip(starts).find_map(|(end, start)| {
        let gap = code.get(usize::try_from(*end).ok()?..usize::try_from(start).ok()?)?;
        let mut instructions = Decoder::with_ip(64, gap, *end, DecoderOptions::NONE).into_iter();
        instructions.find(|instruction| !is_padding(instruction.code())).map(|instruction| instruction.ip())
    })
}

fn is_padding(code: Code) -> bool {
    let fills = matches!(code, Code::Nopw | Code::Nopd | Code::Nopq | Code::Int3 | Code::Ud2);
    fills || matches!(code, Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64)
}

/// The offsets that can follow, with the state there.
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
        // See `states`.
        FlowControl::IndirectBranch => Some(Vec::new()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn unwritten_code_takes_no_memory() {
        // `nop`s and a `ret`.
        let code = |length: usize| [&vec![0x90; length - 1][..], &[0xc3]].concat();
        assert_eq!(states(&code(LONGEST), Address(0x1000)).map(|states| states.len()), Some(LONGEST));
        assert_eq!(states(&code(LONGEST + 1), Address(0x1000)), None);
    }
}
