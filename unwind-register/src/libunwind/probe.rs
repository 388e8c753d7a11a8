//! Probe that detects the layout of a copy, and is harmless with either layout.
//!
//! If an info has format `DYNAMIC` (0), and a lookup does not request unwind info, libunwind only *copies* two words
//! (`handler` and `flags`, `Gdyn-extract.c`). We register such an info over a few bytes that contain no code. Two
//! different numbers are stored where the two layouts have `handler`; the number that comes back identifies the layout.
//! We then register a real table with one entry, whose function must be found. A copy that answers anything else is
//! ignored.
//!
//! `_UL*_get_proc_info_by_ip` finds the info in the list and stops there. If it does not find it, it calls
//! `dl_iterate_phdr`, so the caller must not hold our lock.

use super::{Info, Layout, ProcInfoByIpFn, RegisterFn};

const PLAIN_HANDLER: u64 = 0x7072_6f62_6500_0001;
const LOAD_OFFSET_HANDLER: u64 = 0x7072_6f62_6500_0002;

/// The first fields of `unw_proc_info_t`, with space for fields that future versions may append.
#[repr(C)]
#[derive(Default)]
pub(super) struct ProcInfo {
    start_ip: u64,
    end_ip: u64,
    lsda: u64,
    handler: u64,
    rest: [u64; 28],
}

/// Returns the layout, or the status of the lookup that failed.
pub(super) fn layout(
    register: RegisterFn,
    proc_info_by_ip: ProcInfoByIpFn,
    address_space: usize,
) -> Result<Layout, i32> {
    let info = Info::harmless(PLAIN_HANDLER, LOAD_OFFSET_HANDLER);
    let mut proc_info = ProcInfo::default();
    // SAFETY: the info is harmless in both layouts (see the module documentation) and never freed.
    unsafe { register(info) };
    // SAFETY: the address is in the info's own range; `proc_info` is larger than the structure of any version.
    let status = unsafe { proc_info_by_ip(address_space, info.address() as usize, &raw mut proc_info, 0) };
    info.retire();
    let layout = match (status, proc_info.handler) {
        (0, PLAIN_HANDLER) => Layout::Plain,
        (0, LOAD_OFFSET_HANDLER) => Layout::LoadOffset,
        _ => return Err(status),
    };
    try_table(layout, register, proc_info_by_ip, address_space)
}

/// Registers a table with one function and looks it up. The function is `code..code + 8`: eight data bytes, not code.
fn try_table(
    layout: Layout,
    register: RegisterFn,
    proc_info_by_ip: ProcInfoByIpFn,
    address_space: usize,
) -> Result<Layout, i32> {
    // CIE (version 1, "zR", absptr, no instructions), FDE, terminator; then two table entries and the "code".
    let words: &'static mut [u64; 12] = Box::leak(Box::new([0; 12]));
    let address = words.as_ptr() as u64;
    let code = address + 80;
    words[0] = 20;
    words[1] = u64::from_le_bytes([1, b'z', b'R', 0, 1, 0x78, 16, 1]);
    words[3] = 28 | 28 << 32;
    words[4] = code;
    words[5] = 8;
    let (fde, start) = (24u64, 0u64);
    words[7] = start | fde << 32;
    let table = address as usize + 56;
    let info = Info::for_table(layout, &(code..code + 8), address as usize, table, 1);
    let mut proc_info = ProcInfo::default();
    // SAFETY: the layout is known by now; table, FDE and CIE are the words above, which are never freed.
    unsafe { register(info) };
    // SAFETY: the library is pinned, and the function only fills `proc_info`.
    let status = unsafe { proc_info_by_ip(address_space, code as usize, &raw mut proc_info, 0) };
    info.retire();
    let is_correct = status == 0 && (proc_info.start_ip, proc_info.end_ip) == (code, code + 8);
    if is_correct { Ok(layout) } else { Err(status) }
}
