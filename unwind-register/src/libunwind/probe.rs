//! Which layout does this copy have? Found out by a probe that is harmless, whatever the result is.
//!
//! For format `DYNAMIC` (0) libunwind's look-up without unwind info only *copies* two words of the info (`handler` and
//! `flags`, `Gdyn-extract.c`). So an info of that format is registered over a few bytes where no code is, with one
//! number where the one layout has `handler` and another number where the other one has it; the number that comes back
//! decides. Then a real table with one entry is tried and must find its function. A copy that returns anything else is
//! ignored.
//!
//! `_UL*_get_proc_info_by_ip` finds the info in the list, so it never gets as far as `dl_iterate_phdr`; if it does not
//! find it, it does: no lock of ours may be held.

use super::{Info, Layout, ProcInfoByIp, Register};

const PLAIN: u64 = 0x7072_6f62_6500_0001;
const LOAD_OFFSET: u64 = 0x7072_6f62_6500_0002;

/// `unw_proc_info_t`, as far as it is read here, with space for what future versions may append.
#[repr(C)]
#[derive(Default)]
pub(super) struct ProcInfo {
    start_ip: u64,
    end_ip: u64,
    lsda: u64,
    handler: u64,
    rest: [u64; 28],
}

/// Finds the layout, or returns the status of the look-up that failed.
pub(super) fn layout(register: Register, proc_info_by_ip: ProcInfoByIp, address_space: usize) -> Result<Layout, i32> {
    let info = Info::harmless(PLAIN, LOAD_OFFSET);
    let mut found = ProcInfo::default();
    // SAFETY: the info is harmless in both layouts (module head) and never freed.
    unsafe { register(info) };
    // SAFETY: the address is in the info's own range, `found` is larger than the structure of any version.
    let status = unsafe { proc_info_by_ip(address_space, info.address() as usize, &raw mut found, 0) };
    info.retire();
    let layout = match (status, found.handler) {
        (0, PLAIN) => Layout::Plain,
        (0, LOAD_OFFSET) => Layout::LoadOffset,
        _ => return Err(status),
    };
    try_table(layout, register, proc_info_by_ip, address_space)
}

/// A table with one function in it: `code..code + 8`, which is no code, but eight bytes of ours.
fn try_table(
    layout: Layout,
    register: Register,
    proc_info_by_ip: ProcInfoByIp,
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
    let info = Info::search(layout, &(code..code + 8), address as usize, table, 1);
    let mut found = ProcInfo::default();
    // SAFETY: the layout is known now; the table, the FDE and the CIE are the words above, never freed.
    unsafe { register(info) };
    // SAFETY: the function of the pinned library; it fills `found`.
    let status = unsafe { proc_info_by_ip(address_space, code as usize, &raw mut found, 0) };
    info.retire();
    let right = status == 0 && (found.start_ip, found.end_ip) == (code, code + 8);
    if right { Ok(layout) } else { Err(status) }
}
