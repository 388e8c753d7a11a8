//! The hook of `dlsym`: looks at new libraries, then jumps to `dlsym` as if it had been called directly (see
//! [`crate::process::lookup`]).

use std::arch::naked_asm;

use crate::hooks::look;
use crate::process::lookup::DLSYM;

/// See the module's head.
///
/// The arguments are in `rdi` and `rsi`; the third word aligns the stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn before_dlsym() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rax",
        "call {look}",
        "pop rax",
        "pop rsi",
        "pop rdi",
        "jmp [rip + {dlsym}]",
        look = sym look,
        dlsym = sym DLSYM,
    )
}

/// See the module's head.
///
/// The arguments are in `x0` and `x1`, the return address in `x30`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn before_dlsym() {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {look}",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {dlsym}",
        "ldr x16, [x16, :lo12:{dlsym}]",
        "br x16",
        look = sym look,
        dlsym = sym DLSYM,
    )
}
