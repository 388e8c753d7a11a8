//! What the code of an object offers to stack walkers.

#![forbid(unsafe_code)]

use crate::LoadedObject;

/// Counts of functions that some stack walker cannot pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) without_frame_pointer: u64,
    pub(crate) without_unwind_table: u64,
}

impl Shape {
    /// Looks at the live code and the live `.eh_frame`; call it at *finalized* or later.
    pub(crate) fn of(_object: &LoadedObject) -> Shape {
        Shape::default()
    }
}
