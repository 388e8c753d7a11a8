//! Hooks of `RuntimeDyldELF::loadObject`; see `mod.rs`.
//!
//! On aarch64, `x8` holds the address of a result in memory, and no Rust function can name that register. Each hook
//! begins with instructions that move it to `x7`, which `loadObject` does not use; three instructions move it back and
//! jump to the original. They have no frame, so unwinders do not see them.

use crate::channels::runtime_dyld::{Observed, observe_call, original};
use crate::forwarding::{Forwarding, Words, forwarding_hook};
use crate::hook_table::{SLOTS, for_each_slot};
use crate::hooks::guarded;

/// Hooks by slot of the LLVM in the table of sources.
pub(crate) const HOOKS: [Forwarding; SLOTS] = for_each_slot!(SLOT => slot_function::<SLOT>);

/// Function that is stored in the vtable. On x86-64 it is the hook itself.
#[cfg(target_arch = "x86_64")]
use hook as slot_function;

/// Function that is stored in the vtable. A target of indirect calls begins with `bti c`, a no-op on older processors.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn slot_function<const SLOT: usize>(
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

#[cfg(target_arch = "x86_64")]
use crate::forwarding::forward as call_original;

/// Calls `original` with the words that the hook was called with; the last one goes back to `x8`. Only a jump through
/// `x16` or `x17` may reach a function that begins with `bti c`.
#[cfg(target_arch = "aarch64")]
unsafe fn call_original(original: usize, [a, b, c, d, e, f, g, result]: Words) -> usize {
    #[unsafe(naked)]
    unsafe extern "C-unwind" fn jump_to_original(
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
        // The ninth argument is the first on the stack.
        std::arch::naked_asm!("ldr x16, [sp]", "mov x8, x7", "br x16")
    }
    // SAFETY: `original` was in the slot, and the host's own call is forwarded.
    unsafe { jump_to_original(a, b, c, d, e, f, g, result, original) }
}

/// Selects the words that `loadObject` takes: the address of the result, `this`, the object.
const fn select_words(words: &Words) -> [usize; 3] {
    if cfg!(target_arch = "aarch64") { [words[7], words[0], words[1]] } else { [words[0], words[1], words[2]] }
}

forwarding_hook!(hook<SLOT> -> usize, load_object);

/// Calls the original function, then handles the loaded object.
///
/// # Safety
/// Only the hook of this slot may call this, with its own words.
unsafe fn load_object(slot: usize, words: Words) -> usize {
    // SAFETY: the function was in the slot, and gets the words that this hook was called with.
    let returned = unsafe { call_original(original(slot), words) };
    guarded(|shim| match observe_call(slot, select_words(&words), returned) {
        Observed::Object(bytes) => shim.record_linked(slot, bytes),
        Observed::Nothing => {}
        Observed::Ignored(reason) => shim.warn_ignored(slot, &format!("an object: {reason}")),
        Observed::Refused(reason) => shim.fall_back_to_list(slot, reason),
    });
    returned
}

#[cfg(test)]
#[path = "load_object_tests.rs"]
mod tests;
