//! The hooks of `ObjectLinkingLayer::emit`.

use std::sync::atomic::Ordering;

use super::HOOK_STATES;
use crate::forwarding::{Forwarding, Returned, Words, forward, forwarding_hook};
use crate::hook_table::{EMIT_VTABLES, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::placement::Pattern;

/// Hooks by slot of the LLVM in the table of sources, and by vtable.
pub(crate) const HOOKS: [[Forwarding<Returned>; EMIT_VTABLES]; SLOTS] =
    for_each_slot!(SLOT => [hook::<SLOT, 0>, hook::<SLOT, 1>]);

forwarding_hook!(hook<SLOT, VTABLE> -> Returned, emit);

/// Copies the object that is to be linked, calls the original function, and searches for the linked object.
///
/// # Safety
/// Only the hook of this slot and vtable may call this, with its own words.
unsafe fn emit(slot: usize, vtable: usize, words: Words) -> Returned {
    let state = &HOOK_STATES[slot][vtable];
    let call_number = guarded(|shim| {
        let [this, responsibility, object, ..] = words;
        let object = state.read(this, responsibility, object, |size| shim.session.check_memory(size).is_ok());
        let pattern = object.map(|bytes| bytes.map(Pattern::parse));
        let problem = match &pattern {
            Ok(Some(None)) => Some("unknown relocations"),
            Ok(_) => None,
            Err(problem) => Some(*problem),
        };
        if let Some(problem) = problem.filter(|_| state.should_warn()) {
            shim.warn_ignored(
                slot,
                &format!("an object of JITLink: {problem}; its functions stay unnamed (reported once)"),
            );
        }
        Some(shim.begin_emit(slot, pattern.ok().flatten()))
    });
    // SAFETY: the address was in the vtable slot; it was stored before the slot led to this hook.
    let returned = unsafe { forward(state.original.load(Ordering::Acquire), words) };
    if let Some(number) = call_number {
        guarded(|shim| shim.end_emit(number));
    }
    returned
}
