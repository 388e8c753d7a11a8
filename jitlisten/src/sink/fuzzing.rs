//! Entry points for the fuzz targets under `fuzz/`, to encoders that are private otherwise. Behind the feature
//! `fuzzing`, and no part of the API.

#![allow(missing_docs)]
#![forbid(unsafe_code)]

pub use super::image::fuzzing::{Image, images};
use super::jitdump::{EhFrame, of_function};
use crate::{Address, AddressRange, LineRows};

pub fn range(start: u64, size: u64) -> Option<AddressRange> {
    AddressRange::new(Address(start), size)
}

/// What a jitdump says of one function: `.eh_frame` with `.eh_frame_hdr` behind it, the size of the latter, and
/// `mapped_size`.
pub fn unwind_tables(eh_frame: &[u8], place: AddressRange, function: AddressRange) -> Option<(Vec<u8>, u64, u64)> {
    let unwinding = EhFrame::new(eh_frame, place).of_function(function)?;
    Some((unwinding.data, unwinding.eh_frame_hdr_size, unwinding.mapped_size))
}

/// The rows of one function in a jitdump: address, line, file.
pub fn line_entries(rows: &LineRows, function: AddressRange) -> Vec<(u64, u32, String)> {
    let entries = of_function(rows, function).into_iter();
    entries.map(|entry| (entry.addr, entry.lineno, entry.name.to_owned())).collect()
}
