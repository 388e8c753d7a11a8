//! x86_64: decoded by the `iced-x86` crate, followed along every path.

mod flow;
mod state;

#[cfg(test)]
pub(super) use flow::states;
pub(super) use flow::synthesise;

/// DWARF numbers (x86-64 psABI, figure 3.36).
pub(super) const RSP: u16 = 7;
pub(super) const RETURN_ADDRESS: u16 = 16;

/// `[endbr64] push rbp; mov rbp, rsp`, in either encoding of the `mov`.
pub(super) fn keeps_frame_pointer(code: &[u8]) -> bool {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let code = code.strip_prefix(ENDBR64).unwrap_or(code);
    code.starts_with(&[0x55, 0x48, 0x89, 0xe5]) || code.starts_with(&[0x55, 0x48, 0x8b, 0xec])
}
