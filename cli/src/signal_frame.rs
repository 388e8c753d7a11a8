//! Signal frames of Linux on x86_64: what the kernel puts on the stack of a thread for a handler, and `rt_sigreturn(2)`
//! takes from it. See `arch/x86/kernel/signal_64.c` and `fpu/signal.c` of the kernel.
//!
//! A call that `trace.rs` makes in a thread returns into such a frame, with which the thread restores itself.
//!
//! ```text
//!   at      address of `xchg %eax, %ebx; ret` in libc: keeps the result, which the next one would overwrite
//!   8       address of `__restore_rt` in libc
//!   16      flags, link, signal stack, registers, signal mask (struct ucontext)
//!   320     siginfo, empty
//!   448...  vector registers (XSAVE), aligned to 64
//! ```

#![forbid(unsafe_code)]

use std::ops::Range;

use libc::user_regs_struct as Registers;

use crate::memory;
use crate::process::{Process, is_libc};

/// glibc's `__restore_rt`, to which every handler returns: `mov $15, %rax; syscall`.
const RETURN_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `xchg %eax, %ebx; ret` is wherever these bytes are, inside of another instruction, too.
const KEEP_RESULT: [u8; 2] = [0x93, 0xc3];

const CONTEXT: u64 = 16;
const VECTORS: u64 = 448;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
const FLAGS: u64 = 7;
/// No mode of a signal stack: `rt_sigreturn` then leaves the thread's signal stack as it is.
const KEEP_SIGNAL_STACK: u64 = 0x7fff_ffff;

/// The code segment of 64-bit programs.
const USER_CODE: u64 = 0x33;

/// Offsets in an XSAVE area, and the marks that the kernel requires in a frame.
const SOFTWARE: usize = 464;
const FEATURES: usize = 512;
const HEADER_END: usize = 576;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// x87 and SSE are always in the area, and so is PKRU (bit 9) where the machine has it.
const X87_AND_SSE: u64 = 3;
const PKRU: u64 = 1 << 9;

/// Code in the libc of a process by which a call returns.
#[derive(Clone, Copy)]
pub(crate) struct WayBack {
    keep_result: u64,
    restorer: u64,
}

impl WayBack {
    pub(crate) fn find(process: &Process) -> Option<WayBack> {
        let libc = process.mappings.iter().filter(|mapping| mapping.is_executable && is_libc(&mapping.path));
        let code: Vec<_> = libc.filter_map(|mapping| Code::read(process, &(mapping.start..mapping.end))).collect();
        let first = |bytes| code.iter().find_map(|code| code.all(bytes).first().copied());
        Some(WayBack { keep_result: first(&KEEP_RESULT)?, restorer: first(&RETURN_FROM_SIGNAL)? })
    }

    /// Returns whether the thread is about to restore itself, after its call.
    pub(crate) fn is_taken(self, registers: &Registers, frame: &Frame) -> bool {
        registers.rip == self.restorer + RETURN_FROM_SIGNAL.len() as u64
            && registers.orig_rax == libc::SYS_rt_sigreturn as u64
            && registers.rsp == frame.at + CONTEXT
    }

    /// Result of the call: 32 bits, or all bits of its last system call if these agree.
    pub(crate) fn result(registers: &Registers, last_system_call: u64) -> u64 {
        let result = registers.rbx as u32;
        if last_system_call as u32 == result { last_system_call } else { result.into() }
    }

    /// Lets a thread restore itself next.
    pub(crate) fn take(self, registers: &mut Registers, frame: &Frame) {
        registers.rip = self.restorer;
        registers.rsp = frame.at + CONTEXT;
        registers.orig_rax = u64::MAX;
    }
}

