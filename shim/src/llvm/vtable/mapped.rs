//! Converts a mapped library into slices for `find.rs`.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{RELATIVE, Relocation};

use crate::llvm::vtable::find::{LibraryView, Segment};
use crate::llvm::vtable::unwind_tables;
use crate::process::library::Library;
use crate::process::segments;

/// Collects the parts of a library that are searched for vtables.
pub(super) fn view<'a>(library: &'a Library<'_>) -> LibraryView<'a> {
    let is_relocated = library.section.is_relocated();
    // The vtables of a program at a fixed address are among the constants.
    let is_fixed = library.identity.bias == 0;
    // Constants are searched only in a program at a fixed address.
    let constants = if is_fixed { constants(library) } else { read_only_segments(library) };
    let data = segments(library, |segment| segment.writable || is_fixed && !segment.executable);
    let data = match library.segments.relro_range() {
        Some(sealed) if !is_fixed => data.into_iter().filter_map(|segment| clip(segment, &sealed)).collect(),
        _ => data,
    };
    let code = library.segments.all().filter(|segment| segment.executable);
    let code = code.map(|segment| segment.address as u64..segment.address as u64 + segment.size as u64).collect();
    let bias = library.identity.bias as u64;
    let relocations = (!is_relocated).then(|| pending_relocations(library, &data));
    LibraryView { bias, constants, data, relocations, applied_relocations: library.section.relocations(), code }
}

/// Relocations that the loader has yet to apply to `data`, from `DT_RELA` and from the packed table (`DT_RELR`).
fn pending_relocations<'a>(library: &'a Library<'_>, data: &[Segment<'_>]) -> Cow<'a, [Relocation]> {
    let bias = library.identity.bias as u64;
    let packed = library.section.packed_relocations().filter_map(|offset| {
        let addend = data.iter().find_map(|segment| segment.word_at(bias.wrapping_add(offset as u64)))?;
        Some([offset as u64, RELATIVE, addend])
    });
    let packed: Vec<Relocation> = packed.collect();
    if packed.is_empty() {
        library.section.relocations().into()
    } else {
        [library.section.relocations(), &packed].concat().into()
    }
}

/// Minimum size of an exported object that is excluded from the search, because it must be a table of data. ICU's table
/// has 30 MB.
const MIN_LARGE_OBJECT_BYTES: usize = 1 << 20;

/// Constants that may contain type names or messages. Large objects, unwind tables and the loader's tables are
/// excluded, as is code, because hundreds of megabytes of it may not have been read from disk yet. If no segment is
/// both read-only and non-executable, everything is included, because `.rodata` may be next to code or in writable data
/// (programs with Swift code that gold has linked).
pub(crate) fn constants<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    let constants = match separate_constants(library) {
        constants if constants.is_empty() => segments(library, |_| true),
        constants => constants,
    };
    let mut tables: Vec<Range<usize>> = library.section.tables().collect();
    tables.extend(library.large_objects(MIN_LARGE_OBJECT_BYTES));
    if let Some(header) = library.segments.unwind_header() {
        let segment = constants.iter().find(|segment| segment.word_at(header.start as u64).is_some());
        tables.extend(segment.into_iter().flat_map(|segment| unwind_tables::ranges(segment, header.clone())));
    }
    tables.iter().fold(constants, exclude)
}

/// Segments that are neither writable nor executable.
pub(crate) fn separate_constants<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    segments(library, |segment| !segment.writable && !segment.executable)
}

/// Segments with constants: all segments that are neither writable nor executable. If there are none, all segments that
/// are not writable.
fn read_only_segments<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    match separate_constants(library) {
        constants if constants.is_empty() => segments(library, |segment| !segment.writable),
        constants => constants,
    }
}

fn exclude<'a>(segments: Vec<Segment<'a>>, range: &Range<usize>) -> Vec<Segment<'a>> {
    let pieces = |segment: Segment<'a>| {
        let Some(overlap) = clip(segment, range) else { return [Some(segment), None] };
        let before = segment.address as usize..overlap.address as usize;
        let end = overlap.address as usize + overlap.bytes.len();
        [clip(segment, &before), clip(segment, &(end..segment.address as usize + segment.bytes.len()))]
    };
    segments.into_iter().flat_map(pieces).flatten().collect()
}

/// Returns the part of a segment that is inside `range`.
fn clip<'a>(segment: Segment<'a>, range: &Range<usize>) -> Option<Segment<'a>> {
    let end = segment.address + segment.bytes.len() as u64;
    let (start, end_in_range) = (segment.address.max(range.start as u64), end.min(range.end as u64));
    let bytes = segment
        .bytes
        .get(start.checked_sub(segment.address)? as usize..end_in_range.checked_sub(segment.address)? as usize)?;
    (!bytes.is_empty()).then_some(Segment { address: start, bytes })
}

/// Readable segments that `is_wanted` accepts.
fn segments<'l>(library: &Library<'l>, is_wanted: impl Fn(&segments::Segment<'l>) -> bool) -> Vec<Segment<'l>> {
    let segments = library.segments.all().filter(is_wanted);
    segments.filter_map(|segment| Some(Segment { address: segment.address as u64, bytes: segment.bytes()? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_ranges_from_segments() {
        let bytes: Vec<u8> = (0..100).collect();
        let remaining = |ranges: &[Range<usize>]| {
            let segments =
                vec![Segment { address: 1000, bytes: &bytes[..50] }, Segment { address: 1050, bytes: &bytes[50..] }];
            let remaining = ranges.iter().fold(segments, exclude);
            remaining.iter().for_each(|segment| assert_eq!(u64::from(segment.bytes[0]) + 1000, segment.address));
            remaining.iter().map(|segment| (segment.address, segment.bytes.len())).collect::<Vec<_>>()
        };
        assert_eq!(remaining(&[]), [(1000, 50), (1050, 50)]);
        assert_eq!(remaining(&[10..20, 1000..1000, 1100..1200, 2000..usize::MAX]), [(1000, 50), (1050, 50)]);
        assert_eq!(remaining(&[1010..1020, 1040..1060]), [(1000, 10), (1020, 20), (1060, 40)]);
        assert_eq!(remaining(&[900..1001, 1099..usize::MAX]), [(1001, 49), (1050, 49)]);
        assert_eq!(remaining(&[0..1060, 1050..usize::MAX]), []);
    }
}
