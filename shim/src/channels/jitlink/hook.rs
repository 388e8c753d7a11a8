//! The hooks of `ObjectLinkingLayer::emit`.

use super::{HOOK_STATES, call_original};
use crate::hook_table::{EMIT_VTABLES, Emit, Returned, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::placement::Pattern;

/// Hooks by slot of the LLVM in the table of sources, and by vtable.
pub(crate) const HOOKS: [[Emit; EMIT_VTABLES]; SLOTS] = for_each_slot!(SLOT => [hook::<SLOT, 0>, hook::<SLOT, 1>]);

unsafe extern "C-unwind" fn hook<const SLOT: usize, const VTABLE: usize>(
    this: usize,
    responsibility: usize,
    object: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> Returned {
    let state = &HOOK_STATES[SLOT][VTABLE];
    let call_number = guarded(|shim| {
        let object = state.read(this, responsibility, object, |size| shim.session.check_memory(size).is_ok());
        let pattern = object.map(|bytes| bytes.map(Pattern::parse));
        let problem = match &pattern {
            Ok(Some(None)) => Some("unknown relocations"),
            Ok(_) => None,
            Err(problem) => Some(*problem),
        };
        if let Some(problem) = problem.filter(|_| state.should_warn()) {
            shim.warn_ignored(
                SLOT,
                &format!("an object of JITLink: {problem}; its functions stay unnamed (reported once)"),
            );
        }
        Some(shim.begin_emit(SLOT, pattern.ok().flatten()))
    });
    // SAFETY: the call passes on the words that this hook was called with.
    let returned = unsafe { call_original(SLOT, VTABLE, [this, responsibility, object, d, e, f, g, h]) };
    if let Some(number) = call_number {
        guarded(|shim| shim.end_emit(number));
    }
    returned
}
