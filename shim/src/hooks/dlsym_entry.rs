//! Assembly stub that hooks `dlsym`. It checks for new libraries and then jumps to `dlsym`, which still sees its real
//! caller (see [`crate::process::lookup`]).

use std::arch::naked_asm;

use crate::hooks::scan_before_dlsym;
use crate::process::lookup::DLSYM;

/// Hook for imports of `dlsym` on x86-64. Saves the arguments in `rdi` and `rsi`; the third `push` aligns the stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn before_dlsym() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rax",
        "call {scan_before_dlsym}",
        "pop rax",
        "pop rsi",
        "pop rdi",
        "jmp [rip + {dlsym}]",
        scan_before_dlsym = sym scan_before_dlsym,
        dlsym = sym DLSYM,
    )
}

/// Hook for imports of `dlsym` on AArch64. Saves the arguments in `x0` and `x1`, and the return address in `x30`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn before_dlsym() {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {scan_before_dlsym}",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {dlsym}",
        "ldr x16, [x16, :lo12:{dlsym}]",
        "br x16",
        scan_before_dlsym = sym scan_before_dlsym,
        dlsym = sym DLSYM,
    )
}
