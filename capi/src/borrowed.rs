//! What callers point to, copied in a way that cannot crash: a wild pointer is an error, not a signal.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::io;
use std::mem::MaybeUninit;

use jitlisten::{Address, AddressRange, checked_read};

use crate::status::Failure;

/// A name or path longer than this is a mistake.
const LONGEST_TEXT: usize = 1 << 20;
const PAGE: u64 = 4096;

/// Plain C structures: integers and pointers, every bit pattern allowed.
///
/// # Safety
/// That has to be so.
pub(crate) unsafe trait Plain: Copy {}

/// A copy of the `count` structures at `start`; `what` is their name in words.
pub(crate) fn array<T: Plain>(start: *const T, count: usize, what: &str) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null or misaligned")));
    }
    let size = count.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok());
    let size = size.ok_or_else(|| Failure::argument(format_args!("{what}: {count} of them cannot be")))?;
    let range = range(start.cast(), size, what)?;
    // SAFETY: a `Plain` takes every bit pattern.
    unsafe { checked_read::copy_structs(range.start(), count) }.map_err(|error| unreadable(range, what, &error))
}

/// A copy of a structure that begins with its size: what an older caller does not know of is zero.
pub(crate) fn sized<T: Plain>(start: *const T, smallest: usize, what: &str) -> Result<T, Failure> {
    let size = array(start.cast::<Size>(), 1, what)?.first().map_or(0, |size| size.0);
    if size < smallest {
        return Err(Failure::argument(format_args!("{what}: its size says {size}, at least {smallest} is needed")));
    }
    let known = memory(start.cast(), size.min(size_of::<T>()), what)?;
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: at most the size of a T is copied, into a T.
    unsafe { known.as_ptr().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known.len()) };
    // SAFETY: it was zeroed, and a `Plain` takes every bit pattern.
    Ok(unsafe { value.assume_init() })
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Size(usize);
// SAFETY: an integer.
unsafe impl Plain for Size {}

/// A copy of `size` bytes.
pub(crate) fn memory(start: *const u8, size: usize, what: &str) -> Result<Vec<u8>, Failure> {
    let range = range(start, size, what)?;
    checked_read::copy(range).map_err(|error| unreadable(range, what, &error))
}

fn unreadable(range: AddressRange, what: &str, error: &io::Error) -> Failure {
    Failure::argument(format_args!("{what}: {range} cannot be read: {error}"))
}

/// A range of memory that is not copied.
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

/// C strings that were read already: many structures point to one.
#[derive(Default)]
pub(crate) struct Texts(BTreeMap<u64, Vec<u8>>);

impl Texts {
    /// Reads the string at `start`; nothing where it is null.
    pub(crate) fn read(&mut self, start: *const c_char, what: &str) -> Result<(), Failure> {
        if !start.is_null() && !self.0.contains_key(&(start as u64)) {
            self.0.insert(start as u64, text(start, what)?);
        }
        Ok(())
    }

    /// What was read there.
    pub(crate) fn get(&self, start: *const c_char) -> &[u8] {
        self.0.get(&(start as u64)).map_or(&[], Vec::as_slice)
    }
}

/// A copy of the C string at `start`, without its terminator.
pub(crate) fn text(start: *const c_char, what: &str) -> Result<Vec<u8>, Failure> {
    if start.is_null() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null")));
    }
    let mut text = Vec::new();
    let mut at = start as u64;
    while text.len() < LONGEST_TEXT {
        // What is behind the string may not be there: no read goes past the end of a page.
        let piece = memory(at as *const u8, (PAGE - at % PAGE).min(256) as usize, what)?;
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            text.extend(&piece[..end]);
            return Ok(text);
        }
        at += piece.len() as u64;
        text.extend(piece);
    }
    Err(Failure::argument(format_args!("{what}: no terminator within {LONGEST_TEXT} bytes")))
}

/// Whether a result can be written there.
pub(crate) fn check_output<T>(output: *mut T, what: &str) -> Result<(), Failure> {
    if output.is_null() || !output.is_aligned() {
        return Err(Failure::argument(format_args!("{what}: the pointer is null or misaligned")));
    }
    Ok(())
}
