//! AArch64: `ret` becomes `b imm26`. Written from the architecture manual (C6.2 "B", "RET", "HINT").
//!
//! Is that allowed while other cores fetch it? Arm Architecture Reference Manual (DDI 0487), B2, "Concurrent
//! modification and execution of instructions": a core that executes an instruction while it is modified, without
//! explicit synchronization, may do anything that any sequence of instructions can do, "except where each of the
//! instruction before modification and the instruction after modification is one of a B, BL, BRK, HVC, ISB, NOP, SMC,
//! or SVC instruction". `ret` is not in that list. It is changed only where no other thread can execute it: in a
//! library whose constructors have not run, or in a process with one thread. A later thread, or the library's first
//! caller, passes an exception return or the loader's lock, after `__clear_cache` has made the change visible (B2,
//! "Synchronization and coherency issues between data and instruction accesses"). A `nop` at the beginning of an empty
//! function is in the list, and may be changed at any time. Otherwise the page is replaced with a copy that has the
//! branch, by a change of its translation: see [`exchange`](super::exchange).

use std::arch::asm;
use std::io;

use super::Refusal;
use super::exchange::exchange;
use super::write::{near, write_code};

/// Bytes that are looked at.
pub(super) const SIZE: usize = 8;

const BTI_C: u32 = 0xd503_245f;
const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;

/// The offset of the `ret` of an empty function, if `bytes` are one. One instruction replaces one: no padding is
/// needed.
pub(super) fn empty_function(bytes: &[u8; SIZE]) -> Option<usize> {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    match (word(0), word(4)) {
        (RET, _) | (NOP, RET) => Some(0),
        (BTI_C, RET) => Some(4),
        _ => None,
    }
}

/// Whether the instruction at `offset` of `bytes` may be changed while others execute it; see the module's head.
pub(super) fn may_change_under_way(bytes: &[u8; SIZE], offset: usize) -> bool {
    bytes[offset..].starts_with(&NOP.to_le_bytes())
}

/// Whether a branch at `from` can reach `to`: 128 MiB either way.
pub(super) fn reaches(from: usize, to: usize) -> bool {
    let distance = to.wrapping_sub(from).cast_signed();
    (-(1 << 27)..1 << 27).contains(&distance) && distance % 4 == 0
}

/// A branch to anywhere, placed near `from`: `ldr x16, #8; br x16` and the address. `x16` is the linker's scratch
/// register.
pub(super) fn island(from: usize, to: usize) -> Result<usize, Refusal> {
    let mut code = Vec::new();
    code.extend_from_slice(&0x5800_0050_u32.to_le_bytes());
    code.extend_from_slice(&0xd61f_0200_u32.to_le_bytes());
    code.extend_from_slice(&to.to_le_bytes());
    near(from, &code, |at| reaches(from, at)).ok_or(Refusal::TooFar)
}

/// Replaces the `ret` at `from` by a branch to `to`, which must be in reach, and which no other thread executes
/// meanwhile.
pub(super) fn write_jump(from: usize, to: usize) -> io::Result<()> {
    write_code(from, &branch(from, to)?)
}

/// The same while other threads may be executing it.
pub(super) fn exchange_jump(from: usize, to: usize) -> io::Result<()> {
    exchange(from, &branch(from, to)?)
}

fn branch(from: usize, to: usize) -> io::Result<[u8; 4]> {
    if !reaches(from, to) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let distance = to.wrapping_sub(from).cast_signed() >> 2;
    Ok((0x1400_0000 | (distance as u32 & 0x03ff_ffff)).to_le_bytes())
}

/// A core may have read the old instructions ahead.
pub(super) fn flush_instructions(address: usize, size: usize) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }
    // SAFETY: the range is mapped code; the call only synchronises caches.
    unsafe { __clear_cache(address as *mut _, (address + size) as *mut _) };
}

/// A client request, if valgrind runs this program: the instructions of `__SPECIAL_INSTRUCTION_PREAMBLE`, which leave
/// every register as it was, and a mark.
pub(super) fn valgrind_request(request: &[usize; 6]) {
    // SAFETY: the rotations add up to 128 bits; valgrind reads six words at `x4` and returns in `x3`.
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
