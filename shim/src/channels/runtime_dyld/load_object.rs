//! The hooks of `RuntimeDyldELF::loadObject`: see `mod.rs`.
//!
//! On aarch64 the address of a result in memory is in `x8`, which no Rust function can name. Each hook begins with two
//! instructions that move it to `x7`, which `loadObject` does not use; three instructions move it back and jump to the
//! original. They have no frame, so unwinders do not see them.

use crate::channels::runtime_dyld::{Observed, loaded, original};
use crate::hook_table::{LoadObject, SLOTS, for_each_slot};
use crate::hooks::guarded;

/// By the place of the LLVM in the table of sources.
pub(crate) const HOOKS: [LoadObject; SLOTS] = for_each_slot!(SLOT => entry::<SLOT>);

/// What is written into the vtable: here nothing is needed in front of the hook.
#[cfg(target_arch = "x86_64")]
use hook as entry;

/// What is written into the vtable. A place for indirect calls begins with `bti c`, which older processors pass over.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn entry<const SLOT: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    std::arch::naked_asm!(
        "hint #34",
        "mov x7, x8",
        "b {hook}",
        hook = sym hook::<SLOT>,
    )
}

/// Calls `original` with these words, as the hook was called.
#[cfg(target_arch = "x86_64")]
unsafe fn call(words: [usize; 8], original: usize) -> usize {
    let [a, b, c, d, e, f, g, h] = words;
    // SAFETY: the function that was in the slot, and the host's own call, passed on.
    unsafe { std::mem::transmute::<usize, LoadObject>(original)(a, b, c, d, e, f, g, h) }
}

/// The same: the last word goes to `x8` again. Only by `x16` or `x17` may a function be jumped to that begins with `bti
/// c`.
#[cfg(target_arch = "aarch64")]
unsafe fn call(words: [usize; 8], original: usize) -> usize {
    #[unsafe(naked)]
    unsafe extern "C-unwind" fn go_on(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        g: usize,
        result: usize,
        original: usize,
    ) -> usize {
        // The ninth word is the first on the stack.
        std::arch::naked_asm!("ldr x16, [sp]", "mov x8, x7", "br x16")
    }
    let [a, b, c, d, e, f, g, result] = words;
    // SAFETY: the function that was in the slot, and the host's own call, passed on.
    unsafe { go_on(a, b, c, d, e, f, g, result, original) }
}

/// The words of `loadObject` among those of a call: the address of the result, `this`, the object.
const fn words_of_call(words: &[usize; 8]) -> [usize; 3] {
    if cfg!(target_arch = "aarch64") { [words[7], words[0], words[1]] } else { [words[0], words[1], words[2]] }
}

unsafe extern "C-unwind" fn hook<const SLOT: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    let words = [a, b, c, d, e, f, g, h];
    // SAFETY: the function that was in the slot, with the words this was called with.
    let returned = unsafe { call(words, original(SLOT)) };
    guarded(|shim| match loaded(SLOT, words_of_call(&words), returned) {
        Observed::Object(bytes) => shim.linked(SLOT, bytes),
        Observed::Nothing => {}
        Observed::Ignored(what) => shim.ignoring(SLOT, &format!("an object: {what}")),
        Observed::Refused(what) => shim.refused(SLOT, what),
    });
    returned
}

#[cfg(test)]
#[path = "load_object_tests.rs"]
mod tests;
