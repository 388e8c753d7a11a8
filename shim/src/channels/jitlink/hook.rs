//! The hooks of `ObjectLinkingLayer::emit`.

use super::{TABLE, call_original};
use crate::hook_table::{EMIT_VTABLES, Emit, Returned, SLOTS};
use crate::hooks::guarded;
use crate::placement::Pattern;

macro_rules! hooks {
    ($($slot:literal)*) => { [$([hook::<$slot, 0>, hook::<$slot, 1>],)*] };
}

/// By the place of the LLVM in the table of sources, and which of its vtables it is.
pub(crate) const HOOKS: [[Emit; EMIT_VTABLES]; SLOTS] = hooks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

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
    let hooked = &TABLE[SLOT][VTABLE];
    let emitted = guarded(|shim| {
        let bytes = hooked.object(this, responsibility, object, |size| shim.session.check_memory(size).is_ok());
        let pattern = bytes.map(Pattern::of);
        if matches!(pattern, Some(None)) {
            hooked.left_alone("it is for another machine, or has relocations that are not known");
        }
        Some(shim.emitted(SLOT, pattern))
    });
    // SAFETY: the words this was called with.
    let returned = unsafe { call_original(SLOT, VTABLE, [this, responsibility, object, d, e, f, g, h]) };
    if let Some(number) = emitted {
        guarded(|shim| shim.emit_ends(number));
    }
    returned
}
