//! x86-64: `ret` becomes `jmp rel32`.

use std::arch::asm;
use std::io;

use super::Refusal;
use super::write::{near, write_code};

/// Bytes that are looked at: functions are aligned to 16.
pub(super) const SIZE: usize = 16;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const RET: u8 = 0xc3;
const JMP_REL32: u8 = 0xe9;
const JMP_SIZE: usize = 5;

/// `push rbp; mov rbp, rsp; pop rbp`: the stack and every register are as they were, and `ret` follows (jaxlib:
/// compiled with `-fno-omit-frame-pointer`, and frame pointers in leaves).
const FRAME: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x5d];

/// The offset of the `ret` of an empty function, if `bytes` are one, padded far enough for a jump.
pub(super) fn empty_function(bytes: &[u8; SIZE]) -> Option<usize> {
    let start = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let at = if bytes[start..].starts_with(&FRAME) { start + FRAME.len() } else { start };
    let padding = bytes.get(at + 1..at + JMP_SIZE)?;
    (bytes[at] == RET && is_padding(padding, &bytes[at + 1..])).then_some(at)
}

/// Whether the instruction may be changed while others execute it. One byte is stored, so a thread fetches the old or
/// the new instruction; the bytes behind it were never executed before (Intel SDM volume 3, "Handling Self- and
/// Cross-Modifying Code").
pub(super) fn may_change_under_way(_bytes: &[u8; SIZE], _offset: usize) -> bool {
    true
}

/// Compilers and linkers pad with `nop`s of every length, `int3` or zeros. `all` is what follows the `ret`.
fn is_padding(jump_tail: &[u8], all: &[u8]) -> bool {
    jump_tail.iter().all(|&byte| byte == 0)
        || jump_tail.iter().all(|&byte| byte == 0xcc)
        || nops(all) >= jump_tail.len()
}

/// The length of the `nop` instructions at the start of `bytes`.
fn nops(bytes: &[u8]) -> usize {
    let mut length = 0;
    while let Some(next) = bytes.get(length..).and_then(nop) {
        length += next;
    }
    length
}

/// The length of one `nop`: `90`, or `0f 1f /0` with any number of `66` and a `2e` (segment) prefix.
fn nop(bytes: &[u8]) -> Option<usize> {
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
            // The last `nop` may reach beyond the bytes at hand; what is here is padding all the same.
            Some(prefixes + 3 + (sib + displacement).min(rest.len()))
        }
        _ => None,
    }
}

/// Whether a jump at `from` can reach `to`.
pub(super) fn reaches(from: usize, to: usize) -> bool {
    displacement(from, to).is_some()
}

fn displacement(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from + JMP_SIZE).cast_signed()).ok()
}

/// A jump to anywhere, placed near `from`: `jmp *0(%rip)` and the address.
pub(super) fn island(from: usize, to: usize) -> Result<usize, Refusal> {
    let mut code = vec![0xff, 0x25, 0, 0, 0, 0];
    code.extend_from_slice(&to.to_le_bytes());
    near(from, &code, |at| reaches(from, at)).ok_or(Refusal::TooFar)
}

/// Replaces the `ret` at `from` by a jump to `to`, which must be in reach.
pub(super) fn write_jump(from: usize, to: usize) -> io::Result<()> {
    let displacement = displacement(from, to).ok_or(io::ErrorKind::InvalidInput)?;
    // Bytes behind a `ret` are not executed; the single byte that makes them reachable comes last.
    write_code(from + 1, &displacement.to_le_bytes())?;
    discard_fetched_instructions();
    write_code(from, &[JMP_REL32])
}

/// A core may have fetched the old bytes behind the `ret` ahead of time, and would run them behind the new first byte:
/// now each core that runs a thread of this process executes a serialising instruction. A kernel before 4.16 and some
/// sandboxes refuse; there a core keeps fetched bytes until its next interrupt at the latest.
fn discard_fetched_instructions() {
    let command = |command: libc::c_int| {
        // SAFETY: no memory of ours is passed.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    if command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) {
        command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
    }
}

/// Not needed here: see [`may_change_under_way`].
pub(super) fn exchange_jump(from: usize, to: usize) -> io::Result<()> {
    write_jump(from, to)
}

/// The caches of a core see what is written.
pub(super) fn flush_instructions(_address: usize, _size: usize) {}

/// A client request, if valgrind runs this program: the instructions of `__SPECIAL_INSTRUCTION_PREAMBLE`, which leave
/// every register as it was, and a mark.
pub(super) fn valgrind_request(request: &[usize; 6]) {
    // SAFETY: the rotations add up to 128 bits; valgrind reads six words at `rax` and returns in `rdx`.
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

    fn padded(start: &[u8], padding: &[u8]) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..start.len()].copy_from_slice(start);
        bytes[start.len()..].copy_from_slice(&padding[..SIZE - start.len()]);
        bytes
    }

    #[test]
    fn real_paddings_are_known() {
        // glibc 2.36's _dl_debug_state
        let glibc = [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];
        // __jit_debug_register_code of llvmlite 0.50
        let wheel = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        for padding in [glibc, wheel, [0x90; 15], [0xcc; 15], [0; 15]] {
            assert_eq!(empty_function(&padded(&[RET], &padding)), Some(0), "{padding:02x?}");
        }
        assert_eq!(empty_function(&padded(&[0xf3, 0x0f, 0x1e, 0xfa, RET], &[0x90; 15])), Some(4));
    }

    #[test]
    fn a_frame_that_is_taken_down_again_is_nothing() {
        let frame = [0x55, 0x48, 0x89, 0xe5, 0x5d, RET];
        assert_eq!(empty_function(&padded(&frame, &[0x90; 15])), Some(5));
        assert_eq!(empty_function(&padded(&[&ENDBR64[..], &frame].concat(), &[0xcc; 15])), Some(9));
        assert_eq!(empty_function(&padded(&[0x55, 0x48, 0x89, 0xe5, RET], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&frame, &[0x66, 0x90, 0x55, 0x48, 0x89, 0xe5, 0x5d, RET, 0x90, 0x90])), None);
    }

    #[test]
    fn anything_else_is_refused() {
        // a debugger's breakpoint, a function that does something, a neighbour right behind the `ret`
        assert_eq!(empty_function(&padded(&[0xcc], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&[0x55, RET], &[0x90; 15])), None);
        assert_eq!(empty_function(&padded(&[RET], &[0x55; 15])), None);
        assert_eq!(empty_function(&padded(&[RET, 0x90, 0x90, 0x48, 0x89], &[0xe5; 15])), None);
    }
}
