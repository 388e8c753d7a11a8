//! Hooks of the functions that generate code; see the parent module.

use jitlisten::options::FramePointerPolicy;

use super::{MCJIT, TO_MEMORY, generator_in_slot};
use crate::hook_table::{CODE_GENERATORS, GenerateCode, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::state::shim;

/// Hooks by slot of the LLVM and by hook point.
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
    // Only the library in this slot knows this function's address.
    let Some(generator) = generator_in_slot(SLOT) else { return 0 };
    let arguments = [a, b, c, d, e, f, g, h];
    let policy = shim().map_or(FramePointerPolicy::Untouched, |shim| shim.session.options().frame_pointer_policy);
    let engine_use = if POINT == MCJIT { generator.enter(a) } else { None };
    let is_only_user = POINT != MCJIT || engine_use.as_ref().is_some_and(|engine_use| engine_use.is_only_user);
    if POINT == TO_MEMORY {
        guarded(|shim| shim.search_before_compiling());
    }
    if policy != FramePointerPolicy::Untouched && is_only_user {
        // SAFETY: this is the hook of the point, with its own arguments.
        guarded(|_| unsafe { generator.patch_module_of_call(POINT, arguments, policy) });
    }
    // SAFETY: this hook passes on its own arguments.
    let result = unsafe { generator.call_original(POINT, arguments) };
    drop(engine_use);
    if POINT == TO_MEMORY {
        guarded(|shim| {
            if !shim.wants_self_loaded() {
                return;
            }
            let has_memory = |size| shim.session.check_memory(size).is_ok();
            // SAFETY: the original has just returned, so its result is still unused.
            let object = unsafe { generator.copy_emitted_object(arguments, result, has_memory) };
            object.into_iter().for_each(|object| shim.add_self_loaded(object));
        });
    }
    result
}
