//! Hooks of `ObjectLinkingLayer::emit`.

use std::sync::atomic::Ordering;

use super::HOOK_STATES;
use crate::forwarding::{ArgumentWords, Forwarding, ReturnRegisters, forward, forwarding_hook};
use crate::hook_table::{EMIT_VTABLES, SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::placement::Pattern;

/// Hooks by slot of the LLVM instance in the table of sources, and by vtable.
pub(crate) const HOOKS: [[Forwarding<ReturnRegisters>; EMIT_VTABLES]; SLOTS] =
    for_each_slot!(SLOT => [hook::<SLOT, 0>, hook::<SLOT, 1>]);

forwarding_hook!(hook<SLOT, VTABLE> -> ReturnRegisters, emit);

/// Copies the object before it is linked, calls the original function, and then searches for the linked code.
///
/// # Safety
/// Only the hook for this slot and vtable may call this function, and it must pass its own arguments.
unsafe fn emit(slot: usize, vtable: usize, words: ArgumentWords) -> ReturnRegisters {
    let state = &HOOK_STATES[slot][vtable];
    let call_number = guarded(|shim| {
        let [this, responsibility, object, ..] = words;
        let object = state.read(this, responsibility, object, |size| shim.objects.check_memory(size).is_ok());
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
    // SAFETY: `state.original` holds the function that was in the vtable slot. It was stored before the slot pointed to
    // this hook.
    let returned = unsafe { forward(state.original.load(Ordering::Acquire), words) };
    if let Some(number) = call_number {
        guarded(|shim| shim.end_emit(number));
    }
    returned
}
