//! The hooks that stand for `RuntimeDyldELF::loadObject`: see `runtime_dyld.rs`.

use super::runtime_dyld::{Outcome, call_original, loaded};
use crate::hook_table::{LoadObject, SLOTS};
use crate::hooks::guarded;

macro_rules! hooks {
    ($($slot:literal)*) => { [$(hook::<$slot>,)*] };
}

/// By the place of the LLVM in the table of sources.
pub(crate) const HOOKS: [LoadObject; SLOTS] = hooks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

unsafe extern "C-unwind" fn hook<const SLOT: usize>(
    result: usize,
    this: usize,
    object: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    // SAFETY: the words this was called with.
    let returned = unsafe { call_original(SLOT, [result, this, object, d, e, f, g, h]) };
    guarded(|shim| match loaded(SLOT, [result, this, object], returned) {
        Outcome::Object(bytes) => shim.linked(SLOT, bytes),
        Outcome::Nothing => {}
        Outcome::Refused => shim.refused(SLOT),
    });
    returned
}
