//! Memory that API calls refer to: pages of code at a fixed address, followed by pages with other permissions.

use std::io;
use std::ptr;

use crate::input::Input;

/// Base address, far from all other mappings even under a sanitizer.
pub(crate) const BASE: u64 = 0x2000_0000_0000;
pub(crate) const PAGE: u64 = 0x1000;
/// Number of executable pages at the start.
pub(crate) const CODE_PAGES: u64 = 8;
/// Total number of pages. The last four are inaccessible, writable, readable, and executable.
const PAGES: u64 = CODE_PAGES + 4;
/// Address that is guaranteed to be unmapped.
pub(crate) const UNMAPPED: u64 = 0x1000_0000;

/// push %rbp; mov %rsp,%rbp; xor %eax,%eax; pop %rbp; ret
const FRAMED: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5d, 0xc3];
/// sub $24,%rsp; test %edi,%edi; je +2; xor %eax,%eax; add $24,%rsp; ret
const FRAMELESS: [u8; 15] = [0x48, 0x83, 0xec, 24, 0x85, 0xff, 0x74, 2, 0x31, 0xc0, 0x48, 0x83, 0xc4, 24, 0xc3];

/// Maps fresh anonymous memory and fills it with code. Any images there are replaced.
pub(crate) fn reset(input: &mut Input<'_>) {
    let kind = input.u8();
    let own_code = input.bytes(if kind & 3 == 3 { 128 } else { 0 });
    let code = map(0, PAGES);
    for (index, slot) in code.chunks_mut(64).take((CODE_PAGES * PAGE / 64) as usize).enumerate() {
        let function: &[u8] = match kind & 3 {
            0 => &FRAMED,
            1 => &FRAMELESS,
            2 if index % 2 == 0 => &FRAMED,
            2 => &FRAMELESS,
            _ => own_code.get(index % 2 * 64..).unwrap_or_default(),
        };
        let size = function.len().min(64);
        slot[..size].copy_from_slice(&function[..size]);
    }
    // The last page ends with a nonzero byte, so an image has no padding there.
    code[(CODE_PAGES * PAGE - 1) as usize] = b'x';
    protect(0, CODE_PAGES, libc::PROT_READ | libc::PROT_EXEC);
    protect(CODE_PAGES, 1, libc::PROT_NONE);
    protect(CODE_PAGES + 2, 1, libc::PROT_READ);
    protect(CODE_PAGES + 3, 1, libc::PROT_READ | libc::PROT_EXEC);
}

/// Overwrites some pages of code, like a JIT that frees memory and reuses it.
pub(crate) fn change(input: &mut Input<'_>) {
    let first = u64::from(input.u8()) % CODE_PAGES;
    let count = (1 + u64::from(input.u8() & 3)).min(CODE_PAGES - first);
    let (none, read, write, exec) = (libc::PROT_NONE, libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
    let protection = input.choose(&[read | exec, read, read | write, none, read | write | exec, read | exec]);
    if input.u8() & 1 == 1 {
        map(first, count).fill(0x90);
    }
    protect(first, count, protection);
}

fn map(first: u64, count: u64) -> &'static mut [u8] {
    let (start, size) = ((BASE + first * PAGE) as *mut libc::c_void, (count * PAGE) as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: these pages are reserved for this module, and no references into them exist.
    let mapped = unsafe { libc::mmap(start, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_eq!(mapped, start, "{}", io::Error::last_os_error());
    // SAFETY: the pages are mapped and writable.
    unsafe { &mut *ptr::slice_from_raw_parts_mut(mapped.cast(), size) }
}

fn protect(first: u64, count: u64, protection: i32) {
    // SAFETY: these pages are reserved for this module, and no references into them exist.
    let result = unsafe { libc::mprotect((BASE + first * PAGE) as *mut _, (count * PAGE) as usize, protection) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Chooses an address, usually in the code pages.
pub(crate) fn address(input: &mut Input<'_>) -> u64 {
    match input.u8() & 15 {
        0..=7 => BASE + u64::from(input.u16()) % (CODE_PAGES * PAGE) / 16 * 16,
        8..=11 => BASE + u64::from(input.u16()) % (PAGES * PAGE),
        12 => UNMAPPED + u64::from(input.u16()) * 16,
        13 => u64::MAX - u64::from(input.u16()),
        14 => u64::from(input.u16()),
        _ => input.u64(),
    }
}

/// Chooses a size for a piece of code.
pub(crate) fn size(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        small @ 0..=200 => u64::from(small),
        201..=240 => u64::from(input.u16()),
        241..=248 => u64::from(input.u32()),
        249..=252 => u64::from(u32::MAX) + u64::from(input.u8() & 1),
        _ => input.u64(),
    }
}
