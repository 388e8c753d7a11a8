//! Arguments that point into the caller's memory: null and alignment are checked, then they are read as any C library
//! reads them.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use jitlisten::{Address, AddressRange};

use crate::status::Failure;

/// A name or path longer than this is a mistake.
const LONGEST_TEXT: usize = 1 << 20;
/// No structure that begins with its size will be larger.
const LARGEST: usize = 4096;

/// Plain C structures: integers and pointers, every bit pattern allowed.
///
/// # Safety
/// That has to be so.
pub(crate) unsafe trait Plain: Copy {}

/// The `count` structures at `start`; `what` is their name in words.
///
/// # Safety
/// So many must be there during the call, unless the pointer is null or misaligned.
pub(crate) unsafe fn array<'a, T: Plain>(start: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null or misaligned")));
    }
    let size = count.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok());
    let size = size.ok_or_else(|| Failure::argument(format_args!("{what}: {count} of them cannot be")))?;
    range(start.cast(), size, what)?;
    // SAFETY: aligned, not null, no larger than memory can be; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// A copy of a structure that begins with its size: what an older caller does not know of is zero, and so must be what
/// a newer one knows and this library does not.
///
/// # Safety
/// As many bytes as its first member says must be there, unless the pointer is null or misaligned.
pub(crate) unsafe fn sized<T: Plain>(start: *const T, smallest: usize, what: &str) -> Result<T, Failure> {
    // SAFETY: the caller vouches at least for the first member.
    let size = unsafe { array(start.cast::<Size>(), 1, what) }?.first().map_or(0, |size| size.0);
    if !(smallest..=LARGEST).contains(&size) {
        let words = format_args!("{what}: its size says {size}, which is not between {smallest} and {LARGEST}");
        return Err(Failure::argument(words));
    }
    // SAFETY: the caller vouches for the size.
    let (known, newer) = unsafe { memory(start.cast(), size, what) }?.split_at(size.min(size_of::<T>()));
    if newer.iter().any(|&byte| byte != 0) {
        return Err(Failure::argument(format_args!("{what}: a member is set that this version does not know")));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: at most the size of a T is copied, into a T.
    unsafe { known.as_ptr().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known.len()) };
    // SAFETY: it was zeroed, and a `Plain` takes every bit pattern.
    Ok(unsafe { value.assume_init() })
}

/// Refuses what a later version may give a meaning.
pub(crate) fn check_reserved(reserved: u32, what: &str) -> Result<(), Failure> {
    match reserved {
        0 => Ok(()),
        other => Err(Failure::argument(format_args!("{what}: reserved is {other} and has to be 0"))),
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Size(usize);
// SAFETY: an integer.
unsafe impl Plain for Size {}

/// `size` bytes.
///
/// # Safety
/// So many must be there during the call, unless the pointer is null.
pub(crate) unsafe fn memory<'a>(start: *const u8, size: usize, what: &str) -> Result<&'a [u8], Failure> {
    let range = range(start, size, what)?;
    if isize::try_from(size).is_err() {
        return Err(Failure::argument(format_args!("{what}: {range} is more than there can be")));
    }
    // SAFETY: not null, no larger than memory can be; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, size) })
}

/// A range of memory that is not read.
pub(crate) fn range(start: *const u8, size: usize, what: &str) -> Result<AddressRange, Failure> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null")));
    }
    address_range(start as u64, size as u64, what)
}

/// A range of addresses.
pub(crate) fn address_range(start: u64, size: u64, what: &str) -> Result<AddressRange, Failure> {
    AddressRange::new(Address(start), size)
        .ok_or_else(|| Failure::argument(format_args!("{what}: {size} bytes at {start:#x} leave the address space")))
}

/// The C string at `start`, without its terminator.
///
/// # Safety
/// There must be one during the call, unless the pointer is null.
pub(crate) unsafe fn text<'a>(start: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null")));
    }
    // SAFETY: not null; the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(start) }.to_bytes();
    if text.len() >= LONGEST_TEXT {
        return Err(Failure::argument(format_args!("{what}: no terminator within {LONGEST_TEXT} bytes")));
    }
    Ok(text)
}

/// The same; empty where it is null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_or_empty<'a>(start: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise.
    if start.is_null() { Ok(&[]) } else { unsafe { text(start, what) } }
}

/// Whether a result can be written there.
pub(crate) fn check_output<T>(output: *mut T, what: &str) -> Result<(), Failure> {
    if output.is_null() || !output.is_aligned() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null or misaligned")));
    }
    Ok(())
}
