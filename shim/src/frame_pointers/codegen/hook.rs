//! The hooks of the functions that generate code: see the folder's head.

use jitlisten::options::FramePointerPolicy;

use super::{MCJIT, TO_MEMORY, at};
use crate::hook_table::{CODE_GENERATORS, GenerateCode, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::state::shim;

/// By the place of the LLVM in the table of sources, and which of its functions it is.
pub(crate) const HOOKS: [[GenerateCode; CODE_GENERATORS]; SLOTS] = for_each_slot!(SLOT => [
    hook::<SLOT, 0>,
    hook::<SLOT, 1>,
    hook::<SLOT, 2>,
    hook::<SLOT, 3>,
    hook::<SLOT, 4>,
]);

unsafe extern "C-unwind" fn hook<const SLOT: usize, const POINT: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    // This function's address is known only to a library in this place.
    let Some(generator) = at(SLOT) else { return 0 };
    let words = [a, b, c, d, e, f, g, h];
    let policy = shim().map_or(FramePointerPolicy::Untouched, |shim| shim.session.options().frame_pointer_policy);
    let inside = if POINT == MCJIT { generator.enter(a) } else { None };
    let is_alone = POINT != MCJIT || inside.as_ref().is_some_and(|inside| inside.is_alone);
    if POINT == TO_MEMORY {
        guarded(|shim| shim.compiling_to_memory());
    }
    if policy != FramePointerPolicy::Untouched && is_alone {
        // SAFETY: this is that hook.
        guarded(|_| unsafe { generator.prepare(POINT, words, policy) });
    }
    // SAFETY: the words this was called with.
    let result = unsafe { generator.call_original(POINT, words) };
    drop(inside);
    if POINT == TO_MEMORY {
        guarded(|shim| {
            if !shim.wants_self_loaded() {
                return;
            }
            let has_memory = |size| shim.session.check_memory(size).is_ok();
            // SAFETY: the call has just returned.
            let object = unsafe { generator.compiled_to_memory(words, result, has_memory) };
            object.into_iter().for_each(|object| shim.compiled_to_memory(object));
        });
    }
    result
}
