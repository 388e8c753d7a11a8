//! Injected calls without a signal frame, for aarch64. The called function returns to address 0, which raises a fault
//! that only the tracer sees. The interface is the same as in `signal_frame.rs`.

use std::ops::Range;

use libc::user_regs_struct as Registers;

use crate::process::Process;

#[derive(Clone, Copy)]
pub(crate) struct ReturnPath;

impl ReturnPath {
    pub(crate) fn find(_: &Process) -> Option<ReturnPath> {
        Some(ReturnPath)
    }

    pub(crate) fn has_returned(self, registers: &Registers, _: &Frame) -> bool {
        registers.pc == 0
    }

    pub(crate) fn result(registers: &Registers, _: u64) -> u64 {
        registers.regs[0]
    }

    pub(crate) fn redirect(self, registers: &mut Registers, _: &Frame) {
        registers.pc = 0;
    }
}

pub(crate) struct Frame {
    pub(crate) stack_pointer: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(top: u64, _: ReturnPath, _: &Registers, _: &[u8], _: u64) -> Frame {
        Frame { stack_pointer: top & !15, bytes: Vec::new() }
    }
}

pub(crate) fn find_restorers(_: &Process, _: &Range<u64>) -> Vec<u64> {
    Vec::new()
}

pub(crate) fn is_signal_frame(_: &[u8]) -> bool {
    false
}
