//! Signal frames of Linux on x86_64: the structure that the kernel pushes onto a thread's stack for a handler, and that
//! `rt_sigreturn(2)` pops. See the kernel's `arch/x86/kernel/signal_64.c` and `fpu/signal.c`.
//!
//! Functions that `trace.rs` calls in a thread return into such a frame, so the thread restores its own state.
//!
//! ```text
//!   0       address of `xchg %eax, %ebx; ret` in libc: saves the result, which `__restore_rt` would overwrite
//!   8       address of `__restore_rt` in libc
//!   16      flags, link, signal stack, registers, signal mask (struct ucontext)
//!   320     siginfo, empty
//!   448...  vector registers (XSAVE), aligned to 64
//! ```

use std::ops::Range;

use libc::user_regs_struct as Registers;

use crate::process::memory;
use crate::process::{Process, is_libc};

/// glibc's `__restore_rt`, the return address of every handler: `mov $15, %rax; syscall`.
const RESTORE_RT_CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `xchg %eax, %ebx; ret`. Its bytes may also be found inside another instruction.
const KEEP_RESULT_CODE: [u8; 2] = [0x93, 0xc3];

const CONTEXT_OFFSET: u64 = 16;
const VECTORS_OFFSET: u64 = 448;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const UC_FLAGS: u64 = 7;
/// Invalid `ss_flags` value that makes `rt_sigreturn` leave the thread's signal stack alone.
const INVALID_SIGNAL_STACK_MODE: u64 = 0x7fff_ffff;

/// Code segment selector of 64-bit programs.
const USER_CODE_SEGMENT: u64 = 0x33;

/// Offsets in an XSAVE area, and the magic numbers that the kernel requires in a frame.
const SOFTWARE_OFFSET: usize = 464;
const FEATURES_OFFSET: usize = 512;
const HEADER_END: usize = 576;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// Features that every area contains: x87 and SSE. PKRU (bit 9) is added if the machine has it.
const X87_AND_SSE: u64 = 3;
const PKRU: u64 = 1 << 9;

/// Addresses in the process's libc through which an injected call returns.
#[derive(Clone, Copy)]
pub(crate) struct ReturnPath {
    keep_result: u64,
    restorer: u64,
}

impl ReturnPath {
    pub(crate) fn find(process: &Process) -> Option<ReturnPath> {
        let libc = process.mappings.iter().filter(|mapping| mapping.is_executable && is_libc(&mapping.path));
        let code: Vec<_> = libc.filter_map(|mapping| Code::read(process, &(mapping.start..mapping.end))).collect();
        let find_first = |bytes| code.iter().find_map(|code| code.find_all(bytes).first().copied());
        Some(ReturnPath { keep_result: find_first(&KEEP_RESULT_CODE)?, restorer: find_first(&RESTORE_RT_CODE)? })
    }

    /// Returns true if the call has returned and `rt_sigreturn` is about to restore the thread.
    pub(crate) fn has_returned(self, registers: &Registers, frame: &Frame) -> bool {
        registers.rip == self.restorer + RESTORE_RT_CODE.len() as u64
            && registers.orig_rax == libc::SYS_rt_sigreturn as u64
            && registers.rsp == frame.stack_pointer + CONTEXT_OFFSET
    }

    /// Result of the call. Only its low 32 bits are saved; if they equal those of the last system call's result,
    /// returns all bits of the latter.
    pub(crate) fn result(registers: &Registers, last_system_call: u64) -> u64 {
        let result = registers.rbx as u32;
        if last_system_call as u32 == result { last_system_call } else { result.into() }
    }

    /// Redirects the thread to `rt_sigreturn`, so that it restores its own state next.
    pub(crate) fn redirect(self, registers: &mut Registers, frame: &Frame) {
        registers.rip = self.restorer;
        registers.rsp = frame.stack_pointer + CONTEXT_OFFSET;
        registers.orig_rax = u64::MAX;
    }
}