/// A frame for the memory of a thread.
pub(crate) struct Frame {
    /// The stack pointer with which a function is called.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// The frame below `top` that restores these registers, vector registers (`NT_X86_XSTATE`) and signal mask.
    pub(crate) fn new(top: u64, way: WayBack, registers: &Registers, vectors: &[u8], mask: u64) -> Frame {
        let vectors = signal_vectors(vectors);
        let vectors_at = top.wrapping_sub(vectors.len() as u64) & !63;
        let at = (vectors_at.wrapping_sub(VECTORS) & !15).wrapping_sub(8);
        let resumed = resumed(registers);
        let r = &resumed;
        let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
        let returns = [way.keep_result, way.restorer];
        let head = [FLAGS, 0, 0, KEEP_SIGNAL_STACK, 0];
        let general = [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax];
        let rest = [r.rcx, r.rsp, r.rip, r.eflags, segments, 0, 0, 0, 0, vectors_at];
        let words = [&returns[..], &head, &general, &rest, &[0; 8], &[mask]];
        let mut bytes: Vec<u8> = words.concat().into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.resize((vectors_at - at) as usize, 0);
        bytes.extend(vectors);
        Frame { at, bytes }
    }
}

/// The vector registers as in a frame: with a mark after the last register that is in use.
fn signal_vectors(vectors: &[u8]) -> Vec<u8> {
    let word =
        |at: usize| vectors.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let features = word(FEATURES) | X87_AND_SSE | word(SOFTWARE) & PKRU;
    let size =
        (2..63).filter(|bit| features >> bit & 1 == 1).map(extent).fold(HEADER_END, usize::max).min(vectors.len());
    let mut frame = vectors[..size].to_vec();
    if size >= HEADER_END {
        let sizes = [MAGIC1, size as u32 + 4].into_iter().flat_map(u32::to_le_bytes);
        let software = sizes.chain(features.to_le_bytes()).chain((size as u64).to_le_bytes()).chain([0; 24]);
        frame.splice(SOFTWARE..FEATURES, software);
        frame.splice(FEATURES..FEATURES + 8, features.to_le_bytes());
    }
    frame.extend(MAGIC2.to_le_bytes());
    frame
}

/// End of a feature's registers in an XSAVE area.
fn extent(feature: u32) -> usize {
    let leaf = std::arch::x86_64::__cpuid_count(0xd, feature);
    leaf.eax as usize + leaf.ebx as usize
}

/// The registers with which user code goes on: a system call that was interrupted begins again, as when the kernel
/// delivers no signal. One that continues a sleep ends early, as after a signal: the kernel forgets the rest.
fn resumed(registers: &Registers) -> Registers {
    let mut resumed = *registers;
    if registers.orig_rax as i64 >= 0 {
        match registers.rax as i64 {
            // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND of <linux/errno.h>
            -514..=-512 => (resumed.rax, resumed.rip) = (registers.orig_rax, registers.rip - 2),
            // ERESTART_RESTARTBLOCK
            -516 => resumed.rax = -i64::from(libc::EINTR) as u64,
            _ => {}
        }
    }
    resumed
}

/// The addresses in this code to which handlers return.
pub(crate) fn returns_in(process: &Process, range: &Range<u64>) -> Vec<u64> {
    Code::read(process, range).map(|code| code.all(&RETURN_FROM_SIGNAL)).unwrap_or_default()
}

/// Returns whether this memory, which begins with an address from [`returns_in`], is the frame of a handler. Stacks
/// have such words of handlers that have long returned, in locals that were never written; of those frames parts are
/// left.
pub(crate) fn is_whole(frame: &[u8]) -> bool {
    let word =
        |at: usize| frame.get(at * 8..at * 8 + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let (flags, link, segments) = (word(1), word(2), word(24));
    flags.is_some_and(|flags| flags <= FLAGS)
        && link == Some(0)
        && segments.is_some_and(|all| all & 0xffff == USER_CODE)
}

/// A copy of code of a process.
struct Code {
    start: u64,
    bytes: Vec<u8>,
}

impl Code {
    fn read(process: &Process, range: &Range<u64>) -> Option<Code> {
        let size = usize::try_from(range.end - range.start).ok()?;
        Some(Code { start: range.start, bytes: memory::read(process.pid, range.start, size).ok()? })
    }

    fn all(&self, code: &[u8]) -> Vec<u64> {
        memchr::memmem::find_iter(&self.bytes, code).map(|at| self.start + at as u64).collect()
    }
}
