//! `clock_gettime` of the vDSO: the kernel's clock without a system call, and unaffected by libfaketime. On AArch64
//! also the address that signal handlers return to.
//!
//! It is found in a copy of the image: `unwind_register::DynamicSection` trusts loaded libraries and reads in place. A
//! kernel, emulator or debugger (gVisor, rr) may provide an odd vDSO, which must not crash the program.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
#[cfg(target_arch = "aarch64")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{self, Dynamic, LE, ProgramHeader, Symbol};
use jitlisten::{Address, AddressRange};
use object::elf::{DT_STRTAB, DT_SYMTAB, PT_DYNAMIC, PT_LOAD};

/// Two pages on x86_64; no kernel has had more than a few.
const MAX_IMAGE_BYTES: u64 = 1 << 16;
const PAGE: u64 = 4096;
/// `vdso(7)`
const CLOCK_GETTIME_NAME: &[u8] = if cfg!(target_arch = "x86_64") { b"__vdso_clock_gettime\0" } else { b"__kernel_clock_gettime\0" };

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Where a signal handler returns to.
#[cfg(target_arch = "aarch64")]
const SIGNAL_RETURN_NAME: &[u8] = b"__kernel_rt_sigreturn\0";

static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
#[cfg(target_arch = "aarch64")]
static SIGNAL_RETURN_ADDRESS: AtomicU64 = AtomicU64::new(u64::MAX);
static SEARCHED: AtomicBool = AtomicBool::new(false);

/// Looks for the function, once. Not for a signal handler.
pub(crate) fn find_functions() {
    if SEARCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: has no precondition.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let Some(image) = copy_image(base) else { return };
    if let Some(offset) = find_symbol(&image, CLOCK_GETTIME_NAME) {
        CLOCK_GETTIME.store((base + offset) as *mut c_void, Ordering::Release);
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(offset) = find_symbol(&image, SIGNAL_RETURN_NAME) {
        SIGNAL_RETURN_ADDRESS.store(base + offset, Ordering::Release);
    }
}

/// Where the kernel lets signal handlers return to; no address where it is not known.
#[cfg(target_arch = "aarch64")]
pub(crate) fn signal_return() -> u64 {
    SIGNAL_RETURN_ADDRESS.load(Ordering::Acquire)
}

/// The clock in nanoseconds; `None` where there is no such function. Safe in a signal handler.
pub(crate) fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let found = CLOCK_GETTIME.load(Ordering::Acquire);
    if found.is_null() {
        return None;
    }
    // SAFETY: the function of that name in the vDSO, which is never unmapped, has this type.
    let function = unsafe { mem::transmute::<*mut c_void, ClockGettime>(found) };
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: writable memory for a timespec.
    if unsafe { function(clock, now.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded and written it.
    let now = unsafe { now.assume_init() };
    Some(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// What its headers say that it has. Other mappings may follow.
fn copy_image(base: u64) -> Option<Vec<u8>> {
    let bytes = |size| checked_read::copy(AddressRange::new(Address(base), size)?).ok();
    let first = if base == 0 { None } else { bytes(PAGE) }?;
    let end = segments(&first)?
        .filter(|segment| segment.p_type.get(LE) == PT_LOAD)
        .map(|segment| segment.p_offset.get(LE).saturating_add(segment.p_filesz.get(LE)))
        .max()?;
    bytes(end.clamp(PAGE, MAX_IMAGE_BYTES))
}

fn segments(image: &[u8]) -> Option<impl Iterator<Item = ProgramHeader>> {
    let header = elf::file_header(image)?;
    let headers = image.get(usize::try_from(header.e_phoff.get(LE)).ok()?..)?;
    Some(elf::structures(headers).take(header.e_phnum.get(LE).into()))
}

/// Where in the image the function is that has this name, which ends with a zero. The table of symbols ends where that
/// of their names begins, as every linker writes it.
fn find_symbol(image: &[u8], name: &[u8]) -> Option<u64> {
    let load = segments(image)?.find(|segment| segment.p_type.get(LE) == PT_LOAD)?;
    let dynamic = segments(image)?.filter(|segment| segment.p_type.get(LE) == PT_DYNAMIC).last()?;
    let bias = load.p_vaddr.get(LE).wrapping_sub(load.p_offset.get(LE));
    let table = image.get(usize::try_from(dynamic.p_offset.get(LE)).ok()?..)?;
    let table = table.get(..usize::try_from(dynamic.p_filesz.get(LE)).ok()?)?;
    let entry = |tag| {
        let entry = elf::structures::<Dynamic>(table).find(|entry| entry.d_tag.get(LE) == tag)?;
        usize::try_from(entry.d_val.get(LE).wrapping_sub(bias)).ok()
    };
    let (symbols, names) = (entry(DT_SYMTAB)?, entry(DT_STRTAB)?);
    let named = |symbol: &Symbol| {
        image.get(names.saturating_add(symbol.st_name.get(LE) as usize)..).is_some_and(|text| text.starts_with(name))
    };
    let symbol = elf::structures::<Symbol>(image.get(symbols..names)?).find(named)?;
    Some(symbol.st_value.get(LE).wrapping_sub(bias)).filter(|&offset| offset != 0 && offset < image.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_kernels_clock() {
        find_functions();
        // SAFETY: has no precondition.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        let image = copy_image(base).unwrap();
        assert!(image.len() > 4000 && find_symbol(&image, CLOCK_GETTIME_NAME).is_some(), "{} bytes", image.len());
        assert_eq!(find_symbol(&image, b"__vdso_no_such_function\0"), None);
        for end in 0..image.len() / 16 {
            // Damaged ones are refused or end somewhere in the image.
            assert!(find_symbol(&image[..end * 16], CLOCK_GETTIME_NAME).is_none_or(|offset| offset < image.len() as u64));
        }
        let clock = |clock| read_clock(clock).unwrap();
        let (before, between, after) =
            (jitlisten::plumbing::monotonic(), clock(libc::CLOCK_MONOTONIC), jitlisten::plumbing::monotonic());
        assert!(before <= between && between <= after);
    }
}
