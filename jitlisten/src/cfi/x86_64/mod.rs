//! x86_64: the `iced-x86` crate decodes the instructions; the stack layout is tracked along every path.

mod flow;
mod state;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, OpKind, Register};

#[cfg(test)]
pub(super) use flow::states;
pub(super) use flow::synthesise;
use state::is_move;

/// DWARF register numbers (x86-64 psABI, figure 3.36).
pub(super) const RSP: u16 = 7;
pub(super) const RETURN_ADDRESS: u16 = 16;

/// Returns true if the code contains `push rbp`, followed by `mov rbp, rsp` before the next call, branch or change of
/// the stack pointer. LLVM may schedule other instructions between the two.
pub(super) fn sets_up_frame_pointer(code: &[u8]) -> bool {
    let mut is_pushed = false;
    for instruction in &mut Decoder::new(64, code, DecoderOptions::NONE) {
        let moves_stack = || {
            let to_register = instruction.op0_kind() == OpKind::Register;
            instruction.is_stack_instruction() || to_register && instruction.op0_register() == Register::RSP
        };
        is_pushed = match instruction.code() {
            Code::INVALID => return false,
            Code::Push_r64 => instruction.op0_register() == Register::RBP,
            _ if is_pushed && is_move(&instruction, Register::RBP, Register::RSP) => return true,
            _ => is_pushed && instruction.flow_control() == FlowControl::Next && !moves_stack(),
        };
    }
    false
}
