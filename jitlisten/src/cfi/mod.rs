//! Derives call frame information for code that lacks it, where it can be derived with certainty.
//!
//! LLVM writes no `.eh_frame` entry for a function that it believes never unwinds, so no unwinder can step past that
//! function. In two cases the rules can be derived from the code:
//!
//! ```text
//!   push rbp          CFA = rsp+8        with a frame pointer: three rules cover the whole body
//!   mov  rbp, rsp     CFA = rsp+16
//!   ...               CFA = rbp+16       rbp at CFA-16, return address at CFA-8
//!   pop  rbp
//!   ret               CFA = rsp+8
//!
//!   push rbx          CFA = rsp+8        without one: track the stack pointer along every path; if all paths
//!   sub  rsp, 32      CFA = rsp+16       agree at every instruction, that is the rule
//!   call ...          CFA = rsp+48
//! ```
//!
//! A wrong rule is worse than none, because a profiler would produce bogus frames. Therefore any uncertainty yields
//! `None`: a non-constant change of the stack pointer without a frame pointer, or paths that disagree. Coverage was
//! measured against compiler-generated tables on x86_64: rules were derived for all but 0.12 % of the functions of
//! libLLVM-14, and for all functions that Numba emits without a table entry.
//!
//! CFA is DWARF's *canonical frame address*: the stack pointer before the call. Sources: DWARF 5, 6.4; x86-64 psABI,
//! 3.6.2 and 3.7; AADWARF64 and AAPCS64, 6.4. For comparison: `readelf --debug-dump=frames-interp FILE`.

mod aarch64;
mod covered;
mod encode;
mod rows;
#[cfg(test)]
mod tests;
mod x86_64;

pub use covered::covered;
pub(crate) use covered::validate;
pub use encode::{FunctionRules, address_after, encode};
pub use rows::{Cfa, SavedRegister, UnwindRow};

use crate::{Address, Machine};

/// Returns true if the function sets up a frame pointer anywhere. LLVM may move the setup after an early return (shrink
/// wrapping: Numba's `NRT_incref`); before the setup, such a function has no frame and makes no calls.
///
/// The setup is `push rbp` and `mov rbp, rsp` on x86_64, and `stp x29, x30` and a `mov` or `add` into `x29` on AArch64.
pub fn sets_up_frame_pointer(code: &[u8], machine: Machine) -> bool {
    match machine {
        Machine::X86_64 => x86_64::sets_up_frame_pointer(code),
        Machine::Aarch64 => (0..code.len()).step_by(4).any(|at| aarch64::keeps_frame_pointer(&code[at..])),
    }
}

/// Derives the unwind rows of a whole function: `code` is all of its code, relocated, and runs at `address`.
///
/// The function must be entered by a call, at its first byte. Do not pass function fragments (GCC's `.cold`), which are
/// entered by a jump.
///
/// The first row has offset 0; each row applies up to the next. Returns `None` if the rules cannot be derived.
pub fn synthesise(code: &[u8], address: Address, machine: Machine) -> Option<Vec<UnwindRow>> {
    match machine {
        Machine::X86_64 => x86_64::synthesise(code, address),
        Machine::Aarch64 => aarch64::synthesise(code),
    }
}
