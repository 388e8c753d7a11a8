//! Call frame information for code without any, where it can be derived with certainty.
//!
//! LLVM writes no `.eh_frame` entry for a function that it believes never unwinds, so no unwinder can pass it. Two
//! cases can be read from the code itself:
//!
//! ```text
//!   push rbp          CFA = rsp+8        a frame pointer: three rules hold for the whole body
//!   mov  rbp, rsp     CFA = rsp+16
//!   ...               CFA = rbp+16       rbp at CFA-16, return address at CFA-8
//!   pop  rbp
//!   ret               CFA = rsp+8
//!
//!   push rbx          CFA = rsp+8        no frame pointer: follow the stack pointer along every path; where all
//!   sub  rsp, 32      CFA = rsp+16       paths agree at every instruction, that is the rule
//!   call ...          CFA = rsp+48
//! ```
//!
//! A wrong rule is worse than none: a profiler would walk on into nonsense. Therefore anything uncertain (a
//! non-constant change of the stack pointer without a frame pointer, paths that disagree) gives `None`. Compared with
//! the tables of compilers on x86_64: rules were derived for all but 0.12 % of the functions of libLLVM-14, and for all
//! functions that Numba leaves without.
//!
//! CFA is DWARF's *canonical frame address*: the stack pointer before the call. Sources: DWARF 5, 6.4; x86-64 psABI,
//! 3.6.2 and 3.7; AADWARF64 and AAPCS64, 6.4. To compare: `readelf --debug-dump=frames-interp FILE`.

#![forbid(unsafe_code)]

mod aarch64;
mod covered;
mod encode;
mod rows;
#[cfg(test)]
mod tests;
mod x86_64;

pub use covered::covered;
pub use encode::{FunctionRules, encode, place_behind};
pub use rows::{Cfa, SavedRegister, UnwindRow};

use crate::{Address, Machine};

/// Whether a function sets up a frame pointer anywhere. LLVM moves the set-up behind an early return where it can
/// (shrink wrapping: Numba's `NRT_incref`); until then such a function has no frame of its own and calls nothing.
///
/// On x86_64 `push rbp` and `mov rbp, rsp`; on AArch64 `stp x29, x30` and a `mov` or `add` into `x29`.
pub fn sets_up_frame_pointer(code: &[u8], machine: Machine) -> bool {
    match machine {
        Machine::X86_64 => x86_64::sets_up_frame_pointer(code),
        Machine::Aarch64 => (0..code.len()).step_by(4).any(|at| aarch64::keeps_frame_pointer(&code[at..])),
    }
}

/// The rules for a whole function: `code` is all of it, relocated, and runs at `address`.
///
/// A function: entered by a call, at its first byte. A piece of one (GCC's `.cold`) is not.
///
/// The first row has offset 0; each holds up to the next. `None` where the rules cannot be known.
pub fn synthesise(code: &[u8], address: Address, machine: Machine) -> Option<Vec<UnwindRow>> {
    match machine {
        Machine::X86_64 => x86_64::synthesise(code, address),
        Machine::Aarch64 => aarch64::synthesise(code),
    }
}
