//! Detours on AArch64, where `ret` becomes `b imm26`. The encodings are from the architecture manual (C6.2 "B", "RET",
//! "HINT").
//!
//! May an instruction be changed while other cores fetch it? Arm Architecture Reference Manual (DDI 0487), B2,
//! "Concurrent modification and execution of instructions": a core that executes an instruction while it is modified,
//! without explicit synchronization, may behave like any sequence of instructions, "except where each of the
//! instruction before modification and the instruction after modification is one of a B, BL, BRK, HVC, ISB, NOP, SMC,
//! or SVC instruction". `ret` is not in that list. It is changed only if no other thread can execute it: in a library
//! whose constructors have not run, or in a process with a single thread. After `__clear_cache` has made the change
//! visible, any new thread goes through an exception return, and the first thread that calls the library goes through
//! the loader's lock (B2, "Synchronization and coherency issues between data and instruction accesses"). A `nop` is in
//! the list, so one at the start of an empty function may be changed at any time. In all other cases,
//! [`exchange`](super::exchange) replaces the page with a copy that contains the branch, by changing the page's
//! translation.

use std::arch::asm;
use std::io;

use super::Refusal;
use super::exchange::exchange;
use super::write::{map_code_near, write_code};

pub(super) const INSPECTED_BYTES: usize = 8;

const BTI_C: u32 = 0xd503_245f;
const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;

/// Offset of the instruction to replace in an empty function: its `ret`, or a leading `nop`. One instruction replaces
/// one other, so no padding is needed.
pub(super) fn empty_function(bytes: &[u8; INSPECTED_BYTES]) -> Option<usize> {
    let word =
        |offset: usize| u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]]);
    match (word(0), word(4)) {
        (RET, _) | (NOP, RET) => Some(0),
        (BTI_C, RET) => Some(4),
        _ => None,
    }
}

/// Returns true if the instruction at `offset` may be changed while other threads execute it; see the module
/// documentation.
pub(super) fn can_patch_while_running(bytes: &[u8; INSPECTED_BYTES], offset: usize) -> bool {
    bytes[offset..].starts_with(&NOP.to_le_bytes())
}

/// Returns true if a branch at `from` can reach `to`: 128 MiB in either direction.
pub(super) fn reaches(from: usize, to: usize) -> bool {
    let distance = to.wrapping_sub(from).cast_signed();
    (-(1 << 27)..1 << 27).contains(&distance) && distance % 4 == 0
}

/// Maps an island near `from`, which consists of `ldr x16, #8; br x16` and the absolute address `to`. `x16` is the
/// linker's scratch register.
pub(super) fn island(from: usize, to: usize) -> Result<usize, Refusal> {
    let mut code = Vec::new();
    code.extend_from_slice(&0x5800_0050_u32.to_le_bytes());
    code.extend_from_slice(&0xd61f_0200_u32.to_le_bytes());
    code.extend_from_slice(&to.to_le_bytes());
    map_code_near(from, &code, |address| reaches(from, address)).ok_or(Refusal::TooFar)
}

/// Replaces the instruction at `from` with a branch to `to`, which must be in reach. No other thread may be executing
/// the instruction.
pub(super) fn write_jump(from: usize, to: usize) -> io::Result<()> {
    write_code(from, &branch(from, to)?)
}

/// Replaces the `ret` at `from` with a branch to `to`, even if other threads may be executing it.
pub(super) fn exchange_jump(from: usize, to: usize) -> io::Result<()> {
    exchange(from, &branch(from, to)?)
}

/// Encodes the branch instruction.
fn branch(from: usize, to: usize) -> io::Result<[u8; 4]> {
    if !reaches(from, to) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let distance = to.wrapping_sub(from).cast_signed() >> 2;
    Ok((0x1400_0000 | (distance as u32 & 0x03ff_ffff)).to_le_bytes())
}

/// Synchronises the instruction caches, because a core may have prefetched the old instructions.
pub(super) fn flush_instructions(address: usize, size: usize) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }
    // SAFETY: the range is mapped code, and the call only synchronises caches.
    unsafe { __clear_cache(address as *mut _, (address + size) as *mut _) };
}

/// Issues a valgrind client request, which consists of the instructions of `__SPECIAL_INSTRUCTION_PREAMBLE` and a
/// marker. These instructions preserve every register.
pub(super) fn valgrind_request(request: &[usize; 6]) {
    // SAFETY: the rotations add up to 128 bits, so `x12` is unchanged. valgrind reads six words at `x4` and returns in
    // `x3`.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") 0_usize => _,
            options(nostack),
        );
    }
}
