//! x86_64: decoded by the `iced-x86` crate, followed along every path.

mod flow;
mod state;

#[cfg(test)]
pub(super) use flow::states;
pub(super) use flow::synthesise;

/// DWARF numbers (x86-64 psABI, figure 3.36).
pub(super) const RSP: u16 = 7;
pub(super) const RETURN_ADDRESS: u16 = 16;

/// See [`keeps_frame_pointer`](super::keeps_frame_pointer).
pub(super) fn keeps_frame_pointer(code: &[u8]) -> bool {
    unwind_register::x86_64::frame_pointer_set_up(code).is_some()
}
