//! The records of a recording, one after the other, in a buffer of bounded size.

use std::io::{self, Read, Seek, SeekFrom};

use perf_format::{PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2};

use super::bytes::Bytes;
use super::compressed::Decompressor;
use super::record::{Break, Record, records_in};

const BUFFER: usize = 1 << 20;
/// A record's size has sixteen bits.
const LONGEST_RECORD: usize = 1 << 16;

/// How the reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the last record.
    Whole,
    /// In the middle of one, at this offset.
    CutOff(u64),
    /// At a record that cannot be one, at this offset.
    Damaged(u64),
    /// With the last record; some of the compressed records cannot be read.
    CompressedDamaged,
}

/// Calls `each` for every record in `range` of the file, those in compressed records included.
pub(super) fn for_each(
    file: &mut (impl Read + Seek),
    range: std::ops::Range<u64>,
    mut each: impl FnMut(Record<'_>),
) -> io::Result<End> {
    let mut decompressor = Decompressor::new();
    let end = for_each_in_file(file, range, |record| match record.kind {
        PERF_RECORD_COMPRESSED => decompressor.add(record.body, &mut each),
        PERF_RECORD_COMPRESSED2 => {
            let mut body = Bytes(record.body);
            let size = body.u64().and_then(|size| usize::try_from(size).ok());
            // Without the padding. A wrong size makes the stream a damaged one.
            decompressor.add(size.and_then(|size| body.take(size)).unwrap_or(body.0), &mut each);
        }
        _ => each(record),
    })?;
    let readable = decompressor.finish(&mut each);
    Ok(if end == End::Whole && !readable { End::CompressedDamaged } else { end })
}

fn for_each_in_file(
    file: &mut (impl Read + Seek),
    mut range: std::ops::Range<u64>,
    mut each: impl FnMut(Record<'_>),
) -> io::Result<End> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match records_until_a_stop(file, range.clone(), &mut buffer, &mut each)? {
            Stop::End(end) => return Ok(end),
            Stop::Skip(next) if next >= range.end => return Ok(End::Whole),
            Stop::Skip(next) => range.start = next,
        }
    }
}

/// Why the reading stopped: there is no more, or it goes on at an offset.
enum Stop {
    End(End),
    Skip(u64),
}

fn records_until_a_stop(
    file: &mut (impl Read + Seek),
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
    each: &mut impl FnMut(Record<'_>),
) -> io::Result<Stop> {
    file.seek(SeekFrom::Start(range.start))?;
    let mut input = file.take(range.end.saturating_sub(range.start));
    let (mut filled, mut offset) = (0, range.start);
    loop {
        let mut used = 0;
        loop {
            let (more, break_) = records_in(&buffer[used..filled], each);
            used += more;
            let at = offset.saturating_add(used as u64);
            match break_ {
                Some(Break::Damaged) => return Ok(Stop::End(End::Damaged(at))),
                // What is here already is not read again.
                Some(Break::Behind(count)) if count <= (filled - used) as u64 => used += count as usize,
                Some(Break::Behind(count)) => return Ok(Stop::Skip(at.saturating_add(count))),
                None => break,
            }
        }
        offset += used as u64;
        buffer.copy_within(used..filled, 0);
        filled -= used;
        debug_assert!(buffer.len() - filled >= LONGEST_RECORD);
        match input.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(Stop::End(if filled == 0 { End::Whole } else { End::CutOff(offset) })),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
