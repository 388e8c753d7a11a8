//! Detours on x86-64, where `ret` becomes `jmp rel32`.

use std::arch::asm;
use std::io;

use super::Refusal;
use super::write::{map_code_near, write_code};

/// Number of bytes of a function that are inspected. Functions are aligned to 16 bytes.
pub(super) const INSPECTED_BYTES: usize = 16;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const RET: u8 = 0xc3;
const JMP_REL32: u8 = 0xe9;
const JMP_SIZE: usize = 5;

/// `push rbp; mov rbp, rsp; pop rbp`, which is followed by `ret` and leaves the stack and every register unchanged.
/// jaxlib contains such functions, because it is compiled with `-fno-omit-frame-pointer` and with frame pointers in
/// leaf functions.
const FRAME_SETUP: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x5d];

/// Offset of the `ret` in an empty function; `None` if the function is not empty or too little padding follows for a
/// jump.
pub(super) fn empty_function(bytes: &[u8; INSPECTED_BYTES]) -> Option<usize> {
    let start = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let ret_offset = if bytes[start..].starts_with(&FRAME_SETUP) { start + FRAME_SETUP.len() } else { start };
    let padding = bytes.get(ret_offset + 1..ret_offset + JMP_SIZE)?;
    (bytes[ret_offset] == RET && is_padding(padding, &bytes[ret_offset + 1..])).then_some(ret_offset)
}

/// Always returns true, because the instruction may be changed while other threads execute it. A single byte is stored,
/// so a thread fetches either the old or the new instruction. The bytes after it have never been executed before (Intel
/// SDM volume 3, "Handling Self- and Cross-Modifying Code").
pub(super) fn can_patch_while_running(_bytes: &[u8; INSPECTED_BYTES], _offset: usize) -> bool {
    true
}

/// Returns true if `jump_tail` is padding. Compilers and linkers pad with `nop` instructions of any length, `int3` or
/// zeros. `after_ret` holds all inspected bytes after the `ret`.
fn is_padding(jump_tail: &[u8], after_ret: &[u8]) -> bool {
    jump_tail.iter().all(|&byte| byte == 0)
        || jump_tail.iter().all(|&byte| byte == 0xcc)
        || nop_run_len(after_ret) >= jump_tail.len()
}

/// Total length of the `nop` instructions at the start of `bytes`.
fn nop_run_len(bytes: &[u8]) -> usize {
    let mut length = 0;
    while let Some(next) = bytes.get(length..).and_then(nop_len) {
        length += next;
    }
    length
}

/// Length of the `nop` at the start of `bytes`: any number of `66` and `2e` (segment) prefixes, followed by `90` or `0f
/// 1f /0`.
fn nop_len(bytes: &[u8]) -> Option<usize> {
    let prefixes = bytes.iter().take_while(|&&byte| byte == 0x66 || byte == 0x2e).count();
    match bytes.get(prefixes..)? {
        [0x90, ..] => Some(prefixes + 1),
        [0x0f, 0x1f, modrm, rest @ ..] if modrm & 0x38 == 0 => {
            let sib = usize::from(modrm & 7 == 4);
            let displacement = match modrm >> 6 {
                1 => 1,
                2 => 4,
                _ => 0,
            };
            // The last `nop` may extend past the inspected bytes. Its inspected part counts as padding, too.
            Some(prefixes + 3 + (sib + displacement).min(rest.len()))
        }
        _ => None,
    }
}

/// Returns true if a jump at `from` can reach `to`.
pub(super) fn reaches(from: usize, to: usize) -> bool {
    displacement(from, to).is_some()
}

fn displacement(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from + JMP_SIZE).cast_signed()).ok()
}

/// Maps an island near `from`, which consists of `jmp *0(%rip)` and the absolute address `to`.
pub(super) fn island(from: usize, to: usize) -> Result<usize, Refusal> {
    let mut code = vec![0xff, 0x25, 0, 0, 0, 0];
    code.extend_from_slice(&to.to_le_bytes());
    map_code_near(from, &code, |address| reaches(from, address)).ok_or(Refusal::TooFar)
}

