//! Hooks of the functions that generate code; the parent module describes them.

use jitlisten::options::FramePointerPolicy;

use super::{MCJIT, TO_MEMORY, generator_in_slot};
use crate::forwarding::{ArgumentWords, Forwarding, forward, forwarding_hook};
use crate::hook_table::{CODE_GENERATORS, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::state::shim;

/// Hooks by slot of the LLVM instance and by hook point.
pub(crate) const HOOKS: [[Forwarding; CODE_GENERATORS]; SLOTS] = for_each_slot!(SLOT => [
    hook::<SLOT, 0>,
    hook::<SLOT, 1>,
    hook::<SLOT, 2>,
    hook::<SLOT, 3>,
    hook::<SLOT, 4>,
]);

forwarding_hook!(hook<SLOT, POINT> -> usize, generate_code);

/// Adds frame pointers to a module, calls the original function, and copies the object if it was compiled to memory.
///
/// # Safety
/// Only the hook for this slot and hook point may call this function, and it must pass its own arguments.
unsafe fn generate_code(slot: usize, point: usize, arguments: ArgumentWords) -> usize {
    // This hook's address is stored only for the library in this slot, so the generator exists.
    let Some(generator) = generator_in_slot(slot) else { return 0 };
    let policy = shim().map_or(FramePointerPolicy::Untouched, |shim| shim.objects.options().frame_pointer_policy);
    let engine_use = if point == MCJIT { generator.enter(arguments[0]) } else { None };
    let is_only_user = point != MCJIT || engine_use.as_ref().is_some_and(|engine_use| engine_use.is_only_user);
    if point == TO_MEMORY {
        guarded(|shim| shim.search_before_compiling());
    }
    if policy != FramePointerPolicy::Untouched && is_only_user {
        // SAFETY: the hook for this hook point passes its own arguments.
        guarded(|_| unsafe { generator.patch_module_of_call(point, arguments, policy) });
    }
    // SAFETY: the original function of this hook was stored before any call could reach the hook. It gets the host's
    // own arguments.
    let result = unsafe { forward(generator.originals[point], arguments) };
    drop(engine_use);
    if point == TO_MEMORY {
        guarded(|shim| {
            if !shim.wants_self_loaded() {
                return;
            }
            let has_memory = |size| shim.objects.check_memory(size).is_ok();
            // SAFETY: the original function has just returned, so nothing has used its result yet.
            let object = unsafe { generator.copy_emitted_object(arguments, result, has_memory) };
            object.into_iter().for_each(|object| shim.add_self_loaded(object));
        });
    }
    result
}