/// A signal frame, and the address at which it must be written.
pub(crate) struct Frame {
    /// Stack pointer on entry to the called function.
    pub(crate) stack_pointer: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// Builds a frame below `top` that restores these registers, vector registers (`NT_X86_XSTATE`) and signal mask.
    pub(crate) fn new(top: u64, return_path: ReturnPath, registers: &Registers, vectors: &[u8], mask: u64) -> Frame {
        let vectors = signal_vectors(vectors);
        let vectors_at = top.wrapping_sub(vectors.len() as u64) & !63;
        let stack_pointer = (vectors_at.wrapping_sub(VECTORS_OFFSET) & !15).wrapping_sub(8);
        let resumed_registers = restart_interrupted_syscall(registers);
        let regs = &resumed_registers;
        let segments = regs.cs & 0xffff | (regs.ss & 0xffff) << 48;
        let return_addresses = [return_path.keep_result, return_path.restorer];
        let head = [UC_FLAGS, 0, 0, INVALID_SIGNAL_STACK_MODE, 0];
        let general_registers = [
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.rdi, regs.rsi, regs.rbp,
            regs.rbx, regs.rdx, regs.rax,
        ];
        let other_registers = [regs.rcx, regs.rsp, regs.rip, regs.eflags, segments, 0, 0, 0, 0, vectors_at];
        let words = [&return_addresses[..], &head, &general_registers, &other_registers, &[0; 8], &[mask]];
        let mut bytes: Vec<u8> = words.concat().into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.resize((vectors_at - stack_pointer) as usize, 0);
        bytes.extend(vectors);
        Frame { stack_pointer, bytes }
    }
}

/// Converts vector registers to the format of a signal frame, with a magic number after the last component in use.
fn signal_vectors(vectors: &[u8]) -> Vec<u8> {
    let word = |offset: usize| {
        vectors.get(offset..offset + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    };
    let features = word(FEATURES_OFFSET) | X87_AND_SSE | word(SOFTWARE_OFFSET) & PKRU;
    let size =
        (2..63).filter(|bit| features >> bit & 1 == 1).map(feature_end).fold(HEADER_END, usize::max).min(vectors.len());
    let mut frame = vectors[..size].to_vec();
    if size >= HEADER_END {
        let sizes = [MAGIC1, size as u32 + 4].into_iter().flat_map(u32::to_le_bytes);
        let software = sizes.chain(features.to_le_bytes()).chain((size as u64).to_le_bytes()).chain([0; 24]);
        frame.splice(SOFTWARE_OFFSET..FEATURES_OFFSET, software);
        frame.splice(FEATURES_OFFSET..FEATURES_OFFSET + 8, features.to_le_bytes());
    }
    frame.extend(MAGIC2.to_le_bytes());
    frame
}

/// End offset of a feature's state in an XSAVE area.
fn feature_end(feature: u32) -> usize {
    let leaf = std::arch::x86_64::__cpuid_count(0xd, feature);
    leaf.eax as usize + leaf.ebx as usize
}

/// Registers for resuming user code. An interrupted system call restarts, as if the kernel had delivered no
/// signal. A sleep returns early instead, as after a signal, because the kernel forgets the remaining time.
fn restart_interrupted_syscall(registers: &Registers) -> Registers {
    let mut resumed_registers = *registers;
    if registers.orig_rax as i64 >= 0 {
        match registers.rax as i64 {
            // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND (kernel-internal error numbers)
            -514..=-512 => (resumed_registers.rax, resumed_registers.rip) = (registers.orig_rax, registers.rip - 2),
            // ERESTART_RESTARTBLOCK
            -516 => resumed_registers.rax = -i64::from(libc::EINTR) as u64,
            _ => {}
        }
    }
    resumed_registers
}

/// Finds the return addresses of signal handlers in this code.
pub(crate) fn find_restorers(process: &Process, range: &Range<u64>) -> Vec<u64> {
    Code::read(process, range).map(|code| code.find_all(&RESTORE_RT_CODE)).unwrap_or_default()
}

/// Returns true if this memory, which begins with an address from [`find_restorers`], is the frame of an active
/// handler. Uninitialized locals may also contain such addresses, left by handlers that returned long ago. The frames
/// of those handlers are partly overwritten.
pub(crate) fn is_signal_frame(frame: &[u8]) -> bool {
    let word = |offset: usize| {
        frame.get(offset * 8..offset * 8 + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
    };
    let (flags, link, segments) = (word(1), word(2), word(24));
    flags.is_some_and(|flags| flags <= UC_FLAGS)
        && link == Some(0)
        && segments.is_some_and(|selectors| selectors & 0xffff == USER_CODE_SEGMENT)
}

/// A copy of part of a process's code.
struct Code {
    start: u64,
    bytes: Vec<u8>,
}

impl Code {
    fn read(process: &Process, range: &Range<u64>) -> Option<Code> {
        let size = usize::try_from(range.end - range.start).ok()?;
        Some(Code { start: range.start, bytes: memory::read(process.pid, range.start, size).ok()? })
    }

    fn find_all(&self, code: &[u8]) -> Vec<u64> {
        memchr::memmem::find_iter(&self.bytes, code).map(|offset| self.start + offset as u64).collect()
    }
}
