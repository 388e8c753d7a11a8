//! Hooks of `RuntimeDyldELF::loadObject`, which `mod.rs` describes.
//!
//! On aarch64, `x8` holds the address for a result returned in memory, and a Rust function cannot access that register.
//! Each hook therefore begins with instructions that move `x8` to `x7`, which `loadObject` does not use. Three more
//! instructions move it back and jump to the original function. This code has no frame, so unwinders do not see it.

use crate::channels::runtime_dyld::{LoadOutcome, observe_call, original};
use crate::forwarding::{ArgumentWords, Forwarding, forwarding_hook};
use crate::hook_table::{SLOTS, for_each_slot};
use crate::hooks::guarded;

/// Hooks by slot of the LLVM instance in the table of sources.
pub(crate) const HOOKS: [Forwarding; SLOTS] = for_each_slot!(SLOT => slot_function::<SLOT>);

/// Function whose address is stored in the vtable. On x86-64 this is the hook itself.
#[cfg(target_arch = "x86_64")]
use hook as slot_function;

/// Function whose address is stored in the vtable. It begins with `bti c`, as every target of an indirect call must;
/// older processors execute that as a no-op.
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

/// Calls `original` with the arguments of the hook; the last argument is moved back to `x8`. A function that begins
/// with `bti c` may be reached by a jump only if the jump goes through `x16` or `x17`.
#[cfg(target_arch = "aarch64")]
unsafe fn call_original(original: usize, [a, b, c, d, e, f, g, result]: ArgumentWords) -> usize {
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
        // The ninth argument, `original`, is the first one on the stack.
        std::arch::naked_asm!("ldr x16, [sp]", "mov x8, x7", "br x16")
    }
    // SAFETY: `original` was in the vtable slot, and these are the arguments that the host passed.
    unsafe { jump_to_original(a, b, c, d, e, f, g, result, original) }
}

/// Selects the arguments that `loadObject` takes: the address of the result, `this`, and the object.
const fn select_words(words: &ArgumentWords) -> [usize; 3] {
    if cfg!(target_arch = "aarch64") { [words[7], words[0], words[1]] } else { [words[0], words[1], words[2]] }
}

forwarding_hook!(hook<SLOT> -> usize, load_object);

/// Calls the original function, then handles the loaded object.
///
/// # Safety
/// Only the hook for this slot may call this function, and it must pass its own arguments.
unsafe fn load_object(slot: usize, words: ArgumentWords) -> usize {
    // SAFETY: the function was in the vtable slot, and it gets the arguments that this hook was called with.
    let returned = unsafe { call_original(original(slot), words) };
    guarded(|shim| match observe_call(slot, select_words(&words), returned) {
        LoadOutcome::Object(bytes) => shim.record_linked(slot, bytes),
        LoadOutcome::Nothing => {}
        LoadOutcome::Ignored(reason) => shim.warn_ignored(slot, &format!("an object: {reason}")),
        LoadOutcome::Refused(reason) => shim.fall_back_to_list(slot, reason),
    });
    returned
}

#[cfg(test)]
#[path = "load_object_tests.rs"]
mod tests;
