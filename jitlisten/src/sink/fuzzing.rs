//! Fuzzing entry points for encoders that are otherwise private. The targets are in `fuzz/`. Requires the `fuzzing`
//! feature; not part of the API.

#![allow(missing_docs)]
pub use super::image::fuzzing::{Image, images};
use super::jitdump::{EhFrame, function_rows};
use crate::{Address, AddressRange, LineRows};

pub fn range(start: u64, size: u64) -> Option<AddressRange> {
    AddressRange::new(Address(start), size)
}

/// Encodes the unwind tables of one function as a jitdump stores them. Returns `.eh_frame` followed by `.eh_frame_hdr`,
/// the size of `.eh_frame_hdr`, and `mapped_size`.
pub fn unwind_tables(eh_frame: &[u8], place: AddressRange, function: AddressRange) -> Option<(Vec<u8>, u64, u64)> {
    let unwinding = EhFrame::new(eh_frame, place).function_tables(function)?;
    Some((unwinding.data, unwinding.eh_frame_hdr_size, unwinding.mapped_size))
}

/// Returns the jitdump line rows of one function: address, line, file.
pub fn line_entries(rows: &LineRows, function: AddressRange) -> Vec<(u64, u32, String)> {
    let entries = function_rows(rows, function).into_iter();
    entries.map(|entry| (entry.addr, entry.lineno, entry.name.to_owned())).collect()
}