/// Replaces the `ret` at `from` with a jump to `to`, which must be in reach.
pub(super) fn write_jump(from: usize, to: usize) -> io::Result<()> {
    let displacement = displacement(from, to).ok_or(io::ErrorKind::InvalidInput)?;
    // Bytes after a `ret` are not executed, so write them first. The single byte that makes them reachable is written
    // last.
    write_code(from + 1, &displacement.to_le_bytes())?;
    discard_fetched_instructions();
    write_code(from, &[JMP_REL32])
}

/// Makes each core that runs a thread of this process execute a serialising instruction. Otherwise, a core that has
/// prefetched the old bytes after the `ret` could execute them after the new first byte. Kernels before 4.16 and some
/// sandboxes refuse the request. A core then keeps prefetched bytes until its next interrupt at the latest.
fn discard_fetched_instructions() {
    let membarrier = |command: libc::c_int| {
        // SAFETY: this system call takes no pointer.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    if membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
    }
}

/// Same as [`write_jump`], because x86-64 needs no page exchange (see [`can_patch_while_running`]).
pub(super) fn exchange_jump(from: usize, to: usize) -> io::Result<()> {
    write_jump(from, to)
}

/// Does nothing, because x86-64 keeps instruction fetches coherent with stores.
pub(super) fn flush_instructions(_address: usize, _size: usize) {}

/// Issues a valgrind client request, which consists of the instructions of `__SPECIAL_INSTRUCTION_PREAMBLE` and a
/// marker. These instructions preserve every register.
pub(super) fn valgrind_request(request: &[usize; 6]) {
    // SAFETY: the rotations add up to 128 bits, so `rdi` is unchanged. valgrind reads six words at `rax` and returns in
    // `rdx`.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_usize => _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(start: &[u8], padding: &[u8]) -> [u8; INSPECTED_BYTES] {
        let mut bytes = [0; INSPECTED_BYTES];
        bytes[..start.len()].copy_from_slice(start);
        bytes[start.len()..].copy_from_slice(&padding[..INSPECTED_BYTES - start.len()]);
        bytes
    }

    #[test]
    fn recognises_padding_of_real_libraries() {
        // `_dl_debug_state` of glibc 2.36
        let glibc = [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];
        // `__jit_debug_register_code` of llvmlite 0.50
        let wheel = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        for padding in [glibc, wheel, [0x90; 15], [0xcc; 15], [0; 15]] {
            assert_eq!(empty_function(&padded(&[RET], &padding)), Some(0), "{padding:02x?}");
        }
        assert_eq!(empty_function(&padded(&[0xf3, 0x0f, 0x1e, 0xfa, RET], &[0x90; 15])), Some(4));
    }

    #[test]
    fn functions_with_only_a_frame_setup_are_empty() {
        let frame = [0x55, 0x48, 0x89, 0xe5, 0x5d, RET];
        assert_eq!(empty_function(&padded(&frame, &[0x90; 15])), Some(5));
        assert_eq!(empty_function(&padded(&[&ENDBR64[..], &frame].concat(), &[0xcc; 15])), Some(9));
        assert_eq!(empty_function(&padded(&[0x55, 0x48, 0x89, 0xe5, RET], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&frame, &[0x66, 0x90, 0x55, 0x48, 0x89, 0xe5, 0x5d, RET, 0x90, 0x90])), None);
    }

    #[test]
    fn refuses_functions_that_are_not_empty() {
        // Not empty functions: a debugger's breakpoint, a function with a body, a function right after the `ret`.
        assert_eq!(empty_function(&padded(&[0xcc], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&[0x55, RET], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&[RET], &[0x55; 15])), None);
        assert_eq!(empty_function(&padded(&[RET, 0x90, 0x90, 0x48, 0x89], &[0xe5; 15])), None);
    }
}
