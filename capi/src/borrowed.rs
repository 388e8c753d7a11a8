//! Arguments that point into the caller's memory. Null and misaligned pointers are refused; other pointers are trusted,
//! as in any C library.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use jitlisten::{Address, AddressRange};

use crate::status::Failure;

/// Maximum length of a name or path; a longer one is a caller's mistake.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Maximum size of a structure that begins with its size.
const MAX_STRUCT_BYTES: usize = 4096;

/// A plain C structure of integers and pointers: every bit pattern is valid.
///
/// # Safety
/// The type must consist of integers and raw pointers only.
pub(crate) unsafe trait Plain: Copy {}

/// Borrows `count` structures at `start`; `argument` names them in errors.
///
/// # Safety
/// `count` structures must be readable during the call, unless the pointer is null or misaligned.
pub(crate) unsafe fn read_array<'a, T: Plain>(
    start: *const T,
    count: usize,
    argument: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Failure::argument(format_args!("{argument}: the pointer is null or misaligned")));
    }
    let size = count.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok());
    let size = size.ok_or_else(|| Failure::argument(format_args!("{argument}: {count} of them cannot be")))?;
    check_range(start.cast(), size, argument)?;
    // SAFETY: the pointer is aligned and not null, the size is at most `isize::MAX` bytes, and the caller vouches for
    // the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// Copies a structure that begins with its size. Members that an older caller does not know are zero. Members that only
/// a newer caller knows must be zero.
///
/// # Safety
/// The number of bytes given by the first member must be readable, unless the pointer is null or misaligned.
pub(crate) unsafe fn copy_sized<T: Plain>(start: *const T, min_size: usize, argument: &str) -> Result<T, Failure> {
    // SAFETY: the caller vouches for at least the first member.
    let size = unsafe { read_array(start.cast::<SizeField>(), 1, argument) }?.first().map_or(0, |size| size.0);
    if !(min_size..=MAX_STRUCT_BYTES).contains(&size) {
        let message =
            format_args!("{argument}: its size says {size}, which is not between {min_size} and {MAX_STRUCT_BYTES}");
        return Err(Failure::argument(message));
    }
    // Such a size would end within a pointer.
    if !size.is_multiple_of(align_of::<T>()) {
        let message = format_args!("{argument}: its size says {size}, which is not a multiple of {}", align_of::<T>());
        return Err(Failure::argument(message));
    }
    // SAFETY: the caller vouches for the size.
    let (known_bytes, newer_bytes) =
        unsafe { read_bytes(start.cast(), size, argument) }?.split_at(size.min(size_of::<T>()));
    if newer_bytes.iter().any(|&byte| byte != 0) {
        return Err(Failure::argument(format_args!("{argument}: a member is set that this version does not know")));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: at most `size_of::<T>()` bytes are copied into a `T`.
    unsafe { known_bytes.as_ptr().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known_bytes.len()) };
    // SAFETY: the value was zeroed, and every bit pattern of a `Plain` type is valid.
    Ok(unsafe { value.assume_init() })
}

/// Refuses a nonzero reserved member, because a later version may give it a meaning.
pub(crate) fn check_reserved(reserved: u32, argument: &str) -> Result<(), Failure> {
    match reserved {
        0 => Ok(()),
        value => Err(Failure::argument(format_args!("{argument}: reserved is {value} and has to be 0"))),
    }
}

/// First member of a sized structure.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct SizeField(usize);
// SAFETY: the struct is a single integer.
unsafe impl Plain for SizeField {}

/// Borrows `size` bytes.
///
/// # Safety
/// `size` bytes must be readable during the call, unless the pointer is null.
pub(crate) unsafe fn read_bytes<'a>(start: *const u8, size: usize, argument: &str) -> Result<&'a [u8], Failure> {
    let range = check_range(start, size, argument)?;
    if isize::try_from(size).is_err() {
        return Err(Failure::argument(format_args!("{argument}: {range} is more than there can be")));
    }
    // SAFETY: the pointer is not null, the size is at most `isize::MAX` bytes, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, size) })
}

/// Checks a range of memory without reading it.
pub(crate) fn check_range(start: *const u8, size: usize, argument: &str) -> Result<AddressRange, Failure> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{argument}: the pointer is null")));
    }
    check_address_range(start as u64, size as u64, argument)
}

pub(crate) fn check_address_range(start: u64, size: u64, argument: &str) -> Result<AddressRange, Failure> {
    AddressRange::new(Address(start), size).ok_or_else(|| {
        Failure::argument(format_args!("{argument}: {size} bytes at {start:#x} leave the address space"))
    })
}

/// Borrows the C string at `start`, without its terminator.
///
/// # Safety
/// A C string must be readable during the call, unless the pointer is null.
pub(crate) unsafe fn read_text<'a>(start: *const c_char, argument: &str) -> Result<&'a [u8], Failure> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{argument}: the pointer is null")));
    }
    // SAFETY: the pointer is not null, and the caller guarantees a C string.
    let text = unsafe { CStr::from_ptr(start) }.to_bytes();
    if text.len() >= MAX_TEXT_BYTES {
        return Err(Failure::argument(format_args!("{argument}: no terminator within {MAX_TEXT_BYTES} bytes")));
    }
    Ok(text)
}

/// Borrows the C string at `start`; empty if the pointer is null.
///
/// # Safety
/// Same contract as [`read_text`].
pub(crate) unsafe fn read_text_or_empty<'a>(start: *const c_char, argument: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller guarantees a C string if the pointer is not null.
    if start.is_null() { Ok(&[]) } else { unsafe { read_text(start, argument) } }
}

/// Refuses an output pointer that is null or misaligned.
pub(crate) fn check_output<T>(output: *mut T, argument: &str) -> Result<(), Failure> {
    if output.is_null() || !output.is_aligned() {
        return Err(Failure::argument(format_args!("{argument}: the pointer is null or misaligned")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Options {
        size: usize,
        first: *const c_char,
        second: *const c_char,
    }
    // SAFETY: the struct consists of an integer and pointers.
    unsafe impl Plain for Options {}

    #[test]
    fn a_size_that_ends_within_a_member_is_refused() {
        let copy = |size| {
            let options = Options { size, first: c"first".as_ptr(), second: c"second".as_ptr() };
            // SAFETY: the structure is readable, and at least as large as its size says.
            unsafe { copy_sized(&raw const options, size_of::<usize>(), "options") }
        };
        assert!(copy(17).is_err() && copy(20).is_err());
        let older = copy(16).unwrap_or_else(|_| unreachable!("a caller that does not know the last member"));
        assert!(!older.first.is_null() && older.second.is_null());
    }
}
