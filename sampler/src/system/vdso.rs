//! The vDSO's `clock_gettime`, which reads the kernel's clock without a system call and is unaffected by libfaketime.
//! On AArch64, this module also finds the address that signal handlers return to.
//!
//! The functions are found in a copy of the vDSO. `unwind_register::DynamicSection` is unsuitable, because it trusts
//! loaded libraries and reads them in place. A kernel, emulator or debugger (gVisor, rr) may provide an unusual vDSO,
//! which must not crash the program.

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

/// Maximum size of the copied image. The vDSO is two pages on x86_64, and a few pages at most on any kernel.
const MAX_IMAGE_BYTES: u64 = 1 << 16;
const PAGE: u64 = 4096;
/// Symbol name of the clock function (`vdso(7)`).
const CLOCK_GETTIME_NAME: &[u8] =
    if cfg!(target_arch = "x86_64") { b"__vdso_clock_gettime\0" } else { b"__kernel_clock_gettime\0" };

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Symbol name of the function that a signal handler returns to.
#[cfg(target_arch = "aarch64")]
const SIGNAL_RETURN_NAME: &[u8] = b"__kernel_rt_sigreturn\0";

struct Functions {
    is_searched: AtomicBool,
    /// Address of the clock function; null if unknown.
    clock_gettime: AtomicPtr<c_void>,
    /// Address that signal handlers return to; `u64::MAX` if unknown.
    #[cfg(target_arch = "aarch64")]
    signal_return: AtomicU64,
}

/// Facts about the process, which no recording changes.
static FUNCTIONS: Functions = Functions {
    is_searched: AtomicBool::new(false),
    clock_gettime: AtomicPtr::new(ptr::null_mut()),
    #[cfg(target_arch = "aarch64")]
    signal_return: AtomicU64::new(u64::MAX),
};

/// Finds the vDSO functions on the first call. Not for use in a signal handler.
pub(crate) fn find_functions() {
    if FUNCTIONS.is_searched.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: `getauxval` has no precondition.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let Some(image) = copy_image(base) else { return };
    if let Some(offset) = find_symbol(&image, CLOCK_GETTIME_NAME) {
        FUNCTIONS.clock_gettime.store((base + offset) as *mut c_void, Ordering::Release);
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(offset) = find_symbol(&image, SIGNAL_RETURN_NAME) {
        FUNCTIONS.signal_return.store(base + offset, Ordering::Release);
    }
}

/// Returns the address that signal handlers return to; `u64::MAX` if unknown.
#[cfg(target_arch = "aarch64")]
pub(crate) fn signal_return() -> u64 {
    FUNCTIONS.signal_return.load(Ordering::Acquire)
}

/// Reads a clock in nanoseconds. `None` if the vDSO lacks the function. Safe in a signal handler.
pub(crate) fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let address = FUNCTIONS.clock_gettime.load(Ordering::Acquire);
    if address.is_null() {
        return None;
    }
    // SAFETY: the vDSO is never unmapped, and its function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, ClockGettime>(address) };
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is writable memory for a timespec.
    if unsafe { function(clock, time.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call above has succeeded and initialized `time`.
    let time = unsafe { time.assume_init() };
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Copies the vDSO. Its headers determine the size, because other mappings may follow it.
fn copy_image(base: u64) -> Option<Vec<u8>> {
    let read = |size| checked_read::copy(AddressRange::new(Address(base), size)?).ok();
    let first_page = if base == 0 { None } else { read(PAGE) }?;
    let end = segments(&first_page)?
        .filter(|segment| segment.p_type.get(LE) == PT_LOAD)
        .map(|segment| segment.p_offset.get(LE).saturating_add(segment.p_filesz.get(LE)))
        .max()?;
    read(end.clamp(PAGE, MAX_IMAGE_BYTES))
}

fn segments(image: &[u8]) -> Option<impl Iterator<Item = ProgramHeader>> {
    let header = elf::file_header(image)?;
    let headers = image.get(usize::try_from(header.e_phoff.get(LE)).ok()?..)?;
    Some(elf::structures(headers).take(header.e_phnum.get(LE).into()))
}

/// Returns the offset of a function in the image; `name` includes its NUL. Assumes that the string table follows the
/// symbol table, as in the output of all linkers.
fn find_symbol(image: &[u8], name: &[u8]) -> Option<u64> {
    let load = segments(image)?.find(|segment| segment.p_type.get(LE) == PT_LOAD)?;
    let dynamic = segments(image)?.filter(|segment| segment.p_type.get(LE) == PT_DYNAMIC).last()?;
    let bias = load.p_vaddr.get(LE).wrapping_sub(load.p_offset.get(LE));
    let table = image.get(usize::try_from(dynamic.p_offset.get(LE)).ok()?..)?;
    let table = table.get(..usize::try_from(dynamic.p_filesz.get(LE)).ok()?)?;
    let dynamic_value = |tag| {
        let dynamic_value =
            elf::structures::<Dynamic>(table).find(|dynamic_value| dynamic_value.d_tag.get(LE) == tag)?;
        usize::try_from(dynamic_value.d_val.get(LE).wrapping_sub(bias)).ok()
    };
    let (symbols, names) = (dynamic_value(DT_SYMTAB)?, dynamic_value(DT_STRTAB)?);
    let has_name = |symbol: &Symbol| {
        image.get(names.saturating_add(symbol.st_name.get(LE) as usize)..).is_some_and(|text| text.starts_with(name))
    };
    let symbol = elf::structures::<Symbol>(image.get(symbols..names)?).find(has_name)?;
    Some(symbol.st_value.get(LE).wrapping_sub(bias)).filter(|&offset| offset != 0 && offset < image.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_clock_is_the_kernels_clock() {
        find_functions();
        // SAFETY: `getauxval` has no precondition.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        let image = copy_image(base).unwrap();
        assert!(image.len() > 4000 && find_symbol(&image, CLOCK_GETTIME_NAME).is_some(), "{} bytes", image.len());
        assert_eq!(find_symbol(&image, b"__vdso_no_such_function\0"), None);
        for end in 0..image.len() / 16 {
            // Truncated images must yield nothing, or an offset in the image.
            assert!(
                find_symbol(&image[..end * 16], CLOCK_GETTIME_NAME).is_none_or(|offset| offset < image.len() as u64)
            );
        }
        let clock = |clock| read_clock(clock).unwrap();
        let (earlier, vdso_time, later) =
            (jitlisten::plumbing::monotonic(), clock(libc::CLOCK_MONOTONIC), jitlisten::plumbing::monotonic());
        assert!(earlier <= vdso_time && vdso_time <= later);
    }
}
